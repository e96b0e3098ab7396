"""Letting members go, once all have stopped: each is told so until it has heard.

None goes before: as long as one has not stopped, it may be lost, and then all are needed for another epoch. That all
have stopped is recorded before the first one is told. A coordinator that dies in between is followed by one that goes
on telling, and does not wait for an epoch to which those that are gone would have to come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AWAY_S = 30.0
"""How long members are waited for that have not heard. A process that was killed is there again within seconds, and
one that has gone, and whose answer is lost, never. Whoever has not heard by then has its version all the same, and goes
by itself (see `nebuli.steps.member.departure`)."""


@dataclass(slots=True)
class Dismissal:
    """Of so many members, which have a version at ``step``; from ``since`` on."""

    step: int
    members: int
    since: float
    _left: set[int] = field(default_factory=set)

    def left(self, member: int) -> None:
        """It has heard. Again: nothing."""
        self._left.add(member)

    def awaits(self, member: int) -> bool:
        """Whether it has not heard yet."""
        return member not in self._left

    @property
    def until(self) -> float:
        """When the others are not waited for any more."""
        return self.since + AWAY_S

    def over(self, now: float) -> bool:
        """Whether nobody is waited for."""
        return len(self._left) == self.members or now >= self.until
