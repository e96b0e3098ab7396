"""Messages that a receiver's channel has received and its consumer has not read."""

from __future__ import annotations

import math
from collections import deque
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from netchannel.policies import BufferPolicy

ITEM_COST = 256
"""Bytes that a message in the queue costs in addition to its body and note, so that empty ones fill it too."""


class Item(NamedTuple):
    """A message as it was received."""

    body: memoryview
    note: bytes
    sequence: int
    timestamp: int
    context: memoryview | None


class Chunk:
    """The messages of a frame: ``bodies``, of which the last has the number before ``end``."""

    __slots__ = ("bodies", "context", "end", "notes", "size", "timestamp")

    def __init__(
        self,
        bodies: list[memoryview],
        notes: Sequence[bytes],
        end: int,
        timestamp: int,
        context: memoryview | None,
    ) -> None:
        self.bodies = bodies
        self.notes = notes  # as many as bodies, or none
        self.end = end
        self.timestamp = timestamp
        self.context = context
        self.size = sum(map(len, bodies)) if len(bodies) > 1 else len(bodies[0])
        if notes:
            self.size += sum(map(len, notes))

    @property
    def first(self) -> int:
        """The number of the first message."""
        return self.end - len(self.bodies)

    def item(self, place: int) -> Item:
        """A message of the chunk, with all that belongs to it."""
        note = self.notes[place] if self.notes else b""
        return Item(self.bodies[place], note, self.first + place, self.timestamp, self.context)

    def last(self, count: int) -> Chunk:
        """The last ``count`` messages."""
        return Chunk(self.bodies[-count:], self.notes[-count:], self.end, self.timestamp, self.context)


_NOTHING = Chunk([memoryview(b"")], (), 0, 0, None)


class Queue:
    """Chunks in the order of their numbers; the messages of the first come out one by one.

    ``ready`` iterates over the unread messages of ``chunk``: taking one counts as reading it. ``waiting``
    counts the messages after it, and ``cost`` the memory that they take: what is being read is gone soon.
    """

    __slots__ = ("_chunks", "_most_bytes", "_most_messages", "chunk", "cost", "ready", "waiting")

    def __init__(self, bounds: BufferPolicy) -> None:
        self._most_bytes = math.inf if bounds.max_bytes is None else bounds.max_bytes
        self._most_messages = math.inf if bounds.max_messages is None else bounds.max_messages
        self.chunk = _NOTHING
        self.ready: Iterator[memoryview] = iter(())
        self._chunks: deque[Chunk] = deque()
        self.waiting = 0
        self.cost = 0

    def __len__(self) -> int:
        return self.waiting + length_hint(self.ready)

    @property
    def full(self) -> bool:
        """True if it has as much as it may."""
        return self.cost >= self._most_bytes or self.waiting >= self._most_messages

    @property
    def half_full(self) -> bool:
        """True if it has half as much as it may, or more."""
        return self.cost * 2 >= self._most_bytes or self.waiting * 2 >= self._most_messages

    @property
    def bytes(self) -> int:
        """Bytes of all messages in it."""
        left = length_hint(self.ready)
        return self.cost - self.waiting * ITEM_COST + (self.chunk.last(left).size if left else 0)

    @property
    def first(self) -> int | None:
        """Number of the next message; None if there is none."""
        if left := length_hint(self.ready):
            return self.chunk.end - left
        return self._chunks[0].first if self._chunks else None

    @property
    def taken(self) -> int:
        """The number of the message that was taken last."""
        return self.chunk.end - length_hint(self.ready) - 1

    @property
    def next_size(self) -> int | None:
        """Bytes of the chunk that `next_chunk` makes ready; None if there is none."""
        return self._chunks[0].size if self._chunks else None

    def add(self, chunk: Chunk) -> bool:
        """Append ``chunk``; returns true if the queue is full then."""
        count = len(chunk.bodies)
        self.waiting += count
        self.cost += chunk.size + count * ITEM_COST
        if chunk.context is not None:
            self.cost += _extra(chunk, self._chunks[-1] if self._chunks else None)
        self._chunks.append(chunk)
        return self.cost >= self._most_bytes or self.waiting >= self._most_messages

    def next_chunk(self) -> bool:
        """Make the next chunk ready, once the one before is read; whether there is one."""
        if not self._chunks:
            return False
        chunk = self._chunks.popleft()
        self.chunk, self.ready = chunk, iter(chunk.bodies)
        count = len(chunk.bodies)
        self.waiting -= count
        self.cost -= chunk.size + count * ITEM_COST
        if chunk.context is not None:
            self.cost -= _extra(chunk, self._chunks[0] if self._chunks else None)
        return True

    def drain(self, size: int) -> list[Chunk]:
        """Take chunks, of which none was begun, until they have ``size`` bytes."""
        chunks = []
        while size > 0 and self.next_chunk():
            chunks.append(self.chunk)
            size -= self.chunk.size
        self.release()
        return chunks

    def take(self) -> Item:
        """The next of the messages that are ready."""
        chunk, left = self.chunk, length_hint(self.ready)
        next(self.ready)
        return chunk.item(len(chunk.bodies) - left)

    def put_back(self, item: Item) -> None:
        """Undo the last `take`."""
        if left := length_hint(self.ready):
            self._insert(self.chunk.last(left))
            for _ in self.ready:
                pass  # an iteration over it continues with the messages that are ready then
        body, note, sequence, timestamp, context = item
        self._insert(Chunk([body], (note,), sequence + 1, timestamp, context))

    def _insert(self, chunk: Chunk) -> None:
        count = len(chunk.bodies)
        self.waiting += count
        self.cost += chunk.size + count * ITEM_COST
        if chunk.context is not None:
            self.cost += _extra(chunk, self._chunks[0] if self._chunks else None)
        self._chunks.appendleft(chunk)

    def release(self) -> bool:
        """Refer no more to the chunk that was read; whether there was one."""
        if self.chunk is _NOTHING:
            return False
        self.chunk, self.ready = _NOTHING, iter(())
        return True

    def clear(self) -> None:
        """Forget everything; an iteration over ready messages finds no more."""
        self._chunks.clear()
        self.waiting = self.cost = 0
        for _ in self.ready:
            pass
        self.release()


def _extra(chunk: Chunk, neighbour: Chunk | None) -> int:
    """Return the bytes that ``chunk``'s context adds to a queue: it counts with the first, or last, that has it."""
    if chunk.context is None or (neighbour is not None and neighbour.context is chunk.context):
        return 0
    return len(chunk.context)
