"""A lock on all that is below a URL, which is taken again where the server has forgotten it."""

from __future__ import annotations

import logging
import os
import select
from threading import Thread
from typing import TYPE_CHECKING

from nebuli.store.errors import Locked, StorageError
from nebuli.store.ordering.postgres import PostgresOrdering

if TYPE_CHECKING:
    from nebuli.store.ordering.postgres import PostgresLock
    from nebuli.store.store_url import StoreUrl

_log = logging.getLogger("nebuli.store")
_FIRST_S = 10.0
"""How long to wait for a server: a process takes a lock at its start, and its URL may be wrong."""
_PAUSE_S = 1.0
"""Between attempts to have it again."""


class HeldLock:
    """A thread watches the lock's connection, as long as it is not closed.

    It only keeps out processes that come too early: while the server is away the lock is free, and another process may
    then be first. The locked data is fenced by its contents: by epochs, logs that are taken, and versions.
    """

    def __init__(self, url: StoreUrl, name: str) -> None:
        """Have the place, and take the lock. Raises Locked, StorageError."""
        self._url = url
        self._name = name
        self._ordering = PostgresOrdering(url, open_s=_FIRST_S)
        self._ordering.open()
        try:
            lock = self._ordering.lock(name)
        except BaseException:
            self._ordering.close()
            raise
        self._closed = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Thread(target=self._hold, args=(lock,), name="nebuli-lock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let it go."""
        os.eventfd_write(self._closed, 1)
        self._ordering.hurry()
        self._thread.join()
        self._ordering.close()
        os.close(self._closed)

    def _hold(self, lock: PostgresLock) -> None:
        held: PostgresLock | None = lock
        while True:
            watched = [self._closed, *([] if held is None else [held.fileno()])]
            ready, _, _ = select.select(watched, [], [], _PAUSE_S if held is None else None)
            if self._closed in ready:
                break
            if held is not None:
                _log.warning(
                    "%s: the lock was lost, because its connection has ended; it is taken again", self._url
                )
                held.close()
                held = None
            try:
                held = self._ordering.lock(self._name)
            except Locked as error:
                _log.warning(
                    "%s: %s has taken the lock; this process's later writes are refused",
                    self._url,
                    error.holder,
                )
                break
            except StorageError as error:
                _log.warning("%s: the lock could not be taken again: %s", self._url, error)
        if held is not None:
            held.close()
