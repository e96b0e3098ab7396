"""A bell that PostgreSQL rings: a connection of its own listens, on a thread, for as long as the bell is there."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

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
        """Silence it: it was heard."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._rung)

    def close(self) -> None:
        """Close it: nobody listens any more."""
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
