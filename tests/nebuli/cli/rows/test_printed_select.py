"""A SELECT without a sink: where its rows go, how they are sorted and printed, and how it is explained."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nebuli.cli.rows.printed_select import explained, print_rows, with_sink
from nebuli.control.selected_rows import sort_indices
from placement import InvalidQuery, read_statement
from tests.nebuli.dataflow import oracle
from tests.placement.statements import odd_tables
from topology import ParquetSink, PrintSink, Topology, parse_topology

ORDERS = [
    ("t", "x DESC, k"),
    ("t", "x, k DESC"),
    ("t", "x NULLS FIRST, g DESC NULLS FIRST, n"),
    ("d", "ok DESC, f, day, k"),
    ("d", 's, ts DESC, "wind speed", f DESC'),
]
HERE, THERE = "127.0.0.1:27591", "127.0.0.1:27592"
ROWS = Path("rows.parquet")


def topology(physical: str = "type: CSV, path: t.csv") -> Topology:
    columns = "[{name: k, type: BIGINT}, {name: g, type: VARCHAR}]"
    return parse_topology(
        f"""
logical:
  - {{name: t, schema: {columns}}}
  - {{name: u, schema: {columns}}}
nodes:
  - {{address: "{THERE}", physical: [{{logical: u, type: CSV, path: u.csv}}]}}
  - {{address: "{HERE}", links: {{downstream: ["{THERE}"]}}, physical: [{{logical: t, {physical}}}]}}
"""
    )


def sinks(statement: str, model: Topology) -> dict[str, object]:
    """The sinks by their nodes."""
    found = with_sink(model, read_statement(statement, model), ROWS, stepped=False)
    return {node.address: sink for node in found.nodes for sink in node.sinks}


@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_rows_are_sorted_as_duckdb_sorts_them(name: str, order: str) -> None:
    """Rows that are equal by all keys may come in any order, so only the keys are compared."""
    rows = pa.Table.from_batches([odd_tables.tables(3, 60)[name]])
    columns = ", ".join(f'"{each}"' for each in rows.column_names)
    statement = f"SELECT {columns} FROM {name} ORDER BY {order}"
    ordering = read_statement(statement, odd_tables.TOPOLOGY).ordering
    assert ordering is not None
    keys = [rows.column_names[each.column] for each in ordering.keys]
    ours = oracle.query("FROM ours", {"ours": rows.take(sort_indices(rows, ordering)).select(keys)})[1]
    selected = ", ".join(f'"{each}"' for each in keys)
    theirs = oracle.query(f"SELECT {selected} FROM ({statement})", {name: rows})[1]
    assert [*map(str, ours)] == [*map(str, theirs)]


def test_rows_that_end_are_kept_in_a_file_at_the_first_node_that_they_reach() -> None:
    kept = ParquetSink(type="Parquet", name="standard output", path=str(ROWS), mode="final")
    assert sinks("SELECT k FROM t ORDER BY k", topology()) == {HERE: kept}
    assert sinks("SELECT t.k FROM t JOIN u USING (k)", topology()) == {THERE: kept}


def test_rows_without_an_end_are_printed_as_they_come() -> None:
    """Added ones alone if none is taken back."""
    endless = topology("type: Generator")
    appended = PrintSink(type="Print", name="standard output", mode="append", format="CSV")
    assert sinks("SELECT k FROM t WHERE k > 1", endless) == {HERE: appended}
    changes = appended.model_copy(update={"mode": "changes"})
    assert sinks("SELECT g, count(*) FROM t GROUP BY g", endless) == {HERE: changes}


def test_rows_without_an_end_have_no_order() -> None:
    with pytest.raises(InvalidQuery) as error:
        sinks("SELECT k FROM t ORDER BY k", topology("type: Generator"))
    message, _, caret = str(error.value).splitlines()
    assert message.startswith("1:26: ORDER BY and LIMIT require all rows, and t (a generator) may not end: ")
    assert caret == " " * 29 + "^"


def test_rows_are_printed_as_csv_without_what_they_are_sorted_by(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An empty text is told from a null, and quotes are doubled."""
    pq.write_table(
        pa.table({"g": ["", None, 'a"b,c', "é"], "order 1": [3, 1, 2, 4]}), tmp_path / "rows.parquet"
    )
    ordering = read_statement("SELECT g FROM t ORDER BY k + 0 LIMIT 3", topology()).ordering
    assert ordering is not None
    print_rows(tmp_path / "rows.parquet", ordering)
    assert capfdbinary.readouterr().out.decode() == '"g"\n\n"a""b,c"\n""\n'


@pytest.mark.parametrize("stepped", [False, True])
def test_explained_each_operator_has_its_sql(stepped: bool) -> None:
    model = topology()
    statement = read_statement("EXPLAIN SELECT t.g FROM t JOIN u USING (k) WHERE u.g > 'a'", model)
    shown = explained(model, statement, 0, "bottom-up", None, stepped=stepped)
    for sql in (
        "SELECT * FROM t",
        "SELECT * FROM u WHERE g > 'a'",
        "SELECT * FROM t JOIN side USING (k)",
        'INSERT INTO "standard output" SELECT * FROM "select"',
    ):
        assert any(line.rstrip().endswith(sql) for line in shown.splitlines()), (sql, shown)
    assert stepped or "lowest common ancestor of t and side" in shown
