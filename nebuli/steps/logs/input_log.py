"""The input of a member.

Rows from producers, logged before they are acknowledged, and the step for which each counts. Each producer's numbers:
the next one, and the contents of the last ones.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.zset import added, digest, weighted
from nebuli.steps.logs.remap import NOTHING, HandleLog, LogPosition, Remap
from nebuli.store.errors import (
    LogTaken,
    SequenceGap,
    SequencePassed,
    SequenceReused,
    StorageError,
    StoreClosed,
    UpperMismatch,
)
from nebuli.store.staging import Staging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from nebuli.steps.logs.remap import Address, Offsets, Passage
    from nebuli.store.shards.access import NewPart
    from nebuli.store.shards.shard import Shard
    from nebuli.store.store import Store

_HOLD = "log"
_REMEMBERED = 256
"""How many numbers of a producer, the last ones, are remembered with what they stood for."""
PRODUCERS = weighted(
    pa.schema(
        [
            ("producer", pa.string()),
            ("sequence", pa.uint64()),
            ("handle", pa.string()),
            ("digest", pa.uint64()),
            ("position", pa.uint64()),
        ]
    )
)
"""The schema of the producers' shard."""

_Sent = tuple[str, int, str, int]
"""A producer, its number, the handle that it was for, and the digest of the rows."""


@dataclass(slots=True)
class _Producer:
    """A producer; ``contents`` are the handles, digests and positions by number.

    A position is how many rows there are up to the number, and with it. ``position`` is that of the last number,
    ``durable`` that of the last one that is not on its way any more.
    """

    next: int = 0
    position: int = 0
    durable: int = 0
    contents: dict[int, tuple[str, int, int]] = field(default_factory=dict)


class _Producers:
    """All producers of a log, as they are in its shard, and with what is on its way there."""

    def __init__(self, rows: Sequence[pa.RecordBatch]) -> None:
        self._producers: dict[str, _Producer] = {}
        for batch in rows:
            for row in zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True):
                self._take(*row)
        for each in self._producers.values():
            each.durable = each.position

    def next(self, producer: str) -> int:
        """The number that it sends next."""
        found = self._producers.get(producer)
        return found.next if found else 0

    def position(self, producer: str) -> int:
        """How many of its rows are durable."""
        found = self._producers.get(producer)
        return found.durable if found else 0

    @property
    def rows(self) -> int:
        """How many rows of all of them are durable."""
        return sum(each.durable for each in self._producers.values())

    def is_new(self, sent: _Sent) -> bool:
        """True if it is the next one, not one that was sent before. Raises SequenceError."""
        (producer, sequence), content = sent[:2], sent[2:]
        expected = self.next(producer)
        if sequence > expected:
            raise SequenceGap(producer, expected, sequence)
        if sequence == expected:
            return True
        before = self._producers[producer].contents.get(sequence, content)
        if before[:2] != content:
            raise SequenceReused(producer, expected, sequence)
        return False

    def is_later(self, producer: str, number: int) -> bool:
        """True if it is a number beyond the last one, not the last one itself. Raises SequencePassed."""
        expected = self.next(producer)
        if number + 1 < expected:
            raise SequencePassed(producer, expected, number)
        return number >= expected

    def take(self, sent: _Sent, rows: int) -> pa.RecordBatch:
        """How the shard changes with what is sent, so many rows: it has what is remembered."""
        found = self._producers.get(sent[0])
        position = rows + (found.position if found else 0)
        changes = [(*sent, position, 1), *((*each, -1) for each in self._take(*sent, position))]
        columns = zip(*changes, strict=True)
        return pa.record_batch(
            [pa.array(column, kind.type) for column, kind in zip(columns, PRODUCERS, strict=True)],
            schema=PRODUCERS,
        )

    def logged(self, producer: str, rows: int) -> None:
        """So many rows more of those that were taken are durable."""
        self._producers[producer].durable += rows

    def _take(
        self, producer: str, sequence: int, handle: str, digest: int, position: int
    ) -> Sequence[tuple[str, int, str, int, int]]:
        """Take what was sent; what is not remembered any more."""
        found = self._producers.setdefault(producer, _Producer())
        found.next = max(found.next, sequence + 1)
        found.position = max(found.position, position)
        found.contents[sequence] = handle, digest, position
        forgotten = [each for each in found.contents if each <= sequence - _REMEMBERED]
        return [(producer, each, *found.contents.pop(each)) for each in forgotten]


