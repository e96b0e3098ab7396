"""Memory for what is received, reused once it has no references left.

Pages that are touched for the first time cost more than all that is done with them.
"""

from __future__ import annotations

import sys
from collections import deque

import pyarrow as pa

SMALLEST = 1 << 13
LARGEST = 1 << 24
"""Sizes of what is pooled, in bytes; what is smaller or larger has memory of its own."""
POOL_BYTES = 1 << 25
"""The memory that a pool keeps; what is needed beyond that is not used again."""
_LOOKED_AT = 16
"""How many buffers of a size, those handed out longest ago, are asked whether they are free."""


class Pool:
    """Hands out memory. It never takes any back: a buffer is free when the pool alone refers to it.

    That counts all views of it, and what was made from them: slices, Arrow buffers, batches.
    """

    def __init__(self) -> None:
        self._classes: dict[int, deque[pa.Buffer]] = {}
        self._bytes = 0

    def take(self, size: int) -> memoryview:
        """``size`` bytes with anything in them. Until they are written a claim costs addresses, not memory."""
        if not SMALLEST <= size <= LARGEST:
            return memoryview(pa.allocate_buffer(size)).cast("B")
        rounded = _rounded(size)
        known = self._classes.get(rounded)
        if known is None:
            known = self._classes[rounded] = deque()
        for _ in range(min(_LOOKED_AT, len(known))):
            known.rotate(-1)
            if sys.getrefcount(known[-1]) == _UNUSED:
                return memoryview(known[-1]).cast("B")[:size]
        buffer = pa.allocate_buffer(rounded)
        if self._bytes + rounded <= POOL_BYTES or self._make_room(rounded):
            known.append(buffer)
            self._bytes += rounded
        return memoryview(buffer).cast("B")[:size]

    def _make_room(self, size: int) -> bool:
        """Forget free buffers of other sizes, e.g. of a channel that is over."""
        for rounded, known in self._classes.items():
            if rounded == size:
                continue
            kept = deque(buffer for buffer in known if sys.getrefcount(buffer) != _UNUSED_IN_LOOP)
            self._bytes -= rounded * (len(known) - len(kept))
            self._classes[rounded] = kept
        return self._bytes + size <= POOL_BYTES


def _rounded(size: int) -> int:
    """``size``, or an eighth more at most, so that there are not too many different ones."""
    step = 1 << (size.bit_length() - 4)
    return (size + step - 1) // step * step


def _counts() -> tuple[int, int]:
    """Return `sys.getrefcount` of a buffer that is referred to by a deque only, and of one that a loop is at."""
    known = deque([pa.allocate_buffer(1)])
    return sys.getrefcount(known[-1]), next(sys.getrefcount(buffer) for buffer in known)


_UNUSED, _UNUSED_IN_LOOP = _counts()
