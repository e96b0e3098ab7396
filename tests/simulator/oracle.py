"""What must be true of a stream, whatever happens; it knows what the applications did, and nothing of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Stream:
    """One stream as both applications saw it.

    ``returned``: messages below were taken, as the producer was told. ``next``: what the consumer's own commit says
    comes next; what it has read beyond is lost if it crashes. ``lossy`` while a gap may follow, and why.
    """

    name: str
    returned: int = 0
    total: int | None = None
    failed: str | None = None
    next: int = 0
    committed: int = 0
    lossy: str = ""
    dropped: int = 0  # what the consumer was told of, and has not missed yet
    ended: bool = False
    sent: dict[int, bytes] = field(default_factory=dict)
    taken: int = 0  # messages below have a number for good, and may have gone out
    given: int = 0
    closed_by_consumer: bool = False
    closed_at: set[int] = field(default_factory=set)  # a producer that gave up may have gone on beyond

    def send(self, number: int, life: int) -> bytes:
        """What the producer sends under ``number``: of any size, and another in another ``life``."""
        body = f"{self.name}:{number}:{life}:".encode() + bytes(number * 7919 % 613)
        if number < self.given and body != self.sent[number]:
            raise Violation(f"number {number} of {self.name} is used again, and the consumer has it")
        self.sent[number] = body
        return body

    def read(self, number: int, body: bytes) -> None:
        """The consumer was given ``body`` under ``number``."""
        if body != self.sent.get(number):
            raise Violation(f"number {number} of {self.name} is {body[:40]!r}")
        self.given = max(self.given, number + 1)
        if number != self.next:
            self._miss(number, f"number {number} of {self.name} came")
        if self.total is not None and number >= self.total:
            raise Violation(f"number {number} of {self.name} came after its end at {self.total}")
        self.next = number + 1

    def _miss(self, upto: int, what: str) -> None:
        """Messages that the consumer expected did not come: there must be a reason."""
        # Who crashed without a position, and had acknowledged what it had not read, can miss and can repeat.
        if not self.lossy and not 0 <= upto - self.next <= self.dropped:
            raise Violation(f"{what} where {self.next} was due, and {self.dropped} were reported as dropped")
        if not self.lossy:
            self.dropped -= upto - self.next
        self.lossy = ""

    def crashed(self, *, at_receipt: bool) -> None:
        """The consumer's process died: what it had not committed is not done."""
        if at_receipt:
            self.lossy = "a receiver that acknowledged at receipt crashed"
        else:
            self.next = self.committed

    def end(self) -> None:
        """The consumer was told that the stream ended cleanly."""
        if self.next in self.closed_at:
            self.ended = True
            return
        if self.total is None:
            raise Violation(f"{self.name} ended at {self.next}, and its producer did not close it")
        self._miss(self.total, f"the end of {self.name} at {self.total} came")
        self.ended = True

    def fail(self, message: str) -> None:
        """The consumer was told that the producer failed."""
        if self.failed is None or self.failed not in message:
            raise Violation(f"{self.name} failed with {message!r}, its producer said {self.failed!r}")
        self._miss(max(self.returned, self.next), f"the failure of {self.name} after {self.returned} came")
        self.ended = True

    def resumed(self, head: int) -> None:
        """The producer's process came back, and its next number is ``head``."""
        if head < self.returned:
            raise Violation(f"{self.name} came back at {head}, and send had returned for {self.returned}")


FEW = 10
"""Upqueries that are out on a connection."""


class Questions:
    """What the consumers of a channel have asked their producers; what is asked, and when, is drawn from ``random``."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._count = self._last = self.answered = 0
        self.out: dict[bytes, object] = {}  # that were not taken, and the connections that they went out on

    def some(self) -> int:
        """How many are asked, or taken, at a time."""
        return self._random.choice([0] * 6 + [1, 4])

    def waits(self, connection: object) -> bool:
        """Whether the consumer asks no more for now: what is always busy gets nowhere."""
        return sum(on is connection for on in self.out.values()) >= FEW

    def ask(self, connection: object) -> bytes:
        """One more, which no other is like."""
        self._count += 1
        body = b"%d:" % self._count + bytes(self._random.choice([0, 0, 20, 400]))
        self.out[body] = connection
        return body

    def answer(self, body: bytes, connection: object) -> None:
        """The producer was given ``body``, of the ``connection`` that it has now."""
        on = self.out.pop(body, None)
        if on is None:
            raise Violation(f"upquery {body[:40]!r} was not asked, or is given out again")
        if on is not connection:
            raise Violation(f"upquery {body[:40]!r} was asked on a connection that was lost since")
        number = int(body.partition(b":")[0])
        if number < self._last:
            raise Violation(f"upquery {number} is given out behind {self._last}")
        self._last = number
        self.answered += 1
