"""A raw source of the tests' own: messages in memory, which any number of readers read, and which can be trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa

from nebuli.ingestion.errors import AddressGone, SourceAway
from nebuli.ingestion.message_addresses import Addresses, Messages
from nebuli.ingestion.source_reader import SourceReader

CARRIED = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.int64())])


@dataclass
class MessageLog:
    """Parts with messages, each at the address that is its number; addresses may be left out."""

    parts: dict[str, list[tuple[int, tuple[str, int]]]] = field(default_factory=dict)
    trimmed: dict[str, int] = field(default_factory=dict)
    is_away: bool = False

    def add(self, part: str, rows: Sequence[tuple[str, int]], skip: int = 0) -> None:
        messages = self.parts.setdefault(part, [])
        first = (messages[-1][0] + 1 if messages else 0) + skip
        messages += [(first + number, row) for number, row in enumerate(rows)]

    def end(self, part: str) -> int:
        return self.parts[part][-1][0] + 1 if self.parts[part] else 0

    def trim(self, part: str, before: int) -> None:
        self.trimmed[part] = max(before, self.trimmed.get(part, 0))

    def reader(self, seed: int = 0) -> LogReader:
        return LogReader(self, Random(seed))


class LogReader(SourceReader):
    """Batches are cut at random."""

    def __init__(self, log: MessageLog, draw: Random) -> None:
        self._log = log
        self._draw = draw
        self._at: Addresses = {}

    @property
    def schema(self) -> pa.Schema:
        return CARRIED

    @property
    def reads(self) -> str:
        return "a log of the tests"

    async def open(self, at: Mapping[str, int]) -> None:
        self._check()
        self._at = dict(at)
        for part, address in at.items():
            if address < self._log.trimmed.get(part, 0):
                raise AddressGone(
                    f"{part} is trimmed below {self._log.trimmed[part]}, and {address} comes next"
                )

    def _check(self) -> None:
        if self._log.is_away:
            raise SourceAway("the log of the tests is away: have it come back")

    async def next(self) -> Messages:
        while True:
            self._check()
            for part in self._draw.sample(sorted(self._log.parts), len(self._log.parts)):
                at = self._at.get(part, 0)
                if at < self._log.trimmed.get(part, 0):
                    raise AddressGone(
                        f"{part} is trimmed below {self._log.trimmed[part]}, and {at} comes next"
                    )
                left = [each for each in self._log.parts[part] if each[0] >= at]
                if left:
                    some = left[: self._draw.randrange(1, 6)]
                    self._at[part] = some[-1][0] + 1
                    return Messages(
                        part,
                        at,
                        self._at[part],
                        np.array([address for address, _ in some], dtype=np.int64),
                        pa.RecordBatch.from_pylist(
                            [{"key": key, "value": value} for _, (key, value) in some], schema=CARRIED
                        ),
                    )
            await asyncio.sleep(0.005)

    async def ends(self) -> Addresses:
        self._check()
        return {part: self._log.end(part) for part in self._log.parts}

    async def release(self, before: Mapping[str, int]) -> None:
        for part, address in before.items():
            self._log.trim(part, address)

    async def close(self) -> None:
        pass


async def silent(error: object) -> None:
    """Whoever is told of errors, and of their ends, says nothing."""
