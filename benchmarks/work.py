"""What is sent in a measurement, and what a side has to say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

PATTERN_BYTES = 1 << 24
END = b"\xff"
"""The last message, on transports that have no end of their own."""


@dataclass(frozen=True)
class Work:
    """Messages of ``size`` bytes for ``seconds``, after ``warm_up`` seconds.

    ``arrow``: as record batches. ``different``: after how many messages they begin anew, at most. ``rate``: so many a
    second, due at times of their own (`latency`); None: as many as go through (`throughput`).
    """

    size: int
    arrow: bool = False
    seconds: float = 0.8
    warm_up: float = 0.2
    different: int = 61
    rate: float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def pattern(self) -> int:
        """How many different messages there are; number ``n`` is sent as message ``n % pattern`` of them."""
        return max(3, min(self.different, PATTERN_BYTES // self.size))

    @property
    def codec(self) -> Any:
        """What netchannel calls such messages."""
        return "arrow" if self.arrow else "bytes"

    def messages(self) -> list[Any]:
        """The different messages, whose first byte or value says which: bytes, or batches of four columns of int64."""
        if not self.arrow:
            return [bytes([n]) + bytes(self.size - 1) for n in range(self.pattern)]
        rows = self.size // 32
        return [
            pa.record_batch({f"c{column}": pa.array([n] * rows, pa.int64()) for column in range(4)})
            for n in range(self.pattern)
        ]


class Wrong(Exception):
    """Another message than the one that was due."""


class TooFew(Exception):
    """Of the messages, so many came before the warm-up was over that the rest cannot be measured."""


@dataclass
class Result:
    """What one side has to say of a run: how many messages it saw, and what it measured."""

    messages: int = 0
    measures: dict[str, float] = field(default_factory=dict)
