"""Batches of a size that is worth its while: each costs Spark, and a channel, as much as some hundreds of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ENOUGH_BYTES = 4 << 20
"""Bytes from which on a batch is joined with nothing: more would be spent on copying than is saved."""


def joined(batches: Iterable[pa.RecordBatch], enough_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer batches where they are small: each has ``enough_rows``, or 4 MiB."""
    few: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        few.append(batch)
        rows += batch.num_rows
        # nbytes looks at each column's values, and takes 25 times as long.
        size += batch.get_total_buffer_size()
        if rows >= enough_rows or size >= _ENOUGH_BYTES:
            yield _join(few)
            few, rows, size = [], 0, 0
    if few:
        yield _join(few)


def _join(few: list[pa.RecordBatch]) -> pa.RecordBatch:
    return few[0] if len(few) == 1 else pa.concat_batches(few)
