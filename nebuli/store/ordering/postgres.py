"""The ordering in a schema of a PostgreSQL database, which processes of any machine may have open at the same time."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from xxhash import xxh3_64_intdigest

from nebuli.store.errors import (
    Conflict,
    EntryDamaged,
    Locked,
    StorageError,
    StoreAway,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreUnusable,
    Unclear,
)
from nebuli.store.names import file_name

from . import Entry, checksum
from .postgres_connection import ANSWER_S, BoundedConnection, PostgresBell, connected, is_away, said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import Connection

    from nebuli.store.ordering import Change
    from nebuli.store.store_url import StoreUrl

_log = logging.getLogger("nebuli.store")

FORMAT = 1
BUSY_S, AWAY_S = 30.0, 120.0
"""How long others that write are waited for, and a server that is away."""
_CONFLICT = "NB409"
"""The SQLSTATE by which the append reports that another one was first; no class of PostgreSQL's own begins with N."""
_UNLOCK_S = 2.0
"""How long it may take to let a lock go, which is done on the event loop, too."""
_PAUSE_S = 0.1
"""Between attempts to connect to a server that begins or is taken over."""
_MAKE = """
create schema if not exists {schema};
set local search_path = {schema};
create table store (format integer not null, blobs text not null);
insert into store values ({format}, {blobs});
create table logs (
    number bigint generated always as identity primary key,
    key text collate "C" not null unique,
    head bigint not null default 0
) with (fillfactor = 50);
create table entries (
    log bigint not null references logs,
    sequence bigint not null,
    checksum bigint not null,
    data bytea not null,
    primary key (log, sequence)
);
create view log as select key, sequence, data from entries join logs on number = entries.log;
create function append(keys text[], expected bigint[], checksums bigint[], contents bytea[]) returns void
language plpgsql set search_path = {schema} as $$
declare
    place integer;
    found bigint;
begin
    -- In the same order by all: no transaction waits in a circle.
    for place in select at from unnest(keys) with ordinality as given (key, at) order by key collate "C" loop
        if expected[place] = 0 then
            insert into logs (key) values (keys[place]) on conflict do nothing;
        end if;
        update logs set head = head + 1 where key = keys[place] and head = expected[place]
        returning number into found;
        if found is null then
            raise exception 'another entry was first' using errcode = {conflict};
        end if;
        insert into entries values (found, expected[place] + 1, checksums[place], contents[place]);
    end loop;
    perform pg_notify({channel}, '');
end
$$;
"""


