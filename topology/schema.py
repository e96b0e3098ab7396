"""Columns and their types, as the topology and the planner name them.

The planner knows types by name only; ``nebuli.dataflow`` maps them to Arrow. Every column may hold nulls.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


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


class Column(BaseModel):
    """One column of a schema."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    type: DataType


Schema = tuple[Column, ...]
"""The columns of a stream, in order; names are unique."""
