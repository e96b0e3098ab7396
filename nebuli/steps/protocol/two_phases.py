"""A checkpoint in two phases: all members write their state, then all make it a version.

The first phase may fail at any member, and changes nothing; the second is an entry in a log, and if that fails, or the
member is lost, the epoch ends: members that have committed return with the next one, which opens the version that all
have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nebuli.steps.protocol.errors import ProtocolViolated


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
                f"member {member}", f"committed attempt {self.attempt} of a checkpoint, and was not asked to"
            )
        self._committed.add(member)
        return len(self._committed) == self.members

    def not_prepared(self, member: int) -> None:
        """Raises ProtocolViolated if it had reported that it is."""
        if member in self._prepared:
            raise ProtocolViolated(
                f"member {member}",
                f"could not prepare attempt {self.attempt} of a checkpoint, which it has prepared",
            )
