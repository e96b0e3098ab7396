"""Masters of Spark as members need them."""

from __future__ import annotations

import re
import socket
from contextlib import closing

LOOPBACK = "127.0.0.1"


def is_on_this_machine(master: str) -> bool:
    """True if its executors are processes of this machine, with its folders and its loopback addresses."""
    return master.startswith("local")


def has_executors(master: str) -> bool:
    """True if there are executors that come and go; in one process there is one, which is there."""
    return not re.fullmatch(r"local(\[.*\])?", master)


def address_towards(master: str) -> str:
    """The address of this machine from which it reaches the first host of a cluster's master. Raises OSError."""
    host, _, port = master.partition("://")[2].partition(",")[0].rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, _, _, target = found[0]
    with closing(socket.socket(family, kind)) as probe:
        probe.connect(target)  # which sends nothing
        return str(probe.getsockname()[0])
