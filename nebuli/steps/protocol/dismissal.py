"""Letting members go, once all have stopped: each is notified until it has confirmed.

None goes before: as long as one has not stopped, it may be lost, and then all are needed for another epoch. The stop of
all is recorded before the first one is notified. A coordinator that dies in between is followed by one that continues
to notify, and does not wait for an epoch to which those that are gone would have to come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AWAY_S = 30.0
"""How long to wait for members that have not confirmed. A process that was killed is there again within seconds, and
one that has gone, and whose answer is lost, never. A member that is not notified by then has its version all the same,
and ends on its own (see `nebuli.steps.member.departure`)."""


@dataclass(slots=True)
class Dismissal:
    """The dismissal of so many members, which have a version at ``step``; from ``since``."""

    step: int
    members: int
    since: float
    _left: set[int] = field(default_factory=set)

    def left(self, member: int) -> None:
        """It has confirmed. Again: nothing."""
        self._left.add(member)

    def awaits(self, member: int) -> bool:
        """True if it has not confirmed yet."""
        return member not in self._left

    @property
    def until(self) -> float:
        """When the others are not waited for any more."""
        return self.since + AWAY_S

    def over(self, now: float) -> bool:
        """True if no member is waited for."""
        return len(self._left) == self.members or now >= self.until
