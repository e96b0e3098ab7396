"""Collections made, described and dropped, and their renditions; each command is whole and durable at return."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nebuli.dataflow.types import type_name
from nebuli.dataflow.zset import WEIGHT, weighted
from nebuli.durations import seconds_of
from nebuli.limits import MAX_KEEP_S
from nebuli.store.collections import timeline
from nebuli.store.collections.catalog import Doomed, Entry, Rendition, changes
from nebuli.store.collections.errors import (
    CollectionExists,
    CollectionMisused,
    CollectionUnknown,
    RenditionRefused,
    RenditionUnknown,
)
from nebuli.store.collections.inserts import PRODUCERS
from nebuli.store.collections.reader_holds import HISTORY
from nebuli.store.errors import ShardUnknown, SinceMismatch, UpperMismatch
from nebuli.store.shards.payloads import check_schema, inlined
from nebuli.store.shards.shard_state import Create, Drop, Hold, SetHolds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from nebuli.store.collections.catalog import Catalog, Timed
    from nebuli.store.collections.space import Collection, Space
    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.shard import Shard
    from nebuli.store.shards.shard_state import Decision

FIRST = "r1"
"""The name of a collection's first rendition."""
MAX_SHARDS = 256
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_NUMBERED = re.compile(r"r[0-9]{1,18}", re.ASCII)
_KEPT = "collection"
"""The hold of the collection itself at its rows, as long as they can be read back."""


@dataclass(frozen=True, slots=True)
class RenditionStatus:
    """A rendition with its frontiers, and from when to when the collection is it, as far as can be read."""

    name: str
    shards: int
    since: int
    upper: int
    begin: int | None
    end: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """A collection as it is now: it can be read from ``since`` on, and below ``upper``.

    ``renditions`` are in the order of their begins; last those that it is not at any time that can be read.
    """

    name: str
    schema: pa.Schema
    timed: Timed
    history_ms: int
    created: int
    active: str
    since: int
    upper: int
    renditions: Sequence[RenditionStatus]
    holds: Mapping[str, Hold]

    def to_data(self) -> dict[str, Any]:
        """The same as JSON shows it."""
        return {
            "name": self.name,
            "schema": [{"name": each.name, "type": type_name(each.type)} for each in self.schema],
            "timed": self.timed,
            "history_s": self.history_ms / 1000,
            "created": self.created,
            "active": self.active,
            "since": self.since,
            "upper": self.upper,
            "renditions": [asdict(each) for each in self.renditions],
            "holds": [
                {"name": name, "time": hold.time, "expires": hold.expires}
                for name, hold in sorted(self.holds.items())
            ],
        }


