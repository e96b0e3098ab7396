"""Nexmark's queries in DuckDB, in mini-batches: ``python on_duckdb.py QUERY FOLDER RESULT STATE``.

The files of the streams come one of each at a time, into tables of a database that is on disk. Behind each of them
what is new is answered where a statement can say it: the batch's rows (q1), windows that have ended (q5, q8). Where it
cannot (q3, q4) the whole answer is made anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

from examples.nexmark.files import statement

STREAMS = {
    "q1": ("bid",),
    "q3": ("auction", "person"),
    "q4": ("auction", "bid"),
    "q5": ("bid",),
    "q8": ("auction", "person"),
}
WINDOW, HOP = 10, 2
IN_WINDOWS = {"q5": HOP, "q8": WINDOW}
"""Seconds from one window to the next."""


def main(query: str, folder: str, result: str, state: str) -> None:
    """Take batch after batch, and write what is in the result at the end."""
    db = duckdb.connect(str(Path(state) / "nexmark.db"))
    db.sql("SET TimeZone = 'UTC'")
    db.sql("SET threads = 2")
    batches = sorted((Path(folder) / STREAMS[query][0]).glob("*.parquet"))
    for number, batch in enumerate(batches):
        names = {stream: Path(folder) / stream / batch.name for stream in STREAMS[query]}
        db.sql("BEGIN")
        for stream, path in names.items():
            _take(db, stream, path, anew=number == 0 or query == "q1")
        _answer(db, query, is_last=number == len(batches) - 1)
        db.sql("COMMIT")
    db.sql(f"COPY result TO '{result}' (FORMAT parquet)")


def _take(db: duckdb.DuckDBPyConnection, stream: str, path: Path, *, anew: bool) -> None:
    if anew:
        db.sql(f"CREATE OR REPLACE TABLE {stream} AS FROM '{path}'")
    else:
        db.sql(f"INSERT INTO {stream} FROM '{path}'")


def _answer(db: duckdb.DuckDBPyConnection, query: str, *, is_last: bool) -> None:
    answer = statement(query)
    if query not in IN_WINDOWS:
        kept = query == "q1" and _has_result(db)
        db.sql(f"INSERT INTO result {answer}" if kept else f"CREATE OR REPLACE TABLE result AS {answer}")
        return
    if not _has_result(db):
        db.sql(f"CREATE TABLE result AS FROM ({answer}) LIMIT 0")
    # Windows that no later row falls into are given, and rows go that no later window has.
    (ended,) = db.sql(f"SELECT max(date_time) FROM {STREAMS[query][0]}").fetchall()[0]
    until = "" if is_last else f"WHERE window_start + INTERVAL {WINDOW} SECONDS <= TIMESTAMPTZ '{ended}'"
    db.sql(f"CREATE TEMP TABLE found AS FROM ({answer}) {until}")
    db.sql("INSERT INTO result FROM found ANTI JOIN result USING (window_start)")
    db.sql("DROP TABLE found")
    for stream in STREAMS[query]:
        last = "(SELECT max(window_start) FROM result)"
        db.sql(f"DELETE FROM {stream} WHERE date_time < {last} + INTERVAL {IN_WINDOWS[query]} SECONDS")


def _has_result(db: duckdb.DuckDBPyConnection) -> bool:
    return bool(db.sql("SELECT 1 FROM duckdb_tables() WHERE table_name = 'result'").fetchall())


if __name__ == "__main__":
    main(*sys.argv[1:])
