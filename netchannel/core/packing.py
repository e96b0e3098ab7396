"""Messages that were taken and wait to be made into frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .frames import ALONE, PACK_COUNT, PACK_LIMIT, Lone, pack
from .retention import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .frames import Body, Buffer


class Packer:
    """Takes messages: each costs a comparison and an addition while there is ``credit``.

    Whoever owns it decides by `grant` what may be taken without being asked again; everything else, what has a note
    for instance, comes by `add`.
    """

    __slots__ = ("_base", "_granted", "_size", "bodies", "context", "credit", "notes", "shared", "since")

    def __init__(self) -> None:
        self.credit = 0
        self._granted = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.bodies: list[Body] = []
        self.notes: dict[int, bytes] = {}  # by their place among the bodies
        self.context = b""
        self.since = 0
        self.shared = 0  # bytes of the context that count
        self.credit = self._granted = self._base = self._size = 0

    def take(self, body: Body) -> bool:
        """Take a message without a note, if there is credit for it."""
        credit = self.credit - len(body) - 1
        if credit < 0:
            return False
        self.credit = credit
        self.bodies.append(body)
        return True

    @property
    def size(self) -> int:
        """Bytes of bodies and notes, and of what they share."""
        # Of its credit, a message takes one more than its size: so there is an end to empty ones too.
        return self._size + self._granted - self.credit - (len(self.bodies) - self._base)

    def revoke(self) -> None:
        """No more credit."""
        self._size = self.size
        self._base = len(self.bodies)
        self.credit = self._granted = 0

    def grant(self, room: int) -> None:
        """As much credit as fits into the frame, and ``room`` bytes at most."""
        self.revoke()
        self.credit = self._granted = max(0, min(room, PACK_LIMIT - self._size, PACK_COUNT - self._base))

    def fits(self, size: int, context: bytes) -> bool:
        """Whether a message of ``size`` bytes, its note included, may go into the same frame."""
        within = self.size + size <= PACK_LIMIT and len(self.bodies) < PACK_COUNT
        return within and context is self.context

    def add(self, body: Body, note: bytes, cost: int) -> None:
        """Take a message; ``cost`` bytes are counted for it, with a context that comes with it."""
        self.revoke()
        if note:
            self.notes[self._base] = note
        self.bodies.append(body)
        self._base += 1
        self._size += cost
        self.shared += cost - len(body) - len(note)

    def largest(self) -> int:
        """The size of the largest body, or of the context."""
        return max(len(self.context), *map(len, self.bodies)) if self.bodies else 0

    def records(self, first: int) -> Iterator[Record]:
        """The messages, of which the first has the number ``first``: the small ones together, the large ones alone."""
        bodies = self.bodies
        larges = [place for place, body in enumerate(bodies) if len(body) > ALONE]
        done = 0
        for place in larges:
            if done < place:
                yield self._record(first, done, place)
            yield self._record(first, place, place + 1)
            done = place + 1
        if done < len(bodies):
            yield self._record(first, done, len(bodies))

    def _record(self, first: int, start: int, stop: int) -> Record:
        """The messages at places ``start`` to ``stop`` (excluded); the first of all brings what they share."""
        bodies, notes = self.bodies[start:stop], {}
        if self.notes:
            notes = {place - start: note for place, note in self.notes.items() if start <= place < stop}
        sizes = list(map(len, bodies))
        size = sum(sizes) + sum(map(len, notes.values())) + (0 if start else self.shared)
        largest = max(len(self.context), *sizes)
        frames: Iterable[Sequence[Buffer]]
        if sizes[0] > ALONE:
            frames = Lone(bodies[0], notes.get(0, b""), first + start, self.since)
        else:
            frames = (pack(bodies, notes, first + start, self.since),)
        return Record(first + start, first + stop, size, largest, frames, self.context)
