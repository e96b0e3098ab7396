"""Where all members continue: the highest checkpoint that each of them has.

A checkpoint is committed at one member after the other, and a member keeps the one before until all have the new one.
So there is always one that all have; members that are ahead of it return by opening it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.steps.protocol.errors import LogIncomplete, MembersDiffer, NoCommonCheckpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.steps.protocol.messages import Checkpoint, Joined


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
        what = f"the number of members, of which the coordinator counts {len(found)}"
        raise MembersDiffer(what, [str(said.members) for said in found])
    if len({said.fingerprint for said in found}) > 1:
        raise MembersDiffer("the circuit's fingerprint", [said.fingerprint for said in found])
