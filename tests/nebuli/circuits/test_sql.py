"""SQL in the process of a coordinator: it reads the tables that it is given, and nothing else in the world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.circuits import sql as module
from nebuli.circuits.errors import QueryTimedOut, QueryTooLarge, WrongQuery
from nebuli.circuits.sql import Sql

TABLES = {"t": ["a", "b", "c"], "U u": ["a", "d"]}
ROWS = {"t": pa.table({"a": [1, 2], "b": ["x", "y"], "c": [0.5, None]})}


@pytest.fixture(scope="module")
def database() -> Iterator[Sql]:
    found = Sql()
    yield found
    found.close()


def run(database: Sql, sql: str, within_s: float = 20.0) -> pa.Table:
    reads = database.reads(sql, TABLES)
    return database.run(sql, {name: ROWS[name] for name in reads.columns}, TABLES, within_s)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) FROM t", {"t": ()}),
        ("SELECT B FROM T", {"t": ("b",)}),
        ("SELECT sum(a) FROM t WHERE c > 0 GROUP BY b", {"t": ("a", "b", "c")}),
        ('SELECT x.b FROM t x JOIN "U u" USING (a)', {"t": ("a", "b"), "U u": ("a",)}),
        ("WITH t AS (SELECT 1 AS q) SELECT q FROM t", {"t": ()}),
        ("SELECT 1 + 1", {}),
        # where it is not known which columns are read, all are
        ("SELECT * FROM t", {"t": ("a", "b", "c")}),
        ("FROM t", {"t": ("a", "b", "c")}),
        ("SELECT t FROM t", {"t": ("a", "b", "c")}),
        ("SELECT x FROM t x", {"t": ("a", "b", "c")}),
        ("SELECT #2 FROM t", {"t": ("a", "b", "c")}),
        ("SELECT q FROM t AS x(p, q)", {"t": ("a", "b", "c")}),
        ("SELECT COLUMNS('.') FROM t", {"t": ("a", "b", "c")}),
        ('SELECT t.a FROM t NATURAL JOIN "U u"', {"t": ("a", "b", "c"), "U u": ("a", "d")}),
        ("DESCRIBE t", {"t": ("a", "b", "c")}),
        ("SELECT max(v) FROM (FROM t UNPIVOT (v FOR n IN (a)))", {"t": ("a", "b", "c")}),
    ],
)
def test_only_what_is_named_is_read(database: Sql, sql: str, expected: dict[str, tuple[str, ...]]) -> None:
    """Columns that cannot matter stay where they are."""
    assert database.reads(sql, TABLES).columns == expected


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "CREATE TABLE x (a INT)",
        "COPY t TO 'FILE'",
        "ATTACH 'FILE'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "RESET memory_limit",
        "PRAGMA version",
        "CALL pragma_version()",
        "EXPORT DATABASE 'FILE'",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT 1; SELECT 2",
        "",
        "SELECT * FROM read_text('FILE')",
        "SELECT * FROM read_csv('FILE')",
        "SELECT * FROM 'FILE'",
        'SELECT * FROM "FILE"',
        "SELECT * FROM glob('*')",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM json_execute_serialized_sql('{}')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM enable_logging()",
        "SELECT (SELECT max(content) FROM read_text('FILE'))",
        "WITH x AS (SELECT * FROM read_blob('FILE')) SELECT 1",
        "SELECT * FROM ROWS",  # a variable of this module
        "SELECT * FROM database",
        "SELECT nextval('s')",
    ],
)
def test_nothing_but_reading_its_tables_is_done(database: Sql, sql: str, tmp_path: Path) -> None:
    """Whatever DuckDB can do beside."""
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n", "utf-8")
    with pytest.raises(WrongQuery):
        run(database, sql.replace("FILE", str(file)))
    assert file.read_text("utf-8") == "a\n1\n"
    assert list(tmp_path.iterdir()) == [file]


def test_duckdb_itself_is_closed(database: Sql, tmp_path: Path) -> None:
    """Also where a statement came as far as that: the list of functions is not the only guard."""
    file = tmp_path / "secret.txt"
    file.write_text("secret", "utf-8")
    for sql in (
        f"SELECT * FROM read_text('{file}')",
        f"COPY (SELECT 1) TO '{file}'",
        "SET lock_configuration=false",
    ):
        with pytest.raises(WrongQuery, match=r"Permission Error|locked"):
            database.run(sql, {}, [], 5.0)
    assert file.read_text("utf-8") == "secret"


def test_a_deadline_ends_it(database: Sql) -> None:
    """It would take days."""
    with pytest.raises(QueryTimedOut, match=r"deadline of 0\.3 s"):
        run(
            database,
            "SELECT count(*) FROM range(1e12::BIGINT) a, range(1000) b WHERE a.range % 7 = b.range",
            0.3,
        )
    assert run(database, "SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_what_it_holds_and_gives_is_bounded(database: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one is answered."""
    with pytest.raises(QueryTooLarge, match="select less"):
        run(database, "SELECT list(range) FROM range(1000000000)")
    monkeypatch.setattr(module, "RESULT_BYTES", 10_000)
    with pytest.raises(QueryTooLarge, match="more than 10000 bytes"):
        run(database, "SELECT * FROM range(1000000)")
    with pytest.raises(WrongQuery, match="bytes, and the limit is 65536"):
        run(database, f"SELECT '{'x' * 70_000}'")
    assert run(database, "SELECT a FROM t ORDER BY a").to_pylist() == [{"a": 1}, {"a": 2}]
