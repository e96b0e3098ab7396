"""Positions from which logs and sinks continue: that of an input log, and that of an output in its sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import LogTaken, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.store.shards.shard import Shard
    from nebuli.store.store import Store

    from .addresses import Address


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a log stands between two steps.

    ``waiting`` are the rows that count for no step yet, added, by handle; ``producers`` what is remembered of who sent
    them and all before, in the producers' schema; ``addresses`` where each source is read on that is not logged.
    """

    step: int
    waiting: Mapping[str, pa.RecordBatch]
    producers: pa.RecordBatch
    addresses: Mapping[str, Address]


_SCHEMA = weighted(
    pa.schema([("step", pa.int64()), ("kind", pa.string()), ("position", pa.string()), ("rows", pa.uint64())])
)
_HOLD = "last"


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
        return cls(store, await store.create_shard(name, _SCHEMA, keeps="updates"))

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
        arrays = [pa.array(values, field.type) for values, field in zip(row, _SCHEMA, strict=True)]
        rows = pa.record_batch(arrays, schema=_SCHEMA)
        try:
            await self._store.append(
                [self._shard.part([(upper, rows)], upper, upper + 1, holds={_HOLD: upper})]
            )
        except UpperMismatch as error:
            raise LogTaken(self._shard.name) from error
