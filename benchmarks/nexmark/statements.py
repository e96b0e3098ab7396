"""``python -m benchmarks.nexmark.statements [--query q0 ...] [--events 10000000] [--rounds 3] [--json FILE]``.

Nexmark's statements over Parquet files, compared with DuckDB with one thread and with the query files of the same
queries. All write a Parquet file. The seconds of a command are without its start: those of the same command over few
events. Each result is compared with DuckDB's, row by row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import duckdb

from benchmarks.machine import commit, machine
from examples.nexmark import answers, files, ways

QUERIES = ("q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8")
_FEW = 1_000
_FORMS = ("sql", "-e", "json")


class Row(NamedTuple):
    """Seconds of one query, without the start of commands, and how long these take to start."""

    query: str
    seconds: dict[str, float]
    starts: dict[str, float]
    duckdb_s: float

    @property
    def of_duckdb(self) -> float:
        """How many times as fast as DuckDB the statement is."""
        return self.duckdb_s / self.seconds["sql"]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.statements", description=__doc__)
    parser.add_argument("--query", choices=QUERIES, action="append", help="all of them")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where the figures go as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
        many, few = Path(folder) / "many", Path(folder) / "few"
        for place, events in ((many, given.events), (few, _FEW)):
            place.mkdir()
            files.write(place, events)
        rows = [_measured(query, many, few, given.rounds) for query in given.query or QUERIES]
    print(table(rows))
    if given.json:
        measured = [row._asdict() | {"of_duckdb": row.of_duckdb} for row in rows]
        data = {"command": " ".join(["python -m benchmarks.nexmark.statements", *sys.argv[1:]])}
        data |= {"commit": commit(), "events": given.events, "machine": machine(), "statements": measured}
        given.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def _measured(query: str, many: Path, few: Path, rounds: int) -> Row:
    """Rounds take turns, so that what the machine does besides meets all forms."""
    taken: dict[str, list[float]] = {form: [] for form in _FORMS}
    starts: dict[str, list[float]] = {form: [] for form in _FORMS}
    of_duckdb = []
    for _ in range(rounds):
        for form in _FORMS:
            starts[form].append(_run(query, form, few))
            taken[form].append(_run(query, form, many))
        of_duckdb.append(_in_duckdb(query, many))
    begun = {form: median(each) for form, each in starts.items()}
    return Row(
        query, {form: median(each) - begun[form] for form, each in taken.items()}, begun, median(of_duckdb)
    )


def _run(query: str, form: str, folder: Path) -> float:
    """Seconds from the start of a command to its end. Raises ValueError for another result than DuckDB's."""
    statement = files.runnable(query)
    asked = {
        "sql": [str(statement)],
        "-e": ["-e", statement.read_text("utf-8")],
        "json": [str(files.query(query))],
    }[form]
    topology = ways.at_free_ports(folder / files.ONE_NODE)
    begin = time.perf_counter()
    subprocess.run([str(ways.NEBULI), "run", str(topology), *asked], check=True, capture_output=True)
    taken = time.perf_counter() - begin
    result = folder / f"{query}.parquet"
    _, wrong = answers.differences(folder, query, result)
    if wrong:
        raise ValueError(f"{query} ({form}): {wrong} rows differ from DuckDB's")
    result.unlink()
    return taken


def _in_duckdb(query: str, folder: Path) -> float:
    """Seconds of DuckDB with one thread, from Parquet files into one."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for stream in ("person", "auction", "bid"):
            connection.execute(f"CREATE VIEW {stream} AS FROM read_parquet('{folder / stream}.parquet')")
        begin = time.perf_counter()
        connection.execute(f"COPY ({_bare(query)}) TO '{folder}/duckdb.parquet' (FORMAT parquet)")
        return time.perf_counter() - begin


def _bare(query: str) -> str:
    return files.statement(query).strip().rstrip(";")


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| query | statement, s | query file, s | DuckDB, s | of DuckDB | start of -e, s | start of a query file, s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.query} | {row.seconds['sql']:.2f} | {row.seconds['json']:.2f} | {row.duckdb_s:.2f} | "
        f"{row.of_duckdb:.2f} x | {row.starts['-e']:.2f} | {row.starts['json']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
