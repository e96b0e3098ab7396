"""Connections over TCP: ``host:port`` or ``[v6]:port``."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from netchannel.address import TcpAddress, parse_address

from .sockets import BACKLOG, connect_with, listen_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .interface import Listener, MakeProtocol


PORT_TRIES = 10
"""How often a port is looked for that is free on all addresses of a host."""
KEEP_IDLE_S, KEEP_INTERVAL_S, KEEP_COUNT = 30, 10, 3
"""A connection on which nothing goes is probed after so long, so often, and given up after so many in vain."""
UNSENT_BYTES = 256 << 10
"""Bytes that the kernel keeps of a control connection beyond those that the network takes: as much as one
piece of a body."""


def check(address: str) -> None:
    """Raise ValueError if ``address`` is not host:port, or has port 0."""
    if parse_address(address).port == 0:
        raise ValueError(
            f"the address {address!r} has port 0, which only a receiver can listen on: give the receiver's actual "
            f"port"
        )


async def connect(address: str, make_protocol: MakeProtocol) -> None:
    """Connect to ``address``."""
    where = parse_address(address)
    create = partial(asyncio.get_running_loop().create_connection, host=where.host, port=where.port)
    with _host_named(where):
        await connect_with(create, make_protocol)


@contextlib.contextmanager
def _host_named(where: TcpAddress) -> Iterator[None]:
    """Have the host in the error if its name stands for no address, or cannot be a name."""
    try:
        yield
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise OSError(f"cannot resolve {where.host}: {why}") from error


async def dial(where: TcpAddress) -> socket.socket:
    """Return a socket that is connected to ``where``, for a caller that reads and writes it."""
    loop = asyncio.get_running_loop()
    with _host_named(where):
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    for left, (family, kind, proto, _, name) in zip(reversed(range(len(found))), found, strict=True):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, name)
        except OSError:
            sock.close()
            if not left:
                raise
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise OSError(f"{where} has no address")


async def listen(address: str, make_protocol: MakeProtocol) -> Listener:
    """Accept connections at ``address``; port 0 takes a free one."""
    where = parse_address(address)
    sockets = await _bind(where)
    port = sockets[0].getsockname()[1]
    return listen_on(str(TcpAddress(where.host, port)), sockets, make_protocol)


async def _bind(where: TcpAddress) -> list[socket.socket]:
    """One socket for each address that the host's name stands for."""
    found = await asyncio.get_running_loop().getaddrinfo(
        where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    names = [(family, name) for family, _, _, _, name in dict.fromkeys(found)]
    for left in reversed(range(PORT_TRIES)):
        try:
            return _bind_all(names)
        except OSError as error:
            # A free port of the first of them may be in use on another.
            if where.port or len(names) == 1 or error.errno != errno.EADDRINUSE or not left:
                raise
    raise AssertionError


def _bind_all(names: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    """A socket for each, all at the same port."""
    sockets: list[socket.socket] = []
    try:
        for family, (host, wanted, *rest) in names:
            port = sockets[0].getsockname()[1] if sockets else wanted
            sockets.append(socket.create_server((host, port, *rest), family=family, backlog=BACKLOG))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def limit_silence(sock: socket.socket, limit_s: float) -> None:
    """Let the kernel drop the connection when what was sent is not acknowledged for so long."""
    if _is_tcp(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1000))


def keep_little_unsent(sock: socket.socket) -> None:
    """Let the kernel take no more than it can send soon: later bytes would wait for all of that."""
    if _is_tcp(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel probe an idle connection, so that firewalls do not forget it and its end is noticed."""
    if _is_tcp(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_COUNT)


def use_congestion_control(sock: socket.socket, name: str) -> None:
    """Set the congestion control of a connection within this host, where networks' do nothing but cost.

    One that the system does not have, or does not let us use, is left alone.
    """
    if is_within_host(sock):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def is_within_host(sock: socket.socket) -> bool:
    """True if a TCP connection leads from an address to itself."""
    return _is_tcp(sock) and bool(sock.getpeername()[0] == sock.getsockname()[0])


def _is_tcp(sock: socket.socket) -> bool:
    return sock.family in (socket.AF_INET, socket.AF_INET6)
