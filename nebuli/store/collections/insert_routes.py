"""The shard of a rendition that a row is in: by the hash of its values, so that equal rows are in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.hashing import hash_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def split(rows: pa.RecordBatch, shards: int) -> Sequence[pa.RecordBatch]:
    """The rows of a Z-set by their shards, in their order; a batch for each."""
    if shards == 1:
        return [rows]
    # By the upper bits: the lower ones determine the places of rows in hash tables.
    places = (hash_rows(rows.columns[:-1], rows.num_rows) >> np.uint64(32)) % np.uint64(shards)
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(1, shards, dtype=np.uint64))
    return [rows.take(pa.array(part)) for part in np.split(order, ends)]
