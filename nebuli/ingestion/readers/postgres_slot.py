"""A slot of logical replication, asked in SQL over a connection that waits for nothing without an end."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from nebuli.ingestion.errors import SourceAway, SourceUnusable
from nebuli.store.ordering.postgres_connection import is_away, said

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nebuli.ingestion.definition import PostgresOrigin

_CONNECT_S = 5
_ANSWER_S = 8.0
"""For a short question; a server that is silent for so long is considered gone."""
_DECODE_S = 300.0
"""For a question by which the server reads its log, of which it has as much as was not released."""
_BUSY_S = 30.0
"""How long another reader may have the slot: one has it for as long as it is answered."""
_PAUSES_S = 0.01, 0.1
_SETTINGS: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
_SESSION = {
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "datestyle": "ISO, YMD",
    "extra_float_digits": "1",
    "intervalstyle": "iso_8601",
    "lc_monetary": "C",
    "lock_timeout": "0",
    "statement_timeout": f"{_DECODE_S:.0f}s",
    "timezone": "UTC",
    "xmloption": "content",
}
"""Settings that the text of values depends on, the same for all readers; and no more time than we wait for."""

_IN_USE, _EXISTS, _NOT_THERE, _NO_SLOT_LEFT, _TOO_SLOW = "55006", "42710", "42704", "53400", "57014"


@dataclass(frozen=True, slots=True)
class SlotState:
    """Where a slot is: what it was advanced to, what is on the server's disk, and whether its log was lost."""

    confirmed: int
    flushed: int
    is_lost: bool


def as_lsn(address: int) -> str:
    """An address as PostgreSQL writes it."""
    return f"{address >> 32:X}/{address & 0xFFFFFFFF:X}"


