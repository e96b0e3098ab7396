"""The common parts of all collections of a store: its clock, its catalog, and the shards that are open here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.dataflow.zset import weighted
from nebuli.store.collections import catalog
from nebuli.store.collections.catalog import Catalog
from nebuli.store.collections.clock import TICK_S, Clock, now_ms
from nebuli.store.collections.errors import (
    CollectionDropped,
    CollectionMisused,
    CollectionUnknown,
    RenditionUnknown,
)
from nebuli.store.collections.timeline import Timeline
from nebuli.store.errors import FINISHED, ShardUnknown, SinceMismatch
from nebuli.store.shards.shard import Shard
from nebuli.store.shards.shard_state import Create

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from nebuli.store.collections.catalog import Entry, Rendition
    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.ledger import ShardTracker
    from nebuli.store.store import Store


@dataclass(slots=True)
class Collection:
    """One that is open here. ``shards`` are those of its renditions."""

    entry: Entry
    schema: pa.Schema
    metadata: Shard
    producers: Shard
    shards: dict[str, list[Shard]]

    @property
    def name(self) -> str:
        """The name by which it is known."""
        return self.entry.name

    def not_before(self, at: int) -> int:
        """A time from which on it was there: before it was made it is what it was then, empty.

        Raises CollectionMisused for another time.
        """
        first = self.entry.created if self.entry.timed == "store" else 0
        if not isinstance(at, int) or at >= FINISHED:
            raise CollectionMisused(
                f"{at!r} is not a time of collection {self.name}: times have 64 bits, and are "
                f"milliseconds since 1970 if the store assigns them"
            )
        return max(at, first)


class Space:
    """Entered store, on the event loop of it."""

    def __init__(self, store: Store, now: Callable[[], int] = now_ms, *, tick_s: float = TICK_S) -> None:
        self.store = store
        self.access = store.access
        self.clock = Clock(store.access, now, tick_s=tick_s)
        self._rows: Shard | None = None
        self._catalog: Catalog | None = None
        self._open: dict[str, Collection] = {}
        self._timelines: dict[str, tuple[int, Timeline]] = {}

    async def open(self) -> None:
        """Make the clock and the catalog, where they are not there."""
        await self.access.change([Clock.create(), Create(catalog.SHARD, catalog.SCHEMA, keeps_contents=True)])
        await self.clock.open()
        self._rows = await self.store.open_shard(catalog.SHARD)

    @property
    def shards(self) -> Sequence[ShardTracker]:
        """Those that all collections have in common."""
        assert self._rows is not None, "it is opened first"
        return self.clock.shard, self._rows.tracked

    # -- the catalog

    async def catalog(self, *, fresh: bool = True) -> Catalog:
        """Return the current catalog; or, if that is enough, the last known one."""
        assert self._rows is not None, "it is opened first"
        if self._catalog is None or fresh:
            await self._rows.refresh()
        upper = self._rows.upper
        while self._catalog is None or self._catalog.upper != upper:
            if upper == 0:
                self._catalog = Catalog(0, {}, [])
                break
            try:
                self._catalog = Catalog.of(upper, await self._rows.contents(upper - 1))
            except SinceMismatch:  # it has changed meanwhile
                await self._rows.refresh()
            upper = self._rows.upper
        return self._catalog

    def changed_catalog(self, known: Catalog, rows: pa.RecordBatch) -> NewPart:
        """The change of the catalog, if it is still the one that is known."""
        assert self._rows is not None, "it is opened first"
        holds = {"catalog": known.upper}
        return self._rows.part([(known.upper, rows)], known.upper, known.upper + 1, holds)

    async def entry(self, name: str) -> Entry:
        """The collection of a name. Raises CollectionUnknown."""
        found = (await self.catalog()).entries.get(name)
        if found is None:
            raise CollectionUnknown(name, (await self.catalog(fresh=False)).entries)
        return found

    # -- open collections

    async def opened(self, name: str, *, fresh: bool = False) -> Collection:
        """The collection of a name with all of its shards; as it was last known here, if that is enough.

        Raises CollectionUnknown.
        """
        known = None if fresh or self._catalog is None else self._catalog.entries.get(name)
        entry = known or await self.entry(name)
        while True:
            try:
                return (await self.all_opened([entry]))[0]
            except CollectionUnknown:
                before, entry = entry, await self.entry(name)
                if entry == before:
                    raise

    async def all_opened(self, entries: Sequence[Entry]) -> list[Collection]:
        """The same of several, by one look at the store. Raises CollectionUnknown."""
        known = [self._open.get(each.id) for each in entries]
        opened = {each.entry.id: each for each in known if each is not None and each.entry in entries}
        lacking = [each for each in entries if each.id not in opened]
        names = [name for each in lacking for name in each.shard_names()]
        tracked = {each.name: each for each in await self.access.track_all(names)}
        opened |= {each.id: self._made(each, tracked) for each in lacking}
        self._open |= opened
        return [opened[each.id] for each in entries]

    def _made(self, entry: Entry, tracked: dict[str, ShardTracker]) -> Collection:
        try:
            return Collection(
                entry,
                weighted(entry.schema),
                Shard(tracked[entry.metadata], self.access),
                Shard(tracked[entry.producers], self.access),
                {name: self._shards(each, tracked) for name, each in entry.renditions.items()},
            )
        except KeyError:  # it, or a rendition, was dropped since the catalog was read
            self._catalog = None
            raise CollectionUnknown(entry.name) from None

    def _shards(self, rendition: Rendition, tracked: dict[str, ShardTracker]) -> list[Shard]:
        return [Shard(tracked[name], self.access) for name in rendition.shard_names()]

    async def gone(self, collection: Collection) -> CollectionDropped:
        """The error for a collection whose shards are not there any more."""
        self._open.pop(collection.entry.id, None)
        self._timelines.pop(collection.entry.id, None)
        self._catalog = None
        return CollectionDropped(collection.name)

    # -- which rendition it is

    async def look(
        self, collection: Collection, shards: Sequence[Shard] = ()
    ) -> tuple[int, Timeline, list[int]]:
        """Return the clock's upper; and after it, the collection's timeline, and the uppers of shards.

        So everything below the first is known to the others: each handover or insert moves the clock with it.
        Raises CollectionUnknown; ShardUnknown where one of the shards is of a rendition that was dropped.
        """
        metadata = collection.metadata
        while True:
            asked = [metadata.tracked, *(each.tracked for each in shards)]
            try:
                clock, (said, *states) = await self.access.known_behind(self.clock.shard, asked)
                known = self._timelines.get(collection.entry.id)
                if known is None or known[0] != said.sequence:
                    known = said.sequence, await _timeline(metadata)
                    self._timelines[collection.entry.id] = known
            except ShardUnknown as error:
                if error.shard != metadata.name:
                    raise
                raise await self.gone(collection) from None
            except SinceMismatch:  # it was compacted meanwhile
                continue
            return clock.upper, known[1], [each.upper for each in states]

    def known_line(self, collection: Collection) -> Timeline | None:
        """Return the result of the last look; None if there was none."""
        known = self._timelines.get(collection.entry.id)
        return None if known is None else known[1]

    async def shards_of(self, collection: Collection, rendition: str) -> list[Shard]:
        """The shards of a rendition, which may be newer than what is known here.

        Raises CollectionUnknown, RenditionUnknown.
        """
        if rendition not in collection.shards:
            await self.learn_renditions(collection)
        if rendition not in collection.shards:
            raise RenditionUnknown(collection.name, rendition, collection.shards)
        return collection.shards[rendition]

    async def made_anew(self, collection: Collection, rendition: str, known: Sequence[Shard]) -> bool:
        """True if shards that are missing now are those of an earlier rendition of the same name.

        Raises CollectionUnknown.
        """
        await self.learn_renditions(collection)
        now = collection.shards.get(rendition, [])
        return bool(now) and [each.name for each in now] != [each.name for each in known]

    async def learn_renditions(self, collection: Collection) -> None:
        """Have it know those that there are now. Raises CollectionUnknown."""
        try:
            now = await self.opened(collection.name, fresh=True)
        except CollectionUnknown:
            raise await self.gone(collection) from None
        if now.entry.id != collection.entry.id:
            raise await self.gone(collection)
        collection.shards = dict(now.shards)


async def _timeline(metadata: Shard) -> Timeline:
    """From what is known now, or newer: what is new is at times that the clock has not reached."""
    since, upper = metadata.since, metadata.upper
    updates = await metadata.read(since + 1, upper) if upper > since + 1 else []
    return Timeline(await metadata.contents(since), since, updates)
