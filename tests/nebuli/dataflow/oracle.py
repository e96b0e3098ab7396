"""DuckDB as the reference: the same expression or query over the same rows.

Timestamps go to it without their zone: its TIMESTAMP and our instant in UTC have the same fields and order.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from topology import DataType

TYPES = {
    "BOOLEAN": DataType.BOOL,
    "TINYINT": DataType.INT8,
    "SMALLINT": DataType.INT16,
    "INTEGER": DataType.INT32,
    "BIGINT": DataType.INT64,
    "UTINYINT": DataType.UINT8,
    "USMALLINT": DataType.UINT16,
    "UINTEGER": DataType.UINT32,
    "UBIGINT": DataType.UINT64,
    "FLOAT": DataType.FLOAT32,
    "DOUBLE": DataType.FLOAT64,
    "VARCHAR": DataType.STRING,
    "DATE": DataType.DATE,
    "TIMESTAMP": DataType.TIMESTAMP,
}


def query(
    sql: str, tables: Mapping[str, pa.Table | pa.RecordBatch]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The types and the rows of a query; raises ``duckdb.Error``."""
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, _without_zone(table))
    result = connection.execute(sql)
    return [str(column[1]) for column in result.description], result.fetchall()


def named(
    sql: str, tables: Mapping[str, pa.Table | pa.RecordBatch]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of the columns, and the rows of a query; raises ``duckdb.Error``."""
    rows = query(sql, tables)[1]
    return [str(column[0]) for column in _connection().description], rows


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("PRAGMA disable_optimizer")  # it may drop the error of what it simplifies
    connection.execute("SET threads = 1")
    return connection


def plain(value: Any) -> Any:
    """A value of ours as DuckDB gives it."""
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def close(ours: Any, theirs: Any, relative: float = 1e-9) -> bool:
    """Whether two values are equal, floats nearly; NaN equals NaN."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return (math.isnan(ours) and math.isnan(theirs)) or math.isclose(ours, theirs, rel_tol=relative)
    return type(ours) is type(theirs) and bool(ours == theirs)


def multiset(rows: Iterable[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Rows with their numbers, comparable: NaN equals NaN, -0.0 equals 0.0, sums are cut to 12 digits."""
    return Counter(tuple(map(_comparable, row)) for row in rows)


def _comparable(value: Any) -> Any:
    if not isinstance(value, float):
        return plain(value)
    return "NaN" if math.isnan(value) else float(f"{value + 0.0:.12g}")


def _without_zone(table: pa.Table | pa.RecordBatch) -> pa.Table:
    columns = [
        column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.schema.names)