@dataclass(eq=False, slots=True)
class _Push:
    """Rows from a producer, until they are durable."""

    handle: str
    producer: str
    rows: pa.RecordBatch
    change: pa.RecordBatch
    logged: asyncio.Future[None]
    arrival: int = -1


class InputLog:
    """The input of one member at a time, which enters and leaves it. Steps below ``first`` are gone, ``last`` is next.

    For each handle a shard has what arrived, at times that count arrivals; the remap, a shard too, has steps for times,
    and has the last counted arrival of each handle.
    """

    def __init__(
        self, name: str, store: Store, arrivals: Mapping[str, HandleLog], remap: Remap, known: Shard
    ) -> None:
        self.name = name
        self.schemas = {handle: each.shard.schema for handle, each in arrivals.items()}
        self._store = store
        self._arrivals = arrivals
        self._remap = remap
        self._known = known
        self.staging = Staging(store.blob_folder(f"{name}/staged"))
        """The staged pieces of pushes."""
        self._producers = _Producers([])
        self._failure: StorageError | None = None
        self._pushes: list[_Push] = []
        self._appending: list[_Push] = []
        self._pushed = asyncio.Event()
        self._on_their_way: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._free = asyncio.Event()
        self._free.set()
        self._writer: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, store: Store, name: str, handles: Mapping[str, pa.Schema]) -> Self:
        """Open a log, made if it is not there, with these handles and their Z-sets' schemas. Raises SchemaMismatch."""
        arrivals = {
            handle: HandleLog(await store.create_shard(f"{name}/input/{handle}", schema, keeps="updates"))
            for handle, schema in handles.items()
        }
        remap = await Remap.open(store, name, arrivals)
        known = await store.create_shard(f"{name}/producers", PRODUCERS)
        return cls(name, store, arrivals, remap, known)

    async def __aenter__(self) -> Self:
        """Learn where it is."""
        await self.staging.catch_up()
        self._producers = await self._known_producers()
        await self._remap.catch_up()
        await self._count()
        self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Fail what was pushed and is not durable yet."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        self._fail([*self._appending, *self._pushes], StoreClosed())
        await self.staging.close()

    @property
    def first(self) -> int:
        """The first step that it has."""
        return self._remap.first

    @property
    def last(self) -> int:
        """The step that comes next."""
        return self._remap.last

    async def ends(self) -> tuple[int, ...]:
        """The steps that `end` was called for; they stay known when the steps are trimmed."""
        return await self._remap.ends()

    # -- what producers send

    async def push(self, handle: str, rows: pa.RecordBatch, *, producer: str, sequence: int) -> None:
        """Log a Z-set; it is durable when this returns, and counts for the step that is fixed next.

        A producer's numbers are 0, 1, 2, ...; one that is sent again has no effect. Raises SequenceGap; SequenceReused
        if it stood for something else; SchemaMismatch.
        After any other error, or a cancel, it may be sent again.
        """
        await self._let_in(handle, rows)
        sent = (producer, sequence, handle, digest(rows))
        if self._producers.is_new(sent):
            self._take(sent, rows)
        await self._logged(producer, sequence)

    async def push_later(self, handle: str, rows: pa.RecordBatch, *, producer: str, number: int) -> None:
        """The same for a producer whose numbers grow, and which may leave some out.

        The last one has no effect if it comes again, with any rows. Raises SequencePassed for one before
        that; SchemaMismatch.
        """
        await self._let_in(handle, rows)
        if self._producers.is_later(producer, number):
            self._take((producer, number, handle, digest(rows)), rows)
        await self._logged(producer, number)

    async def has_logged(self, producer: str, number: int) -> bool:
        """True if that is the last number of a producer, of those that grow; waits if it is on its way.

        Raises SequencePassed for one before the last, and what its append fails with.
        """
        if self._producers.is_later(producer, number):
            return False
        await self._logged(producer, number)
        return True

    async def _let_in(self, handle: str, rows: pa.RecordBatch) -> None:
        if not self._free.is_set():
            await self._free.wait()  # without a deadline: its holder lets go, or ends
        if self._failure is not None:
            raise self._failure
        self._arrivals[handle].shard.part(
            [(0, rows)], 0, 1
        )  # its schema is checked before its number is taken

    def _take(self, sent: _Sent, rows: pa.RecordBatch) -> None:
        """Have the next append have them."""
        producer, number, handle, _ = sent
        change = self._producers.take(sent, rows.num_rows)
        push = _Push(handle, producer, rows, change, asyncio.get_running_loop().create_future())
        self._on_their_way[producer, number] = push.logged
        push.logged.add_done_callback(lambda _: self._on_their_way.pop((producer, number)))
        self._pushes.append(push)
        self._pushed.set()

    async def _logged(self, producer: str, number: int) -> None:
        """Wait for what is on its way."""
        if (producer, number) in self._on_their_way:
            await asyncio.shield(self._on_their_way[producer, number])

    def next_sequence(self, producer: str) -> int:
        """The number that a producer sends next."""
        return self._producers.next(producer)

    def position(self, producer: str) -> int:
        """How many rows of a producer are durable, over all that it pushed."""
        return self._producers.position(producer)

    @property
    def rows(self) -> int:
        """How many rows were pushed and are durable, over all producers, since the first step."""
        return self._producers.rows

    def waiting_rows(self) -> int:
        """How many rows are durable and count for no step yet, over all handles."""
        return sum(each.rows for each in self._arrivals.values())

    async def _write(self) -> None:
        """Append what came while the disk was busy, all at once."""
        while self._failure is None:
            await self._pushed.wait()
            self._pushed.clear()
            self._appending, self._pushes = self._pushes, []
            try:
                await self._store.append(self._parts(self._appending))
            except StorageError as error:
                await self._recover(error)
            else:
                for push in self._appending:
                    self._producers.logged(push.producer, push.rows.num_rows)
                    self._arrivals[push.handle].arrived(push.arrival, push.rows.num_rows)
                    push.logged.set_result(None)
            self._appending = []

    def _parts(self, pushes: Sequence[_Push]) -> list[NewPart]:
        parts = []
        for handle, each in self._arrivals.items():
            shard = each.shard
            here = [push for push in pushes if push.handle == handle]
            for arrival, push in enumerate(here, shard.upper):
                push.arrival = arrival
            if here:
                updates = [(push.arrival, push.rows) for push in here]
                parts.append(shard.part(updates, shard.upper, shard.upper + len(here)))
        known = self._known
        changes = [(known.upper, push.change) for push in pushes]
        parts.append(known.part(changes, known.upper, known.upper + 1, holds={_HOLD: known.upper}))
        return parts

    async def _recover(self, error: StorageError) -> None:
        """Fail what is not logged, and what came after it; what producers send next is as the log has it."""
        if isinstance(error, UpperMismatch):
            error = LogTaken(f"input log {self.name}")
        try:
            await self._count()
            self._producers = await self._known_producers()  # last: concurrent pushes fail
        except StorageError as second:
            self._failure = second
        if isinstance(error, LogTaken):
            self._failure = error
        self._fail([*self._appending, *self._pushes], error)
        self._pushes = []

    @staticmethod
    def _fail(pushes: Sequence[_Push], error: StorageError) -> None:
        for push in pushes:
            push.logged.set_exception(error)
            push.logged.exception()  # a cancelled caller does not retrieve it

    async def _known_producers(self) -> _Producers:
        await self._known.refresh()
        if not self._known.upper:
            return _Producers([])
        return _Producers((await self._known.snapshot(self._known.upper - 1)).to_batches())

    async def _count(self) -> None:
        """Count the rows of what has arrived and is not counted."""
        for each in self._arrivals.values():
            await each.count()

    async def refresh(self) -> None:
        """Learn which steps another process has fixed by now, if one has."""
        await self._remap.refresh()

    # -- where it stands

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Have pushes wait as long as the context is; entered once nothing is on its way any more."""
        self._free.clear()
        try:
            while self._on_their_way:
                await asyncio.wait([*self._on_their_way.values()])
            yield
        finally:
            self._free.set()

    async def standing(self) -> LogPosition:
        """Where it stands, which nothing may change meanwhile."""
        known = self._known
        producers = (await known.snapshot(known.upper - 1)).to_batches() if known.upper else []
        return LogPosition(
            self.last,
            {handle: await each.read(each.assigned, each.upper) for handle, each in self._arrivals.items()},
            added(producers, known.schema),
            await self.where(self.last),
        )

    async def stand(self, at: LogPosition) -> None:
        """Have a log that is blank, and not entered, stand there: durably, all of it or nothing.

        Raises LogTaken if it is not blank.
        """
        parts = self._remap.beginning(at)
        for handle, rows in at.waiting.items():
            if rows.num_rows:
                parts.append(self._arrivals[handle].shard.part([(0, rows)], 0, 1))
        if at.producers.num_rows:
            parts.append(self._known.part([(0, at.producers)], 0, 1, holds={_HOLD: 0}))
        try:
            await self._store.append(parts)
        except UpperMismatch as error:
            raise LogTaken(f"input log {self.name}") from error

    # -- what counts for which step

    async def read(self, step: int, cancelled: asyncio.Event) -> dict[str, pa.RecordBatch] | None:
        """Return the input that counts for a step, a Z-set for each handle: the same in every call.

        For the next step, it waits until something has arrived, and fixes the step. None once ``cancelled`` is set: the
        step was not fixed. Raises StepOutOfRange.
        """
        if step == self.last and (cancelled.is_set() or not await self._has_arrived(cancelled)):
            return None
        return await self.fix(step)

    async def fix(self, step: int, read: Mapping[str, Passage] = NOTHING) -> dict[str, pa.RecordBatch]:
        """The same without waiting: all that has arrived by now counts for the next step, and be it nothing.

        So does ``read``, rows of repeatable sources; if the step was fixed before, they do not count: `passages`
        returns those that do. The input is durable when this returns, and never changes. Raises StepOutOfRange.
        """
        return await self._rows(await self._remap.fix(step, read))

    async def logged(self, step: int) -> dict[str, pa.RecordBatch]:
        """Return the logged input of a fixed step. Raises StepOutOfRange."""
        return await self._rows(await self._remap.offsets(step))

    async def passages(self, step: int) -> Mapping[str, Passage]:
        """Return the sources' rows that also count for a step, by source. Raises StepOutOfRange."""
        return await self._remap.passages(step)

    async def where(self, step: int) -> Mapping[str, Address]:
        """The address of each source at which a step begins; it has none at first. Raises StepOutOfRange."""
        return await self._remap.where(step)

    async def pass_over(self, step: int) -> None:
        """Fix the next step with nothing in it, durably; what has arrived waits on.

        A step that is fixed, or was, stays as it is. Raises StepOutOfRange for a step beyond the next one.
        """
        await self._remap.pass_over(step)

    async def end(self, step: int, read: Mapping[str, Passage] = NOTHING) -> dict[str, pa.RecordBatch]:
        """The same as `fix`, and it is durable that event time ends with the step: see `ends`.

        More can be pushed all the same, and later steps be such ones, too. Raises StepOutOfRange.
        """
        return await self._rows(await self._remap.end(step, read))

    async def _rows(self, offsets: Offsets) -> dict[str, pa.RecordBatch]:
        return {
            handle: await each.read(*offsets.get(handle, (0, 0))) for handle, each in self._arrivals.items()
        }

    async def _has_arrived(self, cancelled: asyncio.Event) -> bool:
        """True if something has arrived that counts for no step yet; False once ``cancelled`` is set."""
        waiting = [
            asyncio.ensure_future(each.shard.written(each.assigned, deadline_s=None))
            for each in self._arrivals.values()
        ]
        cancelling = asyncio.ensure_future(cancelled.wait())
        try:
            done, _ = await asyncio.wait([*waiting, cancelling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*waiting, cancelling):
                each.cancel()
            await asyncio.gather(*waiting, cancelling, return_exceptions=True)
        arrived = [each for each in waiting if each in done]
        for each in arrived:
            each.result()
        return bool(arrived)

    async def offsets(self, step: int) -> Offsets:
        """The arrivals that count for a step, by handle. Raises StepOutOfRange."""
        return await self._remap.offsets(step)

    async def waiting(self) -> dict[str, int]:
        """Arrivals that count for no step yet, by handle."""
        return {handle: each.waiting for handle, each in self._arrivals.items()}

    async def trim(self, step: int) -> None:
        """Forget all steps below: no version of a database needs them any more. Raises StepOutOfRange."""
        await self._remap.trim(step)
