"""DuckDB's answers from the same events, and comparison of a result with them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from .events import STREAMS
from .files import statement


def differences(folder: Path, name: str, result: Path) -> tuple[int, int]:
    """How many rows a query's result in a Parquet file has, and in how many it differs from DuckDB's.

    Rows count as often as they are there, their order does not; averages are compared to nine digits.
    """
    with _connected(folder) as db:
        db.sql(f"CREATE VIEW theirs AS {statement(name)}")
        columns = db.sql("SELECT column_name, column_type FROM (DESCRIBE theirs)").fetchall()
        shown = ", ".join(f"{_compared(column, type_)} AS {column}" for column, type_ in columns)
        db.sql(f"CREATE TABLE expected AS SELECT {shown} FROM theirs")
        db.sql(f"CREATE TABLE found AS SELECT {shown} FROM '{result}'")
        (rows,) = _row(db.sql("SELECT count(*) FROM found"))
        (more,) = _row(db.sql("SELECT count(*) FROM (FROM found EXCEPT ALL FROM expected)"))
        (less,) = _row(db.sql("SELECT count(*) FROM (FROM expected EXCEPT ALL FROM found)"))
    return rows, more + less


def answer(folder: Path, name: str) -> pa.Table:
    """DuckDB's result."""
    with _connected(folder) as db:
        return db.sql(statement(name)).to_arrow_table()


def _connected(folder: Path) -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    db.sql("SET TimeZone = 'UTC'")
    for name in STREAMS:
        path = folder / f"{name}.parquet"
        if path.is_file():
            db.sql(f"CREATE VIEW {name} AS FROM '{path}'")
    return db


def _compared(column: str, type_: str) -> str:
    return f"printf('%.8e', {column})" if type_ == "DOUBLE" else column


def _row(relation: duckdb.DuckDBPyRelation) -> tuple[int, ...]:
    (row,) = relation.fetchall()
    return tuple(row)
