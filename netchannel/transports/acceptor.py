"""Accepting connections on sockets that listen, also through times without descriptors."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from netchannel.core.warning_limits import WarningFilter
from netchannel.log_texts import log

from .tls_connection import TlsConnection

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = 16
"""Connections that are accepted in one turn of the loop, so that a flood leaves time for those that are there."""
AGAIN_S = 0.1
"""Seconds until accepting is tried again when the system could not."""


class Acceptor:
    """Gives a protocol to each connection that comes in on its sockets.

    In place of the event loops' own servers, which do not bear to run out of descriptors: asyncio logs an error and
    sets a timer for every place in the backlog (Python 3.11), uvloop closes the listening socket without a word if
    its one reserved descriptor is gone, and every connection that waits if it is not. Here they wait in the backlog.
    """

    def __init__(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self.sockets: set[socket.socket] = set()
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[object]] = set()
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._warnings = WarningFilter()

    def add(self, sock: socket.socket) -> None:
        """Accept on ``sock``, which listens, and is closed with the acceptor."""
        sock.setblocking(False)
        self.sockets.add(sock)
        self._loop.add_reader(sock, self._accept, sock)

    def remove(self, sock: socket.socket) -> None:
        """Accept no more on ``sock``, and close it. May be called twice."""
        if sock not in self.sockets:
            return
        self.sockets.remove(sock)
        if (retry := self._paused.pop(sock, None)) is not None:
            retry.cancel()
        else:
            self._loop.remove_reader(sock)
        sock.close()

    def close(self) -> None:
        """Accept no more, and close all sockets. May be called twice."""
        for sock in list(self.sockets):
            self.remove(sock)

    async def stop(self) -> None:
        """The same, and wait until every connection that was accepted has its protocol."""
        self.close()
        if self._starting:
            await asyncio.wait(self._starting)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(sock, error)
                return
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                # asyncio sets it automatically if a socket's protocol is TCP, which accepted ones do not
                # have: without it, answers wait for the peer's delayed acknowledgements, 40 ms each.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._make_protocol(), connection)

    def _start(self, protocol: asyncio.BaseProtocol | TlsConnection, connection: socket.socket) -> None:
        if isinstance(protocol, TlsConnection):
            protocol.adopt(connection)
            return
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: protocol, connection), name="netchannel accepts"
        )
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _pause(self, sock: socket.socket, error: OSError) -> None:
        text = "cannot accept connections at %s: %s; new connections wait, and the server tries again"
        if self._warnings.news("", text, self._loop.time()):
            log.warning(text, sock.getsockname(), error)
        self._loop.remove_reader(sock)
        self._paused[sock] = self._loop.call_later(AGAIN_S, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        del self._paused[sock]
        self._loop.add_reader(sock, self._accept, sock)
