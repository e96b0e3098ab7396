"""State of a process between Spark's calls: readers of channels, a sender, clients of staged channels.

Spark calls the data source in processes of several kinds, and most of them come back: a worker runs one task after
the other. So connections are kept here, by their peers and their credentials. Connections unused for a minute are
closed at the next call; a worker that gets no calls is ended by Spark, after about as long. A forked child finds none.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import netchannel
from netchannel.process.blocking import BlockingSenderServer
from netchannel.process.services import ServiceThread
from netchannel.servers.sender import SenderServer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from netchannel.process.blocking import BlockingChannelReader, BlockingGroupClient

    from .options import Connection, Source

T = TypeVar("T")

IDLE_S = 60.0


class Pool(Generic[T]):
    """Things that are lent to one user at a time, and kept for the next one. Safe to use from several threads."""

    def __init__(
        self, close: Callable[[T], None], alive: Callable[[T], bool], idle_s: float = IDLE_S
    ) -> None:
        self._close = close
        self._alive = alive
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._free: dict[Hashable, list[tuple[float, T]]] = {}

    @contextmanager
    def lend(self, key: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """Lend the client of ``key``, if it has not given up, or a new one; it is kept unless the block raises."""
        thing = self._take(key) or make()
        try:
            yield thing
        except BaseException:
            self._close(thing)
            raise
        with self._lock:
            self._free.setdefault(key, []).append((time.monotonic(), thing))

    def _take(self, key: Hashable) -> T | None:
        with self._lock:
            if self._process != os.getpid():
                self._process, self._free = os.getpid(), {}  # those are the parent's
            old = self._unwanted()
            free = self._free.get(key)
            thing = free.pop()[1] if free else None
        for each in old:
            self._close(each)
        return thing

    def _unwanted(self) -> list[T]:
        """Remove clients that were unused for long, or have given up."""
        since = time.monotonic() - self._idle_s
        unwanted, kept = [], {}
        for key, free in self._free.items():
            good = [(used, thing) for used, thing in free if used >= since and self._alive(thing)]
            unwanted += [each[1] for each in free if each not in good]
            if good:
                kept[key] = good
        self._free = kept
        return unwanted


_readers: Pool[BlockingChannelReader] = Pool(
    lambda reader: reader.close(), lambda reader: reader.error is None
)
_groups: Pool[BlockingGroupClient] = Pool(lambda client: client.close(), lambda client: client.error is None)
_senders: dict[Hashable, BlockingSenderServer] = {}


def _key(connection: Connection, source: Source) -> Hashable:
    return source.endpoint, source.channel, connection.timeout_s, connection.secret, connection.tls


def make_reader(connection: Connection, source: Source) -> BlockingChannelReader:
    """Make a reader of a channel, which the caller keeps."""
    return netchannel.channel_reader(source.endpoint, source.channel, **connection.settings)


@contextmanager
def reader(connection: Connection, source: Source) -> Iterator[BlockingChannelReader]:
    """A reader of a channel, for a while."""
    with _readers.lend(_key(connection, source), lambda: make_reader(connection, source)) as lent:
        yield lent


@contextmanager
def group_client(connection: Connection, source: Source) -> Iterator[BlockingGroupClient]:
    """A client that commits groups to a channel."""

    def make() -> BlockingGroupClient:
        return netchannel.group_client(source.endpoint, source.channel, **connection.settings)

    with _groups.lend(_key(connection, source), make) as lent:
        yield lent


def sender(connection: Connection) -> BlockingSenderServer:
    """Return a sender of this process with the credentials of ``connection``.

    Not the process-wide one, which has one set.
    """
    key: tuple[Any, ...] = (os.getpid(), connection.secret, connection.tls)
    if key not in _senders:
        thread = ServiceThread()
        server = SenderServer(secret=connection.secret, tls=connection.tls)
        _senders[key] = BlockingSenderServer(thread, thread.wait(server.__aenter__()))
    return _senders[key]
