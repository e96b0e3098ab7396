"""Batches and schemas as bytes, as they go between a circuit and its producers and readers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nebuli.circuits.errors import WrongRows

WEIGHT = "_weight"
"""The last column of a Z-set: how often a row is there more, or, below zero, less."""
_WEIGHT_FIELD = pa.field(WEIGHT, pa.int64())


def encoded(batch: pa.RecordBatch) -> bytes:
    """An IPC stream of the batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def table_bytes(rows: pa.Table) -> bytes:
    """An IPC stream of all rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decoded(data: bytes) -> pa.RecordBatch:
    """The batch in these bytes, of which nothing is believed. Raises WrongRows."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, StopIteration, ValueError) as error:
        raise WrongRows(f"{len(data)} bytes are not an Arrow IPC stream of a batch: {error}") from error
    return batch


def decoded_all(data: bytes) -> pa.RecordBatch:
    """All batches in these bytes as one, as `decoded`. Raises WrongRows."""
    try:
        with pa.ipc.open_stream(data) as reader:
            table = reader.read_all()
        table.validate(full=True)
        batches = table.combine_chunks().to_batches()
    except (pa.ArrowException, OSError, EOFError, StopIteration, ValueError) as error:
        raise WrongRows(f"{len(data)} bytes are not an Arrow IPC stream: {error}") from error
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def zset_of(batch: pa.RecordBatch, schema: pa.Schema, handle: str) -> pa.RecordBatch:
    """The Z-set of a schema (the weight last) that a batch stands for: without a weight each row is there once.

    Raises WrongRows if its columns, their order or their types are others.
    """
    names, columns = list(batch.schema.names), list(batch.columns)
    if WEIGHT not in names:
        names.append(WEIGHT)
        columns.append(pa.array(np.ones(batch.num_rows, dtype=np.int64)))
    expected = [(field.name, field.type) for field in schema]
    found = [(name, column.type) for name, column in zip(names, columns, strict=True)]
    if found != expected:
        raise WrongRows(
            f"input {handle} expects the columns {_listed(expected[:-1])}, then {WEIGHT} int64 if "
            f"rows are retracted; the batch has "
            f"{_listed(found if WEIGHT in batch.schema.names else found[:-1])}: send the input's "
            f"columns, in this order"
        )
    if columns[-1].null_count:
        raise WrongRows(
            f"{columns[-1].null_count} rows for input {handle} have no {WEIGHT}: give each row a weight"
        )
    return pa.record_batch(columns, schema=schema)


def _listed(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def without_weight(schema: pa.Schema) -> pa.Schema:
    """The schema of the rows of a Z-set."""
    return pa.schema(list(schema)[:-1])
