"""Rows whose times their writers give: any number of writers may write the same, and what differs is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.zset import consolidate, weights_of, with_weights, without_weight
from nebuli.store.collections.errors import CollectionMisused, ConflictingWrite, RenditionUnknown
from nebuli.store.collections.insert_routes import split
from nebuli.store.errors import FINISHED, ShardUnknown, SinceMismatch, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nebuli.store.collections.space import Collection, Space
    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard import Shard

_SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Write:
    """Z-sets for a rendition of a collection, at times from ``lower`` up to but not including ``upper``."""

    collection: Collection
    rendition: str
    updates: Sequence[Update]
    lower: int
    upper: int


async def write(space: Space, *given: Write) -> bool:
    """Have them there, all of them or none; durable at return. Returns true if any of it was left to be written.

    Writes of others at these times are compared, and equal rows need not be written; times below the since can no
    longer be distinguished, and are taken for equal. Raises UpperMismatch where something before is not written,
    ConflictingWrite, CollectionMisused, CollectionUnknown, StorageError.
    """
    for each in given:
        _check(each)
        await _refuse_active(space, each)
    while (some := await _written(space, given)) is None:
        pass  # another one was first: what it has written is compared
    return some


async def _written(space: Space, given: Sequence[Write]) -> bool | None:
    """True if any of it was left; None: another one was first, or has made a rendition again."""
    parts: list[NewPart] = []
    own: dict[str, int] = {}
    try:
        for each in given:
            shards = await space.shards_of(each.collection, each.rendition)
            own |= dict.fromkeys((shard.name for shard in shards), each.lower)
            parts += await _left(space, each, shards)
        if parts:
            for each in given:
                await _refuse_active(space, each)  # once more, after the uppers: a handover moves them
            await space.access.append([*parts, *_moved(space, max(each.upper for each in given) - 1)], None)
    except (UpperMismatch, SinceMismatch) as error:
        if isinstance(error, UpperMismatch) and error.found < own.get(error.shard, 0):
            raise
        return None
    except ShardUnknown as error:
        await _check_made_anew(space, given, error)
        return None
    return bool(parts)


async def _check_made_anew(space: Space, given: Sequence[Write], error: ShardUnknown) -> None:
    """Raise CollectionUnknown or RenditionUnknown, unless what was dropped is there again."""
    for each in given:
        known = await space.shards_of(each.collection, each.rendition)
        if error.shard in {shard.name for shard in known}:
            await space.look(each.collection)
            if not await space.made_anew(each.collection, each.rendition, known):
                raise RenditionUnknown(each.collection.name, each.rendition, each.collection.shards) from None


async def _left(space: Space, given: Write, shards: Sequence[Shard]) -> list[NewPart]:
    """Return the rows to append. Raises ConflictingWrite, UpperMismatch, ShardUnknown."""
    by_update = [[(at, part) for part in split(rows, len(shards))] for at, rows in given.updates]
    by_shard = list(zip(*by_update, strict=True)) or [()] * len(shards)
    # Not refreshed alone: that does not show dropped shards.
    await space.look(given.collection, shards)
    parts = [_Part(given, *each) for each in zip(shards, by_shard, strict=True)]
    await _compare(given, parts)
    return [part for each in parts if (part := each.left()) is not None]


def _moved(space: Space, at: int) -> list[NewPart]:
    """The change of the clock by which readers need not wait for its next tick; no writer has it go ahead of time."""
    clock = space.clock
    at = min(at, clock.reached())
    return [clock.moved(clock.upper, at)] if clock.upper <= at else []


async def _refuse_active(space: Space, given: Write) -> None:
    """A rendition that the collection is, or was, takes rows by inserts alone. Raises CollectionMisused."""
    if given.collection.entry.timed == "writers":
        return
    _, line, _ = await space.look(given.collection)
    if line.period(given.rendition) is not None:
        raise CollectionMisused(
            f"the store assigns the times of collection {given.collection.name}: insert rows without times; "
            f"rows with times can be written only to a rendition that was never the current one"
        )


def _check(given: Write) -> None:
    name = given.collection.name
    if not 0 <= given.lower < given.upper <= FINISHED:
        raise CollectionMisused(
            f"rows for collection {name} cannot be written from {given.lower} up to {given.upper}: times begin at 0 "
            f"and have 64 bits, and the upper must be above the lower"
        )
    for at, _ in given.updates:
        if not given.lower <= at < given.upper:
            raise CollectionMisused(
                f"rows for collection {name} are at time {at}, but must be from {given.lower} to "
                f"{given.upper - 1}"
            )


class _Part:
    """The rows for one shard; another writer may have written those below its upper."""

    def __init__(self, given: Write, shard: Shard, own: Sequence[Update]) -> None:
        """Raises UpperMismatch where something before it is missing."""
        self._given = given
        self._shard = shard
        self._own = own
        self._there = there = shard.upper
        if there < given.lower:
            raise UpperMismatch(
                shard.name,
                given.lower,
                there,
                f"rendition {given.rendition} of collection {given.collection.name} is written only for times "
                f"below {there}, but this writer continues at {given.lower}: the times between them are "
                f"missing; write from {there} on",
            )

    async def differences(self) -> dict[int, pa.RecordBatch]:
        """By time, what is here and not there, and with negative weights what is there and not here."""
        since = self._shard.since
        first = max(self._given.lower, since + 1 if since else 0)
        until = min(self._there, self._given.upper)
        if first >= until:
            return {}
        found = _by_time(await self._shard.read(first, until))
        wanted = _by_time(each for each in self._own if first <= each[0] < until)
        both = {at: _difference(wanted.get(at, []), found.get(at, [])) for at in {*found, *wanted}}
        return {at: rows for at, rows in both.items() if rows.num_rows}

    def left(self) -> NewPart | None:
        """Return the rows left to append, once the existing ones are found to be equal."""
        if self._there >= self._given.upper:
            return None
        new = [each for each in self._own if each[0] >= self._there]
        return self._shard.part(new, self._there, self._given.upper)


async def _compare(given: Write, parts: Iterable[_Part]) -> None:
    """Raises ConflictingWrite for the first time at which any shard has other rows."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for each in parts:
        for at, rows in (await each.differences()).items():
            found.setdefault(at, []).append(rows)
    if found:
        at = min(found)
        rows = pa.concat_batches(found[at])
        weights = weights_of(rows)
        here, there = (_shown(rows, np.flatnonzero(side).tolist()) for side in (weights > 0, weights < 0))
        raise ConflictingWrite(given.collection.name, given.rendition, at, here, there)


def _by_time(updates: Iterable[Update]) -> dict[int, list[pa.RecordBatch]]:
    found: dict[int, list[pa.RecordBatch]] = {}
    for at, rows in updates:
        found.setdefault(at, []).append(rows)
    return found


def _difference(own: Sequence[pa.RecordBatch], others: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    taken = [with_weights(without_weight(each), -weights_of(each)) for each in others]
    return consolidate([*own, *taken])


def _shown(rows: pa.RecordBatch, places: Sequence[int]) -> str:
    if not places:
        return "nothing"
    some = without_weight(rows).take(pa.array(places[:_SHOWN_ROWS])).to_pylist()
    more = len(places) - len(some)
    return ", ".join(str(tuple(each.values())) for each in some) + (f" and {more} more" if more else "")
