"""Sums and comparisons of Z-sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.keys.hashing import hash_rows
from nebuli.dataflow.zset import empty, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def added(zsets: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The sum of Z-sets: a row that stands in several stands in it as often, each time with its weight."""
    if not zsets:
        return empty(schema)
    return zsets[0] if len(zsets) == 1 else pa.concat_batches(list(zsets))


def digest(zset: pa.RecordBatch) -> int:
    """Return 64 bits that are the same for equal Z-sets, in any order and pieces."""
    with np.errstate(over="ignore"):
        hashes = hash_rows(zset.columns[:-1], zset.num_rows) * weights_of(zset).view(np.uint64)
    return int(hashes.sum(dtype=np.uint64))
