"""The input of a member: what producers sent, logged before they are told, and which of it counts for which step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.storage.errors import LogTaken, StepOutOfRange, StorageError, StoreClosed, UpperMismatch

from . import producers
from .producers import Producers
from .sums import added, digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from nebuli.storage.shards.access import NewPart
    from nebuli.storage.shards.shard import Shard
    from nebuli.storage.store import Store

_HOLD = "log"
_REMAP = weighted(pa.schema([("handle", pa.string()), ("first", pa.uint64()), ("until", pa.uint64())]))

Offsets = dict[str, tuple[int, int]]
"""The first arrival that counts, and the first that does not any more, by handle."""


@dataclass(eq=False, slots=True)
class _Push:
    """What a producer sent, until it is durable."""

    handle: str
    rows: pa.RecordBatch
    change: pa.RecordBatch
    logged: asyncio.Future[None]


class InputLog:
    """The input of one member at a time, who enters and leaves it. Steps below ``first`` are gone, ``last`` is next.

    For each handle a shard has what arrived, at times that count arrivals; the remap, a shard too, has steps for times,
    and says up to which arrival each handle counts.
    """

    def __init__(
        self, name: str, store: Store, shards: Mapping[str, Shard], remap: Shard, known: Shard
    ) -> None:
        self.name = name
        self.schemas = {handle: shard.schema for handle, shard in shards.items()}
        self._store = store
        self._shards = shards
        self._remap = remap
        self._known = known
        self._producers = Producers([])
        self._failure: StorageError | None = None
        self._assigned: dict[str, int] = {}
        self._pushes: list[_Push] = []
        self._appending: list[_Push] = []
        self._pushed = asyncio.Event()
        self._on_their_way: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._writer: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, store: Store, name: str, handles: Mapping[str, pa.Schema]) -> Self:
        """Open a log, made if it is not there, with these handles and their Z-sets' schemas. Raises SchemaMismatch."""
        shards = {
            handle: await store.create_shard(f"{name}/input/{handle}", schema, keeps="updates")
            for handle, schema in handles.items()
        }
        remap = await store.create_shard(f"{name}/remap", _REMAP, keeps="updates")
        known = await store.create_shard(f"{name}/producers", producers.SCHEMA)
        return cls(name, store, shards, remap, known)

    async def __aenter__(self) -> Self:
        """Learn where it is."""
        self._producers = await self._known_producers()
        self._assigned = {handle: shard.since for handle, shard in self._shards.items()}
        if self.first < self.last:
            self._assigned |= {
                handle: until for handle, (_, until) in (await self.offsets(self.last - 1)).items()
            }
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

    @property
    def first(self) -> int:
        """The first step that it has."""
        return self._remap.since

    @property
    def last(self) -> int:
        """The step that comes next."""
        return self._remap.upper

    # -- what producers send

    async def push(self, handle: str, rows: pa.RecordBatch, *, producer: str, sequence: int) -> None:
        """Log a Z-set; it is durable when this returns, and counts for the step that is fixed next.

        A producer's numbers are 0, 1, 2, ...; one that is sent again has no effect. Raises SequenceGap; SequenceReused
        if it stood for something else; SchemaMismatch.
        After any other error, or a cancel, it may be sent again.
        """
        if self._failure is not None:
            raise self._failure
        self._shards[handle].part([(0, rows)], 0, 1)  # its schema is checked before its number is taken
        sent = (producer, sequence, handle, digest(rows))
        key = (producer, sequence)
        if self._producers.is_new(sent):
            push = _Push(handle, rows, self._producers.take(sent), asyncio.get_running_loop().create_future())
            self._on_their_way[key] = push.logged
            push.logged.add_done_callback(lambda _: self._on_their_way.pop(key))
            self._pushes.append(push)
            self._pushed.set()
        if key in self._on_their_way:
            await asyncio.shield(self._on_their_way[key])

    def next_sequence(self, producer: str) -> int:
        """The number that a producer sends next."""
        return self._producers.next(producer)

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
                    push.logged.set_result(None)
            self._appending = []

    def _parts(self, pushes: Sequence[_Push]) -> list[NewPart]:
        parts = []
        for handle, shard in self._shards.items():
            here = [push.rows for push in pushes if push.handle == handle]
            if here:
                parts.append(
                    shard.part(list(enumerate(here, shard.upper)), shard.upper, shard.upper + len(here))
                )
        known = self._known
        changes = [(known.upper, push.change) for push in pushes]
        parts.append(known.part(changes, known.upper, known.upper + 1, holds={_HOLD: known.upper}))
        return parts

    async def _recover(self, error: StorageError) -> None:
        """Fail what is not logged, and what came after it; what producers send next is as the log has it."""
        if isinstance(error, UpperMismatch):
            error = LogTaken(f"input log {self.name}")
        try:
            self._producers = await self._known_producers()
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
            push.logged.exception()  # who was cancelled does not ask for it

    async def _known_producers(self) -> Producers:
        await self._known.refresh()
        if not self._known.upper:
            return Producers([])
        return Producers((await self._known.snapshot(self._known.upper - 1)).to_batches())

    # -- what counts for which step

    async def read(self, step: int, cancelled: asyncio.Event) -> dict[str, pa.RecordBatch] | None:
        """What counts for a step, a Z-set for each handle: the same whenever it is asked for.

        Of the next step: waits until something has arrived, and fixes the step. None once ``cancelled`` is set: the
        step was not fixed. Raises StepOutOfRange.
        """
        if step == self.last and (cancelled.is_set() or not await self._has_arrived(cancelled)):
            return None
        return await self.fix(step)

    async def fix(self, step: int) -> dict[str, pa.RecordBatch]:
        """The same without waiting: all that has arrived by now counts for the next step, and be it nothing.

        What counts is durable when this returns, and nothing is added to it, ever. Raises StepOutOfRange.
        """
        if step == self.last:
            until = {handle: shard.upper for handle, shard in self._shards.items()}
            remap = [(step, _remap(self._assigned, until))]
            try:
                await self._remap.compare_and_append(remap, step, step + 1)
            except UpperMismatch as error:
                raise LogTaken(f"input log {self.name}") from error
        offsets = await self.offsets(step)
        if step + 1 == self.last:
            self._assigned |= {handle: until for handle, (_, until) in offsets.items()}
        return {handle: await self._arrived(handle, *offsets.get(handle, (0, 0))) for handle in self._shards}

    async def _has_arrived(self, cancelled: asyncio.Event) -> bool:
        """Whether something has that counts for no step yet; False once ``cancelled`` is set."""
        waiting = [
            asyncio.ensure_future(shard.written(self._assigned[handle], deadline_s=None))
            for handle, shard in self._shards.items()
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
        if not self.first <= step < self.last:
            raise StepOutOfRange(f"input log {self.name}", step, self.first, self.last)
        return {
            handle: (first, until)
            for _, rows in await self._remap.read(step, step + 1)
            for handle, first, until in zip(*(rows.column(n).to_pylist() for n in range(3)), strict=True)
        }

    async def _arrived(self, handle: str, first: int, until: int) -> pa.RecordBatch:
        """Arrivals from ``first`` up to but not including ``until``, added."""
        shard = self._shards[handle]
        updates = await shard.read(first, until) if first < until else []
        return added([rows for _, rows in updates], shard.schema)

    async def waiting(self) -> dict[str, int]:
        """Arrivals that count for no step yet, by handle."""
        return {handle: shard.upper - self._assigned[handle] for handle, shard in self._shards.items()}

    async def trim(self, step: int) -> None:
        """Forget all steps below: no version of a database needs them any more. Raises StepOutOfRange."""
        if not self.first <= step <= self.last:
            raise StepOutOfRange(f"input log {self.name}", step, self.first, self.last)
        needed = self._assigned
        if step < self.last:
            needed = {handle: first for handle, (first, _) in (await self.offsets(step)).items()}
        holds = {self._shards[handle]: first for handle, first in needed.items()}
        await self._store.hold(_HOLD, holds | {self._remap: step})


def _remap(first: Mapping[str, int], until: Mapping[str, int]) -> pa.RecordBatch:
    columns = [list(until), [first[handle] for handle in until], list(until.values()), [1] * len(until)]
    return pa.record_batch(
        [pa.array(column, kind.type) for column, kind in zip(columns, _REMAP, strict=True)], schema=_REMAP
    )
