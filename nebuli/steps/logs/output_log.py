"""The output of a member, step by step, as consumers read it: each step once, however often it is produced.

Also how far the sink of an output has it: a position or, for one that is written as a whole, the sum of steps.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.zset import added, consolidate, digest, weighted
from nebuli.store.errors import LogTaken, OutputDiffers, SinceMismatch, StepOutOfRange, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard import Shard, Span
    from nebuli.store.store import Store

_HOLD = "log"
"""The steps that the log itself keeps: those that may be repeated, and those that programs may still read."""
_ADDED_BYTES = 1 << 26
"""So much is added up at once."""
_SINK_HOLD = "sink"
"""Rows that the sink of an output does not have durably."""
_LAST_HOLD = "last"
_POSITIONS = weighted(
    pa.schema([("step", pa.int64()), ("kind", pa.string()), ("position", pa.string()), ("rows", pa.uint64())])
)
TIMES = weighted(pa.schema([pa.field("time", pa.uint64())]))
"""The schema of the times of steps: a step without its own time has no row."""


def time_row(time: int | None) -> pa.RecordBatch:
    """Return the row of a step with this time."""
    rows = [] if time is None else [time]
    return pa.record_batch([pa.array(rows, pa.uint64()), pa.array([1] * len(rows), pa.int64())], schema=TIMES)


@dataclass(frozen=True, slots=True)
class Dating:
    """``times`` is the output with the times of steps, and ``outputs`` are those that are written at them."""

    times: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """A sink of this ``kind`` has all steps below ``step``: ``text`` is where it is then, in its own words.

    ``rows`` is how many rows these steps have given out.
    """

    step: int
    kind: str
    text: str
    rows: int


class SinkPositions:
    """The last position of one sink. A shard, whose times are the numbers of the positions that there were."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store = store
        self._shard = shard

    @classmethod
    async def open(cls, store: Store, name: str) -> Self:
        """Open it, made if it is not there."""
        return cls(store, await store.create_shard(name, _POSITIONS, keeps="updates"))

    async def last(self) -> SinkPosition | None:
        """Return the last stored position; None if there is none."""
        upper = self._shard.upper
        if not upper:
            return None
        ((_, rows),) = await self._shard.read(upper - 1, upper)
        return SinkPosition(*(column[0].as_py() for column in rows.columns[:4]))

    async def keep(self, position: SinkPosition) -> None:
        """Keep a position, durably, instead of the one before. Raises LogTaken if another process has kept one."""
        upper = self._shard.upper
        row = [[position.step], [position.kind], [position.text], [position.rows], [1]]
        arrays = [pa.array(values, field.type) for values, field in zip(row, _POSITIONS, strict=True)]
        rows = pa.record_batch(arrays, schema=_POSITIONS)
        try:
            await self._store.append(
                [self._shard.part([(upper, rows)], upper, upper + 1, holds={_LAST_HOLD: upper})]
            )
        except UpperMismatch as error:
            raise LogTaken(self._shard.name) from error


