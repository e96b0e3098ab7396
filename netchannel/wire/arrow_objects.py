"""Objects of other libraries as record batches, by Arrow's PyCapsule interface."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def is_arrow(value: object) -> bool:
    """True if it gives rows by the interface: tables of pyarrow, polars, pandas, DuckDB and others do."""
    return hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__")


def one_batch(value: Any) -> pa.RecordBatch:
    """All rows of an object with the interface, as one batch; a lazy one is computed.

    Raises pyarrow.ArrowException or TypeError for one that has no rows of columns, or more than a batch can have.
    """
    if hasattr(value, "__arrow_c_array__"):
        return pa.record_batch(value)
    table = pa.table(value).combine_chunks()
    batches = table.to_batches()
    if not batches:
        return pa.record_batch([pa.nulls(0, field.type) for field in table.schema], schema=table.schema)
    if len(batches) > 1:  # columns of strings that are longer than their offsets can express
        raise pa.ArrowInvalid(f"its {table.num_rows:,} rows are too many for one batch: send them in parts")
    return batches[0]