class Controller:
    """The controller of an open store."""

    def __init__(self, space: Space) -> None:
        self._space = space

    # -- collections

    async def create(
        self, name: str, schema: pa.Schema, shards: int, timed: Timed, keep: str | float
    ) -> None:
        """Make one, which is empty. Raises CollectionExists, CollectionMisused, SchemaMismatch."""
        _check_name("a collection", name)
        _check_shards(shards)
        _check_columns(name, schema)
        keep_s = _checked_keep(name, keep)
        rows = weighted(schema.remove_metadata())
        check_schema(name, rows, keeps_contents=True)
        first = inlined(timeline.SCHEMA, [(0, timeline.handover(None, FIRST))])
        while True:
            catalog = await self._space.catalog()
            if name in catalog.entries:
                raise CollectionExists(name)
            id_ = _id()
            rendition = Rendition(id_, FIRST, _id(), shards, begin=0)
            clock = self._space.clock
            await self._space.access.refresh([clock.shard])
            upper = clock.upper
            now = max(clock.next_time(), upper)
            kept_ms = round(keep_s * 1000)
            entry = Entry(id_, name, schema.remove_metadata(), timed, kept_ms, now, {FIRST: rendition})
            made = [
                Create(entry.metadata, timeline.SCHEMA, True, first, 1, {HISTORY: 0}),
                Create(entry.producers, PRODUCERS, keeps_contents=True),
                *_rendition(rendition, rows),
            ]
            # From now on it can be read.
            if await self._changed(catalog, changes([entry, rendition]), [clock.moved(upper, now)], made):
                return

    async def drop(self, name: str) -> None:
        """Drop it: its readers and writers get CollectionDropped. Raises CollectionUnknown."""
        while True:
            catalog = await self._space.catalog()
            entry = catalog.entries.get(name)
            if entry is None:
                raise CollectionUnknown(name, catalog.entries)
            doomed = Doomed(entry.id, entry.shard_names())
            rows = changes([doomed], [entry, *entry.renditions.values()])
            if await self._changed(catalog, rows, also=[Drop(each) for each in doomed.shards]):
                break
        await self.clean()

    async def names(self) -> list[str]:
        """Those of all collections."""
        return sorted((await self._space.catalog()).entries)

    async def describe(self, name: str) -> CollectionStatus:
        """Return its description. Raises CollectionUnknown."""
        while True:
            collection = await self._space.opened(name, fresh=True)
            try:
                clock, line, _ = await self._space.look(
                    collection, [each for shards in collection.shards.values() for each in shards]
                )
            except ShardUnknown:  # a rendition was dropped meanwhile
                continue
            if line.last in collection.shards:  # else one was made meanwhile, and handed over to
                break
        entry, since = collection.entry, collection.metadata.since
        is_timed = entry.timed == "store"
        found = []
        for each in entry.renditions.values():
            shards = collection.shards[each.name]
            upper = min(shard.upper for shard in shards)
            period = line.period(each.name)
            if is_timed and period is not None and period.end is None:
                upper = clock
            found.append(
                RenditionStatus(
                    each.name,
                    each.shards,
                    max(shard.since for shard in shards),
                    upper,
                    None if period is None else period.begin,
                    None if period is None else period.end,
                    sum(size for shard in shards for _, size in shard.stored),
                )
            )
        found.sort(key=lambda each: (each.begin is None, each.begin or 0, each.name))
        active = next(each for each in found if each.name == line.last)
        return CollectionStatus(
            entry.name, entry.schema, entry.timed, entry.history_ms, entry.created, line.last, since,
            min(clock, max(active.upper, line.begin)), found, dict(collection.metadata.holds),
        )  # fmt: skip

    # -- renditions

    async def new_rendition(self, name: str, rendition: str | None, shards: int) -> str:
        """Make a rendition, not yet current, to be written from scratch; returns its name.

        Raises CollectionUnknown, RenditionRefused.
        """
        if rendition is not None:
            _check_name("a rendition", rendition)
        _check_shards(shards)
        while True:
            catalog = await self._space.catalog()
            entry = catalog.entries.get(name)
            if entry is None:
                raise CollectionUnknown(name, catalog.entries)
            own = rendition or _next_name(entry.renditions)
            if own in entry.renditions:
                raise RenditionRefused(
                    f"collection {name} already has a rendition {own}, with a fixed number of shards "
                    f"({entry.renditions[own].shards}): choose another name"
                )
            made = Rendition(entry.id, own, _id(), shards)
            # The metadata go with it, so that no rendition is made of what is dropped meanwhile.
            also = [*_rendition(made, weighted(entry.schema))]
            if await self._changed(catalog, changes([made]), also=also):
                return made.name

    async def drop_rendition(self, name: str, rendition: str) -> None:
        """Drop one that can no longer be read. Raises CollectionUnknown, RenditionUnknown, RenditionRefused."""
        while True:
            catalog = await self._space.catalog()
            collection = await self._space.opened(name, fresh=True)
            found = catalog.entries[name].renditions.get(rendition) if name in catalog.entries else None
            if found is None:
                raise RenditionUnknown(name, rendition, collection.shards)
            _, line, _ = await self._space.look(collection)
            period = line.period(rendition)
            if period is not None:
                raise RenditionRefused(
                    f"collection {name} is read from rendition {rendition}"
                    + (f" at times below {period.end}: the rendition is dropped automatically once all these times are "
                    f"older than the history and all holds" if period.end else ": hand over to another rendition first")
                )  # fmt: skip
            if await self._doom(catalog, [found]):
                break
        await self.clean()

    async def _doom(self, catalog: Catalog, some: Sequence[Rendition]) -> bool:
        doomed = [Doomed(f"{each.collection}/{each.name}", each.shard_names()) for each in some]
        also = [Drop(name) for each in doomed for name in each.shards]
        return await self._changed(catalog, changes(doomed, some), also=also)

    # -- automatic maintenance

    async def keep_house(self, names: Sequence[str]) -> None:
        """Forget data that is older than the history and not held, delete data that can no longer be read, and compact.

        Any number may do it at once: of two compactions of a shard the first counts.
        """
        for name in names:
            with suppress(CollectionUnknown):  # it was dropped meanwhile
                collection = await self._space.opened(name, fresh=True)
                await self._forget(collection)
                await self._drop_over(collection)
                await self._compact(collection)
        await self.clean()
        await self.compact_overdue([])

    async def _compact(self, collection: Collection) -> None:
        shards = _all_shards(collection)
        await self._space.access.compact_overdue([each.tracked for each in shards])
        for each in shards:
            with suppress(ShardUnknown):  # of a rendition that was dropped
                await self._space.access.compact_settled(each.tracked)

    async def compact_overdue(self, names: Sequence[str]) -> None:
        """Have no long logs, of some collections and of what all have in common.

        For a client that leaves, and would otherwise leave that to others that do, too.
        """
        catalog = await self._space.catalog()
        shards = list(self._space.shards)
        for name in names:
            with suppress(CollectionUnknown):
                if name in catalog.entries:
                    shards += [each.tracked for each in _all_shards(await self._space.opened(name))]
        await self._space.access.compact_overdue(shards)

    async def _drop_over(self, collection: Collection) -> None:
        """Drop the renditions that can no longer be read."""
        while True:
            catalog = await self._space.catalog()
            entry = catalog.entries.get(collection.name)
            if entry is None or entry.id != collection.entry.id:
                return
            _, line, _ = await self._space.look(collection)
            # Those that were never handed over to are being written still.
            over = [
                each
                for each in entry.renditions.values()
                if each.begin is not None and line.period(each.name) is None
            ]
            if not over or await self._doom(catalog, over):
                return

    async def _forget(self, collection: Collection) -> None:
        clock, line, _ = await self._space.look(collection)
        upper = clock
        if collection.entry.timed == "writers":
            shards = await self._space.shards_of(collection, line.last)
            await self._space.access.refresh([each.tracked for each in shards])
            upper = min(clock, *(each.upper for each in shards))
        to = upper - 1 - collection.entry.history_ms
        history = collection.metadata.holds.get(HISTORY)
        if history is not None and to > history.time:
            await self._move(collection, {collection.metadata: to}, HISTORY)
        since = collection.metadata.since
        rows = [each for shards in collection.shards.values() for each in shards]
        await self._space.access.refresh([each.tracked for each in rows])
        # A shard that got no row for long has fewer distinguishable times.
        behind = {each: to for each in rows if (to := min(since, each.upper - 1)) > each.since}
        if behind:
            await self._move(collection, behind, _KEPT)

    async def _move(self, collection: Collection, shards: Mapping[Shard, int], hold: str) -> None:
        try:
            await self._space.access.change(
                [SetHolds(each.name, {hold: Hold(to, None)}) for each, to in shards.items()]
            )
        except SinceMismatch:
            pass  # another one was first, and further
        except ShardUnknown as error:
            if error.shard == collection.metadata.name:
                raise await self._space.gone(collection) from None
            # Another one has dropped a rendition, and is at it.

    async def clean(self) -> None:
        """Delete what is left of what was dropped, by this process or by one that was killed at it."""
        while (catalog := await self._space.catalog()).doomed:
            for each in catalog.doomed:
                await self._space.access.delete_dropped(each.shards)
            if await self._changed(catalog, changes([], catalog.doomed)):
                return

    async def _changed(
        self,
        catalog: Catalog,
        rows: pa.RecordBatch,
        parts: Sequence[NewPart] = (),
        also: Sequence[Decision] = (),
    ) -> bool:
        """True if the catalog was changed, and all else with it; otherwise another change was first."""
        try:
            await self._space.access.append([self._space.changed_catalog(catalog, rows), *parts], None, also)
        except UpperMismatch:
            return False
        return True


