"""Sums and comparisons of Z-sets, and the sum of an output's steps, for a sink that is written as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from nebuli.dataflow.hashing import hash_rows
from nebuli.dataflow.zset import empty, weights_of
from nebuli.store.errors import LogTaken, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard import Shard
    from nebuli.store.store import Store


def added(zsets: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The sum of Z-sets: a row that stands in several stands in it as often, each time with its weight."""
    if not zsets:
        return empty(schema)
    return zsets[0] if len(zsets) == 1 else pa.concat_batches(list(zsets))


def digest(zset: pa.RecordBatch) -> int:
    """Return 64 bits that are the same for equal Z-sets, in any order and pieces."""
    with np.errstate(over="ignore"):
        hashes = hash_rows(zset.columns[:-1], zset.num_rows) * weights_of(zset).view(np.uint64)
    return int(hashes.sum(dtype=np.uint64))


_HOLD = "last"


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
        part = self._shard.part(updates, self.step, until, holds={_HOLD: until - 1})
        try:
            await self._store.append([part])
        except UpperMismatch as error:
            raise LogTaken(self._shard.name) from error
        self._shard.compact_soon()
