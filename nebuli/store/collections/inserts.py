"""Rows that are inserted: the store gives them a time, all that wait the same one, and one append takes them."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.collections.errors import CollectionError, CollectionMisused, RenditionUnknown
from nebuli.store.collections.insert_routes import split
from nebuli.store.collections.reader_holds import is_held_off
from nebuli.store.errors import (
    SequencePassed,
    ShardUnknown,
    SinceMismatch,
    StorageError,
    Unclear,
    UpperMismatch,
)
from nebuli.store.shards.access import NewPart
from nebuli.store.shards.payloads import INLINE_BYTES
from nebuli.store.shards.shard_state import Fenced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nebuli.store.collections.space import Collection, Space
    from nebuli.store.shards.shard import Shard
    from nebuli.store.shards.shard_state import Payload

PRODUCERS = weighted(
    pa.schema(
        [
            pa.field("producer", pa.string(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("time", pa.uint64(), nullable=False),
        ]
    )
)
"""The schema of what is known of producers: the last number of each, and its time."""
_HELD_OFF_S = 0.005
"""How often a delayed client checks if it still is."""
_TRIES = 5
"""Times that an append is made of which it is not known whether it has happened."""


@dataclass(frozen=True, slots=True, eq=False)
class _Insert:
    """Rows of a Z-set, for a collection; a ``producer`` gives them a ``sequence``, by which they are known again."""

    collection: Collection
    rows: pa.RecordBatch
    producer: str | None
    sequence: int
    done: asyncio.Future[int]
    kept: dict[Shard, Payload] = field(default_factory=dict)

    @property
    def is_large(self) -> bool:
        return bool(self.rows.nbytes > INLINE_BYTES)

    def fail(self, error: Exception) -> None:
        if not self.done.done():  # it was cancelled meanwhile
            self.done.set_exception(error)

    def tell(self, time: int) -> None:
        if not self.done.done():
            self.done.set_result(time)


@dataclass(frozen=True, slots=True)
class _Producers:
    """The last sequence and its time by producer, as of an upper of their shard."""

    upper: int
    last: Mapping[str, tuple[int, int]]


class Inserter:
    """The one of a store that is open. Closed by its owner."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._waiting: list[_Insert] = []
        self._task: asyncio.Task[None] | None = None
        self._producers: dict[str, _Producers] = {}

    async def insert(
        self, collection: Collection, rows: pa.RecordBatch, producer: str | None, sequence: int
    ) -> int:
        """The time at which they are there; durable. Raises CollectionMisused, SequencePassed, StorageError."""
        if collection.entry.timed != "store":
            raise CollectionMisused(
                f"the rows of collection {collection.name} get their times from its writers: use `write`, "
                "which takes times, or create a collection whose times the store assigns"
            )
        if producer is not None:
            _check_numbered(collection, producer, sequence)
        each = _Insert(collection, rows, producer, sequence, asyncio.get_running_loop().create_future())
        self._waiting.append(each)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            return await each.done
        finally:
            with suppress(ValueError):
                self._waiting.remove(each)

    async def next_sequence(self, collection: Collection, producer: str) -> int:
        """One above what it has inserted last. Raises CollectionUnknown."""
        _, _, (upper,) = await self._space.look(collection, [collection.producers])
        last = (await self._known(collection, upper)).last.get(producer)
        return 0 if last is None else last[0] + 1

    async def close(self) -> None:
        """Return when what was begun is done."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            together, self._waiting = self._waiting, []
            for some in _by_size(together):
                try:
                    await self._write(some)
                except Exception as error:  # noqa: BLE001 - the waiting task gets it
                    for each in some:
                        each.fail(error)
        self._task = None

    # -- one append

    async def _write(self, given: Sequence[_Insert]) -> None:
        try:
            while left := [each for each in given if not each.done.done()]:
                try:
                    await self._attempt(left)
                except (UpperMismatch, ShardUnknown, SinceMismatch):
                    continue  # another one was first, or one is dropped: it is looked at again
                except Fenced:
                    for each in left:
                        each.kept.clear()
        finally:
            for each in given:
                for shard, payload in each.kept.items():
                    with suppress(StorageError):
                        await self._space.access.drop_payload(shard.tracked, payload)

    async def _attempt(self, left: Sequence[_Insert]) -> None:
        parts, new = [], []
        producers: dict[str, _Producers] = {}
        looks = []
        for collection, some in _by_collection(left):
            try:
                looks.append((collection, some, *await self._look(collection)))
            except CollectionError as error:
                for each in some:
                    each.fail(error)
        if not looks:
            return
        lowest = min(upper for _, _, upper, _, _ in looks)
        # Writes after the lowest have moved the clock, too: then the append is refused, and repeated.
        time = max(self._space.clock.next_time(), *(each for *_, found in looks for each in found))
        for collection, some, _, shards, found in looks:
            taken, known, marks = await self._taken(collection, found[-1], some, time)
            new += taken
            if marks is not None:
                shard = collection.producers
                parts.append(shard.part([(time, marks)], found[-1], time + 1, {"producers": time}))
                producers[collection.entry.id] = _Producers(time + 1, known)
            parts += await self._rows(shards, found, taken, time)
        if not new:
            return
        await self._append([self._space.clock.moved(lowest, time), *parts])
        self._producers |= producers
        for each in new:
            each.tell(time)

    async def _look(self, collection: Collection) -> tuple[int, list[Shard], list[int]]:
        """The clock's upper, the shards of the rendition that it is then, and their uppers and the producers'."""
        line = self._space.known_line(collection)
        while True:
            if line is None:
                _, line, _ = await self._space.look(collection)
            expected = line.last
            try:
                shards = await self._space.shards_of(collection, expected)
                clock, line, uppers = await self._space.look(collection, [*shards, collection.producers])
            except (ShardUnknown, RenditionUnknown):
                # It is another rendition by now, and this one was dropped.
                await self._space.learn_renditions(collection)
                line = None
                continue
            if is_held_off(collection):  # for seconds at most, even if the client that hands over dies
                await asyncio.sleep(_HELD_OFF_S)
            elif line.last == expected:
                return clock, shards, uppers

    async def _taken(
        self, collection: Collection, upper: int, some: Sequence[_Insert], time: int
    ) -> tuple[list[_Insert], dict[str, tuple[int, int]], pa.RecordBatch | None]:
        """Return the rows that were not inserted before; and the producers' records then, and their changes."""
        if all(each.producer is None for each in some):
            return list(some), {}, None
        before = (await self._known(collection, upper)).last
        known = dict(before)
        taken = []
        for each in some:
            last = None if each.producer is None else known.get(each.producer)
            if last is None or each.sequence > last[0]:
                taken.append(each)
                if each.producer is not None:
                    known[each.producer] = each.sequence, time
            elif each.sequence < last[0]:
                each.fail(SequencePassed(each.producer or "", last[0] + 1, each.sequence))
            elif last[1] == time and any(other.producer == each.producer for other in taken):
                taken.append(replace(each, rows=each.rows.slice(0, 0)))  # it is in this append already
            else:
                each.tell(last[1])
        changed = [name for name, last in known.items() if before.get(name) != last]
        rows = [(name, *known[name], 1) for name in changed]
        rows += [(name, *before[name], -1) for name in changed if name in before]
        if not rows:
            return taken, known, None
        columns = [
            pa.array(column, each.type)
            for column, each in zip(zip(*rows, strict=True), PRODUCERS, strict=True)
        ]
        return taken, known, pa.RecordBatch.from_arrays(columns, schema=PRODUCERS)

    async def _known(self, collection: Collection, upper: int) -> _Producers:
        found = self._producers.get(collection.entry.id)
        if found is None or found.upper != upper:
            last: dict[str, tuple[int, int]] = {}
            if upper:
                rows = await collection.producers.contents(upper - 1)
                for name, sequence, time, _ in zip(*(each.to_pylist() for each in rows.columns), strict=True):
                    last[name] = sequence, time
            found = self._producers[collection.entry.id] = _Producers(upper, last)
        return found

    async def _rows(
        self, shards: Sequence[Shard], uppers: Sequence[int], taken: Sequence[_Insert], time: int
    ) -> list[NewPart]:
        with_rows = [each for each in taken if each.rows.num_rows]
        if not with_rows:
            return []
        (first, *others) = with_rows
        rows = pa.concat_batches([first.rows, *(each.rows for each in others)]) if others else first.rows
        parts = []
        for shard, upper, part in zip(shards, uppers, split(rows, len(shards)), strict=False):
            if not part.num_rows:
                continue
            if first.is_large:
                if shard not in first.kept:
                    first.kept[shard] = await self._space.access.keep(shard.tracked, part)
                payload = replace(first.kept[shard], at=time)
                parts.append(NewPart(shard.tracked, [], upper, time + 1, payload=payload))
            else:
                parts.append(shard.part([(time, part)], upper, time + 1))
        return parts

    async def _append(self, parts: Sequence[NewPart]) -> None:
        id_ = os.urandom(16)
        unclear: Unclear | None = None
        for _ in range(_TRIES):
            try:
                await self._space.access.append(parts, id_, is_first=unclear is None)
            except UpperMismatch:
                raise
            except ShardUnknown as error:
                # One collection was dropped; if that was after this append, it was made for the others.
                happened = await self._has_happened(id_)
                if happened is None:
                    unclear = Unclear("the append", error, id_)
                elif happened:
                    return
                else:
                    raise
            except Unclear as error:
                unclear = error
            except StorageError:
                if unclear is None:
                    raise
            else:
                return
        assert unclear is not None
        raise unclear

    async def _has_happened(self, id_: bytes) -> bool | None:
        """True if the append with this id has happened; None if that cannot be learnt now."""
        clock = self._space.clock.shard
        try:
            await self._space.access.refresh([clock])
        except StorageError:
            return None
        return clock.state.appended(id_)


def _check_numbered(collection: Collection, producer: str, sequence: int) -> None:
    """Check that they can be kept. Asked before others' rows are in one append with them. Raises CollectionMisused."""
    try:
        pa.array([producer], pa.string()), pa.array([sequence], pa.int64())
        is_whole = sequence == int(sequence)
    except (pa.ArrowException, UnicodeError, OverflowError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise CollectionMisused(
            f"rows for collection {collection.name} have the producer {producer!r} and the sequence "
            f"{sequence!r}: expected a Unicode string, and a signed integer of 64 bits"
        )


def _by_size(together: Sequence[_Insert]) -> Iterable[list[_Insert]]:
    """Return them in order; large ones separately: their bytes are stored once, even if another client is first."""
    small: list[_Insert] = []
    for each in together:
        if not each.is_large:
            small.append(each)
            continue
        if small:
            yield small
            small = []
        yield [each]
    if small:
        yield small


def _by_collection(some: Iterable[_Insert]) -> Iterable[tuple[Collection, list[_Insert]]]:
    found: dict[str, tuple[Collection, list[_Insert]]] = {}
    for each in some:
        found.setdefault(each.collection.entry.id, (each.collection, []))[1].append(each)
    return found.values()
