"""The deadlines of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf


@dataclass(frozen=True, slots=True)
class Timing:
    """The deadlines of a server, in seconds.

    Both sides of a control connection send a heartbeat every ``heartbeat_s`` and give each other up after
    ``dead_after_s`` without a byte. A connection that does not finish its handshake within ``handshake_s`` is
    dropped; a token is good for ``token_s``. Dialing and asking again back off from ``backoff_s`` to
    ``backoff_limit_s``, with jitter. Control connections without channels are closed after ``idle_s``; a server that
    is left waits at most ``leave_s`` for its peers.
    """

    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    handshake_s: float = 5.0
    token_s: float = 10.0
    backoff_s: float = 0.05
    backoff_limit_s: float = 2.0
    idle_s: float = 1.0
    leave_s: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < inf or (value == 0 and field.name != "leave_s"):
                raise ValueError(f"{field.name} is {value}: expected seconds, more than 0")
