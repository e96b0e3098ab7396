"""Deadlines of a core, in one heap; the adapter asks for the next one and reports when it has passed."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer:
    """One deadline. ``cancel`` may be called at any time, also twice or after it has fired."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[float], None]) -> None:
        self.when = when
        self.action: Callable[[float], None] | None = action

    def cancel(self) -> None:
        """The action will not run."""
        self.action = None


class Timers:
    """A heap of deadlines. Cancelled ones are passed over, and swept out before they are more than half of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._sweep_at = 64
        self._order = count()
        self.on_earlier: Callable[[float], None] = lambda when: None

    def at(self, when: float, action: Callable[[float], None]) -> Timer:
        """Run ``action(now)`` at the first `run` with ``now >= when``."""
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._sweep_at = max(64, 2 * len(self._heap))
        timer = Timer(when, action)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        if self._heap[0][2] is timer:
            self.on_earlier(when)
        return timer

    def next(self) -> float | None:
        """The time when the next action is due, or None."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        """Run all actions that are due. One that sets a new timer in the past has it run too."""
        while (when := self.next()) is not None and when <= now:
            timer = heapq.heappop(self._heap)[2]
            action, timer.action = timer.action, None
            if action is not None:
                action(now)
