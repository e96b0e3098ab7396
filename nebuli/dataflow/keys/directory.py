"""Where hashes stand among sorted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Positions = NDArray[np.int64]

_FEWEST = 4096
"""Among fewer hashes a binary search stays in the processor's caches, and is as fast."""
_FEW, _NOT_MANY = 4096, 65536
"""So few hashes are found among so many as fast by a binary search: the table's work is in its number of passes."""
_PER_SEARCH = 8
"""So many hashes are put into the table in the time that seeking one takes."""
_STEPS = 4
"""How far beyond the table's word a hash is sought step by step. Where hashes are spread, few lie further."""


class Directory:
    """Finds hashes among sorted ones: by binary search, and by a table once that pays.

    The table divides the range of the hashes into about as many parts as there are hashes, and has the beginning of
    each part. It is made when one hash has been sought for every eight that it has to count: making it costs no more
    than the searches before it did.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._sought = 0
        self._table: NDArray[np.int32] | None = None
        self._shift = np.uint64(0)
        self._sizes: NDArray[np.int32] | None = None  # how often the hash is there that begins at a position

    @property
    def nbytes(self) -> int:
        """The memory that it has in addition to the hashes."""
        return sum(each.nbytes for each in (self._table, self._sizes) if each is not None)

    def find(self, wanted: Hashes) -> tuple[Positions, Positions]:
        """The first position of each hash, and how often it is there: where that is never, the position is any."""
        if len(wanted) < _FEW and len(self._hashes) < _NOT_MANY:
            return self._searched(wanted)
        if self._table is None:
            self._sought += len(wanted)
            if _PER_SEARCH * self._sought < len(self._hashes) or not _FEWEST <= len(self._hashes) < 1 << 31:
                return self._searched(wanted)
            self._table = self._made()
        return self._looked_up(self._table, wanted)

    def _searched(self, wanted: Hashes) -> tuple[Positions, Positions]:
        hashes = self._hashes
        first = np.searchsorted(hashes, wanted, side="left")
        if not len(hashes):
            return first, np.zeros_like(first)
        counts = (hashes.take(first, mode="clip") == wanted).astype(np.int64)
        if ((hashes.take(first + 1, mode="clip") == wanted) & (first + 1 < len(hashes))).any():
            there = np.flatnonzero(counts)
            counts[there] = np.searchsorted(hashes, wanted[there], side="right") - first[there]
        return first, counts

    def _made(self) -> NDArray[np.int32]:
        hashes, count = self._hashes, len(self._hashes)
        span = int(hashes[-1] - hashes[0])
        self._shift = np.uint64(max(0, span.bit_length() - count.bit_length()))
        parts = ((hashes - hashes[0]) >> self._shift).view(np.int64)
        per_part = np.bincount(parts)
        fresh = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
        if len(fresh) < count - 1:
            starts = np.concatenate([np.zeros(1, dtype=np.int64), fresh])
            self._sizes = np.zeros(count, dtype=np.int32)
            self._sizes[starts] = np.diff(starts, append=count)
        return (np.cumsum(per_part) - per_part).astype(np.int32)

    def _looked_up(self, table: NDArray[np.int32], wanted: Hashes) -> tuple[Positions, Positions]:
        hashes = self._hashes
        inside = np.clip(wanted, hashes[0], hashes[-1])
        at = table[((inside - hashes[0]) >> self._shift).view(np.int64)].astype(np.int64)
        before = np.flatnonzero(hashes[at] < inside)
        for _ in range(_STEPS):
            at[before] += 1
            before = before[hashes[at[before]] < inside[before]]
        if len(before):
            at[before] = np.searchsorted(hashes, inside[before], side="left")
        there = hashes[at] == wanted
        return at, there.astype(np.int64) if self._sizes is None else np.where(there, self._sizes[at], 0)
