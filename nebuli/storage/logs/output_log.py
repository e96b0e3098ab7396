"""The output of a member, step by step, as consumers read it: each step once, however often it is produced."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from nebuli.dataflow.zset import consolidate
from nebuli.storage.errors import LogTaken, SinceMismatch, StepOutOfRange, UpperMismatch

from .sums import added, digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pyarrow as pa

    from nebuli.storage.shards.shard import Shard, Span
    from nebuli.storage.store import Store

_log = logging.getLogger("nebuli.storage")
_HOLD = "log"


class OutputLog:
    """Steps below ``first`` are forgotten, ``last`` is the next. A shard for each output, whose times are steps."""

    def __init__(self, name: str, store: Store, shards: Mapping[str, Shard], *, compares: bool) -> None:
        self.name = name
        self.mismatches = 0
        """Steps that were produced again and came out different."""
        self.schemas = {output: shard.schema for output, shard in shards.items()}
        self._store = store
        self._shards = shards
        self._compares = compares

    @classmethod
    async def open(
        cls, store: Store, name: str, outputs: Mapping[str, pa.Schema], *, compares: bool = True
    ) -> Self:
        """Open a log, made if it is not there, with these outputs, one at least, and the schemas of their Z-sets.

        ``compares``: what is produced again is compared with what is there. Raises SchemaMismatch.
        """
        shards = {
            output: await store.create_shard(f"{name}/output/{output}", schema, keeps="updates")
            for output, schema in outputs.items()
        }
        return cls(name, store, shards, compares=compares)

    @property
    def first(self) -> int:
        """The first step that it has."""
        return next(iter(self._shards.values())).since

    @property
    def last(self) -> int:
        """The step that comes next."""
        return next(iter(self._shards.values())).upper

    async def write(self, step: int, outputs: Mapping[str, pa.RecordBatch]) -> None:
        """Write the outputs of a step, durably; an output that is not named has no rows in it.

        A step that is there, or was, stays as it is; if it comes out different now, a warning says so. Raises
        StepOutOfRange for a step beyond the next one; SchemaMismatch.
        """
        if step > self.last:
            raise StepOutOfRange(f"output log {self.name}", step, self.first, self.last)
        if step < self.first:
            return
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
        try:
            before = {output: await self.read(output, step) for output in self._shards}
        except SinceMismatch:
            return  # it was forgotten meanwhile
        different = [
            output
            for output, rows in before.items()
            if not _same(rows, outputs.get(output, rows.slice(0, 0)))
        ]
        if different:
            self.mismatches += 1
            _log.warning(
                "step %d of output log %s came out different in %s: what is there stays; the circuit, or what it read, "
                "is not the same as before",
                step,
                self.name,
                ", ".join(different),
            )

    async def read(self, output: str, step: int) -> pa.RecordBatch:
        """The output of a step. Raises SinceMismatch, NotYet."""
        shard = self._shards[output]
        return added([rows for _, rows in await shard.read(step, step + 1)], shard.schema)

    def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """The output from a step on; see `Shard.listen`."""
        return self._shards[output].listen(first)

    async def trim(self, step: int) -> None:
        """Forget all steps below: no consumer wants them any more."""
        await self._store.hold(
            _HOLD, {shard: min(max(step, self.first), self.last) for shard in self._shards.values()}
        )


def _same(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Whether they are the same Z-set, in whatever order and pieces."""
    return digest(a) == digest(b) and consolidate(a).num_rows == consolidate(b).num_rows
