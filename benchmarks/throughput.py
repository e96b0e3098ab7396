"""As many messages as go through: who sends them, and how receivers look at them, all of them alike."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa

from .work import Result, TooFew, Work, Wrong

WHOLE_EACH = 61
"""One message in so many is compared as a whole, and not only by its first byte or value."""

LEAST_ROUNDS = 3
"""Of all different messages, however slow: fewer could not be measured."""


class Pace:
    """A sender's: lists of messages until the time is over. Several tasks may iterate over the same one."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._messages = work.messages()
        self._start = 0.0
        self._warm: tuple[float, int] | None = None  # processor time, and sent, when the warm-up was over
        self.sent = 0

    def __iter__(self) -> Iterator[list[Any]]:
        """What is to be sent next, for senders that block."""
        self._start = self._start or time.perf_counter()
        warm = self._start + self._work.warm_up
        end = warm + self._work.seconds
        least = LEAST_ROUNDS * len(self._messages)
        while (now := time.perf_counter()) < end or self.sent < least:
            if self._warm is None and now >= warm:
                self._warm = time.process_time(), self.sent
            yield self._messages
            self.sent += len(self._messages)

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        """The same, for coroutines."""
        for messages in self:
            yield messages

    def result(self) -> Result:
        """When everything is through."""
        if self._warm is None:
            raise TooFew(f"{self.sent} messages took longer than the warm-up and all that was to follow")
        cpu, sent = self._warm
        gigabytes = (self.sent - sent) * self._work.size / 1e9
        return Result(self.sent, {"sender_cpu_s_per_GB": (time.process_time() - cpu) / gigabytes})


class Watch:
    """A receiver's eye: sees every message, in order, and takes the time after the warm-up."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._last = work.messages()[-1]
        self._marks: list[tuple[float, float]] = []  # once per round of the pattern
        self._positions: list[Callable[[], int]] = []

    def look(self) -> Callable[[Any], None]:
        """A function that is given every message of one stream."""
        first, equal = (_first_value, pa.RecordBatch.equals) if self._work.arrow else (_first_byte, _equal)
        pattern, due, marks = self._work.pattern, 0, self._marks
        last = self._last
        whole_each = max(1, WHOLE_EACH // pattern)

        def look(message: Any) -> None:
            nonlocal due
            if first(message) != due:
                raise Wrong(f"message {first(message)} came where {due} was due, in round {len(marks)}")
            due += 1
            if due == pattern:
                due = 0
                if len(marks) % whole_each == 0 and not equal(message, last):
                    raise Wrong(f"a message was changed, in round {len(marks)}")
                marks.append((time.perf_counter(), time.process_time()))

        self._positions.append(lambda: due)
        return look

    def result(self) -> Result:
        """Of the rounds after the warm-up."""
        work, marks = self._work, self._marks
        messages = len(marks) * work.pattern + sum(position() for position in self._positions)
        timed = [mark for mark in marks if mark[0] >= marks[0][0] + work.warm_up]
        if len(timed) < 2:
            raise TooFew(
                f"{messages} messages, of which {len(timed)} rounds came after the warm-up: wanted at least 2"
            )
        seconds, cpu = (last - first for first, last in zip(timed[0], timed[-1], strict=True))
        measured = (len(timed) - 1) * work.pattern
        gigabytes = measured * work.size / 1e9
        return Result(
            messages,
            {
                "messages_per_s": measured / seconds,
                "MB_per_s": gigabytes * 1e3 / seconds,
                "receiver_cpu_s_per_GB": cpu / gigabytes,
            },
        )


def _first_byte(message: Any) -> int:
    return message[0]  # type: ignore[no-any-return]


def _first_value(batch: pa.RecordBatch) -> int:
    return batch.column(0)[0].as_py()  # type: ignore[no-any-return]


def _equal(message: Any, other: bytes) -> bool:
    return bytes(message) == other
