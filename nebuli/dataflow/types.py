"""The planner's column types as Arrow types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from topology.schema import DataType

if TYPE_CHECKING:
    from topology.schema import Schema

_ARROW = {
    DataType.BOOL: pa.bool_(),
    DataType.INT8: pa.int8(),
    DataType.INT16: pa.int16(),
    DataType.INT32: pa.int32(),
    DataType.INT64: pa.int64(),
    DataType.UINT8: pa.uint8(),
    DataType.UINT16: pa.uint16(),
    DataType.UINT32: pa.uint32(),
    DataType.UINT64: pa.uint64(),
    DataType.FLOAT32: pa.float32(),
    DataType.FLOAT64: pa.float64(),
    DataType.STRING: pa.string(),
    DataType.BINARY: pa.binary(),
    DataType.DATE: pa.date32(),
    DataType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def arrow_type(type_: DataType) -> pa.DataType:
    """The Arrow type that holds a column of ``type_``."""
    return _ARROW[type_]


_NAMES = {arrow: str(type_) for type_, arrow in _ARROW.items()}


def type_name(type_: pa.DataType) -> str:
    """A planner's name of an Arrow type, or Arrow's own where it has none."""
    return _NAMES.get(type_, str(type_))


def arrow_schema(columns: Schema) -> pa.Schema:
    """The Arrow schema of ``columns``, without a weight."""
    return pa.schema([pa.field(column.name, _ARROW[column.type]) for column in columns])
