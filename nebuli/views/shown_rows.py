"""Rows of views as they are shown to readers, from the Z-sets that processes have."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.views.view_calls import FREE, Found, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["expanded", "found_bytes", "found_one_bytes", "in_order", "version_of"]

_COUNT, _HIT = Struct("<i"), b"\x01"
_FEW = 8


def found_bytes(
    rows: pa.RecordBatch, counts: NDArray[np.int32], hits: NDArray[np.bool_], step: int = FREE
) -> bytes:
    """Return the answer with the rows of keys, in the order of the keys; -1 as a count: the key is missing."""
    if not _are_once(rows):
        owners = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
        repeated = np.bincount(np.repeat(owners, _times(rows)), minlength=len(counts)).astype(np.int32)
        counts = np.where(counts < 0, counts, repeated)
    data = expanded(rows).serialize().to_pybytes()
    return bytes_of(Found(counts.astype("<i4").tobytes(), hits.tobytes(), data, step))


def found_one_bytes(rows: pa.RecordBatch, step: int = FREE) -> bytes:
    """As `found_bytes`, of one key that is there: it is what is asked for most of the time."""
    shown = expanded(rows)
    return bytes_of(Found(_COUNT.pack(shown.num_rows), _HIT, shown.serialize().to_pybytes(), step))


def expanded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Each row as often as it is there, without the weight.

    While a change is on its way by two edges of a join, a row may be there less than not at all; it is not shown.
    """
    shown = rows.remove_column(rows.num_columns - 1)
    if _are_once(rows):
        return shown
    return shown.take(pa.array(np.repeat(np.arange(rows.num_rows), _times(rows))))


def _are_once(rows: pa.RecordBatch) -> bool:
    """True if each row is there once."""
    weights = rows.column(rows.num_columns - 1)
    if rows.num_rows <= _FEW:
        return all(weight == 1 for weight in weights.to_pylist())
    return bool((weights.to_numpy() == 1).all())


def _times(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """How often each row is there."""
    times: NDArray[np.int64] = np.maximum(rows.column(rows.num_columns - 1).to_numpy(), 0)
    return times


def version_of(rows: pa.RecordBatch) -> int:
    """A number that is the same for the same rows, in whichever order, and almost surely for no others."""
    weights = rows.column(rows.num_columns - 1).to_numpy().astype(np.uint64)
    hashes = hashing.hash_rows(rows.columns[:-1], rows.num_rows).astype(np.uint64)
    return int((hashes * (2 * weights + np.uint64(1))).sum(dtype=np.uint64) >> np.uint64(1))


def in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows sorted by their columns, the first one first; nulls after all values."""
    if rows.num_rows < 2:
        return rows
    return rows.sort_by([(name, "ascending") for name in rows.schema.names])
