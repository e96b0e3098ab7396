"""Memory for frames that many messages are packed into, reused once it has no references left.

Pages that are touched for the first time cost ten times as much as the copy and the checksum that they are
for.
"""

from __future__ import annotations

import sys
from collections import deque
from io import BytesIO

KEPT = 48
"""How many are known, of those that were handed out last."""
_LOOKED_AT = 16
"""How many, those handed out longest ago, are asked whether they are free."""


class FrameMemory:
    """Files in memory, each as large as what was ever written to it; for one thread."""

    def __init__(self) -> None:
        self._known: deque[BytesIO] = deque()

    def take(self) -> BytesIO:
        """Return one to write to from its beginning, with undefined contents.

        There are no other references to it, or to a view of it.
        """
        known = self._known
        for _ in range(min(_LOOKED_AT, len(known))):
            known.rotate(-1)
            if sys.getrefcount(known[-1]) == _UNUSED:
                file = known[-1]
                file.seek(0)
                return file
        if len(known) == KEPT:
            known.pop()  # its owner may keep it for long, as a buffer does whose consumer is away
        known.append(BytesIO())
        return known[-1]


def _count() -> int:
    """Return `sys.getrefcount` of an object that is referred to by a deque only."""
    known = deque([BytesIO()])
    return sys.getrefcount(known[-1])


_UNUSED = _count()
