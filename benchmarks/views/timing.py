"""How long single calls take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")


class Clock:
    """Keeps how long each call took, or each time that something was done within its context."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds.append(time.perf_counter() - self._began)

    def timed(self, call: Callable[[], Result]) -> Result:
        """Call it."""
        with self:
            return call()

    def percentiles(self, unit: str, each_s: float) -> dict[str, float]:
        """The 50th and the 99th, in units of so many seconds."""
        p50, p99 = np.percentile(self.seconds, (50, 99)) / each_s
        return {f"p50_{unit}": float(p50), f"p99_{unit}": float(p99)}

    @property
    def longest_ms(self) -> float:
        """Of all."""
        return max(self.seconds) * 1e3
