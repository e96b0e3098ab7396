"""Connections over sockets in the file system of this machine: ``unix:/path``."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .sockets import BACKLOG, connect_with, listen_on

if TYPE_CHECKING:
    from .interface import Listener, MakeProtocol

_PATH_LIMIT = 107
"""Bytes of a socket's path: Linux has 108 in ``sockaddr_un``, the last of which is zero."""


def check(address: str) -> None:
    """Raise ValueError if ``address`` has no path, or one that no socket can have."""
    _path(address)


def _path(address: str) -> str:
    path = address.removeprefix("unix:")
    if not path or "\0" in path:
        raise ValueError(f"the address {address!r} is not the path of a file: expected unix:/path")
    if (size := len(os.fsencode(path))) > _PATH_LIMIT:
        raise ValueError(
            f"the address {address!r} has a path of {size} bytes, but a socket's path has at most {_PATH_LIMIT}: "
            f"choose a shorter one"
        )
    return path


async def connect(address: str, make_protocol: MakeProtocol) -> None:
    """Connect to ``address``."""
    create = partial(asyncio.get_running_loop().create_unix_connection, path=_path(address))
    await connect_with(create, make_protocol)


async def listen(address: str, make_protocol: MakeProtocol) -> Listener:
    """Accept connections at ``address``; its socket is removed when the listener is closed."""
    return _listen(address, make_protocol, None)


def listen_privately(address: str, make_protocol: MakeProtocol) -> Listener:
    """The same, of processes of this user only. Raises OSError naming the address."""
    try:
        return _listen(address, make_protocol, 0o600)
    except OSError as error:
        hint = f"; one process of a node has members=, all others node={address!r}" if _in_use(error) else ""
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}{hint}") from error


def _in_use(error: OSError) -> bool:
    return error.errno == errno.EADDRINUSE


def _listen(address: str, make_protocol: MakeProtocol, mode: int | None) -> Listener:
    path = _path(address)
    _clear(path)
    sock = _bind(path, mode)
    return listen_on(address, [sock], make_protocol, on_close=lambda: Path(path).unlink(missing_ok=True))


def _bind(path: str, mode: int | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        if mode is not None:
            os.fchmod(sock.fileno(), mode)  # Linux makes the file with it: there is no moment of another mode
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _clear(path: str) -> None:
    """Remove the socket of a process that was killed; one that answers is in use."""
    with socket.socket(socket.AF_UNIX) as probe:
        if Path(path).is_socket() and probe.connect_ex(path) == 0:
            raise OSError(errno.EADDRINUSE, "another process listens there")
    if Path(path).is_socket():
        Path(path).unlink()
