"""Errors between a coordinator and the members of its circuit.

::

    CoordinationError
    ├── ProtocolViolated       one side sent a message that is not allowed
    │   └── MalformedMessage     malformed bytes
    ├── Fenced                 another coordinator has taken over
    ├── NoCommonCheckpoint     the members share no checkpoint
    ├── LogIncomplete          a member's input log does not continue where the checkpoint ends
    ├── MembersDiffer          members do not run the same circuit, or not the same number of them
    ├── MemberFailed           a member cannot do it, and could not if it tried again
    ├── CheckpointNotMade      a checkpoint was given up; steps continue
    └── NothingToSave          the circuit does not run: what it knows is in its last checkpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CoordinationError(Exception):
    """The circuit cannot continue; the message has the cause and the remedy."""


class ProtocolViolated(CoordinationError):
    """A message is not allowed now: one of the two sides has a bug, or is of another version."""

    def __init__(self, sender: str, what: str) -> None:
        self.sender = sender
        super().__init__(f"{sender} {what}: run coordinator and members with the same version")


class MalformedMessage(ProtocolViolated):
    """Bytes that are not a message."""


class Fenced(CoordinationError):
    """Another coordinator has a greater epoch; this one sends nothing any more."""

    def __init__(self, own: int, greater: int) -> None:
        self.own = own
        self.greater = greater
        super().__init__(
            f"another coordinator has taken over with epoch {greater}; this one has epoch {own}, "
            f"and ends: the query continues with the other coordinator. If the other one should "
            f"not exist, end it, and start the query again"
        )


class NoCommonCheckpoint(CoordinationError):
    """No version is at all members; nothing was opened or discarded. ``steps`` has the step of each, by version."""

    def __init__(self, steps: Mapping[int, Mapping[int, int]]) -> None:
        self.steps = steps
        each = "; ".join(
            f"member {member} has "
            + " and ".join(f"version {version} at step {step}" for version, step in found.items())
            for member, found in sorted(steps.items())
        )
        super().__init__(
            f"the members share no checkpoint: {each}. Nothing was opened: restore the folders of "
            f"the members with older state, from copies that are as recent as the state of the other "
            f"members; or start the query from scratch, without the state of any member"
        )


class LogIncomplete(CoordinationError):
    """A member's input log has steps from ``first`` up to but not including ``last``; the checkpoint is not there."""

    def __init__(self, member: int, step: int, first: int, last: int) -> None:
        self.member = member
        self.step = step
        self.first = first
        self.last = last
        super().__init__(
            f"member {member} cannot continue from the checkpoint at step {step:,}, because its "
            f"input log has only steps {first:,} up to {last:,}. Nothing was opened: restore the "
            f"member's folder from a copy that is as recent as the state of the other members, or start "
            f"the query from scratch"
        )


class MembersDiffer(CoordinationError):
    """A value that has to be the same at all members differs; nothing was opened."""

    def __init__(self, what: str, found: Sequence[str]) -> None:
        self.found = tuple(found)
        each = ", ".join(f"member {member}: {value}" for member, value in enumerate(found))
        super().__init__(
            f"members differ in {what} ({each}): start all members from the same plan and the same "
            f"list of members"
        )


class MemberFailed(CoordinationError):
    """A member cannot do it, and could not if it tried again; ``of_input``: because of what a source reads."""

    def __init__(self, member: int, why: str, *, of_input: bool = False) -> None:
        self.member = member
        self.of_input = of_input
        super().__init__(
            f"{why} (at member {member}). When that is fixed, start the query again: it continues where it "
            f"was"
        )


class CheckpointNotMade(CoordinationError):
    """A checkpoint was given up, at all members; steps continue, and the next one may be made.

    ``step`` is where it was to be, if that is known.
    """

    def __init__(self, step: int | None, why: str) -> None:
        self.step = step
        self.why = why
        at = "" if step is None else f" at step {step:,}"
        super().__init__(f"there is no checkpoint{at}: {why}; ask again when that is fixed")


class NothingToSave(CoordinationError):
    """The circuit does not run. ``step`` is the one after its last checkpoint, if that is known."""

    def __init__(self, happened: str, step: int | None, then: str) -> None:
        self.step = step
        match step:
            case None:
                last = "the step of its last checkpoint is not known"
            case 0:
                last = "it has no checkpoint yet"
            case _:
                last = f"its last checkpoint is at step {step:,}"
        super().__init__(f"{happened}, and there is nothing to save: {last}{then}")
