"""Upqueries of one connection that wait: at the receiver to be written, at the sender to be taken by its producer."""

from __future__ import annotations

from collections import deque

WAITING, WAITING_BYTES = 1 << 10, 1 << 22
"""At most so many of them wait, and bytes: a flood makes nothing else grow."""


class Upqueries:
    """Those that wait, in the order in which they came; it belongs to its connection, and is gone with it."""

    __slots__ = ("_bodies", "_size", "overflown")

    def __init__(self) -> None:
        self._bodies: deque[bytes] = deque()
        self._size = 0
        self.overflown = False  # there were too many, and that was logged

    def __len__(self) -> int:
        return len(self._bodies)

    def fits(self, body: bytes) -> bool:
        """True if there is room for it."""
        return len(self._bodies) < WAITING and self._size + len(body) <= WAITING_BYTES

    def add(self, body: bytes) -> None:
        """Take one more, for which there is room."""
        self._bodies.append(body)
        self._size += len(body)

    def force(self, body: bytes) -> int:
        """Take one more in any case; as many of the oldest go as stand in its way. How many did."""
        dropped = 0
        while not self.fits(body):
            self.take()
            dropped += 1
        self.add(body)
        return dropped

    def take(self) -> bytes:
        """The next one, of which there is one at least."""
        body = self._bodies.popleft()
        self._size -= len(body)
        return body

    def put_back(self, body: bytes) -> bool:
        """Undo the last `take`; False if others have filled the room meanwhile, so that this, the oldest, goes."""
        if not self.fits(body):
            return False
        self._bodies.appendleft(body)
        self._size += len(body)
        return True
