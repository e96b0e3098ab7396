"""How a server of this process shows itself to others."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netchannel.statistics import ChannelStatistics


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


def shown_in_html(thing: object, id_: str, statistics: ChannelStatistics, to: str | None = None) -> str:
    """Return the table that a notebook shows of a channel: its address, its state and its counters."""
    names = [
        each.name for each in fields(statistics) if each.name != "since"
    ]  # which a process' own clock counts
    rows = ({} if to is None else {"to": to}) | {name: getattr(statistics, name) for name in names}
    body = "".join(
        f"<tr><th>{name}</th><td>{escape(_number(value))}</td></tr>" for name, value in rows.items()
    )
    return f"<table><caption>{type(thing).__name__} {escape(id_)}</caption>{body}</table>"


def _number(value: object) -> str:
    return f"{value:,}" if type(value) is int else str(value)
