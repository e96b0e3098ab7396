"""Connections to PostgreSQL that wait for nothing without an end, and what their errors mean."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from psycopg import Connection
    from psycopg.abc import PQGen

T = TypeVar("T")

ANSWER_S = 45.0
"""A server that has not answered for so long is considered gone."""
_SETTINGS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
    "application_name": "nebuli",
}
"""Defaults of each connection, which the URL can change: a machine that is gone is noticed within twelve seconds."""
_HOLDS = ("tcp_keepalives_idle = 5", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3")
"""Has the server notice as soon that the holder of a lock is gone."""


_LASTING = ("authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry")
"""Messages of a server that will not accept the client later, either; libpq has no code for them."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose every answer has a deadline, ``answer_s``: after it, it fails like a cut one."""

    answer_s = ANSWER_S

    def wait(self, gen: PQGen[T], *arguments: Any, **settings: Any) -> T:
        """Wait for an answer."""
        return super().wait(_bounded(gen, self.answer_s), *arguments, **settings)


def connected(server: str, name: str, *, busy_s: float, answer_s: float) -> BoundedConnection:
    """A connection that is named so among the server's activities (which keep 63 bytes of it). Raises psycopg.Error."""
    given = psycopg.conninfo.conninfo_to_dict(server)
    settings = {key: value for key, value in _SETTINGS.items() if key not in given}
    connection = BoundedConnection.connect(server, autocommit=True, **settings)
    connection.answer_s = answer_s
    try:
        for each in (*_HOLDS, f"lock_timeout = '{int(busy_s * 1000)}ms'"):
            connection.execute(f"set {each}".encode())
        if connection.execute("show synchronous_commit").fetchone() == ("off",):
            connection.execute("set synchronous_commit = on")
        connection.execute("select set_config('application_name', %s, false)", (name,))
    except BaseException:
        connection.close()
        raise
    return connection


def is_away(error: psycopg.Error) -> bool:
    """True if the server, or the connection to it, fails, and not the request."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError) and not any(
            each in str(error) for each in _LASTING
        )
    return state.startswith(
        ("08", "57P", "53300")
    )  # of the connection; shutdown, crash, start; too many connections


def said(error: psycopg.Error) -> str:
    """Return the message of an error, on one line."""
    return " ".join(str(error).split())


def _bounded(waiting: PQGen[T], within_s: float) -> Generator[Any, Any, T]:
    until = time.monotonic() + within_s
    wanted = next(waiting)
    while True:
        ready = yield wanted
        if not ready and time.monotonic() > until:
            waiting.close()
            raise psycopg.OperationalError(f"the server has not answered within {within_s:g} s")
        try:
            wanted = waiting.send(ready)
        except StopIteration as stop:
            done: T = stop.value
            return done


_PAUSE_S = 1.0
"""Between attempts to listen again at a server that was away."""


class PostgresBell:
    """Rings for a notification, and whenever it listens again after the server was away: something may have come."""

    def __init__(self, connect: Callable[[], Connection[Any]], channel: str) -> None:
        """Listen to a channel, at once or as soon as the server is there."""
        self._connect = connect
        self._channel = channel
        self._rung = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        connection = None
        with suppress(psycopg.Error):
            connection = self._listening()
        self._thread = Thread(target=self._hear, args=(connection,), name="nebuli-bell", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor that can be read when it has rung."""
        return self._rung

    def silence(self) -> None:
        """Silence it: its ring was noticed."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._rung)

    def close(self) -> None:
        """Close it: nothing waits for it any more."""
        os.eventfd_write(self._closed, 1)
        self._thread.join()
        os.close(self._rung)
        os.close(self._closed)

    def _listening(self) -> Connection[Any]:
        connection = self._connect()
        try:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        except BaseException:
            connection.close()
            raise
        return connection

    def _hear(self, connection: Connection[Any] | None) -> None:
        while True:
            timeout = _PAUSE_S if connection is None else None
            heard = [self._closed, *([connection.fileno()] if connection else [])]
            ready, _, _ = select.select(heard, [], [], timeout)
            if self._closed in ready:
                break
            try:
                if connection is None:
                    connection = self._listening()
                    os.eventfd_write(self._rung, 1)
                for _ in connection.notifies(timeout=0):
                    os.eventfd_write(self._rung, 1)
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()