class NetRows:
    """The sum of all steps below ``step``. A shard whose times are steps, and which can be read at the last one."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store = store
        self._shard = shard

    @classmethod
    async def open(cls, store: Store, name: str, schema: pa.Schema) -> Self:
        """Open it, made if it is not there, of no steps then. Raises SchemaMismatch."""
        return cls(store, await store.create_shard(name, schema, keeps="contents"))

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._shard.upper

    async def rows(self) -> Sequence[pa.RecordBatch]:
        """Every row once, with the sum of its weights."""
        if not self.step:
            return []
        batches: Sequence[pa.RecordBatch] = (await self._shard.snapshot(self.step - 1)).to_batches()
        return batches

    async def add(self, updates: Sequence[Update], until: int) -> None:
        """Add the next steps, up to but not including ``until``. Raises LogTaken if another process has added some."""
        part = self._shard.part(updates, self.step, until, holds={_LAST_HOLD: until - 1})
        try:
            await self._store.append([part])
        except UpperMismatch as error:
            raise LogTaken(self._shard.name) from error
        self._shard.compact_soon()


class OutputLog:
    """Steps below ``first`` are forgotten, ``last`` is the next. A shard for each output, whose times are steps.

    A step is kept as long as `trim` leaves it, and until `has_delivered` reports that the output's sink has it.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        shards: Mapping[str, Shard],
        *,
        compares: bool,
        dating: Dating | None,
        windows: Mapping[str, Shard],
    ) -> None:
        self.name = name
        self._open = windows
        self._dating = dating
        self.schemas = {output: shard.schema for output, shard in shards.items()}
        self._store = store
        self._shards = shards
        self._compares = compares

    @classmethod
    async def open(
        cls,
        store: Store,
        name: str,
        outputs: Mapping[str, pa.Schema],
        *,
        compares: bool = True,
        dating: Dating | None = None,
        show_open: Collection[str] = (),
    ) -> Self:
        """Open a log, made if it is not there, with these outputs, one at least, and the schemas of their Z-sets.

        ``compares``: a repeated output is compared with the logged one. With a ``dating`` steps have times.
        ``show_open``: the outputs that show windows that are open at the end of a run. Raises SchemaMismatch.
        """
        if dating is not None:
            outputs = {**outputs, dating.times: TIMES}
        shards = {
            output: await store.create_shard(f"{name}/output/{output}", schema, keeps="updates")
            for output, schema in outputs.items()
        }
        # Before any other hold: the lowest rules, and a sink's alone would have the rest forgotten.
        unheld = {shard: shard.since for shard in shards.values() if _HOLD not in shard.holds}
        if unheld:
            await store.hold(_HOLD, unheld)
        windows = {
            output: await store.create_shard(f"{name}/open/{output}", outputs[output], keeps="updates")
            for output in show_open
        }
        return cls(name, store, shards, compares=compares, dating=dating, windows=windows)

    async def show_open(self, step: int, outputs: Mapping[str, pa.RecordBatch]) -> None:
        """Keep what outputs that show open windows have of these before a step, durably; once for each step.

        Raises LogTaken, SchemaMismatch.
        """
        for output, shard in self._open.items():
            if shard.upper <= step:
                part = shard.part([(step, outputs[output])], shard.upper, step + 1, holds={_HOLD: step})
                try:
                    await self._store.append([part])
                except UpperMismatch as error:
                    raise LogTaken(shard.name) from error

    async def open_rows(self, output: str, step: int) -> Sequence[pa.RecordBatch]:
        """The rows of windows that are open before a step, if a run has ended there."""
        shard = self._open.get(output)
        if shard is None:
            return ()
        await shard.refresh()
        return [rows for _, rows in await shard.read(step, step + 1)] if shard.upper == step + 1 else ()

    @property
    def first(self) -> int:
        """The first step that it has of all outputs."""
        return max(shard.since for shard in self._shards.values())

    def first_of(self, output: str) -> int:
        """The first step that it has of an output."""
        return self._shards[output].since

    @property
    def last(self) -> int:
        """The step that comes next."""
        return next(iter(self._shards.values())).upper

    async def write(self, step: int, outputs: Mapping[str, pa.RecordBatch]) -> None:
        """Write the outputs of a step, durably; an output that is not named has no rows in it.

        A step that is there, or was, stays as it is. Raises OutputDiffers if it comes out different now; StepOutOfRange
        for a step beyond the next one; SchemaMismatch.
        """
        if step > self.last:
            raise StepOutOfRange(f"output log {self.name}", step, self.first, self.last)
        if step < self.last:
            await self._compare(step, outputs)
            return
        parts = [
            shard.part([(step, outputs[output])] if output in outputs else [], step, step + 1)
            for output, shard in self._shards.items()
        ]
        try:
            await self._store.append(parts)
        except UpperMismatch as error:
            raise LogTaken(f"output log {self.name}") from error

    async def _compare(self, step: int, outputs: Mapping[str, pa.RecordBatch]) -> None:
        if not self._compares:
            return
        before = {}
        for output in self._shards:
            with suppress(SinceMismatch):  # it was forgotten
                before[output] = await self.read(output, step)
        different = [
            output
            for output, rows in before.items()
            if not _same(rows, outputs.get(output, rows.slice(0, 0)))
        ]
        if different:
            raise OutputDiffers(self.name, step, different)

    async def continue_with(self, output: str, first: int, until: int, updates: Sequence[Update]) -> None:
        """Append what another log has of an output up to a step: all from ``first`` on, in order, in pieces.

        Before ``first``, which may rise from piece to piece, nothing is there, and was forgotten; all from there on
        stays until the sink has had it.
        """
        shard = self._shards[output]
        if until == shard.upper:
            return
        is_new = not shard.upper or first > shard.since
        holds = {_HOLD: first, _SINK_HOLD: first} if is_new else {}
        try:
            await self._store.append([shard.part(updates, shard.upper, until, holds=holds)])
        except UpperMismatch as error:
            raise LogTaken(f"output log {self.name}") from error

    async def read(self, output: str, step: int) -> pa.RecordBatch:
        """The output of a step. Raises SinceMismatch, NotYet."""
        shard = self._shards[output]
        return added([rows for _, rows in await shard.read(step, step + 1)], shard.schema)

    async def add_up(self, output: str, net: NetRows, until: int) -> None:
        """Add the steps that are not in it yet, up to one that is written; in pieces, as there may be many."""
        updates: list[Update] = []
        size = 0
        at = net.step
        while at < until:
            span = await anext(self.follow(output, at))
            updates += span.updates
            size += sum(rows.nbytes for _, rows in span.updates)
            at = span.upper
            if size > _ADDED_BYTES or at >= until:
                await net.add(updates, at)
                updates, size = [], 0

    def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """The output from a step on; see `Shard.listen`."""
        return self._shards[output].listen(first)

    async def delivered(self, output: str) -> SinkPositions:
        """How far the sink of an output is."""
        return await SinkPositions.open(self._store, f"{self.name}/delivered/{output}")

    async def net(self, output: str) -> NetRows:
        """Return the sum of an output's steps, as far as its sink has it."""
        return await NetRows.open(self._store, f"{self.name}/net/{output}", self.schemas[output])

    async def times(self, first: int, until: int) -> Mapping[int, int]:
        """The times of steps, all of which are written; those that have none of their own are not among them."""
        assert self._dating is not None, "there are no times otherwise"
        found: dict[int, int] = {}
        while first < until:
            span = await anext(self.follow(self._dating.times, first))
            rows = [(step, rows) for step, rows in span.updates if step < until and rows.num_rows]
            found |= {step: each.column(0)[0].as_py() for step, each in rows}
            first = span.upper
        return found

    async def has_delivered(self, output: str, step: int) -> None:
        """The sink of an output needs nothing below a step any more; until this call it may need everything."""
        needed = {self._shards[output]: step}
        if self._dating is not None and output in self._dating.outputs:
            others = [self._shards[each].holds for each in self._dating.outputs if each != output]
            steps = [holds[_SINK_HOLD].time if _SINK_HOLD in holds else 0 for holds in others]
            needed[self._shards[self._dating.times]] = min([step, *steps])
        await self._store.hold(_SINK_HOLD, self._within(needed))

    async def keep_all(self, output: str) -> None:
        """Forget nothing more of an output until `has_delivered` is called, even if another process trims meanwhile."""
        while True:
            for shard in self._shards.values():
                await shard.refresh()
            with suppress(SinceMismatch):  # trimmed since then: there is less to keep
                return await self.has_delivered(output, 0)

    async def trim(self, step: int, *, keep_bytes: int = 0) -> None:
        """Forget all steps below that sinks have had, but for the newest ``keep_bytes`` of the log on disk."""
        kept_from = min(step, self._beginning(keep_bytes))
        await self._store.hold(_HOLD, self._within(dict.fromkeys(self._shards.values(), kept_from)))
        for shard in self._shards.values():
            shard.compact_soon()

    def _within(self, steps: Mapping[Shard, int]) -> Mapping[Shard, int]:
        """The steps, or the nearest that there are."""
        return {shard: min(max(step, shard.since), shard.upper) for shard, step in steps.items()}

    def _beginning(self, newest_bytes: int) -> int:
        """The step from which on there are so many bytes at least, in whole pieces of the store; 0: not so many."""
        left, beginning = newest_bytes, self.last
        for lower, size in sorted(
            (each for shard in self._shards.values() for each in shard.stored), reverse=True
        ):
            if left <= 0:
                break
            left, beginning = left - size, lower
        return beginning if left <= 0 else 0


def _same(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """True if they are the same Z-set, in any order and pieces."""
    return digest(a) == digest(b) and consolidate(a).num_rows == consolidate(b).num_rows
