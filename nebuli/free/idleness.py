"""The sources that have had nothing for so long that event time is not to wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Idleness"]


class Idleness:
    """Sources by the seconds after which each is idle; times are given, of a monotonic clock.

    A source is quiet from when it was first asked in vain: a fragment that is itself held up finds none idle.
    """

    def __init__(self, after_s: Mapping[str, float]) -> None:
        self._after_s = after_s
        self._quiet_since: dict[str, float] = {}
        self._idle: set[str] = set()

    def active(self, source: str) -> None:
        """Note that a source had something, or has ended."""
        self._quiet_since.pop(source, None)
        self._idle.discard(source)

    def is_idle_now(self, source: str, now: float) -> bool:
        """Note that a source had nothing; returns true if that makes it idle, which is reported once."""
        if source not in self._after_s or source in self._idle:
            return False
        since = self._quiet_since.setdefault(source, now)
        if now - since < self._after_s[source]:
            return False
        self._idle.add(source)
        return True

    def wait_s(self, now: float) -> float | None:
        """How long until another source is idle, if nothing comes; None: no source will be."""
        waits = [
            since + self._after_s[source] - now
            for source, since in self._quiet_since.items()
            if source not in self._idle
        ]
        return max(0.0, min(waits)) if waits else None
