"""How a server of this process shows itself to others."""

from __future__ import annotations

import os
import socket
import time


def node_name(kind: str) -> str:
    """This server's name in its peers' logs."""
    return f"{kind} {socket.gethostname()}/{os.getpid()}"


def encoded(secret: str | None) -> bytes | None:
    """A shared secret as bytes. Raises ValueError for an empty one."""
    if secret == "":
        raise ValueError("the secret is empty: give None for no secret")
    return None if secret is None else secret.encode()


def wall_us() -> int:
    """The time in microseconds since 1970 UTC."""
    return time.time_ns() // 1000


def shown(thing: object, *parts: str) -> str:
    """The ``repr`` of a server or a channel: its class, and its distinguishing values."""
    return f"<{type(thing).__name__} {', '.join(parts)}>"
