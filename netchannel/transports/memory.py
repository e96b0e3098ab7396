"""Connections within a process: ``mem:name``, as asyncio transports: the same protocol as over TCP.

The two ends may live on different event loops.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Any

from .interface import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .interface import MakeProtocol

_listeners: dict[str, tuple[asyncio.AbstractEventLoop, MakeProtocol]] = {}


def check(address: str) -> None:
    """Raise ValueError if ``address`` has no name."""
    if address == "mem:":
        raise ValueError(f"the address {address!r} is not complete: expected mem:name")


async def connect(address: str, make_protocol: MakeProtocol) -> None:
    """Connect to the listener at ``address``. Raises ConnectionRefusedError."""
    check(address)
    if address not in _listeners:
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on {address} in this process")
    loop, make_peer = _listeners[address]
    here = MemoryConnection(asyncio.get_running_loop(), address)
    there = MemoryConnection(loop, address)
    here.peer, there.peer = there, here
    there.call(lambda: there.start(make_peer()))
    here.start(make_protocol())


async def listen(address: str, make_protocol: MakeProtocol) -> Listener:
    """Accept connections at ``address``, on the running loop."""
    check(address)
    if address in _listeners:
        raise OSError(errno.EADDRINUSE, "the name is in use in this process")
    _listeners[address] = asyncio.get_running_loop(), make_protocol
    return Listener(address, lambda: _stop_listening(address))


def _stop_listening(address: str) -> None:
    del _listeners[address]


class MemoryConnection(asyncio.Transport):
    """One end of a connection in memory."""

    peer: MemoryConnection

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__({"peername": name})
        self._loop = loop
        self._protocol: asyncio.BufferedProtocol | None = None
        self._arrived: deque[memoryview | None] = deque()  # None: the end
        self._unread = 0  # bytes written here that the peer has not taken
        self._high, self._low = 1 << 16, 1 << 14
        self._paused_writing = False
        self._reading = True
        self._delivering = False
        self._closing = False

    def call(self, action: Callable[..., None], *args: object) -> None:
        """Run ``action`` soon on this end's loop, from whichever thread."""
        try:
            if asyncio.get_running_loop() is self._loop:
                self._loop.call_soon(action, *args)
                return
        except RuntimeError:
            pass  # called from a thread without a loop
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action, *args)

    def start(self, protocol: asyncio.BufferedProtocol) -> None:
        """Give this end to its protocol."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._deliver()

    # -- writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unread

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        if self._closing:
            return
        views = [view for data in list_of_data if len(view := memoryview(data).cast("B"))]
        self._unread += sum(map(len, views))
        self.peer.call(self.peer.arrive, views)
        if self._unread > self._high and not self._paused_writing and self._protocol is not None:
            self._paused_writing = True
            self._protocol.pause_writing()

    def taken(self, size: int) -> None:
        """The peer has read ``size`` bytes."""
        self._unread -= size
        if self._paused_writing and self._unread <= self._low and self._protocol is not None:
            self._paused_writing = False
            self._protocol.resume_writing()

    # -- reading

    def arrive(self, views: list[memoryview | None]) -> None:
        """The peer has written."""
        self._arrived += views
        self._deliver()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def _deliver(self) -> None:
        if self._protocol is None or self._delivering:
            return
        self._delivering = True
        while self._arrived and self._reading and not self._closing:
            view = self._arrived[0]
            if view is None:
                self.close()
                break
            buffer = memoryview(self._protocol.get_buffer(len(view)))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            if size == len(view):
                self._arrived.popleft()
            else:
                self._arrived[0] = view[size:]
            self.peer.call(self.peer.taken, size)
            self._protocol.buffer_updated(size)
        self._delivering = False

    # -- closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer.call(self.peer.arrive, [None])
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer.call(self.peer.reset)
            self._loop.call_soon(self._lose, None)

    def reset(self) -> None:
        """The peer has aborted: nothing more is read."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose, ConnectionResetError("the peer reset the connection"))

    def _lose(self, reason: Exception | None) -> None:
        self._arrived.clear()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(reason)
