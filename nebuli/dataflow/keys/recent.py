"""Rows that came a few at a time: they are found by the hash of their key without having been sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_BATCH_BYTES, _COLUMN_BYTES = 512, 512
"""Approximate bytes of a batch of few rows, and of each of its columns: its values are the least of it."""

_SHARED_BYTES = 4096
"""More than this is not kept for a few rows of it."""


class RecentRows:
    """Batches of few rows, by hash; those of one hash in the order that they came in."""

    def __init__(self) -> None:
        self._by_hash: dict[int, list[pa.RecordBatch]] = {}
        self.rows = self.batches = 0
        self.nbytes = 0

    def add(self, rows: pa.RecordBatch, hashes: Sequence[int]) -> None:
        """More of them, which may be a part of what is much larger."""
        if rows.get_total_buffer_size() > _SHARED_BYTES:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        if len(set(hashes)) == 1:
            self._add(hashes[0], rows)
        else:
            for index, hash_ in enumerate(hashes):
                self._add(hash_, rows.slice(index, 1))

    def of(self, hash_: int) -> Sequence[pa.RecordBatch]:
        """Those with the hash."""
        return self._by_hash.get(hash_, ())

    def leave(self, hash_: int, left: Sequence[pa.RecordBatch]) -> None:
        """Have ``left`` be all with the hash."""
        for each in self._by_hash.pop(hash_, ()):
            self.rows -= each.num_rows
            self.batches -= 1
            self.nbytes -= _bytes_of(each)
        for each in left:
            self._add(hash_, each)

    def emptied(self) -> tuple[pa.RecordBatch, NDArray[np.uint64]]:
        """All that there are, with their hashes; nothing is left here."""
        listed = [(hash_, each) for hash_, batches in self._by_hash.items() for each in batches]
        hashes = np.repeat(
            np.array([hash_ for hash_, _ in listed], dtype=np.uint64), [each.num_rows for _, each in listed]
        )
        self._by_hash = {}
        self.rows = self.batches = self.nbytes = 0
        return pa.concat_batches([each for _, each in listed]), hashes

    def _add(self, hash_: int, rows: pa.RecordBatch) -> None:
        self._by_hash.setdefault(hash_, []).append(rows)
        self.rows += rows.num_rows
        self.batches += 1
        self.nbytes += _bytes_of(rows)


def _bytes_of(rows: pa.RecordBatch) -> int:
    return int(rows.get_total_buffer_size() + _BATCH_BYTES + _COLUMN_BYTES * rows.num_columns)
