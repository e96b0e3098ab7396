"""Messages that are due at a fixed rate, whatever becomes of those before: how long after its time each arrives.

The time is counted from when a message should have been sent, so that a sender that is held up makes no figure better.
Both processes read the same clock: the host's monotonic one.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from hdrh.histogram import HdrHistogram

from .ticks import NANOSECONDS, Ticks
from .work import Result, Work, Wrong

HEAD = struct.Struct("<QQ")
"""A message's number, and when it was due, in nanoseconds."""
HIGHEST_NS = 60 * NANOSECONDS
DIGITS = 3


def percentiles(latencies_ns: Iterable[int]) -> dict[str, float]:
    """In microseconds, to three digits."""
    histogram = HdrHistogram(1, HIGHEST_NS, DIGITS)
    for latency in latencies_ns:
        histogram.record_value(latency)
    return {
        name: histogram.get_value_at_percentile(percentile) / 1e3
        for name, percentile in {"p50_us": 50.0, "p99_us": 99.0, "p99.9_us": 99.9}.items()
    }


class Pace:
    """A sender's: messages as soon as they are due, those that are late together."""

    def __init__(self, work: Work) -> None:
        assert work.rate is not None
        self._work = work
        self._interval_ns = max(1, round(NANOSECONDS / work.rate))
        self._count = int((work.warm_up + work.seconds) * work.rate)
        self._start_ns = 0
        self._cpu = 0.0
        self.sent = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        """What is due, for senders that block."""
        with self._ticks() as ticks:
            while self.sent < self._count:
                yield self._due(ticks.wait())

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        """The same, for coroutines."""
        with self._ticks() as ticks:
            while self.sent < self._count:
                yield self._due(await ticks.arrived())

    def _ticks(self) -> Ticks:
        self._start_ns, self._cpu = time.monotonic_ns() + NANOSECONDS // 100, time.process_time()
        return Ticks(self._start_ns, self._interval_ns)

    def _due(self, ticks: int) -> list[bytes]:
        first, self.sent = self.sent, min(self.sent + ticks, self._count)
        body = bytes(self._work.size - HEAD.size)
        return [
            HEAD.pack(number, self._start_ns + number * self._interval_ns) + body
            for number in range(first, self.sent)
        ]

    def result(self) -> Result:
        """When everything is through."""
        gigabytes = self.sent * self._work.size / 1e9
        return Result(self.sent, {"sender_cpu_s_per_GB": (time.process_time() - self._cpu) / gigabytes})


class Watch:
    """A receiver's eye: sees every message, in order, and how late it is."""

    def __init__(self, work: Work) -> None:
        assert work.rate is not None
        self._work = work
        self._skipped = int(work.warm_up * work.rate)
        self._latencies = array("q")
        self._cpu = time.process_time()

    def look(self, first: int = 0, step: int = 1) -> Callable[[Any], None]:
        """A function that is given every message of one stream: number ``first``, and every ``step`` from there."""
        due, latencies, head, clock = first, self._latencies, HEAD.unpack_from, time.monotonic_ns

        def look(message: Any) -> None:
            nonlocal due
            number, due_ns = head(message)
            if number != due:
                raise Wrong(f"message {number} came where {due} was due")
            due += step
            latencies.append(clock() - due_ns)

        return look

    def result(self) -> Result:
        """Of the messages after the warm-up."""
        cpu = time.process_time() - self._cpu
        latencies, messages = self._latencies, len(self._latencies)
        assert self._work.rate is not None
        lasted_s = (messages - 1) / self._work.rate + (latencies[-1] - latencies[0]) / 1e9
        return Result(
            messages,
            percentiles(latencies[self._skipped :])
            | {
                "messages_per_s": (messages - 1) / lasted_s,
                "receiver_cpu_s_per_GB": cpu / (messages * self._work.size / 1e9),
            },
        )
