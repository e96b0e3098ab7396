"""A collection as its readers see it: contents at a time, and changes after it, over all renditions."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.zset import consolidate, weights_of, with_weights, without_weight
from nebuli.store.collections.errors import CollectionError, RenditionUnknown, TooLate
from nebuli.store.collections.reader_holds import reading
from nebuli.store.errors import FINISHED, NotYet, ShardUnknown, SinceMismatch
from nebuli.store.shards.shard import Shard, Span

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from nebuli.store.collections.reader_holds import ReaderHold
    from nebuli.store.collections.space import Collection, Space
    from nebuli.store.collections.timeline import Timeline
    from nebuli.store.shards.payloads import Update

How = Literal["once", "as written"]
"""How often an equal row is in contents: once, or, if none was retracted, as often as it was written."""
Part = tuple[int, int]
"""A part: its number, and the number of parts."""
MOST_ROWS = 1 << 32
"""Bound on rows that are read one by one, each as often as its weight."""
_SPAN_ROWS = 1 << 20
"""Rows of one span, if they are not all of one append."""


class Reader:
    """A reader of an open collection."""

    def __init__(self, space: Space, collection: Collection) -> None:
        self._space = space
        self._collection = collection
        self._is_timed = collection.entry.timed == "store"

    async def latest(self) -> int:
        """The last time that can be read without waiting. Raises CollectionUnknown; NotYet where nothing is written."""
        upper, timeline, _ = await self._space.look(self._collection)
        if not self._is_timed:
            shards = await self._space.shards_of(self._collection, timeline.last)
            await self._space.access.refresh([each.tracked for each in shards])
            upper = min(upper, max(timeline.begin, min(each.upper for each in shards)))
        if upper == 0:
            name = self._collection.name
            raise NotYet(
                name, 0, 0, 0.0,
                f"collection {name} has no rows yet, and its writers assign the times: wait until "
                f"a writer has written, or check that the writers run",
            )  # fmt: skip
        return max(upper - 1, self._collection.metadata.since)

    async def snapshot(
        self, as_of: int | None, deadline_s: float, how: How, part: Part | None
    ) -> tuple[int, pa.Table]:
        """A time, and the Z-set that the collection, or a part of it, is then.

        Raises TooLate, NotYet, CollectionUnknown, Damaged.
        """
        async with self._reading(as_of) as hold:
            try:
                return hold.at, await self._contents(hold.at, deadline_s, how, part)
            except NotYet as error:
                name = self._collection.name
                raise NotYet(
                    name, hold.at, error.upper, deadline_s,
                    f"collection {name} is complete only below {error.upper}, and did not reach "
                    f"{hold.at} within {deadline_s:g} s: read at an earlier time, or wait longer",
                ) from None  # fmt: skip

    async def snapshot_of(self, rendition: str, at: int, deadline_s: float) -> pa.Table:
        """The Z-set that a rendition is at a time, whichever the collection is then.

        Raises TooLate, NotYet, RenditionUnknown, CollectionUnknown, Damaged.
        """
        shards = await self.upto(rendition, at, deadline_s)
        try:
            tables = await asyncio.gather(*(each.contents(at) for each in shards))
        except SinceMismatch as error:
            raise TooLate(self._collection.name, at, error.since) from None
        except ShardUnknown:
            raise await self._lost(at) from None
        return pa.concat_tables(tables)

    async def upto(self, rendition: str, at: int, deadline_s: float) -> Sequence[Shard]:
        """The shards of a rendition, once it is written up to a time.

        Raises NotYet, RenditionUnknown, CollectionUnknown.
        """
        try:
            shards = await self._shards_of(rendition)
            await asyncio.gather(*(each.written(at, deadline_s=deadline_s) for each in shards))
        except ShardUnknown:
            raise await self._lost(at) from None
        return shards

    async def parts(self, at: int) -> int:
        """Return into how many parts it is divided for reading in parallel at a time.

        Raises TooLate, CollectionUnknown.
        """
        _, timeline, _ = await self._space.look(self._collection)
        self._check_since(at, timeline)
        return len(await self._space.shards_of(self._collection, timeline.at(at).rendition))

    async def subscribe(self, as_of: int | None, *, snapshot: bool) -> AsyncGenerator[Span]:
        """Yield all changes after a time, in the order of times, and how far they are known; without an end.

        With the ``snapshot``, the first span is the contents at this time. Raises TooLate, CollectionUnknown, Damaged.
        """
        async with self._reading(as_of) as hold:
            start = hold.at
            if snapshot:
                contents = await self._contents(start, None)
                yield Span(
                    start, start + 1, [(start, each) for each in contents.to_batches() if each.num_rows]
                )
            at = start + 1
            while at < FINISHED:
                span = await self._next(at)
                yield span
                at = span.upper
                hold.at = at - 1

    # -- the parts of it

    @asynccontextmanager
    async def _reading(self, as_of: int | None) -> AsyncIterator[ReaderHold]:
        """A hold at a time, or at the last one, which others may forget before it is held."""
        async with AsyncExitStack() as stack:
            while True:
                at = await self.latest() if as_of is None else self._collection.not_before(as_of)
                try:
                    hold = await stack.enter_async_context(reading(self._space, self._collection, at))
                except TooLate as error:
                    if as_of is not None:
                        raise TooLate(self._collection.name, as_of, error.since) from None
                else:
                    break
            yield hold

    async def _contents(
        self, at: int, deadline_s: float | None, how: How = "once", part: Part | None = None
    ) -> pa.Table:
        await self._space.clock.reach(at, deadline_s, at_once=True)
        _, timeline, _ = await self._space.look(self._collection)
        self._check_since(at, timeline)
        return await self._rendition(timeline.at(at).rendition, at, deadline_s, how, part)

    def _check_since(self, at: int, timeline: Timeline) -> None:
        """A client that has slept for longer than its lease has no hold any more. Raises TooLate."""
        if at < timeline.since:
            raise TooLate(self._collection.name, at, timeline.since)

    async def _shards_of(self, rendition: str) -> Sequence[Shard]:
        """The shards of a rendition as they are now. Raises ShardUnknown, RenditionUnknown, CollectionUnknown."""
        shards = await self._space.shards_of(self._collection, rendition)
        try:
            await self._space.look(self._collection, shards)
        except ShardUnknown:
            if not await self._space.made_anew(self._collection, rendition, shards):
                raise
            shards = await self._space.shards_of(self._collection, rendition)
            await self._space.look(self._collection, shards)
        return shards

    async def _lost(self, at: int) -> CollectionError:
        """The error for a rendition that was read, and is not there any more."""
        try:
            await self._space.look(self._collection)
        except CollectionError as error:
            return error
        return TooLate(self._collection.name, at, self._collection.metadata.since)

    async def _rendition(
        self,
        rendition: str,
        at: int,
        deadline_s: float | None,
        how: How = "once",
        part: Part | None = None,
    ) -> pa.Table:
        """The contents of a rendition, or of a part of it, at a time that the clock has reached."""
        try:
            shards = await self._shards_of(rendition)
            if part is not None:
                shards = shards[part[0] :: part[1]]
            if not self._is_timed:
                await asyncio.gather(*(each.written(at, deadline_s=deadline_s) for each in shards))
            read = Shard.contents if how == "once" else Shard.contents_as_written
            tables = await asyncio.gather(*(read(each, at) for each in shards))
        except (ShardUnknown, RenditionUnknown):
            raise await self._lost(at) from None
        except SinceMismatch as error:
            raise TooLate(self._collection.name, at, error.since) from None
        return pa.concat_tables(tables) if tables else self._collection.schema.empty_table()

    async def _next(self, at: int) -> Span:
        """Return the changes from a time on, once they are known."""
        await self._space.clock.reach(at, None)
        frontier, timeline, _ = await self._space.look(self._collection)
        self._check_since(at - 1, timeline)
        now = timeline.at(at)
        if now.begin == at:
            before = timeline.at(at - 1).rendition
            if before != now.rendition:
                return Span(at, at + 1, await self._difference(before, now.rendition, at))
        until = frontier if now.end is None else min(frontier, now.end)
        try:
            shards = await self._shards_of(now.rendition)
            if not self._is_timed:
                await asyncio.gather(*(each.written(at, deadline_s=None) for each in shards))
                await self._space.access.refresh([each.tracked for each in shards])
                until = min(until, *(each.upper for each in shards))
            until = min(each.end_of_some(at, until, _SPAN_ROWS // len(shards)) for each in shards)
            found = await asyncio.gather(*(each.between(at, until) for each in shards))
        except (ShardUnknown, RenditionUnknown):
            raise await self._lost(at - 1) from None
        except SinceMismatch as error:
            raise TooLate(self._collection.name, at - 1, error.since) from None
        updates = [update for some in found for update in some]
        return Span(at, until, sorted(updates, key=lambda update: update[0]))

    async def _difference(self, before: str, after: str, at: int) -> Sequence[Update]:
        """Return the difference between two renditions, and the changes at that time."""
        old, new = await asyncio.gather(
            self._rendition(before, at - 1, None), self._rendition(after, at, None)
        )
        taken = [with_weights(without_weight(each), -weights_of(each)) for each in old.to_batches()]
        rows = [each for each in (*taken, *new.to_batches()) if each.num_rows]
        changed = consolidate(rows) if rows else None
        return [] if changed is None or not changed.num_rows else [(at, changed)]


def rows_of(collection: str, at: int, contents: pa.Table) -> pa.Table:
    """Return the rows of a Z-set, each as often as its weight. Raises CollectionError where that is less than never."""
    weights = contents.column(contents.num_columns - 1)
    rows = contents.select(contents.column_names[:-1])
    if not contents.num_rows:
        return rows
    few = pc.min_max(weights).as_py()
    if few == {"min": 1, "max": 1}:
        return rows
    times = weights.to_numpy()
    if few["min"] < 0:
        (row,) = rows.slice(int(np.argmin(times)), 1).to_pylist()
        raise CollectionError(
            f"collection {collection} has the row {tuple(row.values())} {few['min']} times at {at}: its "
            f"writer has retracted it more often than added it; insert it {-few['min']} times to repair this, or read "
            f"it with its weight: `weighted=True`, or `nebuli collection follow --snapshot`"
        )
    if (count := times.sum(dtype=float)) > MOST_ROWS:
        raise CollectionError(
            f"collection {collection} has {count:.0f} rows at {at}, but at most {MOST_ROWS} can "
            f"be read one by one: read each distinct row once, with its weight"
        )
    several = np.flatnonzero(times > 1)
    return pa.concat_tables([rows, rows.take(pa.array(np.repeat(several, times[several] - 1)))])
