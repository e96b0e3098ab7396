"""The seam between channels and what carries their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

MakeProtocol = Callable[[], asyncio.BufferedProtocol]
"""Makes the protocol of one connection."""


class Listener:
    """A place where connections are accepted, until ``close``.

    ``address`` is where others reach it, as `Transport.connect` takes it. The sockets of ``server``, if it has one,
    are closed in forked children.
    """

    def __init__(self, address: str, close: Callable[[], None], server: asyncio.Server | None = None) -> None:
        self.address = address
        self._close = close
        self._server = server

    def descriptors(self) -> list[int]:
        """File descriptors of the sockets that listen."""
        return [] if self._server is None else [sock.fileno() for sock in self._server.sockets]

    def close(self) -> None:
        """Accept no more; the address is free again."""
        self._close()

    async def stop(self) -> None:
        """Wait, once closed, until every connection that was accepted has its protocol."""


class Transport(Protocol):
    """The carrier of the connections of one scheme; a module with these three functions is one too.

    A connection is an `asyncio.Transport`, given to a protocol of ``make_protocol`` on the loop that runs the
    call: ``connection_made``, then bytes in order by ``get_buffer`` and ``buffer_updated``, then exactly one
    ``connection_lost``, which no call into the transport makes before it returns.

    - ``pause_reading`` stops the bytes at once, and the peer's writing before long.
    - ``pause_writing`` comes as soon as more than the high mark of ``set_write_buffer_limits`` is unsent,
      ``resume_writing`` at the low one. Bytes written in between are taken too.
    - ``close`` sends pending bytes first, ``abort`` does not; the peer is notified of either.
    - A `HandshakeError` from ``connect``, or in ``connection_lost``, is for good: the sender does not try
      again.
    - ``get_extra_info("peername")`` names the other side in logs: text, or host and port. ``"socket"``, if
      there is one, is closed in forked children. ``"ends"``, if its bytes are under a MAC, are byte strings
      that both ends of this connection have, and those of no other.
    """

    def check(self, address: str) -> None:
        """Raise ValueError if ``address``, which begins with the scheme, cannot be dialed; needs no network."""

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        """Connect. Raises OSError, or HandshakeError. A call that is cancelled leaves no connection."""

    async def listen(self, address: str, make_protocol: MakeProtocol) -> Listener:
        """Accept connections at ``address``. Raises OSError, e.g. when it is in use."""
