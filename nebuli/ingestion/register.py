"""Short documents by their keys, in a shard: each change of them is whole, and made only behind what was known."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import NotYet, SinceMismatch, Unclear, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nebuli.store import Store
    from nebuli.store.shards.shard import Shard

_SCHEMA = weighted(
    pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)])
)
_HOLD = "register"


class Register:
    """Any number of processes read and change it; a time of its shard is the number of a change."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._known: tuple[int, dict[str, str]] = -1, {}

    @classmethod
    async def opened(cls, store: Store, name: str) -> Register:
        """That of a name, made if it is not there."""
        return cls(await store.create_shard(name, _SCHEMA))

    async def read(self) -> Mapping[str, str]:
        """All of it, as it is now."""
        await self._shard.refresh()
        while self._known[0] != self._shard.upper:
            upper = self._shard.upper
            if not upper:
                self._known = 0, {}
                break
            try:
                contents = await self._shard.contents(upper - 1)
            except SinceMismatch:  # it has changed meanwhile
                await self._shard.refresh()
                continue
            self._known = upper, dict(zip(*(each.to_pylist() for each in contents.columns[:2]), strict=True))
        return self._known[1]

    async def changed(self, pause_s: float) -> None:
        """Wait until it is not what was read last, for so long at most."""
        with suppress(NotYet):
            await self._shard.written(max(self._known[0], 0), deadline_s=pause_s)

    async def change(self, key: str, change: Callable[[str | None], str | None]) -> None:
        """Make another document of one, or of none; None: forget it. Done anew where another change was first."""
        while True:
            documents = await self.read()
            upper, before = self._known[0], documents.get(key)
            after = change(before)
            if after == before:
                return
            rows = [(key, text, weight) for text, weight in ((before, -1), (after, 1)) if text is not None]
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
            try:
                await self._shard.compare_and_append([(upper, batch)], upper, upper + 1)
            except (UpperMismatch, Unclear):
                continue  # what is there now is looked at, also where this change was made
            with suppress(SinceMismatch):
                await self._shard.hold(_HOLD, upper)
            return
