"""Binding of a connection: data that both of its ends know, and no party between them.

Where the two agree, the bytes go from one to the other by this host's kernel alone, or under a MAC of TLS:
then the transport vouches for them. A proxy has connections of its own, also one on this host, which may lead
to another.
"""

from __future__ import annotations

import socket
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from netchannel.wire.messages import ENDS_SIZE

from .tcp import is_within_host

if TYPE_CHECKING:
    import asyncio

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETNS_COOKIE = 71
"""Linux' SO_NETNS_COOKIE (5.14), which Python gives no name: what a network namespace has to itself since boot."""


def ends_of(transport: asyncio.BaseTransport) -> bytes:
    """A digest of the ends of ``transport``'s connection, as docs/protocol/wire.md has it; empty if it has none.

    A secured transport returns its material from ``get_extra_info("ends")``.
    """
    named = transport.get_extra_info("ends") or _within_host(transport.get_extra_info("socket"))
    return digest(*named) if named else b""


def digest(*named: bytes) -> bytes:
    """The digest that is shown in place of the things themselves."""
    return sha256(b"\n".join((b"netchannel ends", *named))).digest()[:ENDS_SIZE]


def _within_host(sock: socket.socket | None) -> tuple[bytes, ...]:
    """The host, and both sockets of a connection that does not leave it."""
    if sock is None:
        return ()
    try:
        if not (names := _names(sock)):
            return ()
        cookie = sock.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8)
    except OSError:  # it is lost already, or the kernel is older
        return ()
    if not (boot := _boot()):
        return ()
    return boot, str(int.from_bytes(cookie, sys.byteorder)).encode(), *sorted(names)


def _names(sock: socket.socket) -> list[bytes]:
    """The addresses of both ends, if no other connection of this network namespace has them."""
    if not is_within_host(sock):
        return []
    return [f"{host} {port}".encode() for host, port, *_ in (sock.getsockname(), sock.getpeername())]


@cache
def _boot() -> bytes:
    """Return the id of this run of the kernel; empty if there is none."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b""
