"""What is sent in a measurement, and how receivers look at it: all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

PATTERN = 61
"""Different messages; number ``n`` is sent as message ``n % PATTERN`` of them, which its first byte says."""
PATTERN_BYTES = 1 << 24
END = b"\xff"
"""The last message, on transports that have no end of their own."""


@dataclass(frozen=True)
class Work:
    """Messages of ``size`` bytes for ``seconds``, after ``warm_up`` seconds; ``arrow``: as record batches."""

    size: int
    arrow: bool = False
    seconds: float = 1.0
    warm_up: float = 0.3
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def pattern(self) -> int:
        """How many different messages there are."""
        return max(3, min(PATTERN, PATTERN_BYTES // self.size))

    def messages(self) -> list[Any]:
        """The different messages: bytes, or record batches of four columns of 64-bit integers."""
        if not self.arrow:
            return [bytes([n]) + bytes(self.size - 1) for n in range(self.pattern)]
        rows = self.size // 32
        return [
            pa.record_batch({f"c{column}": pa.array([n] * rows, pa.int64()) for column in range(4)})
            for n in range(self.pattern)
        ]


class Wrong(Exception):
    """Another message than the one that was due."""


@dataclass
class Result:
    """What one side has to say of a run."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    measured: int = 0

    def rate(self) -> float:
        """Messages a second."""
        return self.measured / self.seconds


class Watch:
    """A receiver's eye: sees every message, in order, and takes the time after the warm-up."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._marks: list[tuple[float, float]] = []  # once per round of the pattern
        self.rounds = 0
        self.due = 0

    def look(self) -> Callable[[Any], None]:
        """A function that is given every message."""
        first = _first_value if self._work.arrow else _first_byte
        pattern, due, marks = self._work.pattern, 0, self._marks

        def look(message: Any) -> None:
            nonlocal due
            if first(message) != due:
                raise Wrong(f"message {first(message)} came where {due} was due, in round {len(marks)}")
            due += 1
            if due == pattern:
                due = 0
                marks.append((time.perf_counter(), time.process_time()))
                self.rounds += 1
            self.due = due

        return look

    def result(self) -> Result:
        """Of the rounds after the warm-up."""
        messages = self.rounds * self._work.pattern + self.due
        begin = self._marks[0][0] + self._work.warm_up
        marks = [mark for mark in self._marks if mark[0] >= begin]
        if len(marks) < 2:
            raise Wrong(
                f"{messages} messages in {self._marks[-1][0] - self._marks[0][0]:.2f} s are too few to measure"
            )
        seconds, cpu = (last - first for first, last in zip(marks[0], marks[-1], strict=True))
        return Result(messages, seconds, cpu, (len(marks) - 1) * self._work.pattern)


def _first_byte(message: Any) -> int:
    return message[0]  # type: ignore[no-any-return]


def _first_value(batch: pa.RecordBatch) -> int:
    return batch.column(0)[0].as_py()  # type: ignore[no-any-return]


class Pace:
    """A sender's clock: the messages in rounds, until time is up."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.sent = 0
        self._cpu = self._began = 0.0
        self._skipped = 0
        self._at = 0.0

    def rounds(self) -> Any:
        """Lists of messages, at most so many that the clock is looked at a thousand times a second."""
        messages = self._work.messages()
        start = time.perf_counter()
        warm = start + self._work.warm_up
        end = warm + self._work.seconds
        while (now := time.perf_counter()) < end:
            if not self._cpu and now >= warm:
                self._cpu, self._began, self._skipped = time.process_time(), now, self.sent
            yield messages
            self.sent += len(messages)

    def result(self) -> Result:
        """When everything is through."""
        return Result(
            self.sent,
            time.perf_counter() - self._began,
            time.process_time() - self._cpu,
            self.sent - self._skipped,
        )
