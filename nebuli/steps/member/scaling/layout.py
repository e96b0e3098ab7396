"""`Layout`: which member of a circuit is to have what of its state and logs."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from nebuli.steps.member.calls.call_messages import owner
from nebuli.steps.member.inputs.matching_files import pattern_of
from placement.stepped_plan import TIME, Feed, Member, SteppedPlan, Takeover

__all__ = ["Layout", "Takeover", "channel"]


class Layout(BaseModel):
    """The members that are to be there. ``sources`` and ``inputs`` name their readers, if there are any.

    ``shares`` does the same for patterns: for each, the members in the order of their shares. ``transfer`` is in the
    ids of the channels, and in those of no other one.
    """

    model_config = ConfigDict(frozen=True)

    transfer: str
    plan: SteppedPlan
    sources: Mapping[str, Member]
    inputs: Mapping[str, Member]
    shares: Mapping[str, tuple[Member, ...]] = {}

    @classmethod
    def of(cls, plan: SteppedPlan, feeds: tuple[tuple[Feed, ...], ...]) -> Layout:
        """A new transfer to members of which these are what each reads."""
        each = [(feed, member) for member, some in enumerate(feeds) for feed in some]
        # The member that gives steps their times knows the last one.
        reading = {member for feed, member in each if feed.source.physical.dated}
        dating = plan.homes.get(TIME, max(reading, default=None))
        dated = {} if dating is None else {TIME: dating}
        shared = sorted(
            (feed.name, feed.share.number, member) for feed, member in each if feed.share is not None
        )
        return cls(
            transfer=secrets.token_hex(8),
            plan=plan,
            sources=dated | {feed.name: member for feed, member in each if feed.share is None},
            inputs={feed.input: member for feed, member in reversed(each)},
            shares={
                name: tuple(member for _, _, member in some)
                for name, some in itertools.groupby(shared, key=lambda share: share[0])
            },
        )

    def source(self, name: str) -> int | None:
        """Return the member that is to continue a source, if there is one."""
        found = self.sources.get(name)
        pattern = pattern_of(name) if found is None else None
        if pattern is None or pattern[0] not in self.shares:
            return found
        members = self.shares[pattern[0]]
        return members[pattern[1] % len(members)]

    def producer(self, name: str) -> int:
        """Return the member that is to keep a producer's record: one log checks its numbers."""
        source = self.source(name)
        return owner(name, self.plan.members) if source is None else source

    def rows(self, handle: str, before: int) -> int:
        """Return the member for rows that wait at the member ``before``."""
        return self.inputs.get(handle, before % self.plan.members)


def channel(transfer: str, before: int, member: int) -> str:
    """The id of the channel on which a member gets what another one, of those before, has for it."""
    return f"handover/{transfer}/{before}>{member}"