def of_lsn(text: str) -> int:
    """The address that PostgreSQL writes so."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


class PostgresSlot:
    """The slot of an origin; concurrent callers wait for each other. Raises SourceAway and SourceUnusable."""

    def __init__(self, origin: PostgresOrigin, name: str) -> None:
        self._origin, self._name = origin, name
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self.where = f"slot {origin.slot} of {_place(origin.url)}"

    async def connect(self) -> None:
        """Reach the server, and have the session as all others."""
        with self._told():
            given = psycopg.conninfo.conninfo_to_dict(self._origin.url)
            wanted = {"application_name": f"nebuli {self._name}", **_SETTINGS}
            settings = {key: value for key, value in wanted.items() if key not in given}
            self._connection = await psycopg.AsyncConnection.connect(
                self._origin.url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                **settings,
            )
        await self._ask(
            "select set_config(name, value, false) from unnest(%s::text[], %s::text[]) as settings (name, value)",
            ([*_SESSION], [*_SESSION.values()]),
        )

    async def close(self) -> None:
        """Let the connection go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # -- what has to be so

    async def check(self, key: Sequence[str]) -> tuple[str, str]:
        """The schema and name of the table, whose rows are identified by a ``key``.

        Raises SourceUnusable with the remedy.
        """
        origin = self._origin
        ((level, is_standby, may_replicate, version, user),) = await self._ask(
            "select current_setting('wal_level'), pg_is_in_recovery(), rolsuper or rolreplication, "
            "current_setting('server_version_num')::int, current_user from pg_roles where rolname = current_user",
        )
        if is_standby:
            raise self._unusable("the server is a standby; expected the primary")
        if level != "logical":
            raise self._unusable(
                f"the server's wal_level is {level}; expected logical: ALTER SYSTEM SET wal_level = logical, "
                "and restart the server"
            )
        if not may_replicate:
            raise self._unusable(
                f"{user} has no permission to replicate: ALTER ROLE {_quoted(user)} REPLICATION"
            )
        if origin.two_phase and version < 150_000:
            raise self._unusable(
                f"two_phase needs PostgreSQL 15 or later, but the server is {version // 10_000}"
            )
        table = await self._table_name()
        await self._check_publication(*table)
        await self._check_identity(*table, key)
        return table

    async def _table_name(self) -> tuple[str, str]:
        text = self._origin.table
        try:
            ((parts,),) = await self._ask("select parse_ident(%s)", (text,))
        except SourceUnusable as error:
            raise self._unusable(f"{text!r} is not a name of a table, such as public.orders") from error
        if len(parts) != 2:
            raise self._unusable(f"expected a table with its schema, as in public.orders, got {text!r}")
        return parts[0], parts[1]

    async def _check_publication(self, schema: str, table: str) -> None:
        name = self._origin.publication
        whole = f"{_quoted(schema)}.{_quoted(table)}"
        ((is_there, kind, is_published),) = await self._ask(
            "select exists(select from pg_publication where pubname = %(name)s), "
            "(select relkind::text from pg_class where oid = to_regclass(%(whole)s)), "
            "exists(select from pg_publication_tables "
            "where pubname = %(name)s and schemaname = %(schema)s and tablename = %(table)s)",
            {"name": name, "whole": whole, "schema": schema, "table": table},
        )
        if kind is None:
            raise self._unusable(f"unknown table {whole}")
        if not is_there:
            raise self._unusable(
                f"there is no publication {name}: CREATE PUBLICATION {_quoted(name)} FOR TABLE {whole}"
            )
        if not is_published:
            how = "SET (publish_via_partition_root = true)" if kind == "p" else f"ADD TABLE {whole}"
            raise self._unusable(
                f"the publication {name} does not have {whole}: ALTER PUBLICATION {_quoted(name)} {how}"
            )

    async def _check_identity(self, schema: str, table: str, key: Sequence[str]) -> None:
        whole = f"{_quoted(schema)}.{_quoted(table)}"
        found = await self._ask(
            "select attname from pg_attribute join pg_class on pg_class.oid = attrelid "
            "where attrelid = to_regclass(%s) and attnum > 0 and (relreplident = 'f' or attnum in ("
            "select unnest(indkey) from pg_index where indrelid = attrelid and "
            "case relreplident when 'd' then indisprimary when 'i' then indisreplident end))",
            (whole,),
        )
        identity = [name for (name,) in found]
        if strange := [name for name in key if name not in identity]:
            raise self._unusable(
                f"the key has the column {strange[0]}, but changes of {whole} contain old values only of "
                f"{', '.join(identity) or 'no column'}: ALTER TABLE {whole} REPLICA IDENTITY "
                f"FULL, or choose a key from those columns"
            )

    async def check_columns(self, schema: str, table: str, columns: Sequence[str]) -> None:
        """Raise SourceUnusable where the publication does not have all of these of the table: they would be null."""
        ((published,),) = await self._ask(
            "select array(select attname::text from pg_attribute "
            "where attrelid = to_regclass(%(whole)s) and attnum > 0 and not attisdropped "
            "and coalesce(to_jsonb(tables) -> 'attnames' ? attname, true) "
            # Before 18 generated ones are named there, and not sent.
            "and (attgenerated = '' or current_setting('server_version_num')::int >= 180000) order by attnum) "
            "from pg_publication_tables as tables "
            "where pubname = %(name)s and schemaname = %(schema)s and tablename = %(table)s",
            {
                "name": self._origin.publication,
                "whole": f"{_quoted(schema)}.{_quoted(table)}",
                "schema": schema,
                "table": table,
            },
        )
        if strange := [name for name in columns if name not in published]:
            raise self._unusable(
                f"the schema has the column {strange[0]}, but the publication "
                f"{self._origin.publication} publishes only these columns of {table}: "
                f"{', '.join(published)}; use only these, or publish that column, too (generated "
                f"columns are not published)"
            )

    # -- the slot

    async def state(self) -> SlotState | None:
        """Return its position; None: there is none. Raises SourceUnusable where it is of another kind."""
        rows = await self._ask(
            "select coalesce(database = current_database(), false) and not temporary, plugin, two_phase, "
            "confirmed_flush_lsn::text, wal_status = 'lost', pg_current_wal_flush_lsn()::text "
            "from pg_replication_slots where slot_name = %s",
            (self._origin.slot,),
        )
        if not rows:
            return None
        is_of_its_kind, plugin, two_phase, confirmed, is_lost, flushed = rows[0]
        if is_of_its_kind and confirmed is None:
            raise SourceAway(f"{self._name}: {self.where}: another reader is creating the slot")
        if not is_of_its_kind or plugin != "pgoutput":
            raise self._unusable(
                "another program has a slot of that name; expected a slot of the plugin pgoutput in this "
                "database: name another slot, or drop it: "
                f"SELECT pg_drop_replication_slot('{self._origin.slot}')"
            )
        if two_phase != self._origin.two_phase:
            raise self._unusable(
                f"the slot was made with two_phase {str(two_phase).lower()}, but the definition "
                f"has {str(self._origin.two_phase).lower()}: 'two_phase' is set when a slot is "
                f"made; name another slot"
            )
        return SlotState(of_lsn(confirmed), of_lsn(flushed), bool(is_lost))

    async def make(self) -> None:
        """Make it, if no other process has. Every transaction that is open now has to end first."""
        try:
            await self._ask(
                "select pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)",
                (self._origin.slot, self._origin.two_phase),
                within_s=_BUSY_S,
            )
        except SourceAway as error:
            raise SourceAway(
                f"{error}; a slot can be made after all currently open transactions have ended: see "
                "pg_stat_activity and pg_prepared_xacts"
            ) from error
        except _AsSaid as error:
            if error.state == _NO_SLOT_LEFT:
                raise self._unusable(
                    f"{error}: raise max_replication_slots with ALTER SYSTEM SET, and restart the server"
                ) from error
            if error.state != _EXISTS:
                raise

    async def peek(self, count: int) -> list[bytes]:
        """Return its contents from its position: complete transactions, until there are so many rows."""
        options = ["proto_version", "1"]
        if self._origin.two_phase:
            options = ["proto_version", "3", "two_phase", "on"]
        options += ["publication_names", _quoted(self._origin.publication)]
        rows = await self._ask_in_turn(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, %s, variadic %s::text[])",
            (self._origin.slot, min(count, 2**31 - 1), options),
        )
        return [data for (data,) in rows]

    async def advance(self, address: int) -> None:
        """Have it keep what is at and above an address, if it is not further already."""
        slot = self._origin.slot
        try:
            await self._ask_in_turn(
                "select pg_replication_slot_advance(slot_name, %s::pg_lsn) from pg_replication_slots "
                "where slot_name = %s and confirmed_flush_lsn < %s::pg_lsn",
                (as_lsn(address), slot, as_lsn(address)),
            )
        except _AsSaid as error:
            state = await self.state()
            if state is None or state.confirmed < address:  # otherwise another process was faster
                raise self._unusable(str(error)) from error

    async def drop(self) -> None:
        """Have the server keep nothing for it."""
        await self._ask_in_turn(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s",
            (self._origin.slot,),
        )

    # -- questions

    async def _ask_in_turn(self, statement: str, arguments: Any) -> list[Any]:
        """One for which the slot is taken, by one at a time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BUSY_S
        while True:
            try:
                return await self._ask(statement, arguments, within_s=_DECODE_S)
            except _AsSaid as error:
                if error.state != _IN_USE:
                    raise
                if loop.time() > deadline:
                    raise SourceAway(
                        f"{self._name}: {self.where}: other readers have used the slot for "
                        f"{_BUSY_S:g} s: {error}"
                    ) from error
            await asyncio.sleep(random.uniform(*_PAUSES_S))  # noqa: S311 - only the next in turn, not a secret

    async def _ask(self, statement: str, arguments: Any = None, *, within_s: float = _ANSWER_S) -> list[Any]:
        async with self._turn:
            connection = self._connection
            if connection is None or connection.closed:
                raise SourceAway(f"{self._name}: {self.where}: the connection is gone")
            with self._told(), _cut_after(connection, within_s):
                cursor = connection.cursor(binary=True)
                await cursor.execute(statement.encode(), arguments)
                return await cursor.fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the library's are ours from here on."""
        try:
            yield
        except psycopg.Error as error:
            if is_away(error) or error.sqlstate == _TOO_SLOW:
                raise SourceAway(f"{self._name}: {self.where} does not answer: {said(error)}") from error
            raise _AsSaid(f"{self._name}: {self.where}: {said(error)}", error.sqlstate) from error

    def _unusable(self, why: str) -> SourceUnusable:
        return SourceUnusable(f"{self._name}: {self.where}: {why}")


class _AsSaid(SourceUnusable):
    """The server's error for a query, with its code."""

    def __init__(self, message: str, state: str | None) -> None:
        super().__init__(message)
        self.state = state


@contextmanager
def _cut_after(connection: psycopg.AsyncConnection[Any], within_s: float) -> Iterator[None]:
    """Cut a connection whose server has not answered in time, as a network would: waiting tasks get an error."""
    timer = asyncio.get_running_loop().call_later(within_s, _cut, connection)
    try:
        yield
    finally:
        timer.cancel()


def _cut(connection: psycopg.AsyncConnection[Any]) -> None:
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def _quoted(name: str) -> str:
    """A name as in SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _place(url: str) -> str:
    """Return where a URL leads, without user and password."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "PostgreSQL"
    host, port = given.get("host") or "localhost", given.get("port") or 5432
    return f"{host}:{port}/{given.get('dbname') or ''}"
