"""Equal rows merged before they are sent: an aggregate needs only their counts.

Rows are compared by codes and not by hashes, so it pays only if few values recur in each column; a look at the first
rows shows if they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow.keys.coding import codes_of
from nebuli.dataflow.zset import weights_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FEWEST_ROWS = 2048
"""Fewer are sent as they are."""
_SAMPLE = 512
_RATIO = 4
"""At most one of so many rows may be left, if all combinations of values are there."""
_EXACT = 1 << 53
"""Integers up to here are exact as floats."""


def combined(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same Z-set, with equal rows merged if that leaves few; otherwise as it is."""
    columns = batch.columns[:-1]
    if batch.num_rows < _FEWEST_ROWS or not all(map(_comes_again, columns)):
        return batch
    weights = weights_of(batch)
    if np.abs(weights).sum() > _EXACT:
        return batch
    numbers = _numbered(columns, batch.num_rows // _RATIO)
    if numbers is None:
        return batch
    firsts = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    firsts[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # of several writes to a place the last stays
    sums = np.bincount(numbers, weights).astype(np.int64)
    left = np.flatnonzero(sums)
    rows = batch.take(pa.array(firsts[left]))
    return rows.set_column(len(columns), batch.schema.field(len(columns)), pa.array(sums[left]))


def _comes_again(column: Any) -> bool:
    """True if the values of a column may be few. Equal floats may be spelled differently: they are left alone."""
    return not pa.types.is_floating(column.type) and len(column.slice(0, _SAMPLE).unique()) <= _SAMPLE // 2


def _numbered(columns: list[Any], limit: int) -> NDArray[np.int64] | None:
    """A number for each row, the same for equal rows and below ``limit``; None if there are more combinations."""
    numbers, count = np.zeros(1, dtype=np.int64), 1
    for column in columns:
        encoded = column.dictionary_encode()
        values = len(encoded.dictionary) + 1
        count *= values
        if count > limit:
            return None
        numbers = numbers * values + codes_of(encoded)
    return numbers
