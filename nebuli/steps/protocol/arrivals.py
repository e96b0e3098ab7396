"""The members' reports of input for later steps: rows that arrived, steps that are in their logs, no more.

Rows that are reported for a step that was issued meanwhile belong to the next one; at worst that one is empty. A member
that reports both for one step would have rows in a step whose input is fixed: it is mistaken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nebuli.steps.protocol.errors import ProtocolViolated


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
