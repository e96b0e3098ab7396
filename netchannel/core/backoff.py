"""How long to wait before something is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .link import Core


class Backoff:
    """Waits that double, up to the limit of the core's timing, until a try has led somewhere.

    A finished handshake does not count: a peer that hangs up after each one would be dialed without end. A
    connection has, that has lasted for as long as the longest wait; all else only its owner knows.
    """

    __slots__ = ("_core", "_since", "_wait_s")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wait_s = core.timing.backoff_s
        self._since: float | None = None

    def established(self, now: float) -> None:
        """There is a connection."""
        self._since = now

    def lasted(self, now: float) -> bool:
        """True if the connection has lasted for long."""
        return self._since is not None and now - self._since >= self._core.timing.backoff_limit_s

    def next(self, now: float) -> float:
        """Seconds until the next try; the connection, if there was one, is gone."""
        if self.lasted(now):
            self.reset()
        self._since = None
        wait = self._wait_s
        self._wait_s = min(2 * wait, self._core.timing.backoff_limit_s)
        return wait * self._core.jitter()

    def reset(self) -> None:
        """There was progress."""
        self._wait_s = self._core.timing.backoff_s