class PostgresOrdering:
    """An ordering in a schema of a database, whose server's write-ahead log is synced before an append returns.

    Connections are the server's own, not those of a pooler that shares them out by transaction: bells and locks are of
    a session. Other writers are waited for, for ``busy_s`` seconds, a server that is away for ``away_s``, while this
    is opened for ``open_s``, and one that does not answer at all for ``answer_s``.
    """

    def __init__(
        self,
        place: StoreUrl,
        *,
        busy_s: float = BUSY_S,
        away_s: float = AWAY_S,
        open_s: float = AWAY_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._place = place
        self._schema = place.schema
        self._busy_s = busy_s
        self._away_s = away_s
        self._open_s = open_s
        self._answer_s = answer_s
        self._connection: Connection[Any] | None = None
        self._is_open = False
        self._is_patient = True
        self._own = 0  # entries that were appended by this one
        self._of_others = -1  # and by all others, when it was last asked
        self.blobs = ""
        """Where its blobs are, once it is open: below those of the URL, in a folder that no other store has."""

    # -- life

    def open(self) -> None:
        """Make the schema, if it is not there, and open it. Raises StoreUnusable."""
        self._is_open = True
        try:
            self._asked("opening", self._begin_with, self._open_s)
        except StoreFailed as error:
            self.close()
            raise StoreUnusable(f"{self._where} cannot be used as a store: {error.__cause__}") from error
        except BaseException:
            self.close()
            raise

    def is_there(self) -> bool:
        """True if there is a store; none is made. Raises StoreUnusable."""
        self._is_open = True
        try:
            return bool(self._asked("opening", self._has_store, self._open_s))
        except StoreFailed as error:
            raise StoreUnusable(f"{self._where} cannot be used as a store: {error.__cause__}") from error
        finally:
            self.close()

    def schemas_below(self) -> list[str]:
        """Return the schemas whose names are this one's, followed by a slash and more."""
        statement = "select nspname::text from pg_namespace where starts_with(nspname, %b) order by nspname"
        return [name for (name,) in self._read(statement, (f"{self._schema}/",))]

    def remove(self) -> None:
        """Forget all of it. Its blobs are not touched."""
        statement = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(self._schema))
        self._asked("removing", lambda connection: connection.execute(statement))

    def _begin_with(self, connection: Connection[Any]) -> None:
        for setting in ("fsync", "full_page_writes"):
            (value,) = connection.execute(f"show {setting}").fetchone() or ("",)
            if value == "off":
                raise StoreUnusable(
                    f"the server of {self._where} has {setting} = off, and loses acknowledged writes when "
                    "its machine stops: set it to on in postgresql.conf, and restart the server"
                )
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (self._lock_number("open"),))
            if not self._has_store(connection):
                connection.execute(
                    sql.SQL(_MAKE).format(
                        schema=sql.Identifier(self._schema),
                        channel=sql.Literal(self._schema),
                        format=sql.Literal(FORMAT),
                        blobs=sql.Literal(f"{self._below_blobs}{os.urandom(4).hex()}"),
                        conflict=sql.Literal(_CONFLICT),
                    )
                )
            (version,) = connection.execute(self._sql("select format from {schema}.store")).fetchone() or (0,)
            if version != FORMAT:
                raise StoreUnusable(
                    f"{self._where} has format {version}, but this program reads format {FORMAT}: use a "
                    "program of that version, or another schema (schema=NAME)"
                )
            (self.blobs,) = connection.execute(self._sql("select blobs from {schema}.store")).fetchone() or (
                "",
            )
        if not self.blobs.startswith(self._below_blobs):
            raise StoreUnusable(
                f"{self._where} has its blobs at {self.blobs}, but the URL has "
                f"blobs={self._place.blobs}: give the blobs= that the store was created with, or "
                f"another schema (schema=NAME)"
            )

    @property
    def _below_blobs(self) -> str:
        return f"{self._place.blobs}/{file_name(self._schema)}/"

    def _has_store(self, connection: Connection[Any]) -> bool:
        row = connection.execute("select to_regclass(%s) is not null", (f'"{self._schema}".store',))
        return row.fetchone() == (True,)

    def hurry(self) -> None:
        """Wait for no server that is away, from now on: a call that does, on another thread, raises StoreAway."""
        self._is_patient = False

    def close(self) -> None:
        """Another one may be open in this process."""
        self._is_open = False
        self._drop_connection()

    # -- reading

    def heads(self, keys: Sequence[str]) -> dict[str, int]:
        """The last sequence of each log, all at one moment."""
        rows = self._read("select key, head from {schema}.logs where key = any(%b)", (list(keys),))
        return dict.fromkeys(keys, 0) | dict(rows)

    def scan(self, key: str, after: int) -> list[Entry]:
        """The entries above ``after`` that are kept."""
        rows = self._read(
            "select sequence, checksum, data from {schema}.entries "
            "where log = (select number from {schema}.logs where key = %b) and sequence > %b order by sequence",
            (key, after),
        )
        for sequence, expected, data in rows:
            if (found := checksum(key, sequence, data)) != expected:
                raise EntryDamaged(key, sequence, expected % (1 << 64), found % (1 << 64))
        return [Entry(sequence, data) for sequence, _, data in rows]

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so, in order."""
        rows = self._read("select key from {schema}.logs where starts_with(key, %b) order by key", (prefix,))
        return [key for (key,) in rows]

    def unchanged(self) -> bool:
        """True if nothing has changed, by the sum of all heads: one short question to the server."""
        ((entries,),) = self._read("select coalesce(sum(head), 0)::bigint from {schema}.logs", ())
        before, self._of_others = self._of_others, entries - self._own
        return before == self._of_others

    def _read(self, statement: str, arguments: Sequence[Any]) -> list[Any]:
        def read(connection: Connection[Any]) -> list[Any]:
            return connection.execute(self._sql(statement), arguments, binary=True).fetchall()

        found: list[Any] = self._asked("reading", read)
        return found

    # -- writing

    def append(self, changes: Sequence[Change]) -> None:
        """Append all in one transaction, with one round trip."""
        columns = (
            [each.key for each in changes],
            [each.expected for each in changes],
            [checksum(each.key, each.expected + 1, each.data) for each in changes],
            [each.data for each in changes],
        )
        statement = self._sql("select {schema}.append(%b::text[], %b::bigint[], %b::bigint[], %b::bytea[])")
        connection = self._asked("writing", lambda connection: connection)
        try:
            connection.execute(statement, columns)
        except psycopg.Error as error:
            if error.sqlstate == _CONFLICT:
                raise Conflict(self.heads([each.key for each in changes])) from None
            if is_away(error):
                self._drop_connection()
            raise self._ours(error, "writing", unclear=True) from error
        self._own += len(changes)

    def truncate(self, key: str, below: int) -> None:
        """Forget entries, but never the last one."""
        statement = self._sql(
            "delete from {schema}.entries using {schema}.logs where key = %b and log = number "
            "and sequence < least(%b, head)"
        )
        self._asked("writing", lambda connection: connection.execute(statement, (key, below)))

    # -- others

    def bell(self) -> PostgresBell:
        """A bell that is rung by the server, for every transaction that has appended."""
        return PostgresBell(lambda: self._connected("bell"), self._schema)

    def lock(self, name: str) -> PostgresLock:
        """A lock of a connection of its own: it is gone with the process, and where the server restarts."""
        lock: PostgresLock = self._asked("locking", lambda _: self._locked(name))
        return lock

    def _locked(self, name: str) -> PostgresLock:
        connection = self._connected(f"{name}, process {os.getpid()} on {socket.gethostname()}")
        try:
            number = self._lock_number(f"lock/{name}")
            if connection.execute("select pg_try_advisory_lock(%s)", (number,)).fetchone() == (True,):
                connection.answer_s = _UNLOCK_S
                return PostgresLock(connection)
            raise Locked(name, self._holder(connection, number))
        except BaseException:
            connection.close()
            raise

    def _holder(self, connection: Connection[Any], number: int) -> str:
        """Return the holder of a lock, as far as the server reports it."""
        row = connection.execute(
            "select application_name from pg_locks join pg_stat_activity using (pid) where locktype = 'advisory' "
            "and granted and (classid::bigint << 32) | objid::bigint = %s",
            (number,),
        ).fetchone()
        return "another" if row is None else str(row[0]).rpartition(", ")[2]

    def _lock_number(self, name: str) -> int:
        return xxh3_64_intdigest(f"{self._schema}\0{name}".encode()) >> 1

    # -- the connection

    def _sql(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(schema=sql.Identifier(self._schema))

    @property
    def _where(self) -> str:
        return f"{self._place.database} (schema {self._schema})"

    def _connected(self, name: str) -> BoundedConnection:
        return connected(self._place.server, name, busy_s=self._busy_s, answer_s=self._answer_s)

    def _asked(self, doing: str, ask: Callable[[Connection[Any]], Any], away_s: float | None = None) -> Any:
        """Return the answer to a repeatable question: it is repeated while the server is away."""
        away_s = self._away_s if away_s is None else away_s
        deadline: float | None = None
        while True:
            if not self._is_open:
                raise StoreClosed
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connected("store")
                return ask(self._connection)
            except psycopg.Error as error:
                if not is_away(error):
                    raise self._ours(error, doing) from error
                self._drop_connection()
                now = time.monotonic()
                if deadline is None:
                    deadline = now + away_s
                    _log.warning(
                        "%s does not answer (%s): waiting for it for up to %g s",
                        self._where,
                        said(error),
                        away_s,
                    )
                if now > deadline or not self._is_patient:
                    waited_s = now - deadline + away_s
                    raise StoreAway(self._where, waited_s, said(error)) from error
                time.sleep(_PAUSE_S)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ours(self, error: psycopg.Error, doing: str, *, unclear: bool = False) -> StorageError:
        """Errors of the server's are ours from here on."""
        state = error.sqlstate or ""
        if state in ("55P03", "57014"):  # lock_not_available, query_canceled
            return StoreBusy(self._where, self._busy_s)
        if state == "53100":  # disk_full
            return StoreFull(self._where, said(error))
        if unclear and is_away(error):
            return Unclear(f"{doing} {self._where}", said(error))
        return StoreFailed(self._where, doing, said(error))


class PostgresLock:
    """A lock of a connection, which ends with it."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """The descriptor that can be read when the connection is lost, and the lock with it."""
        return self._connection.fileno()

    def close(self) -> None:
        """Let it go: at once, as the server takes a while to see that a connection is closed."""
        with suppress(psycopg.Error):
            self._connection.execute("select pg_advisory_unlock_all()")
        self._connection.close()
