"""Columns and their types, as the topology and the planner name them.

The planner knows types by name only; ``nebuli.dataflow`` maps them to Arrow. Every column may hold nulls.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema


class DataType(StrEnum):
    """The type of a column. ``timestamp`` is an instant in microseconds UTC, ``date`` counts days."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"


SQL_NAMES = {
    "bool": DataType.BOOL,
    "boolean": DataType.BOOL,
    "tinyint": DataType.INT8,
    "smallint": DataType.INT16,
    "int": DataType.INT32,
    "integer": DataType.INT32,
    "bigint": DataType.INT64,
    "utinyint": DataType.UINT8,
    "usmallint": DataType.UINT16,
    "uint": DataType.UINT32,
    "uinteger": DataType.UINT32,
    "ubigint": DataType.UINT64,
    "real": DataType.FLOAT32,
    "float": DataType.FLOAT32,
    "double": DataType.FLOAT64,
    "double precision": DataType.FLOAT64,
    "text": DataType.STRING,
    "varchar": DataType.STRING,
    "string": DataType.STRING,
    "binary": DataType.BINARY,
    "blob": DataType.BINARY,
    "date": DataType.DATE,
    "timestamp": DataType.TIMESTAMP,
    "timestamptz": DataType.TIMESTAMP,
    "timestamp with time zone": DataType.TIMESTAMP,
}
"""DuckDB's names of the types, in any case; not its int8, which has eight bytes."""
_OF_TYPES = {type_: name.upper() for name, type_ in reversed(SQL_NAMES.items())} | {
    DataType.INT32: "INTEGER",
    DataType.UINT32: "UINTEGER",
    DataType.FLOAT32: "FLOAT",
    DataType.STRING: "VARCHAR",
    DataType.BINARY: "BLOB",
    DataType.BOOL: "BOOLEAN",
}
_DECIMAL = re.compile(r"(decimal|numeric)\b.*", re.IGNORECASE)


def sql_name(type_: DataType) -> str:
    """DuckDB's name of a type, as it prints it."""
    return _OF_TYPES[type_]


def type_named(name: object) -> object:
    """The type that SQL calls so; other names as they are. Raises ValueError for one that is not supported yet."""
    if not isinstance(name, str) or isinstance(name, DataType):
        return name
    if _DECIMAL.fullmatch(name.strip()):
        raise ValueError(
            f"{name!r} is not supported yet: use int64 in the smallest unit, such as cents, or float64"
        )
    return SQL_NAMES.get(" ".join(name.lower().split()), name)


class Column(BaseModel):
    """One column of a schema."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    type: Annotated[
        DataType,
        BeforeValidator(type_named),
        WithJsonSchema({"enum": [*dict.fromkeys([*map(str, DataType), *SQL_NAMES])], "type": "string"}),
    ]


Schema = tuple[Column, ...]
"""The columns of a stream, in order; names are unique."""
