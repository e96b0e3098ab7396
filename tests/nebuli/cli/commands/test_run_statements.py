"""``nebuli run`` with statements: given by -e, from a file and on standard input; rows of a SELECT are printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pytest

from tests.support.commands import nebuli
from tests.support.ports import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TABLES = {
    "sales": {
        "shop": ["Altstadt", "Altstadt", "Nord", 'Süd, "1"', "Dom"],
        "hour": [9, 9, 10, 9, 11],
        "amount": [3.5, 4.0, None, 6.0, 1.0],
    },
    "shops": {"name": ["Altstadt", "Nord", 'Süd, "1"', "Dom"], "city": ["Aachen", "Aachen", "Cologne", ""]},
}
STATEMENT = (
    "SELECT city, hour, count(*), sum(amount) AS s FROM sales JOIN shops ON Shop = Name WHERE hour < 11 "
    "GROUP BY city, hour ORDER BY s DESC, 1, 2 LIMIT 2"
)


def written(directory: Path, physical: str = "type: CSV, path: sales.csv") -> Path:
    """The topology, beside its files."""
    here, there = free_addresses(2)
    for name, columns in TABLES.items():
        pa.csv.write_csv(pa.table(columns), directory / f"{name}.csv")
    file = directory / "topology.yaml"
    file.write_text(
        f"""
logical:
  - name: sales
    schema: [{{name: shop, type: VARCHAR}}, {{name: hour, type: BIGINT}}, {{name: amount, type: DOUBLE}}]
  - {{name: shops, schema: [{{name: name, type: VARCHAR}}, {{name: city, type: VARCHAR}}]}}
nodes:
  - {{address: "{here}", links: {{downstream: ["{there}"]}}, physical: [{{logical: sales, {physical}}}]}}
  - {{address: "{there}", physical: [{{logical: shops, type: CSV, path: shops.csv}}],
      sinks: [{{name: cities, type: CSV, path: cities.csv, mode: final}}]}}
""",
        "utf-8",
    )
    return file


def answer(directory: Path, statement: str = STATEMENT) -> tuple[list[str], list[tuple[Any, ...]]]:
    """DuckDB's, of the same files."""
    with duckdb.connect() as connection:
        for name in ("sales", "shops"):
            connection.execute(
                f"CREATE TABLE {name} AS FROM read_csv('{directory / name}.csv', header = true)"
            )
        found = connection.execute(statement)
        return [each[0] for each in found.description], found.fetchall()


def printed(text: str, directory: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """What was printed as CSV, read by DuckDB."""
    file = directory / "printed.csv"
    file.write_text(text, "utf-8")
    with duckdb.connect() as connection:
        found = connection.execute(f"FROM read_csv('{file}', header = true)")
        return [each[0] for each in found.description], found.fetchall()


@pytest.mark.parametrize("stepped", [False, True])
def test_the_rows_of_a_select_are_printed_as_csv(tmp_path: Path, stepped: bool) -> None:
    options = ["--stepped", "--members", "2", "--state", str(tmp_path / "state")] if stepped else []
    ended = nebuli("run", *options, str(written(tmp_path)), "-e", STATEMENT, directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert printed(ended.stdout, tmp_path) == answer(tmp_path)


@pytest.mark.parametrize("way", ["-e", "file", "-"])
def test_a_statement_is_given_in_three_ways(tmp_path: Path, way: str) -> None:
    """With a mark of byte order, comments and a semicolon at its end, as editors leave them."""
    topology = str(written(tmp_path))
    text = f"\ufeff-- sales by city\nINSERT INTO Cities\n/* all */ {STATEMENT.partition(' ORDER')[0]};\n-- the end\n"
    (tmp_path / "query.sql").write_text(text, "utf-8")
    given = {"-e": ["-e", text], "file": [str(tmp_path / "query.sql")], "-": ["-"]}[way]
    command = [sys.executable, "-m", "nebuli", "run", topology, *given]
    ended = subprocess.run(
        command, input=text if way == "-" else "", capture_output=True, encoding="utf-8", check=False
    )
    assert ended.returncode == 0, ended.stderr
    names, rows = printed((tmp_path / "cities.csv").read_text("utf-8"), tmp_path)
    wanted = answer(tmp_path, STATEMENT.partition(" ORDER")[0])
    assert (names, sorted(rows, key=str)) == (wanted[0], sorted(wanted[1], key=str))


def test_rows_of_a_source_without_an_end_are_printed_as_they_come(tmp_path: Path) -> None:
    """Of which each group changes: what was added and what was taken back."""
    topology = written(tmp_path, "type: Generator, rows_per_s: 1000")
    statement = "SELECT hour % 2 AS odd, count(*) AS n FROM sales GROUP BY odd"
    command = [sys.executable, "-m", "nebuli", "run", str(topology), "-e", statement]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(9)]
        process.terminate()
    assert lines[0] == '"odd","n","_weight"\n'
    assert {each.rpartition(",")[2] for each in lines[1:]} == {"1\n", "-1\n"}


@pytest.mark.parametrize(
    ("output", "printed_rows", "said"),
    [
        ("| head -n 1", '"shop","hour","amount"\n', "done"),  # no error: the reader has all that it wants
        (">&-", "", "Error: standard output cannot be written: Bad file descriptor"),
        (
            ">/dev/full",
            "",
            "Error: standard output cannot be written: No space left on device; free some space",
        ),
    ],
)
def test_rows_that_are_not_taken_end_the_command_in_one_line(
    tmp_path: Path, output: str, printed_rows: str, said: str
) -> None:
    topology = written(tmp_path)
    with (tmp_path / "sales.csv").open("a", encoding="utf-8") as sales:
        sales.write("Dom,11,1.0\n" * 50_000)  # more than a pipe holds
    command = shlex.join([sys.executable, "-m", "nebuli", "run", str(topology), "-e", "SELECT * FROM sales"])
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} {output}"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, printed_rows)
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].endswith(said)
