"""The parts of `Lockstep`: arrivals, steps that are made, recovery, checkpoints, dismissal, and durations. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import LogIncomplete, MembersDiffer, NoCommonCheckpoint, ProtocolViolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .messages import Checkpoint, Joined


@dataclass(slots=True)
class _Member:
    """``rows`` and since when, by the step that they can be in at the earliest; ``logged`` steps, the last excluded.

    Event time ended with the steps ``logged_ends``. All inputs of this member have ended if it ``ended``.
    """

    rows: dict[int, tuple[int, float]] = field(default_factory=dict)
    logged: range = range(0)
    logged_ends: tuple[int, ...] = ()
    ended: bool = False


class Arrivals:
    """The reports of all members about later steps, in one epoch."""

    def __init__(self, members: int) -> None:
        self._members = [_Member() for _ in range(members)]

    def received(self, member: int, step: int, rows: int, now: float) -> None:
        """Count rows of a member. Raises ProtocolViolated for a step that the member replays."""
        found = self._members[member]
        if step in found.logged:
            raise ProtocolViolated(
                f"member {member}", f"reports {rows} rows for step {step}, which it replays from its log"
            )
        before, since = found.rows.get(step, (0, now))
        found.rows[step] = before + rows, since

    def replay(self, member: int, logged: range, ended: tuple[int, ...]) -> None:
        """Note the steps in its log, and those with which event time ``ended``; it has reported no rows yet."""
        self._members[member].logged = logged
        self._members[member].logged_ends = ended

    def end(self, member: int) -> None:
        """All inputs of a member have ended."""
        self._members[member].ended = True

    def issued(self, step: int) -> None:
        """Forget what a step was issued with. Not for a replayed one, which members without a log for it run empty."""
        for member in self._members:
            member.rows = {each: rows for each, rows in member.rows.items() if each > step}

    def replays(self, step: int) -> bool:
        """True if a member has it in its log."""
        return any(step in member.logged for member in self._members)

    def ends(self, step: int) -> bool:
        """True if event time ended with a step that a member has in its log."""
        return any(step in member.logged and step in member.logged_ends for member in self._members)

    @property
    def have_ended(self) -> bool:
        """True if all inputs of all members have ended."""
        return all(member.ended for member in self._members)

    def waiting(self, step: int) -> tuple[tuple[int, ...], float]:
        """Return how many rows there are for a step, by member, and since when the first of them.

        0.0 if there are none.
        """
        found = [
            [rows for earliest, rows in member.rows.items() if earliest <= step] for member in self._members
        ]
        since = min((at for each in found for _, at in each), default=0.0)
        return tuple(sum(rows for rows, _ in each) for each in found), since


@dataclass(slots=True)
class MadeSteps:
    """Those of a coordinator and of all before it: all members have made all steps below ``complete``."""

    complete: int = 0
    _before: int | None = None

    @property
    def known(self) -> bool:
        """True if `complete` is as high as it was for any coordinator before this one."""
        return self._before is not None and self.complete >= self._before

    def found(self, joined: Mapping[int, Joined], common: Checkpoint) -> None:
        """All members have reported their versions, of which they continue from ``common``."""
        logged = max(said.last for said in joined.values())
        if self._before is None:
            self._before = logged
        self.reached(max(common.step, logged - 1))

    def reached(self, step: int) -> None:
        """All have made all steps below this one."""
        self.complete = max(self.complete, step)


def common_checkpoint(joined: Mapping[int, Joined]) -> Checkpoint:
    """The highest that all have. Raises NoCommonCheckpoint, LogIncomplete, MembersDiffer."""
    _check_alike(joined)
    common = set.intersection(*(set(each.checkpoints) for each in joined.values()))
    if not common:
        raise NoCommonCheckpoint(
            {
                member: {each.version: each.step for each in said.checkpoints}
                for member, said in joined.items()
            }
        )
    highest = max(common)
    for member, said in joined.items():
        if not said.first <= highest.step <= said.last:
            raise LogIncomplete(member, highest.step, said.first, said.last)
    return highest


def _check_alike(joined: Mapping[int, Joined]) -> None:
    found = [joined[member] for member in sorted(joined)]
    if any(said.members != len(found) for said in found):
        what = f"the number of members, which is {len(found)} for the coordinator"
        raise MembersDiffer(what, [str(said.members) for said in found])
    if len({said.fingerprint for said in found}) > 1:
        raise MembersDiffer("the circuit's fingerprint", [said.fingerprint for said in found])


@dataclass(slots=True)
class TwoPhases:
    """One attempt, at a step; ``requests`` are waiting for it."""

    attempt: int
    step: int
    members: int
    requests: tuple[int, ...]
    _prepared: set[int] = field(default_factory=set)
    _committed: set[int] = field(default_factory=set)

    def prepared(self, member: int) -> bool:
        """A member is; whether all are. Raises ProtocolViolated."""
        if member in self._prepared:
            raise ProtocolViolated(
                f"member {member}", f"prepared attempt {self.attempt} of a checkpoint twice"
            )
        self._prepared.add(member)
        return len(self._prepared) == self.members

    def committed(self, member: int) -> bool:
        """A member has; whether all have. Raises ProtocolViolated."""
        if len(self._prepared) < self.members or member in self._committed:
            raise ProtocolViolated(
                f"member {member}", f"committed attempt {self.attempt} of a checkpoint, but was not asked to"
            )
        self._committed.add(member)
        return len(self._committed) == self.members

    def not_prepared(self, member: int) -> None:
        """Raises ProtocolViolated if it had reported that it is."""
        if member in self._prepared:
            raise ProtocolViolated(
                f"member {member}",
                f"could not prepare attempt {self.attempt} of a checkpoint, but had reported that it was "
                f"prepared",
            )


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


@dataclass(slots=True)
class Timings:
    """The number, the rows and the duration of steps and checkpoints, since the coordinator's process has begun.

    A step is timed from its order until all members have made it, a checkpoint until all have committed it; replayed
    steps count again.
    """

    rows: int = 0
    """The rows that steps were issued with, without those of replayed steps."""
    steps: int = 0
    step_seconds: float = 0.0
    checkpoints: int = 0
    checkpoint_seconds: float = 0.0
    failed_checkpoints: int = 0
    checkpoint_at: float | None = None
    """When the last one was made, by the clock of the events."""

    def stepped(self, seconds: float) -> None:
        """Count a step."""
        self.steps += 1
        self.step_seconds += seconds

    def saved(self, since: float, now: float) -> None:
        """Count a checkpoint that was begun then."""
        self.checkpoints += 1
        self.checkpoint_seconds += now - since
        self.checkpoint_at = now
