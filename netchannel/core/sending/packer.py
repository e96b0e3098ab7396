"""Messages that were taken and wait to be made into frames."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from netchannel.wire.frames import ALONE, PACK_COUNT, PACK_LIMIT, Scattered, pack

from .send_buffer import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from netchannel.errors import NetChannelError
    from netchannel.wire.frame_memory import FrameMemory
    from netchannel.wire.frames import Body


MOST = 2 * PACK_LIMIT
"""Bytes of messages that are taken until records are made of them, where the first is a large one."""
EACH = MOST // PACK_COUNT
"""Credit that a message takes in addition to its size, so that there is an end to empty ones too."""


APART_US = 50
"""Time between messages that have a write of their own each."""


class Ticket:
    """Shows when accepted messages are durable; ``error`` is set if they were not taken after all.

    That can be reported only while all their senders wait: ``final`` once one of them has gone, e.g. was
    cancelled.
    """

    __slots__ = ("durable", "error", "final")

    def __init__(self) -> None:
        self.durable = False
        self.final = False
        self.error: NetChannelError | None = None


class Packer:
    """Takes messages: each costs a comparison and an addition while there is ``credit``. Its frames are in ``memory``.

    Its owner decides by `grant` how much may be taken without asking again; everything else, such as a
    message with a note, comes by `add`.
    """

    __slots__ = (
        "_alone_at",
        "_base",
        "_memory",
        "_size",
        "bodies",
        "context",
        "credit",
        "granted",
        "notes",
        "shared",
        "since",
        "ticket",
    )

    def __init__(self, memory: FrameMemory) -> None:
        self._memory = memory
        self.credit = 0
        self.granted = 0
        self._alone_at = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.bodies: list[Body] = []
        self.notes: dict[int, bytes] = {}  # by their place among the bodies
        self.context = b""
        self.ticket: Ticket | None = None  # of all of them, if they are to be durable
        self.since = 0
        self.shared = 0  # bytes of the context that count
        self.credit = self.granted = self._base = self._size = 0

    def take(self, body: Body) -> bool:
        """Take a message without a note, if there is credit for it."""
        credit = self.credit - len(body) - EACH
        if credit < 0:
            return False
        self.credit = credit
        self.bodies.append(body)
        return True

    def take_some(self, bodies: Sequence[Body]) -> int:
        """Take as many of them, from the first on, as there is credit for; how many."""
        count, size = len(bodies), sum(map(len, bodies))
        if size + count * EACH > self.credit:
            sizes = list(accumulate(map(len, bodies), initial=0))
            count = bisect_right(range(1, count + 1), self.credit, key=lambda some: sizes[some] + some * EACH)
            bodies, size = bodies[:count], sizes[count]
        self.credit -= size + count * EACH
        self.bodies += bodies
        return count

    @property
    def size(self) -> int:
        """Bytes of bodies and notes, and of what they share."""
        if self.granted:
            taken = len(self.bodies) - self._base
            return self._size + self.granted - self.credit - taken * EACH
        return self._size

    def revoke(self) -> None:
        """Take the credit back."""
        if self.granted:
            self._size = self.size
            self._base = len(self.bodies)
            self.credit = self.granted = 0

    @property
    def _limit(self) -> int:
        return MOST if self.bodies and len(self.bodies[0]) > ALONE else PACK_LIMIT

    def grant(self, room: int) -> None:
        """Give as much credit as there is still to be taken, and ``room`` bytes at most."""
        self.revoke()
        room = min(room, self._limit - self._size - self._base * EACH)
        if room > 0:
            self.credit = self.granted = room

    def fits(self, size: int, context: bytes) -> bool:
        """True if a message of ``size`` bytes, its note included, may be taken before records are made."""
        taken = self.size + len(self.bodies) * EACH
        return taken + size + EACH <= self._limit and context is self.context

    def apart(self) -> bool:
        """True if the first message came a while after the last one for which this was true."""
        if 0 <= self.since - self._alone_at < APART_US:  # the clock may have been set back
            return False
        self._alone_at = self.since
        return True

    def add(self, body: Body, note: bytes, cost: int) -> None:
        """Take a message; ``cost`` bytes are counted for it, with a context that comes with it. There is no credit."""
        if note:
            self.notes[self._base] = note
        self.bodies.append(body)
        self._base += 1
        self._size += cost
        if self.context:
            self.shared += cost - len(body) - len(note)

    def largest(self) -> int:
        """The size of the largest body, or of the context."""
        return max([len(self.context), *map(len, self.bodies)]) if self.bodies else 0

    def records(self, first: int) -> Iterable[Record]:
        """The messages, of which the first has the number ``first``: the small ones together, the large ones alone."""
        if len(self.bodies) == 1:
            return (self._single(0, first),)
        return self._many(first)

    def _single(self, place: int, number: int) -> Record:
        """The message at ``place``, alone in its record."""
        body, context = self.bodies[place], self.context
        note = self.notes.get(place, b"") if self.notes else b""
        size = len(body)
        largest = max(size, len(context)) if context else size
        size += len(note) + (0 if place else self.shared)
        return Record(number, number + 1, size, largest, (), context, body, note, self.since)

    def _many(self, first: int) -> Iterator[Record]:
        done = 0
        for place, body in enumerate(self.bodies):
            if len(body) > ALONE:
                if done < place:
                    yield from self._runs(first, done, place)
                yield self._single(place, first + place)
                done = place + 1
        if done < len(self.bodies):
            yield from self._runs(first, done, len(self.bodies))

    def _runs(self, first: int, start: int, stop: int) -> Iterator[Record]:
        """Small messages, as many together as a frame may have."""
        if self.size <= PACK_LIMIT:
            yield self._packed(first, start, stop)
            return
        size, begun = 0, start
        for place in range(start, stop):
            each = len(self.bodies[place]) + len(self.notes.get(place, b""))
            if size + each > PACK_LIMIT and place > begun:
                yield self._packed(first, begun, place)
                size, begun = 0, place
            size += each
        yield self._packed(first, begun, stop)

    def record(self, first: int) -> Record:
        """All messages in one record, as a ticket is for one; a large one comes here alone, or with others that fit."""
        if len(self.bodies) == 1:
            return self._single(0, first)
        if self.largest() > ALONE and Scattered in map(type, self.bodies):
            self.bodies = [
                b"".join(body.pieces) if isinstance(body, Scattered) else body for body in self.bodies
            ]
        return self._packed(first, 0, len(self.bodies))

    def _packed(self, first: int, start: int, stop: int) -> Record:
        """The messages at places ``start`` to ``stop`` (excluded); the first of all brings what they share."""
        bodies, notes = self.bodies[start:stop], {}
        if self.notes:
            notes = {place - start: note for place, note in self.notes.items() if start <= place < stop}
        lengths = list(map(len, bodies))
        size = sum(lengths) + sum(map(len, notes.values())) + (0 if start else self.shared)
        largest = max([len(self.context), *lengths])
        frame = pack(bodies, notes, first + start, self.since, self._memory)
        return Record(first + start, first + stop, size, largest, frame, self.context, timestamp=self.since)
