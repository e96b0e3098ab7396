"""Sockets of a process, as the system knows them."""

from __future__ import annotations

import socket
from pathlib import Path

_ESTABLISHED = "01"


def sockets(process: int | str = "self") -> set[str]:
    """Those that it has open, by their inodes."""
    found = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # the one that lists the directory
        if target.startswith("socket:"):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def connections(process: int | str, address: str) -> int:
    """How many of them are established TCP connections from or to ``address``, an IPv4 one."""
    port = int(address.rpartition(":")[2])
    return sum(port in ends for ends in ports(process))


def ports(process: int | str = "self") -> list[tuple[int, int]]:
    """The local and the remote port of each of them that is an established TCP connection over IPv4."""
    held, found = sockets(process), []
    for line in Path(f"/proc/{process}/net/tcp").read_text("utf-8").splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if state == _ESTABLISHED and inode in held:
            found.append((int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)))
    return found


def is_open(address: str) -> bool:
    """Whether somebody listens there."""
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
