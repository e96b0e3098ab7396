"""Round trips: one message at a time there and back, each with a number of its own; or many at once."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable

from .latency import percentiles
from .work import Result, Work, Wrong

DEADLINE_S = 30.0
"""For one trip: it is there for what hangs."""


class Trips:
    """Whoever asks gives each answer, and gets the next message."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._body = bytes(work.size - 8)
        self._message = b""
        self._warm_ns = self._end_ns = self._sent_ns = 0
        self._cpu = 0.0
        self._taken = array("q")
        self.count = 0

    def begin(self) -> bytes:
        """The first message."""
        self._warm_ns = time.monotonic_ns() + int(self._work.warm_up * 1e9)
        self._end_ns = self._warm_ns + int(self._work.seconds * 1e9)
        self._cpu = time.process_time()
        return self._next(time.monotonic_ns())

    def turn(self, answer: object) -> bytes | None:
        """The next message; None if that is all."""
        now = time.monotonic_ns()
        if answer != self._message:
            raise Wrong(f"the answer to message {self.count - 1} is another one")
        if self._sent_ns >= self._warm_ns:
            self._taken.append(now - self._sent_ns)
        return self._next(now) if now < self._end_ns else None

    def _next(self, now: int) -> bytes:
        self._message = self.count.to_bytes(8, "little") + self._body
        self.count += 1
        self._sent_ns = now
        return self._message

    def result(self) -> Result:
        """Of the trips after the warm-up."""
        gigabytes = self.count * self._work.size / 1e9
        cpu = time.process_time() - self._cpu
        return Result(self.count, percentiles(self._taken) | {"sender_cpu_s_per_GB": cpu / gigabytes})


class Throng:
    """Tasks that ask at the same time, as many as the option "at_once" says, each one message after the other."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._body = bytes(work.size - 8)
        self._counted = 0  # after the warm-up
        self._lasted_s = 0.0
        self._cpu = time.process_time()
        self._asked = 0
        self.count = 0
        """How many were answered."""

    async def run(self, ask: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Until the time is over."""
        warm = time.monotonic() + self._work.warm_up
        end = warm + self._work.seconds
        asking = asyncio.gather(*(self._ask(ask, end) for _ in range(self._work.options["at_once"])))
        await asyncio.sleep(self._work.warm_up)
        before, begun = self.count, time.monotonic()
        await asking
        self._counted, self._lasted_s = self.count - before, time.monotonic() - begun

    async def _ask(self, ask: Callable[[bytes], Awaitable[bytes]], end: float) -> None:
        while time.monotonic() < end:
            message = self._asked.to_bytes(8, "little") + self._body
            self._asked += 1
            if await ask(message) != message:
                raise Wrong("the answer to a message is another one")
            self.count += 1

    def result(self) -> Result:
        """Of the trips after the warm-up."""
        cpu = time.process_time() - self._cpu
        measures = {
            "messages_per_s": self._counted / self._lasted_s,
            "sender_cpu_s_per_GB": cpu / (self.count * self._work.size / 1e9),
        }
        return Result(self.count, measures)


class Echoes:
    """The other side: how many it answered, and what that took."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._cpu = time.process_time()
        self.count = 0

    def result(self) -> Result:
        """When there is no more."""
        gigabytes = self.count * self._work.size / 1e9
        return Result(self.count, {"receiver_cpu_s_per_GB": (time.process_time() - self._cpu) / gigabytes})
