"""Retries: for how long a channel does without its peer, and when that is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.policies import FaultPolicy

    from .timers import Timer, Timers

COMPLAIN_AFTER_S = 5.0
"""A peer that is away for less is not worth a line: one that is started again is back sooner."""


class Retries:
    """The clock of a channel's `FaultPolicy`: it runs while the peer is away.

    When its time is up, ``give_up`` is called with how long that was, or ``wait_on`` where the policy is to wait; that
    once for each time that the peer is away.
    """

    __slots__ = ("_fault", "_give_up", "_timer", "_timers", "_wait_on")

    def __init__(
        self,
        timers: Timers,
        fault: FaultPolicy,
        *,
        give_up: Callable[[str, float], None],
        wait_on: Callable[[float], None],
        now: float,
    ) -> None:
        self._timers = timers
        self._fault = fault
        self._give_up = give_up
        self._wait_on = wait_on
        self._timer: Timer | None = None
        if fault.retry != 0:
            self.failed(now)

    def failed(self, now: float) -> None:
        """The peer is away, or still is; with a policy that does not try again that is all."""
        retry = self._fault.retry
        if retry == 0:
            self._give_up("", now)
        elif retry != "forever" and self._timer is None:
            self._timer = self._timers.at(now + retry, self._ran_out)

    def stop(self) -> None:
        """The peer is there, or the channel is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ran_out(self, now: float) -> None:
        if self._fault.on_failure == "wait":
            self._wait_on(now)  # the timer stays, so that this is reported once
        else:
            self._give_up(f"{self._fault.retry} s", now)


class Episode:
    """Failures without a success between them, which are reported once, when they last."""

    __slots__ = ("_since", "_told")

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    @property
    def lasts(self) -> bool:
        """True if there was a failure, and no success since."""
        return self._since is not None

    def failed(self, now: float) -> float | None:
        """Count one more; returns for how many seconds they last, if that is to be reported now."""
        if self._since is None:
            self._since = now
        elif not self._told and now - self._since >= COMPLAIN_AFTER_S:
            self._told = True
            return now - self._since
        return None

    def over(self) -> None:
        """There was a success."""
        self._since, self._told = None, False
