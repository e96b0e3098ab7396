"""The epochs of a circuit: numbers that its coordinators claim, each of them by one of them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import EpochTaken, StorageError, Unclear, UpperMismatch

if TYPE_CHECKING:
    from nebuli.store.shards.shard import Shard
    from nebuli.store.store import Store

_NO_ROWS = weighted(pa.schema([]))


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim whose append was begun: it has happened or not until it is known."""

    after: int
    expected: int
    number: int
    id: bytes


class EpochLog:
    """A shard without rows, whose upper is the greatest epoch that was claimed."""

    def __init__(self, circuit: str, shard: Shard) -> None:
        self.circuit = circuit
        self._shard = shard
        self._claiming = asyncio.Lock()
        self._begun: _Claim | None = None

    @classmethod
    async def open(cls, store: Store, circuit: str) -> Self:
        """Open the epochs of a circuit; none is claimed if they are not there yet."""
        return cls(circuit, await store.create_shard(f"{circuit}/epochs", _NO_ROWS, keeps="updates"))

    async def last(self) -> int:
        """Return the greatest claimed number; 0 if there is none."""
        await self._shard.refresh()
        return self._shard.upper

    async def claim(self, after: int) -> int:
        """Take the number that follows ``after`` and all that are there, durably: no other coordinator gets it.

        With 0 it is the next after all existing ones. Raises EpochTaken if a greater one than ``after`` is there,
        or another one claimed it meanwhile. After any other error, or a cancel, it is claimed or not: called again with
        the same ``after``, here, it is claimed once.
        """
        async with self._claiming:
            found = await self.last()
            begun = self._begun
            if begun is None or begun.after != after or begun.number < found:
                if 0 < after < found:
                    raise EpochTaken(self.circuit, after, found)
                begun = self._begun = _Claim(after, found, max(after, found) + 1, os.urandom(16))
            try:
                await self._shard.compare_and_append([], begun.expected, begun.number, append_id=begun.id)
            except Unclear:
                raise
            except StorageError as error:
                self._begun = None  # nothing happened
                if isinstance(error, UpperMismatch):
                    raise EpochTaken(self.circuit, after, error.found) from error
                raise
            self._begun = None
            return begun.number
