"""The order in which rows of views are shown: they are kept in none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["in_order"]


def in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows by their columns, the first one first; nulls behind all values."""
    if rows.num_rows < 2:
        return rows
    return rows.sort_by([(name, "ascending") for name in rows.schema.names])