def _all_shards(collection: Collection) -> list[Shard]:
    rows = [each for shards in collection.shards.values() for each in shards]
    return [collection.metadata, collection.producers, *rows]


def _id() -> str:
    return os.urandom(6).hex()


def _rendition(rendition: Rendition, rows: pa.Schema) -> list[Create]:
    return [Create(name, rows, True, holds={_KEPT: 0}) for name in rendition.shard_names()]


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CollectionMisused(
            f"{name!r} cannot be the name of {what}: use at most 100 letters, digits, _, . and -, beginning with a "
            "letter or _"
        )


def _check_columns(name: str, schema: pa.Schema) -> None:
    if WEIGHT in schema.names:
        raise CollectionMisused(
            f"a column of collection {name} cannot be named {WEIGHT}, which counts copies of a row: use another name"
        )
    twice = sorted({each for each in schema.names if schema.names.count(each) > 1})
    if twice:
        raise CollectionMisused(
            f"collection {name} repeats column names ({', '.join(twice)}): give each column its own name"
        )


def _checked_keep(name: str, keep: str | float) -> float:
    try:
        keep_s = seconds_of(keep)
    except (ValueError, TypeError, OverflowError) as error:
        raise CollectionMisused(
            f"the length of the history of collection {name} is invalid: {error}"
        ) from None
    if not 0 <= keep_s <= MAX_KEEP_S:
        raise CollectionMisused(
            f"the history of collection {name} cannot be {keep_s:g} s long: give 0 to {MAX_KEEP_S:,} s"
        )
    return keep_s


def _next_name(renditions: Iterable[str]) -> str:
    """The first of r2, r3 and so on above all that there are."""
    numbers = [int(each[1:]) for each in renditions if _NUMBERED.fullmatch(each)]
    return f"r{max(numbers, default=1) + 1}"


def _check_shards(shards: int) -> None:
    if not 1 <= shards <= MAX_SHARDS:
        raise CollectionMisused(f"a rendition cannot have {shards} shards: give 1 to {MAX_SHARDS}")
