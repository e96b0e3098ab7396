"""Which rows count for which step: fixed step by step, and never changed.

Rows that are pushed are logged, as arrivals at a handle. Rows that their source gives again are not: a step has the
addresses between which they stand in it.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.zset import added, weighted
from nebuli.store.errors import BeyondEnd, LogTaken, StepOutOfRange, Unclear, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard import Shard
    from nebuli.store.store import Store


class HandleLog:
    """The arrivals at a handle.

    Those from ``assigned`` on count for no step yet; ``rows`` is how many rows they have that are counted.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.assigned = shard.since
        self.rows = 0
        self._counted = shard.since  # the first arrival whose rows are not counted
        self._waiting: deque[tuple[int, int]] = deque()

    @property
    def upper(self) -> int:
        """The number of the next arrival."""
        return self.shard.upper

    @property
    def waiting(self) -> int:
        """How many arrivals count for no step yet."""
        return self.upper - self.assigned

    async def read(self, first: int, until: int) -> pa.RecordBatch:
        """Arrivals from ``first`` up to but not including ``until``, added."""
        updates = await self.shard.read(first, until) if first < until else []
        return added([rows for _, rows in updates], self.shard.schema)

    def assign(self, until: int) -> None:
        """Those below count for steps by now."""
        self.assigned = until
        self._counted = max(self._counted, until)
        while self._waiting and self._waiting[0][0] < until:
            self.rows -= self._waiting.popleft()[1]

    def arrived(self, at: int, rows: int) -> None:
        """Count the rows of an arrival, unless they are counted, or it counts for a step already."""
        if at >= self._counted:
            self._counted = at + 1
            self._waiting.append((at, rows))
            self.rows += rows

    async def count(self) -> None:
        """Count the rows of all that is there."""
        await self.shard.refresh()
        if self._counted < self.upper:
            for at, rows in await self.shard.read(self._counted, self.upper):
                self.arrived(at, rows.num_rows)


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
_ADDRESSES = weighted(
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


class Addresses:
    """The addresses of all sources, in a shard whose times are steps.

    ``assigned`` is where each source's rows begin that count for no step yet.
    """

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
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _ADDRESSES, strict=True)]
    return [(step, pa.record_batch(arrays, schema=_ADDRESSES))]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a log stands between two steps.

    ``waiting`` are the rows that count for no step yet, added, by handle; ``producers`` what is remembered of who sent
    them and all before, in the producers' schema; ``addresses`` where each source is read on that is not logged.
    """

    step: int
    waiting: Mapping[str, pa.RecordBatch]
    producers: pa.RecordBatch
    addresses: Mapping[str, Address]


_HOLD = "log"
_SCHEMA = weighted(pa.schema([("handle", pa.string()), ("first", pa.uint64()), ("until", pa.uint64())]))
_NO_COLUMNS = weighted(pa.schema([]))

Offsets = dict[str, tuple[int, int]]
"""The first arrival that counts, and the first that does not any more, by handle."""


@cache
def _end() -> pa.RecordBatch:
    """Made when it is used: an import that makes an array has Arrow look for pandas, for good."""
    return pa.record_batch([pa.array([1], pa.int64())], schema=_NO_COLUMNS)


class Remap:
    """A shard whose times are steps, which one member at a time fixes, one after the other.

    Another shard, which is not trimmed, has a row at each step with which event time ended, and for its upper the step
    that follows the last one; and ``sources`` are one more, for what is not logged.
    """

    def __init__(
        self,
        store: Store,
        log: str,
        *,
        shard: Shard,
        ends: Shard,
        sources: Addresses,
        arrivals: Mapping[str, HandleLog],
    ) -> None:
        self._store = store
        self._log = log
        self._shard = shard
        self._ends = ends
        self._addresses = sources
        self._arrivals = arrivals
        self._assigned_below = 0  # the step up to which the arrivals know what counts
        self._id = os.urandom(8)

    @classmethod
    async def open(cls, store: Store, name: str, arrivals: Mapping[str, HandleLog]) -> Self:
        """Open that of a log, made if it is not there."""
        shard = await store.create_shard(f"{name}/remap", _SCHEMA, keeps="updates")
        ends = await store.create_shard(f"{name}/ends", _NO_COLUMNS, keeps="updates")
        sources = await store.create_shard(f"{name}/addresses", _ADDRESSES, keeps="updates")
        return cls(
            store,
            f"input log {name}",
            shard=shard,
            ends=ends,
            sources=Addresses(sources),
            arrivals=arrivals,
        )

    @property
    def first(self) -> int:
        """The first step that it has."""
        return self._shard.since

    @property
    def last(self) -> int:
        """The step that comes next."""
        return self._shard.upper

    async def ends(self) -> tuple[int, ...]:
        """The steps that `end` was called for; they stay known when the steps are trimmed."""
        if not self._ends.upper:
            return ()
        found = {step for step, _ in await self._ends.read(0, self._ends.upper)}
        return tuple(sorted(found | {self._ends.upper - 1}))  # versions before noted the last one alone

    async def refresh(self) -> None:
        """Learn what another process has fixed by now."""
        await self._shard.refresh()

    async def offsets(self, step: int) -> Offsets:
        """The arrivals that count for a step, by handle. Raises StepOutOfRange."""
        if not self.first <= step < self.last:
            raise StepOutOfRange(self._log, step, self.first, self.last)
        return {
            handle: (first, until)
            for _, rows in await self._shard.read(step, step + 1)
            for handle, first, until in zip(*(rows.column(n).to_pylist() for n in range(3)), strict=True)
        }

    async def catch_up(self) -> None:
        """Have the arrivals know which of them count, also when a call was cancelled that fixed a step."""
        last = self.last
        if self._assigned_below < last:
            # Where all steps are trimmed, the arrivals know it of their own; sources are where the last one ended.
            await self._assign(last - 1, await self.offsets(last - 1) if self.first < last else {})

    async def _assign(self, step: int, offsets: Offsets) -> None:
        if step < self._assigned_below:
            return
        self._addresses.assigned = await self._addresses.where(step + 1)
        for handle, (_, until) in offsets.items():
            if handle in self._arrivals:
                arrivals = self._arrivals[handle]
                if until > arrivals.upper:
                    raise BeyondEnd(
                        f"step {step} of {self._log}", until, f"its input {handle}", arrivals.upper
                    )
                arrivals.assign(until)
        self._assigned_below = step + 1

    async def passages(self, step: int) -> Mapping[str, Passage]:
        """The rows that count for a step and are not logged, by source. Raises StepOutOfRange."""
        if not self.first <= step < self.last:
            raise StepOutOfRange(self._log, step, self.first, self.last)
        return await self._addresses.passages(step)

    async def where(self, step: int) -> Mapping[str, Address]:
        """The address of each source at which a step begins; it has none at first. Raises StepOutOfRange."""
        if not self.first <= step <= self.last:
            raise StepOutOfRange(self._log, step, self.first, self.last)
        return await self._addresses.where(step)

    async def fix(self, step: int, read: Mapping[str, Passage] = NOTHING) -> Offsets:
        """The arrivals that count for a step; for the next one all that are there, and ``read``, by source.

        Raises StepOutOfRange.
        """
        if step == self.last:
            await self._fix_next(step, read)
        offsets = await self.offsets(step)
        if step + 1 == self.last:
            await self._assign(step, offsets)
        return offsets

    async def end(self, step: int, read: Mapping[str, Passage] = NOTHING) -> Offsets:
        """The same, and event time ends with the step, which is among the `ends`. Raises StepOutOfRange."""
        if step == self.last:
            await self._fix_next(step, read, *self._mark(step))
        offsets = await self.fix(step)
        for mark in self._mark(step):  # it was fixed before
            try:
                await self._store.append([mark])
            except UpperMismatch as error:
                raise LogTaken(self._log) from error
        return offsets

    def _mark(self, step: int) -> Sequence[NewPart]:
        """Return the entry for the step among the `ends`, if it is needed."""
        upper = self._ends.upper
        return [self._ends.part([(step, _end())], upper, step + 1)] if upper <= step else []

    async def pass_over(self, step: int) -> None:
        """Fix the next step with nothing in it; one that is fixed stays as it is. Raises StepOutOfRange."""
        if step > self.last:
            raise StepOutOfRange(self._log, step, self.first, self.last)
        if step == self.last:
            await self.catch_up()
            until = {handle: each.assigned for handle, each in self._arrivals.items()}
            await self._append(step, until, NOTHING)
            await self.catch_up()

    async def _fix_next(self, step: int, read: Mapping[str, Passage], *also: NewPart) -> None:
        await self.catch_up()
        await self._append(step, {handle: each.upper for handle, each in self._arrivals.items()}, read, *also)

    async def _append(
        self, step: int, until: Mapping[str, int], read: Mapping[str, Passage], *also: NewPart
    ) -> None:
        """Append what fixes the step, once: calls at the same time, or after one that failed, have the same id."""
        firsts = [self._arrivals[handle].assigned for handle in until]
        columns = [list(until), firsts, list(until.values()), [1] * len(until)]
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
        rows = pa.record_batch(arrays, schema=_SCHEMA)
        own = self._shard.part([(step, rows)], step, step + 1)
        parts = [own, self._addresses.part(step, read), *also]
        try:
            await self._store.append(parts, append_id=self._id + step.to_bytes(8))
        except UpperMismatch as error:
            raise LogTaken(self._log) from error
        except Unclear as error:
            if self.last > step + 1:  # others have fixed steps since, so many that ids are forgotten
                raise LogTaken(self._log) from error
            raise

    def beginning(self, at: LogPosition) -> list[NewPart]:
        """Return the entry with which a blank one begins at a step, as if all below had been forgotten."""
        parts = []
        if at.step:
            parts.append(self._shard.part([], 0, at.step, holds={_HOLD: at.step}))
            parts.append(self._addresses.beginning(at.step, at.addresses, _HOLD))
        return parts

    async def trim(self, step: int) -> None:
        """Forget all steps below, and the arrivals that count for them. Raises StepOutOfRange."""
        if not self.first <= step <= self.last:
            raise StepOutOfRange(self._log, step, self.first, self.last)
        needed = {handle: each.assigned for handle, each in self._arrivals.items()}
        if step < self.last:
            needed = {handle: first for handle, (first, _) in (await self.offsets(step)).items()}
        holds = {self._arrivals[handle].shard: first for handle, first in needed.items()}
        kept = {self._shard: step, self._addresses.shard: Addresses.kept_from(step)}
        await self._store.hold(_HOLD, holds | kept)
