"""Reclocking: which addresses of which raw sources have become available at which time, recorded once and for all."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import consolidate, weighted
from nebuli.store.errors import Damaged, NotYet, SinceMismatch, Unclear, UpperMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nebuli.ingestion.message_addresses import Addresses
    from nebuli.store import Store
    from nebuli.store.collections.clock import Clock
    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard import Shard

_HOLD = "ingestion"
_ADDRESS, _FACT = "address", "fact"
SCHEMA = weighted(
    pa.schema(
        [
            pa.field("kind", pa.string(), nullable=False),
            pa.field("source", pa.string(), nullable=False),
            pa.field("part", pa.string(), nullable=False),
            pa.field("address", pa.int64(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
)
_Row = tuple[str, str, str, int, bytes]
Recorded = dict[tuple[str, str], bytes]
"""By raw source and part, what is recorded with the address, for readers to know again what is before it."""


@dataclass(frozen=True, slots=True)
class Binding:
    """From ``time`` on, all messages of each raw source below its ``addresses`` are available.

    Addresses never go back.
    """

    time: int
    addresses: Mapping[str, Addresses]


class Remap:
    """A shard with the addresses, and with the facts that messages are decoded by: so both are recorded at once.

    Any number of instances propose what is next. One of them is first, and all of them, that one too, go by what they
    read back. ``facts`` are those that are recorded, of which the first for a key counts, at any time.
    """

    def __init__(self, store: Store, shard: Shard, clock: Clock) -> None:
        self._store = store
        self._shard = shard
        self._clock = clock
        self._upper = 0
        self._last: dict[str, Addresses] = {}
        self._marks: Recorded = {}
        self._told: deque[Binding] = deque()
        self.facts: dict[str, bytes] = {}

    @classmethod
    async def opened(cls, store: Store, name: str, clock: Clock) -> Remap:
        """That of a name, made if it is not there. ``clock`` is the time of the store."""
        return cls(store, await store.create_shard(name, SCHEMA), clock)

    @property
    def upper(self) -> int:
        """All bindings at lower times are known."""
        return self._upper

    @property
    def last(self) -> Mapping[str, Addresses]:
        """The addresses of the last binding that is known."""
        return self._last

    async def begin(self, upper: int) -> tuple[Mapping[str, Addresses], Recorded]:
        """The addresses below which everything was available before a time, and what is recorded with them.

        Bindings from there on are returned. Raises SinceMismatch, NotYet if that is not recorded.
        """
        await self._shard.refresh()
        self._told.clear()
        self._last, self._marks, self.facts, self._upper = {}, {}, {}, upper
        if upper:
            if self._shard.upper < upper:
                raise NotYet(
                    self._shard.name, upper - 1, self._shard.upper, 0.0,
                    f"source times below {upper} are ingested, but addresses are recorded only below "
                    f"{self._shard.upper}: restore the store's folder from a consistent copy",
                )  # fmt: skip
            self._add([(upper - 1, each) for each in (await self._shard.contents(upper - 1)).to_batches()])
        before = {source: dict(parts) for source, parts in self._last.items()}
        marks = dict(self._marks)
        await self.look()
        return before, marks

    def next(self) -> Binding | None:
        """Return the next known binding, once."""
        return self._told.popleft() if self._told else None

    @property
    def told_upper(self) -> int:
        """All bindings at lower times were returned."""
        return self._told[0].time if self._told else self._upper

    async def look(self) -> None:
        """Learn of what was recorded since. Raises SinceMismatch, Damaged."""
        await self._shard.refresh()
        upper = self._shard.upper  # which may be further once it is read
        self._read_on(await self._shard.read(self._upper, upper), upper)

    async def recorded(self) -> tuple[int, Mapping[str, Addresses], Recorded]:
        """Return the time below which addresses are recorded, the last ones, and their facts.

        Without returning bindings.
        """
        await self._shard.refresh()
        upper = self._shard.upper
        if upper:
            self._add([(upper - 1, each) for each in (await self._shard.contents(upper - 1)).to_batches()])
        return upper, self._last, self._marks

    async def wait(self, pause_s: float) -> None:
        """Wait until something was recorded, for so long at most."""
        with suppress(NotYet):
            await self._shard.written(self._upper, deadline_s=pause_s)
        await self.look()

    async def mint(
        self,
        addresses: Mapping[str, Addresses],
        facts: Mapping[str, bytes] | None = None,
        marks: Mapping[tuple[str, str], bytes] | None = None,
    ) -> bool:
        """Propose that these addresses become available now, or at the next time that is left; whether it was first.

        The recorded bindings, as read back, count, even if another one was first. An address never goes back. The time
        of the store goes with it, so that readers of the result need not wait.
        """
        upper, was_first = self._upper, False
        rows = self._changes(addresses, facts or {}, marks or {})
        while self._shard.upper == upper:
            known = self._clock.upper
            at = max(self._clock.next_time(), upper)
            part = self._shard.part([(at, rows)] if rows is not None else [], upper, at + 1)
            try:
                await self._store.append([part, self._clock.moved(known, at)])
                was_first = True
                break
            except UpperMismatch:  # another one was first, here or at the clock
                await self._shard.refresh()
            except Unclear:
                break
        await self.look()
        return was_first

    async def hold(self, at: int) -> None:
        """Times before this one need not be distinguished any more."""
        with suppress(SinceMismatch):  # another instance is further
            await self._shard.hold(_HOLD, at)

    async def was_let_go(self, source: str) -> bool:
        """True if others may have released the first messages of a source: they hold its recorded bindings before."""
        await self._shard.refresh()
        since = self._shard.since
        if not 0 < since < self._shard.upper:
            return False
        return source in (await self._shard.contents(since)).column("source").to_pylist()

    def _changes(
        self,
        addresses: Mapping[str, Addresses],
        facts: Mapping[str, bytes],
        marks: Mapping[tuple[str, str], bytes],
    ) -> pa.RecordBatch | None:
        rows: list[tuple[_Row, int]] = []
        for source, parts in addresses.items():
            known = self._last.get(source, {})
            for part, address in parts.items():
                before = known.get(part)
                if before is not None and before >= address:
                    continue
                if before is not None:
                    rows.append(((_ADDRESS, source, part, before, self._marks[source, part]), -1))
                mark = marks.get((source, part)) or self._marks.get((source, part), b"")
                rows.append(((_ADDRESS, source, part, address, mark), 1))
        new = [(key, value) for key, value in facts.items() if key not in self.facts]
        rows += [((_FACT, key, "", 0, value), 1) for key, value in new]
        if not rows:
            return None
        columns = zip(*((*row, weight) for row, weight in rows), strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _read_on(self, updates: Sequence[Update], upper: int) -> None:
        times: dict[int, list[pa.RecordBatch]] = {}
        for at, rows in updates:
            times.setdefault(at, []).append(rows)
        for at in sorted(times):
            if self._add([(at, each) for each in times[at]]):
                self._told.append(Binding(at, {source: dict(parts) for source, parts in self._last.items()}))
        self._upper = max(self._upper, upper)

    def _add(self, updates: Iterable[Update]) -> bool:
        """True if any address has changed."""
        changed = False
        batches = [rows for _, rows in updates]
        if not batches:
            return False
        for kind, source, part, address, value, weight in zip(
            *(each.to_pylist() for each in consolidate(batches).columns), strict=True
        ):
            if kind == _FACT and weight > 0:
                self.facts.setdefault(source, value)
            elif kind == _ADDRESS and weight > 0:
                if self._last.get(source, {}).get(part, -1) > address:
                    raise Damaged(
                        f"shard {self._shard.name} records address {address} of {source} {part} after a "
                        f"higher address: restore "
                        f"the store's folder from a copy"
                    )
                self._last.setdefault(source, {})[part] = address
                self._marks[source, part] = value
                changed = True
        return changed
