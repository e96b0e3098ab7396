"""Real sockets at the ends of simulated connections: OpenSSL reads and writes no others.

What is written to one goes over the network in pieces, and what comes over the network can be read from it. The
kernel's buffers may be small, so that records are written and read in parts.
"""

from __future__ import annotations

import select
import selectors
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .loop import Pollable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .network import Socket

BUFFERS = (1, 1 << 14, 1 << 18)
"""Bytes that a kernel's buffer holds: its least is 4608."""
PIECES = (1, 1, 2, 4)
"""What is carried at a time comes in so many pieces at most."""
APART_S = (0.0, 1e-4, 0.01)
"""So long after each other they come, at most."""


class Plug(Pollable):
    """A real socket, ``near``, for whoever would have ``end``."""

    def __init__(self, end: Socket) -> None:
        self.end = end
        self._random = end.network.room.random
        near, self._far = socket.socketpair()
        size = self._random.choice(BUFFERS)
        for each in (near, self._far):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            each.setblocking(False)
        self.near: socket.socket = PluggedSocket(self, near.detach())
        self.descriptor = self.near.fileno()
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN | select.POLLOUT)
        self._has_ended = False  # the near end has said its last
        self._told_end = False  # it has been told that the other one has
        self._is_reset = False
        self._over = False
        end.loop.open[self.descriptor] = self

    def __repr__(self) -> str:
        return f"<plug {self.descriptor} of {self.end!r}>"

    def ready(self) -> int:
        """As the selectors of asyncio have it: an error is both."""
        found = self._poll.poll(0)
        state = found[0][1] if found else 0
        readable = selectors.EVENT_READ if state & ~select.POLLOUT else 0
        return readable | (selectors.EVENT_WRITE if state & ~select.POLLIN else 0)

    def carry(self) -> None:
        """Whatever can go on, both ways."""
        if self._over:
            return
        is_closed = self.near.fileno() < 0
        if not self._is_reset:
            self._carry_out(all_of_it=is_closed)
            if not is_closed:
                self._carry_in()
        if is_closed:
            self._unplug()
            self.end.close()

    def _carry_out(self, *, all_of_it: bool) -> None:
        end = self.end
        assert end.peer is not None
        while not self._has_ended and end.error is None and (all_of_it or end.room > 0):
            try:
                data = self._far.recv(1 << 20 if all_of_it else end.room)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it is closed over what it has not read
                end.inbox += b"?"
                return
            if not data:
                self._has_ended = True
                if not all_of_it:
                    end.shutdown(socket.SHUT_WR)
                return
            end.room -= len(data)
            for piece in self._pieces(data):
                late_s = self._random.random() * self._random.choice(APART_S)
                end.carry(partial(end.peer.arrive, piece), late_s)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        cuts = sorted(int(self._random.random() * len(data)) for _ in range(self._random.choice(PIECES) - 1))
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < stop:
                yield data[start:stop]

    def _carry_in(self) -> None:
        end = self.end
        assert end.peer is not None
        while end.inbox:
            try:
                size = self._far.send(end.inbox)
            except BlockingIOError:
                return
            del end.inbox[:size]
            end.peer.room += size
        if end.error is not None:
            self._reset()
        elif end.at_end and not self._told_end:
            self._told_end = True
            self._far.shutdown(socket.SHUT_WR)

    def _reset(self) -> None:
        """The near end hears of a reset, which this kind of socket has where one is closed over what was not read."""
        with suppress(
            OSError
        ):  # there is something already; or nothing can be said any more, and it is an end
            socket.socket.send(self.near, b"?")
        self._far.close()
        self._is_reset = True

    def killed(self) -> None:
        """Whoever has the near end is gone; what is done about the network's end is decided there."""
        if self._over:
            return
        if self.ready() & selectors.EVENT_READ:
            self.end.inbox += b"?"
        self._unplug()

    def _unplug(self) -> None:
        self._over = True
        self._far.close()
        if self.end.loop.open.get(self.descriptor) is self:
            del self.end.loop.open[self.descriptor]

    def close(self) -> None:
        """All that is left of it."""
        self._far.close()
        self.near.close()


class PluggedSocket(socket.socket):
    """A near end as it is before its TLS."""

    def __init__(self, plug: Plug, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self.plug = plug


class EncryptedSocket(ssl.SSLSocket):
    """A near end with its TLS: in the place of `ssl.SSLContext.sslsocket_class`, as that class is for."""

    @classmethod
    def _create(cls, sock: PluggedSocket, *arguments: Any, **named: Any) -> EncryptedSocket:  # type: ignore[override]
        plug = sock.plug
        plug.near = made = super()._create(sock, *arguments, **named)  # type: ignore[misc]
        return made

    def setsockopt(self, level: int, *option: Any) -> None:  # type: ignore[override]
        """It is not a socket of TCP."""
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *option)
