"""The client of collections: what programs use, by the names of collections alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar
from weakref import WeakSet

import pyarrow as pa

from nebuli.dataflow.zset import WEIGHT, insertions, weighted, weights_of
from nebuli.limits import DEFAULT_KEEP
from nebuli.python_values import one_batch
from nebuli.store.collections import replicas
from nebuli.store.collections.clock import TICK_S, now_ms
from nebuli.store.collections.collection_reader import MOST_ROWS, How, Part, Reader, rows_of
from nebuli.store.collections.controller import Controller
from nebuli.store.collections.errors import CollectionMisused, CollectionUnknown, RenditionOver, RowsMismatch
from nebuli.store.collections.handover import Order, hand_over
from nebuli.store.collections.inserts import Inserter
from nebuli.store.collections.reader_holds import check_not_own, release_hold, set_hold
from nebuli.store.collections.space import Space
from nebuli.store.collections.staged_rows import StagedRows
from nebuli.store.errors import StagedLost, StorageError, StoreClosed
from nebuli.store.shards.shard import DEADLINE_S
from nebuli.store.store import Store
from netchannel.resumable import Resumable

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from nebuli.store.collections.catalog import Timed
    from nebuli.store.collections.clock import Clock
    from nebuli.store.collections.controller import CollectionStatus
    from nebuli.store.collections.space import Collection
    from nebuli.store.shards.shard import Span
    from nebuli.store.store_url import StoreUrl

_HOUSE_S = 5.0
"""How often the collections written by this process are maintained."""
_log = logging.getLogger("nebuli.store")

Rows: TypeAlias = pa.RecordBatch | pa.Table
T = TypeVar("T")


class Collections:
    """The collections of a store: ``async with Collections(url) as collections``, on one event loop.

    ``url`` is a folder of this machine, or ``postgresql://...`` with blobs in an object store; or a `Store`, which is
    entered and left together with this client. A cancelled call has either its full effect or none. Methods raise
    `CollectionError`, and `StorageError` if the store fails.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | StoreUrl | Store,
        *,
        now: Callable[[], int] = now_ms,
        tick_s: float = TICK_S,
    ) -> None:
        """``now`` gives milliseconds since 1970.

        Time advances every ``tick_s``, while there are readers and no writers.

        Raises StoreUrlInvalid, ExtraMissing.
        """
        self._store = url if isinstance(url, Store) else Store.at(url)
        self._now = now
        self._tick_s = tick_s
        self._entered: _Entered | None = None
        self._followed: WeakSet[Resumable[Span]] = WeakSet()

    async def __aenter__(self) -> Self:
        """Open the store, and create it if needed. Raises StoreUnusable, StoreFull."""
        await self._store.__aenter__()
        try:
            space = Space(self._store, self._now, tick_s=self._tick_s)
            await space.open()
            self._entered = _Entered(space)
        except BaseException:
            await self._store.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all work, and close the store."""
        entered, self._entered = self._entered, None
        try:
            for each in [*self._followed]:
                await each.end(StoreClosed())  # or its hold would stay until its lease is over
            if entered is not None:
                await entered.close()
        finally:
            await self._store.__aexit__(kind, error, traceback)

    @property
    def _open(self) -> _Entered:
        if self._entered is None:
            raise StoreClosed
        return self._entered

    @property
    def clock(self) -> Clock:
        """The time of the store. Raises StoreClosed."""
        return self._open.space.clock

    async def _with(self, name: str, act: Callable[[Collection], Awaitable[T]]) -> T:
        """Act on the collection of a name: on the one last known here, or the one made since."""
        space = self._open.space
        collection = await space.opened(name)
        while True:
            try:
                return await act(collection)
            except CollectionUnknown as error:
                before = collection
                try:
                    collection = await space.opened(name, fresh=True)
                except CollectionUnknown:
                    raise error from None
                if collection.entry.id == before.entry.id:
                    raise

    # -- what there is

    async def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        shards: int = 1,
        timed: Timed = "store",
        keep: str | float = DEFAULT_KEEP,
    ) -> None:
        """Create an empty collection; durable at return.

        ``timed`` is the origin of the rows' times: the ``store``, at each insert, or the ``writers``. ``keep`` is the
        length of the readable history, as in ``"1h"`` (ms, s, min, h, d), or a number of seconds. Raises
        CollectionExists, SchemaMismatch, CollectionMisused.
        """
        await self._open.controller.create(name, schema, shards, timed, keep)

    async def drop(self, name: str) -> None:
        """Drop a collection with all its rows: its readers get CollectionDropped. Raises CollectionUnknown."""
        await self._open.controller.drop(name)

    async def list(self) -> Sequence[str]:
        """Return the names of all collections, in order."""
        return await self._open.controller.names()

    async def describe(self, name: str) -> CollectionStatus:
        """Return a collection's schema, renditions, readable times and holds. Raises CollectionUnknown."""
        return await self._open.controller.describe(name)

    # -- writing

    async def insert(
        self, name: str, rows: Rows, *, producer: str | None = None, sequence: int | None = None
    ) -> int:
        """Insert rows; return the time, in milliseconds, at which all of them become visible. Durable at return.

        A column ``_weight`` has the number of times that each row is added or, if negative, retracted. With a
        ``producer`` and its ascending numbers (``sequence``) the call can be repeated safely: the rows of a number are
        not inserted twice. Raises CollectionUnknown, RowsMismatch, CollectionMisused, SequencePassed.
        """
        if (producer is None) != (sequence is None):
            raise CollectionMisused("give both a producer and a sequence, or neither")

        async def insert(collection: Collection) -> int:
            zset = _zset(collection, rows)
            return await self._open.inserter.insert(collection, zset, producer, sequence or 0)

        at = await self._with(name, insert)
        self._open.has_written(name)
        return at

    async def stage(self, name: str, rows: Rows, *, producer: str, sequence: int) -> str:
        """Stage rows of an insert that several processes make together; return the name of this piece.

        The piece is durable at return, not visible before `insert_staged`, and deleted after six hours. Raises
        CollectionUnknown, RowsMismatch, StagingFull.
        """

        async def stage(collection: Collection) -> str:
            zset = _zset(collection, rows)
            return await self._open.staged.stage(collection, zset, producer, sequence)

        return await self._with(name, stage)

    async def insert_staged(self, name: str, pieces: Sequence[str], *, producer: str, sequence: int) -> int:
        """Insert the rows of all pieces as one `insert`, and return its time.

        A repeated call, even with other pieces, returns the same time and inserts nothing. Raises StagedLost for a
        piece that does not exist, or belongs to another insert; and the errors of `insert`.
        """

        async def insert(collection: Collection) -> int:
            inserter, staged = self._open.inserter, self._open.staged
            await staged.look(collection)
            rows = _zset(collection, collection.schema.empty_table())
            if await inserter.next_sequence(collection, producer) <= sequence:
                try:
                    rows = await staged.taken(collection, pieces, producer, sequence)
                except StagedLost:
                    # Another one may have inserted them, and forgotten the pieces, since it was asked.
                    if await inserter.next_sequence(collection, producer) <= sequence:
                        raise
            at = await inserter.insert(collection, rows, producer, sequence)
            staged.inserted(collection, producer, sequence)
            return at

        at = await self._with(name, insert)
        self._open.has_written(name)
        return at

    async def drop_staged(self, name: str, pieces: Sequence[str], *, producer: str) -> None:
        """Delete pieces that will not be inserted. Raises CollectionUnknown."""
        await self._with(name, lambda each: self._open.staged.drop(each, pieces, producer))

    async def next_sequence(self, name: str, producer: str) -> int:
        """Return the number for a producer's next insert: 0 at first. Raises CollectionUnknown."""
        return await self._with(name, lambda each: self._open.inserter.next_sequence(each, producer))

    async def write(
        self,
        name: str,
        updates: Iterable[tuple[int, Rows]],
        lower: int,
        upper: int,
        *,
        rendition: str | None = None,
    ) -> None:
        """Write rows at times from ``lower`` up to but not including ``upper``, as one of any number of equal writers.

        The writers set the times. If another writer has written at these times, the rows are compared: equal rows are
        not written again, different rows raise ConflictingWrite. Without a ``rendition``, rows go to the rendition that
        was the last one when this client first wrote the collection without one. After a handover by another client to
        another rendition, this raises RenditionOver. Raises CollectionUnknown, RenditionUnknown, RowsMismatch, and
        UpperMismatch if something before ``lower`` is missing.
        """
        given = list(updates)

        async def write(collection: Collection) -> None:
            target = await self._writable(collection, rendition)
            checked = [(at, _zset(collection, rows)) for at, rows in given]
            await replicas.write(self._open.space, replicas.Write(collection, target, checked, lower, upper))

        await self._with(name, write)
        self._open.has_written(name)

    async def write_all(
        self, updates: Mapping[str, Iterable[tuple[int, Rows]]], lower: int, upper: int, *, rendition: str
    ) -> bool:
        """As `write`, to the renditions with one name of several collections: to all of them, or to none.

        ``updates`` has the updates of each collection, by its name. Returns True if any of them was not written before.
        """
        given = []
        for name, some in updates.items():
            collection = await self._open.space.opened(name)
            checked = [(at, _zset(collection, rows)) for at, rows in some]
            given.append(replicas.Write(collection, rendition, checked, lower, upper))
        was_first = await replicas.write(self._open.space, *given)
        for name in updates:
            self._open.has_written(name)
        return was_first

    async def written(self, name: str, rendition: str, at: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until a rendition is written up to a time, by its writers. Raises NotYet, RenditionUnknown."""
        await self._with(
            name, lambda collection: Reader(self._open.space, collection).upto(rendition, at, deadline_s)
        )

    async def _writable(self, collection: Collection, rendition: str | None) -> str:
        if rendition is not None:
            return rendition
        _, line, _ = await self._open.space.look(collection)
        id_, fed = self._open.fed.setdefault(collection.name, (collection.entry.id, line.last))
        if id_ == collection.entry.id and fed != line.last:
            raise RenditionOver(collection.name, fed, line.last, line.begin)
        self._open.fed[collection.name] = collection.entry.id, line.last
        return line.last

    # -- reading

    async def snapshot(
        self,
        name: str,
        as_of: int | None = None,
        *,
        weighted: bool = False,
        deadline_s: float = DEADLINE_S,
        part: Part | None = None,
        rendition: str | None = None,
    ) -> pa.Table:
        """Return the rows at a time (default: the last complete time); with ``weighted`` each once, with its weight.

        Waits for a time in the future. ``part`` is the number of a part, from 0, and the number of parts (see `parts`);
        all parts together have all rows. With a ``rendition``, it returns the rows of that rendition at the time, even
        if another rendition is current. Raises CollectionUnknown, RenditionUnknown, CollectionMisused, TooLate, NotYet,
        Damaged.
        """
        if rendition is not None:
            return await self._snapshot_of(name, rendition, as_of, weighted=weighted, deadline_s=deadline_s)
        if part is not None and not 0 <= part[0] < part[1]:
            raise CollectionMisused(
                f"collection {name} has no part {part[0]} of {part[1]}: the number of a part must be at least 0, and "
                "less than the number of parts"
            )
        how: How = "once" if weighted else "as written"
        at, contents = await self._with(
            name,
            lambda collection: Reader(self._open.space, collection).snapshot(as_of, deadline_s, how, part),
        )
        return contents if weighted else rows_of(name, at, contents)

    async def _snapshot_of(
        self, name: str, rendition: str, as_of: int | None, *, weighted: bool, deadline_s: float
    ) -> pa.Table:
        if as_of is None:
            raise CollectionMisused(
                f"a rendition of collection {name} can be read only at an explicit time: give a time for "
                f"which the rendition is written"
            )
        at = as_of
        contents = await self._with(
            name, lambda each: Reader(self._open.space, each).snapshot_of(rendition, at, deadline_s)
        )
        return contents if weighted else rows_of(name, at, contents)

    async def parts(self, name: str, as_of: int) -> int:
        """Return the best number of parts, and of processes, for reading the `snapshot` of a time.

        Raises CollectionUnknown, TooLate.
        """
        return await self._with(name, lambda collection: Reader(self._open.space, collection).parts(as_of))

    async def latest(self, name: str) -> int:
        """Return the last time at which the collection is complete. Raises CollectionUnknown, NotYet."""
        return await self._with(name, lambda collection: Reader(self._open.space, collection).latest())

    async def move_on(self) -> None:
        """Advance the store's time to now, for all processes that wait for it.

        Without this call, the time advances with writes, or slowly.

        Raises StorageError; NotYet if others keep it busy.
        """
        clock = self._open.space.clock
        await clock.reach(clock.next_time(), DEADLINE_S, at_once=True)

    def subscribe(
        self, name: str, as_of: int | None = None, *, snapshot: bool = False
    ) -> AsyncGenerator[Span]:
        """Return the changes after a time, as spans of times with Z-sets: all that the snapshot at this time lacks.

        The iterator has no end. With ``snapshot`` the first span has the contents at this time. If the collection
        switches to another rendition, the differences are changes like any others. A cancelled call of the iterator
        takes no span: the next call returns it. Raises CollectionUnknown, CollectionDropped, TooLate, Damaged.
        """
        spans = Resumable(self._subscribe(name, as_of, snapshot=snapshot))
        self._followed.add(spans)
        return spans

    async def _subscribe(
        self, name: str, as_of: int | None, *, snapshot: bool
    ) -> AsyncGenerator[Sequence[Span], None]:
        collection = await self._open.space.opened(name, fresh=True)
        spans = Reader(self._open.space, collection).subscribe(as_of, snapshot=snapshot)
        async with contextlib.aclosing(spans) as open_spans:
            async for span in open_spans:
                yield [span]

    # -- holds

    async def hold(self, name: str, hold: str, at: int, *, lease_s: float | None = None) -> None:
        """Keep the collection readable from a time on, or move the hold there; for ``lease_s`` seconds, if given.

        Raises CollectionUnknown, CollectionMisused, TooLate.
        """
        check_not_own(hold)

        def held(collection: Collection) -> Awaitable[None]:
            return set_hold(self._open.space, collection, hold, at, lease_s)

        await self._with(name, held)

    async def release(self, name: str, hold: str) -> None:
        """Release a hold; no effect if it does not exist.

        Raises CollectionUnknown, CollectionMisused.
        """
        check_not_own(hold)
        await self._with(name, lambda collection: release_hold(self._open.space, collection, hold))

    # -- renditions

    async def new_rendition(self, name: str, shards: int = 1, *, rendition: str | None = None) -> str:
        """Create an empty rendition, to be written from scratch (`write`), and return its name.

        The default name is the next of r2, r3 and so on. Raises CollectionUnknown, RenditionRefused,
        CollectionMisused.
        """
        return await self._open.controller.new_rendition(name, rendition, shards)

    async def handover(
        self,
        name: str,
        rendition: str,
        at: int | None = None,
        *,
        built_from: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> int:
        """Switch the collection to another rendition; return the time of the switch. Its readers get the differences.

        The switch is at the time ``at``, for which the call waits, or as soon as possible. A time that the metadata
        have passed, and a time at which the new rendition cannot be read, are refused.

        If writers set the times, their writes complete the previous rendition up to the switch, and they continue with
        the new rendition. ``built_from`` is the time of the contents from which the rendition was built: rows inserted
        later are added to it. If writers set the times, the switch is refused if rows came since then. Raises
        CollectionUnknown, RenditionUnknown, RenditionRefused, HandoverLate, TooLate.
        """
        order = Order(name, rendition, at, built_from, deadline_s)
        begin = await hand_over(self._open.space, order)
        self._open.fed.pop(name, None)  # writers here know of it
        self._open.has_written(name)
        return begin

    async def drop_rendition(self, name: str, rendition: str) -> None:
        """Drop a rendition that is not current at any readable time.

        Raises CollectionUnknown, RenditionUnknown, RenditionRefused.
        """
        await self._open.controller.drop_rendition(name, rendition)

    async def keep_house(self, names: Sequence[str] | None = None) -> None:
        """Drop the past beyond the history, delete data that can no longer be read, and compact.

        It does this in the named collections, or in all. It also happens automatically while rows are written.
        """
        await self._open.keep_house(await self.list() if names is None else names)


class _Entered:
    """Its parts while it is open."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.controller = Controller(space)
        self.inserter = Inserter(space)
        self.staged = StagedRows(space)
        self.fed: dict[str, tuple[str, str]] = {}
        """The rendition that is written here without its name, by collection, whose id is with it."""
        self._written: set[str] = set()
        self._house: asyncio.Task[None] | None = None

    def has_written(self, name: str) -> None:
        """Look after it soon."""
        self._written.add(name)
        if self._house is None:
            self._house = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        while self._written:
            await asyncio.sleep(_HOUSE_S)
            names, self._written = sorted(self._written), set()
            try:
                await self.keep_house(names)
            except StorageError as error:
                self._written |= {*names}
                _log.warning("the maintenance of collections failed, and is retried later: %s", error)
        self._house = None

    async def keep_house(self, names: Sequence[str]) -> None:
        """As `Collections.keep_house`."""
        await self.controller.keep_house(names)

    async def close(self) -> None:
        """End what was begun."""
        await self.inserter.close()
        await self.staged.close()
        if self._house is not None:
            self._house.cancel()
            await asyncio.gather(self._house, return_exceptions=True)
            await self._leave()

    async def _leave(self) -> None:
        """Leave no long logs: the next client may stay just as briefly."""
        try:
            async with asyncio.timeout(_HOUSE_S):
                await self.controller.compact_overdue(sorted(self._written))
        except (StorageError, TimeoutError) as error:
            _log.warning("the compaction of collections failed, and is retried later: %s", error)


def _zset(collection: Collection, rows: Rows) -> pa.RecordBatch:
    """The rows as one Z-set of the collection. Raises RowsMismatch."""
    schema = collection.entry.schema
    rows = one_batch(rows)
    given = rows.schema.remove_metadata()
    if given.equals(weighted(schema)):
        batch = rows
    elif given.equals(schema):
        batch = insertions(rows)
    else:
        raise RowsMismatch(collection.name, schema, given)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        # Readers could never add up such a row, or convert it to the schema.
        if column.null_count and (field.name == WEIGHT or not field.nullable):
            raise CollectionMisused(
                f"{column.null_count} of {batch.num_rows} rows for collection {collection.name} "
                f"have no {field.name}, which every row needs: give each row a value, or leave "
                f"these rows out"
            )
    weights = weights_of(batch)
    if len(weights) and not -MOST_ROWS <= int(weights.min()) <= int(weights.max()) <= MOST_ROWS:
        far = max(int(weights.max()), int(weights.min()), key=abs)
        raise CollectionMisused(
            f"a row for collection {collection.name} has the weight {far}, but at most {MOST_ROWS} copies of a "
            f"row can be added or retracted at once, because larger sums would overflow"
        )
    return batch.replace_schema_metadata(None)
