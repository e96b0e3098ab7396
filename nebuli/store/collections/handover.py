"""A handover: from some time on the collection is another rendition, which has all that was inserted meanwhile."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nebuli.dataflow.zset import consolidate
from nebuli.store.collections import timeline
from nebuli.store.collections.catalog import changes
from nebuli.store.collections.errors import (
    CollectionUnknown,
    HandoverLate,
    RenditionRefused,
    RenditionUnknown,
    TooLate,
)
from nebuli.store.collections.insert_routes import split
from nebuli.store.collections.reader_holds import HELD_OFF, HELD_OFF_S, release_hold, set_hold
from nebuli.store.errors import ShardUnknown, SinceMismatch, StorageError, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nebuli.store.collections.catalog import Catalog, Rendition
    from nebuli.store.collections.space import Collection, Space
    from nebuli.store.collections.timeline import Timeline
    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.shard import Shard


_AHEAD_S = 0.2
"""A handover at a given time is made so long before, while no insert and no reader moves the clock past it."""
_LOST = 2
"""Tries after which others are held off."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order to switch a collection to another rendition, ``built_from`` its contents at this time, if given.

    ``at`` is the time from which it is that one; None is as soon as it can be.
    """

    name: str
    rendition: str
    at: int | None
    built_from: int | None
    deadline_s: float


async def hand_over(space: Space, order: Order) -> int:
    """The time from which it is.

    Rows inserted since it was built are added in the append that hands over. Where others are first, later rows are
    added separately, and inserts wait until the handover is made, or its lease is over. Raises CollectionUnknown,
    RenditionUnknown, RenditionRefused, TooLate, StorageError.
    """
    until = time.monotonic() + order.deadline_s
    if order.at is not None:
        await _wait_for(space, order, order.at)
    lost, held_off = 0, False
    async with AsyncExitStack() as stack:
        while True:
            try:
                found = await _look(space, order)
                found.begin()
                if lost >= _LOST or order.at is not None:  # which has to be first before that time is over
                    if not held_off:
                        stack.push_async_callback(_let_go, space, found.collection)
                        held_off = True
                    await found.hold_off()
                    found = await _look(space, order)
                if lost:
                    await found.extend()
                    found = await _look(space, order)
                return await found.end()
            except (UpperMismatch, ShardUnknown):  # another change was first
                lost += 1
            if time.monotonic() >= until:
                raise HandoverLate(order.name, order.rendition, order.deadline_s, lost)


async def _wait_for(space: Space, order: Order, at: int) -> None:
    """Wait until a time has nearly come. Raises RenditionRefused."""
    to_come_s = (at - space.clock.now()) / 1000
    if to_come_s > order.deadline_s:
        raise RenditionRefused(
            f"the handover of collection {order.name} to rendition {order.rendition} is due at {at}, which is "
            f"{to_come_s:.3f} s from now, but the deadline is {order.deadline_s:g} s: give an earlier time, or "
            f"a longer deadline"
        )
    await asyncio.sleep(max(0.0, to_come_s - _AHEAD_S))


async def _let_go(space: Space, collection: Collection) -> None:
    with suppress(StorageError):  # it expires
        await release_hold(space, collection, HELD_OFF)


async def _look(space: Space, order: Order) -> _Handover:
    """Return the current state. Raises as `hand_over`; ShardUnknown."""
    while True:
        catalog = await space.catalog()
        entry = catalog.entries.get(order.name)
        if entry is None:
            raise CollectionUnknown(order.name, catalog.entries)
        if order.rendition not in entry.renditions:
            raise RenditionUnknown(order.name, order.rendition, entry.renditions)
        if entry.renditions[order.rendition].begin is not None:
            raise RenditionRefused(
                f"{order.rendition} is or was the current rendition of collection {order.name}: create a new "
                f"rendition, write it from scratch, and hand over to it"
            )
        try:
            (collection,) = await space.all_opened([entry])
        except CollectionUnknown:  # it, or one of its renditions, was dropped since
            continue
        every = [shard for shards in collection.shards.values() for shard in shards]
        clock, line, (said, *uppers) = await space.look(collection, [collection.metadata, *every])
        if line.last in collection.shards:  # else one was made since, and handed over to
            break
    known = dict(zip(every, uppers, strict=True))
    return _Handover(space, order, catalog, collection, clock, line, said, known)


@dataclass(frozen=True, slots=True)
class _Handover:
    """The known state: the upper of the ``clock``, and after it the current rendition, and the uppers of all shards."""

    space: Space
    order: Order
    catalog: Catalog
    collection: Collection
    clock: int
    line: Timeline
    said: int
    uppers: dict[Shard, int]

    @property
    def _rendition(self) -> Rendition:
        return self.collection.entry.renditions[self.order.rendition]

    @property
    def _new(self) -> Sequence[Shard]:
        return self.collection.shards[self.order.rendition]

    async def hold_off(self) -> None:
        """Have inserts wait, for as long as a lease. Raises CollectionUnknown."""
        await set_hold(self.space, self.collection, HELD_OFF, self.clock, HELD_OFF_S)

    async def end(self) -> int:
        """Hand over, with what is missing; the time of it. Raises UpperMismatch, ShardUnknown, RenditionRefused."""
        at = self.begin()
        if self.collection.entry.timed == "store":
            written = max(self.uppers[each] for each in self._new)
            if written > at + (self.order.at is None):
                raise RenditionRefused(
                    f"rendition {self.order.rendition} of collection {self.order.name} is already written for "
                    f"all times below {written}, but the time of the handover is {at}: wait until time "
                    f"{written}, then hand over"
                )
            at = max(at, written)
            # A shard without a row until then has none: from here on the clock shows how far it is written. All of its
            # shards move, so that their remaining writers learn of it.
            rows = await self._missing()
            moved = [
                each.part([] if part is None else [(at, part)], self.uppers[each], at + 1)
                for each, part in zip(self._new, self._split(rows), strict=True)
            ]
        else:
            if self.order.at is not None:
                self._check_readable(self.order.at)
            if self.order.built_from is not None:
                await self._check_unchanged(self.order.built_from)
            # Its writers may continue with the next one at once: their writes are complete, or readers would wait.
            old = self.collection.shards[self.line.last]
            moved = [each.part([], self.uppers[each], at) for each in old if self.uppers[each] < at]
        rows = timeline.handover(self.line.last, self.order.rendition)
        await self.space.access.append(
            [
                self._marked(replace(self._rendition, begin=at, extended=None)),
                self.space.clock.moved(self.clock, at),
                self.collection.metadata.part([(at, rows)], self.said, at + 1),
                *moved,
            ],
            None,
        )
        return at

    def begin(self) -> int:
        """The time of the handover. Raises RenditionRefused for one that the metadata have passed."""
        upper = max(self.clock, self.said)
        if self.order.at is None:
            return max(self.space.clock.next_time(), upper)
        if self.order.at < upper:
            raise RenditionRefused(
                f"collection {self.order.name} cannot be handed over to rendition {self.order.rendition} at "
                f"{self.order.at}: readers may have read the current rendition at any time below {upper}; give "
                f"a time from {upper} on, or no time"
            )
        return self.order.at

    def _check_readable(self, at: int) -> None:
        written = min(self.uppers[each] for each in self._new)
        if written <= at:
            raise RenditionRefused(
                f"rendition {self.order.rendition} of collection {self.order.name} cannot be read at {at}, "
                f"because it is written only for times below {written}: first write it up to {at + 1} (without "
                f"rows if there are none)"
            )

    async def extend(self) -> None:
        """Add what is missing, and that it is there, so that it is never added again. Raises as `end`."""
        rows = await self._missing()
        if rows is None or max(self.uppers[each] for each in self._new) >= self.clock:
            return  # in the latter case soon: each insert moves the clock
        parts = [
            each.part([(self.clock - 1, part)], self.uppers[each], self.clock)
            for each, part in zip(self._new, self._split(rows), strict=True)
            if part is not None and part.num_rows
        ]
        marked = self._marked(replace(self._rendition, extended=self.clock - 1))
        await self.space.access.append([marked, *parts], None)

    def _marked(self, rendition: Rendition) -> NewPart:
        return self.space.changed_catalog(self.catalog, changes([rendition], [self._rendition]))

    def _split(self, rows: pa.RecordBatch | None) -> Sequence[pa.RecordBatch | None]:
        return [None] * len(self._new) if rows is None else split(rows, len(self._new))

    async def _missing(self) -> pa.RecordBatch | None:
        """Return the rows inserted since the rendition was built, and not added yet.

        Raises RenditionRefused, TooLate.
        """
        built_from = self.order.built_from
        if built_from is None or self.collection.entry.timed == "writers":
            return None
        first = max(built_from, self._rendition.extended or 0) + 1
        self._check_same(first - 1)
        self._check_built(built_from)
        try:
            found = (
                [
                    rows
                    for each in self.collection.shards[self.line.last]
                    for _, rows in await each.between(first, self.clock)
                ]
                if first < self.clock
                else []
            )
        except SinceMismatch as error:
            raise TooLate(self.order.name, first - 1, error.since) from None
        return consolidate(found) if found else None

    def _check_built(self, built_from: int) -> None:
        """Check that the rendition has all rows before a time: those inserted after it are added."""
        name, rendition = self.order.name, self.order.rendition
        if built_from >= self.clock:
            raise RenditionRefused(
                f"rendition {rendition} of collection {name} cannot be built from the collection as of "
                f"{built_from}, because the collection is written only for times below {self.clock}: give as "
                f"built_from the time, in milliseconds, at which the collection was read"
            )
        written = min(self.uppers[each] for each in self._new)
        if written <= built_from:
            raise RenditionRefused(
                f"rendition {rendition} of collection {name} cannot be built from the collection as of "
                f"{built_from}, because the rendition is written only for times below {written}: first write "
                f"it up to {built_from + 1} (without rows if there are none)"
            )

    def _check_same(self, built_from: int) -> None:
        if built_from < self.line.since:
            raise TooLate(self.order.name, built_from, self.line.since)
        period = self.line.period(self.line.last)
        if period is not None and built_from < period.begin:
            self._refuse(built_from)

    async def _check_unchanged(self, built_from: int) -> None:
        self._check_same(built_from)
        for each in self.collection.shards[self.line.last]:
            if await each.between(built_from + 1, each.upper):
                self._refuse(built_from)

    def _refuse(self, built_from: int) -> None:
        raise RenditionRefused(
            f"rendition {self.order.rendition} was built from collection {self.order.name} as of {built_from}, "
            f"but the collection has changed since then: write to the rendition also the rows that follow from "
            f"this change, and hand over with the time of the change as built_from"
        )
