"""Shared memory without an operating system: whoever has a part of it back fills that with what nobody has sent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from netchannel.core.shared_memory import SharedMemory

WRONG = 0xEE
"""What is read in memory that was given back."""


class Meetings:
    """Who waits for memory on one host."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, SimulatedMemory] = {}
        self.names = (number.to_bytes(16, "big") for number in count(1))


class SimulatedMemory(SharedMemory):
    """Shared memory of one process. ``later`` calls something there after a while, if the process is still there.

    ``works`` says, each time, whether the other side can use what is handed over.
    """

    def __init__(
        self,
        meetings: Meetings,
        size: int,
        *,
        later: Callable[[Callable[[], None]], None],
        works: Callable[[], bool] = lambda: True,
        place: bytes = bytes(16),
    ) -> None:
        self.place = place
        self.size = size
        self.handed_over = 0
        self._meetings = meetings
        self._later = later
        self._works = works
        self._expected: dict[bytes, Callable[[memoryview | None], None]] = {}

    def hand_over(self, meeting: bytes, token: bytes, size: int) -> memoryview | None:
        there = self._meetings.waiting.get(meeting)
        if there is None:
            return None
        self.handed_over += 1
        memory = memoryview(bytearray([WRONG]) * size)
        there.soon(lambda: there.arrive(token, memory))
        return memory

    def expect(self, token: bytes, take: Callable[[memoryview | None], None]) -> bytes | None:
        if not self._works():
            return None
        meeting = next(self._meetings.names)
        self._meetings.waiting[meeting] = self
        self._expected[token] = take
        return meeting

    def expect_no_more(self, token: bytes) -> None:
        self._expected.pop(token, None)

    def arrive(self, token: bytes, memory: memoryview) -> None:
        """Memory was handed over here."""
        if (take := self._expected.pop(token, None)) is not None:
            take(memory.toreadonly() if self._works() else None)

    def give_back(self, memory: memoryview, offset: int, size: int) -> None:
        memory[offset : offset + size] = bytes([WRONG]) * size

    def soon(self, action: Callable[[], None]) -> None:
        self._later(action)

    def descriptors(self) -> list[int]:
        """There are none."""
        return []

    def close(self) -> None:
        """Take nothing more."""
        self._expected.clear()
