"""Shared code of transports over sockets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

from .acceptor import Acceptor
from .interface import Listener

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterable

    from .interface import MakeProtocol

    Make = Callable[[], asyncio.BaseProtocol]

BACKLOG = 4096
"""Connections that the kernel holds until they are accepted; `net.core.somaxconn` bounds it."""


def listen_on(
    address: str,
    sockets: Iterable[socket.socket],
    make_protocol: MakeProtocol,
    on_close: Callable[[], object] = lambda: None,
) -> Listener:
    """Accept connections on sockets that listen, also through times without file descriptors.

    The sockets are closed with the listener, then ``on_close`` is called.
    """
    acceptor = Acceptor(make_protocol)
    for sock in sockets:
        acceptor.add(sock)
    return _Accepting(address, acceptor, on_close)


class _Accepting(Listener):
    def __init__(self, address: str, acceptor: Acceptor, on_close: Callable[[], object]) -> None:
        super().__init__(address, acceptor.close)
        self._acceptor = acceptor
        self._on_close = on_close

    def descriptors(self) -> list[int]:
        return [sock.fileno() for sock in self._acceptor.sockets]

    def close(self) -> None:
        super().close()
        self._on_close()

    async def stop(self) -> None:
        await self._acceptor.stop()


async def connect_with(create: Callable[[Make], Coroutine[Any, Any, Any]], make_protocol: Make) -> None:
    """Connect by a function of the event loop, e.g. ``partial(loop.create_unix_connection, path=path)``.

    When it is cancelled, a protocol that was given the connection is notified of its end. Under uvloop, which
    closes its connection without a notice, ``create`` alone does not ensure that.
    """
    beginning = _Beginning(make_protocol)
    creating = asyncio.ensure_future(create(lambda: beginning))
    try:
        await asyncio.shield(creating)
    except asyncio.CancelledError:
        if beginning.transport is None:
            beginning.wanted = False
            creating.cancel()
        while not creating.done():  # for a turn or two of the loop
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([creating])
        if beginning.transport is not None:
            beginning.transport.abort()
        raise


class _Beginning(asyncio.Protocol):
    """Stands where the protocol will, until there is a connection."""

    def __init__(self, make_protocol: Make) -> None:
        self._make_protocol = make_protocol
        self.wanted = True
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self.wanted:  # it came while the call was being cancelled
            cast("asyncio.Transport", transport).abort()
            return
        self.transport = cast("asyncio.Transport", transport)
        protocol = self._make_protocol()
        self.transport.set_protocol(protocol)
        protocol.connection_made(transport)
