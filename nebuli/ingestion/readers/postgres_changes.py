"""Changes of a table of PostgreSQL, by logical replication: what committed, in the order in which it did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from nebuli.ingestion.errors import AddressGone, MessageInvalid, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD, Addresses, Messages
from nebuli.ingestion.source_reader import SourceReader

from .transaction_changes import TransactionChanges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nebuli.ingestion.definition import PostgresOrigin

    from .postgres_slot import PostgresSlot, SlotState
    from .transaction_changes import Found

SCHEMA = pa.schema([pa.field(PAYLOAD, pa.binary())])
_PART = ""
_ROWS, _MOST_ROWS = 10_000, 50_000
"""Rows to request from the server at a time, above those that are known already."""
_PAUSE_S = 0.1
"""Between looks at whether the server has written anything."""
_ALONE_S = 1.0
"""After so long the slot advances, though nothing in the log is of the table: the log is kept until then."""


class PostgresChanges(SourceReader):
    """Changes of one table since its slot was made; earlier rows have to be loaded separately.

    Each is a message, a change as Debezium writes it, at the address of its transaction: where the record of its commit
    begins in the server's log. A transaction is in one piece, so that there has to be memory for the largest. Numbers
    of 2, 4 and 8 bytes, and truth values, are as in JSON, bytes in base64, and all else is the server's text, with
    times in UTC. A value that is stored apart and was not changed is left out, and its column named in ``unchanged``,
    but for a table with REPLICA IDENTITY FULL. The columns of ``key`` have to be of that identity: nothing else shows
    that a row had another key before.

    Readers look without consuming, one at a time: the slot advances by `release` alone. It is made by a reader
    that begins nowhere, and by no other. In `next`, there may be no row, if the log advanced without one of the table.
    """

    unit: ClassVar[str] = "bytes of WAL"

    def __init__(
        self, origin: PostgresOrigin, *, name: str, columns: Sequence[str] = (), key: Sequence[str] = ()
    ) -> None:
        """``columns`` are those that the table has to have as the slot is made; later on it may be altered."""
        self._origin, self._name, self._columns, self._key = origin, name, columns, key
        self._slot: PostgresSlot | None = None
        self._changes: TransactionChanges | None = None
        self._at = self._covered = 0
        self._seen = self._known = 0
        self._told_s = 0.0

    @property
    def schema(self) -> pa.Schema:
        """The payload alone."""
        return SCHEMA

    @property
    def reads(self) -> str:
        """The table, and by which slot."""
        where = f"slot {self._origin.slot}" if self._slot is None else self._slot.where
        return f"{self._origin.table}, by {where}"

    # -- where it begins

    async def open(self, at: Mapping[str, int]) -> None:
        """Begin at an address, or, without one, where the slot is."""
        self._slot = slot = _slot(self._origin, self._name)
        try:
            await self._begin(slot, at)
        except BaseException:
            await self.close()
            raise

    async def _begin(self, slot: PostgresSlot, at: Mapping[str, int]) -> None:
        await slot.connect()
        table = await slot.check(self._key)
        state = await slot.state()
        if state is None and _PART not in at:
            await slot.check_columns(*table, self._columns)
            await slot.make()
            state = await slot.state()
        self._at = at.get(_PART, 0 if state is None else state.confirmed)
        self._covered = self._at
        state = self._kept(state)
        if self._at > state.flushed:
            raise self._gone(
                f"the server's log ends at {_said(state.flushed)}, as if the server had been restored from an "
                f"older copy"
            )
        self._changes = TransactionChanges(
            table, self._key, statuses=self._origin.two_phase, since=state.confirmed
        )
        self._told_s = asyncio.get_running_loop().time()

    def _kept(self, state: SlotState | None) -> SlotState:
        """The slot's state, in which it has what is at our address."""
        if state is None:
            raise self._gone("the slot, which was at or below that address, no longer exists")
        if state.is_lost:
            raise self._gone(
                f"the server has dropped a part of its log that the slot at {_said(state.confirmed)} needs: "
                f"see max_slot_wal_keep_size"
            )
        if state.confirmed > self._at:
            raise self._gone(f"the slot was advanced to {_said(state.confirmed)}")
        return state

    # -- reading

    async def next(self) -> Messages:
        """The transactions that come next, those of the table; of none, where the log is further for a while."""
        slot, loop = self._opened(), asyncio.get_running_loop()
        while True:
            state = self._kept(await slot.state())
            started = loop.time()
            while state.flushed > self._covered:
                if found := await self._peek(state.flushed):
                    return self._batch(found)
            if self._covered > self._at and loop.time() - self._told_s >= _ALONE_S:
                await slot.check(self._key)  # or it has another name now, or is not published any more
                return self._batch([])
            # Each look has the server read its log from where the slot is: it is to have time for others, too.
            await asyncio.sleep(max(_PAUSE_S, loop.time() - started))

    async def _peek(self, flushed: int) -> list[Found]:
        """Return the next rows of the slot, at and above our address: all below ``flushed``, or many rows."""
        slot, changes = self._opened(), self._changes
        assert changes is not None
        # The server begins where the slot is each time: the more is known already, the more is asked for at once.
        count = self._known + min(max(_ROWS, self._known), _MOST_ROWS)
        while True:
            try:
                rows = await slot.peek(count)
            except SourceUnusable:
                self._kept(await slot.state())
                raise
            self._kept(await slot.state())  # or another process has advanced it before we looked
            found = self._read(changes, rows)
            is_all = len(rows) < count
            if is_all:
                self._covered = max(flushed, found[-1].end if found else 0)
            elif found:
                self._covered = found[-1].end
            if is_all or found:
                self._known, self._seen = len(rows), self._covered
                return [each for each in found if each.payloads]
            count *= 2

    def _read(self, changes: TransactionChanges, rows: list[bytes]) -> list[Found]:
        try:
            return changes.read(rows, self._at)
        except AddressGone as error:
            raise self._gone(str(error)) from error
        except MessageInvalid as error:
            raise MessageInvalid(
                f"{self._name}: {self.reads}, at or above {_said(self._at)}: {error}"
            ) from error

    def _batch(self, found: list[Found]) -> Messages:
        lower, self._at = self._at, self._covered
        self._told_s = asyncio.get_running_loop().time()
        addresses = np.repeat(
            np.array([each.address for each in found], dtype=np.int64), [len(each.payloads) for each in found]
        )
        payloads = pa.array([payload for each in found for payload in each.payloads], pa.binary())
        return Messages(_PART, lower, self._at, addresses, pa.record_batch([payloads], schema=SCHEMA))

    async def ends(self) -> Addresses:
        """Return the end of the log on the server's disk."""
        return {_PART: self._kept(await self._opened().state()).flushed}

    # -- what the server keeps

    async def release(self, before: Mapping[str, int]) -> None:
        """Advance the slot, never back; with ``two_phase``, not past what waits for its end, nor what was read."""
        address = before.get(_PART, 0)
        changes = self._changes
        assert changes is not None
        if self._origin.two_phase:
            address = changes.needed(min(address, self._seen))
        await self._opened().advance(address)
        changes.forget(address)
        self._known = 0

    async def forget(self) -> None:
        """Drop the slot."""
        if self._slot is not None:
            await self._slot.drop()
            return
        slot = _slot(self._origin, self._name)
        try:
            await slot.connect()
            await slot.drop()
        finally:
            await slot.close()

    async def close(self) -> None:
        """Let the connection go; the slot stays."""
        slot, self._slot = self._slot, None
        if slot is not None:
            await slot.close()

    def _opened(self) -> PostgresSlot:
        assert self._slot is not None, "open() comes first"
        return self._slot

    def _gone(self, why: str) -> AddressGone:
        return AddressGone(
            f"{self._name}: {self.reads}: the next change, at {_said(self._at)}, is gone: {why}; create the "
            f"source again from the current rows of the table"
        )


def _slot(origin: PostgresOrigin, name: str) -> PostgresSlot:
    try:
        from .postgres_slot import PostgresSlot
    except ImportError as error:
        raise SourceUnusable(
            f"{name}: a Postgres source needs psycopg: pip install 'nebuli[postgres]'"
        ) from error
    return PostgresSlot(origin, name)


def _said(address: int) -> str:
    """An address, and as PostgreSQL writes it."""
    return f"{address} ({address >> 32:X}/{address & 0xFFFFFFFF:X})"
