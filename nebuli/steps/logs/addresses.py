"""Rows that are not logged, as their source gives them again: where those of each step stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard import Shard

SCHEMA = weighted(
    pa.schema(
        [
            ("source", pa.string()),
            ("position", pa.string()),
            ("rows", pa.uint64()),
            ("checksum", pa.uint64()),
            ("awaited", pa.bool_()),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a source, in the source's own form (the empty string is its beginning), after so many rows.

    ``awaited``: event time waits for what follows; not where nothing followed, or nothing came for long. It is
    the same place all the same.
    """

    position: str = ""
    rows: int = 0
    awaited: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class Passage:
    """The rows of a source from ``first`` up to ``until``. Other rows in their place have another ``checksum``."""

    first: Address
    until: Address
    checksum: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.until.rows - self.first.rows


NOTHING: Mapping[str, Passage] = MappingProxyType({})


class Addresses:
    """A shard whose times are steps. ``assigned`` is where each source's rows begin that count for no step yet."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.assigned: Mapping[str, Address] = {}
        self._known: tuple[int, Mapping[str, Passage]] = (-1, {})

    def part(self, step: int, read: Mapping[str, Passage]) -> NewPart:
        """Return the entry for a fixed step: each source's address after it, with the rows read for it."""
        until = {source: (at, 0) for source, at in self.assigned.items()}
        until |= {source: (passage.until, passage.checksum) for source, passage in read.items()}
        return self.shard.part(_updates(step, until), step, step + 1)

    def beginning(self, step: int, at: Mapping[str, Address], hold: str) -> NewPart:
        """Return the first entry of an empty log, so that each source's address is there when this step begins."""
        until = {source: (address, 0) for source, address in at.items()}
        return self.shard.part(_updates(step - 1, until), 0, step, holds={hold: step - 1})

    async def passages(self, step: int) -> Mapping[str, Passage]:
        """Return the passages that count for a step in the log, by source."""
        if self._known[0] != step:
            first, found = await self.where(step), await self._ends(step)
            self._known = (
                step,
                {
                    key: Passage(first.get(key, Address()), until, sum_)
                    for key, (until, sum_) in found.items()
                },
            )
        return self._known[1]

    async def where(self, step: int) -> Mapping[str, Address]:
        """The address of each source at which a step begins that the log has, or that comes next."""
        if step == 0:
            return {}
        if self._known[0] == step - 1:
            return {source: passage.until for source, passage in self._known[1].items()}
        return {source: until for source, (until, _) in (await self._ends(step - 1)).items()}

    async def _ends(self, step: int) -> Mapping[str, tuple[Address, int]]:
        return {
            source: (Address(position, rows, awaited), checksum)
            for _, batch in await self.shard.read(step, step + 1)
            for source, position, rows, checksum, awaited in zip(
                *(column.to_pylist() for column in batch.columns[:-1]), strict=True
            )
        }

    @staticmethod
    def kept_from(step: int) -> int:
        """The first step that is still needed when those below ``step`` are forgotten: its passages begin there."""
        return max(step - 1, 0)


def _updates(step: int, until: Mapping[str, tuple[Address, int]]) -> list[Update]:
    """Return the address of each source after a step, and the checksum of its rows in it."""
    rows = [
        (source, at.position, at.rows, checksum, at.awaited, 1) for source, (at, checksum) in until.items()
    ]
    if not rows:
        return []
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return [(step, pa.record_batch(arrays, schema=SCHEMA))]
