"""Batches of a size that is worth its while: each costs Spark, and a channel, as much as some hundreds of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FEW_ROWS = 8192
"""Batches with fewer are joined: below this, more is spent on the batch than on its rows."""


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer batches where they are small."""
    few: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        few.append(batch)
        rows += batch.num_rows
        if rows >= _FEW_ROWS:
            yield _join(few)
            few, rows = [], 0
    if few:
        yield _join(few)


def _join(few: list[pa.RecordBatch]) -> pa.RecordBatch:
    return few[0] if len(few) == 1 else pa.concat_batches(few)
