"""Errors of a member.

::

    MemberError
    ├── ExchangeClosed      it was closed, aborted or has failed before, here
    ├── ExchangeBusy        an exchange is in progress already
    └── ExchangeFailed      this epoch is over for this member; ``member`` and ``address`` are the other one's
        ├── PeerMissing       a member was not there within the deadline of `open`
        ├── PeerLost          a member is gone, or cannot be reached
        ├── PeerLeft          a member has ended its side, or given this one up, with the reason
        ├── WrongStep         a member sends another step, or exchange, than this one is at
        ├── PartDamaged       a member's data cannot be read
        └── ExchangeLate         not all has come, or gone out, within the deadline

    StepFailed           rows of a step are such that it cannot be computed

    Forsaken             no coordinator comes to a member any more

    MembersFailed        the members of a circuit cannot be kept running
    ├── MembersEnd         a member's process ends again and again
    ├── StageEnds          the Spark stage of the members, or its driver, ends again and again
    ├── TooFewSlots        Spark has less room than there are members
    ├── SparkRefuses       no session of Spark is available
    ├── HomeUnfit          members cannot live where they are to
    ├── StateOfAnother     the state folder belongs to another query, to other sources, or to other members
    ├── StateInUse         another process is using the state folder
    ├── StateGone          the state of a member is missing from the state folder
    ├── NotScaled          other members do not take the place of the current ones
    ├── TakeoverLost       a member that was to be one of these has not received all
    ├── SourcesGone        the inputs of other members are not there
    ├── StepNotSkipped     a step's rows cannot be left out
    ├── FolderUnusable     the state folder cannot be made, read or written
    ├── FolderOfOthers     the state folder has files that are not a query's state
    └── ClaimDamaged       the state folder's record of its query cannot be read
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = 3
"""Files of others that an error names."""
_NEXT = "this epoch's exchange is closed here: recover to a common checkpoint, in a new epoch"


class MemberError(Exception):
    """The member could not do it; the message has the cause and the consequence."""


class ExchangeClosed(MemberError):
    """The exchange is over on this side; ``reason`` has the cause."""

    def __init__(self, name: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the exchange {name} is closed: {reason}; open the exchange of a new epoch")


class ExchangeBusy(MemberError):
    """A member is at one exchange at a time."""

    def __init__(self, at: tuple[int, int], wanted: tuple[int, int]) -> None:
        super().__init__(
            f"step {wanted[0]}, exchange {wanted[1]} cannot begin while step {at[0]}, exchange "
            f"{at[1]} is under way: wait until that exchange ends; nothing was sent"
        )


class ExchangeFailed(MemberError):
    """Something went wrong with ``member`` at ``address``; the exchange is closed, and its epoch is over.

    ``happened`` has the event, not its consequence.
    """

    def __init__(self, member: int, address: str, what: str) -> None:
        self.member = member
        self.address = address
        self.happened = f"member {member} at {address} {what}"
        super().__init__(f"{self.happened}; {_NEXT}")


class PeerMissing(ExchangeFailed):
    """The member was not there within ``waited_s``."""

    def __init__(self, member: int, address: str, name: str, waited_s: float) -> None:
        self.waited_s = waited_s
        self.why = f"did not open {name} within {waited_s:g} s"
        super().__init__(member, address, self.why)


class PeerLost(ExchangeFailed):
    """The member is gone, or cannot be reached; ``why`` is what was seen of it, here or by another member."""

    def __init__(self, member: int, address: str, at: str, why: str) -> None:
        self.why = why
        super().__init__(member, address, f"is lost {at}: {why}")


class PeerLeft(ExchangeFailed):
    """The member has ended its side while it was needed here; ``said`` is its reason."""

    def __init__(self, member: int, address: str, at: str, said: str) -> None:
        self.said = said
        super().__init__(member, address, f"has left {at}: {said}")


class WrongStep(ExchangeFailed):
    """The member sends what belongs to ``came``, (step, exchange), while ``expected`` is due from it."""

    def __init__(self, member: int, address: str, came: tuple[int, int], expected: tuple[int, int]) -> None:
        self.came = came
        self.expected = expected
        super().__init__(
            member,
            address,
            f"sent step {came[0]}, exchange {came[1]}, but step {expected[0]}, exchange "
            f"{expected[1]} was expected",
        )


class PartDamaged(ExchangeFailed):
    """A part of the member cannot be read."""

    def __init__(self, member: int, address: str, at: str, why: str) -> None:
        super().__init__(member, address, f"sent a part {at} that cannot be read: {why}")


class ExchangeLate(ExchangeFailed):
    """The deadline passed; ``missing`` are the members whose parts have not come (none: what is sent was not taken)."""

    def __init__(
        self, member: int, address: str, at: str, *, missing: Sequence[int], of: int, waited_s: float
    ) -> None:
        self.missing = tuple(missing)
        what = f"is late {at}: after {waited_s:g} s, {of - len(missing)} of {of} parts have arrived"
        super().__init__(
            member, address, f"{what}; the parts of members {list(missing)} are missing" if missing else what
        )


class StepFailed(Exception):
    """A step cannot be computed, as its rows are such: it would fail again. ``inputs`` are those that reach the place.

    ``step`` is None for sums that are beyond their range at the end: rows of any step may be the reason. ``closes``:
    event time ends with the step.
    """

    def __init__(self, step: int | None, why: str, inputs: Sequence[str], *, closes: bool = False) -> None:
        self.step = step
        of = f"input{'' if len(inputs) == 1 else 's'} {', '.join(inputs)}"
        if step is None:
            super().__init__(
                f"the result of {of} cannot be computed: {why}; or run the query again with rows that "
                f"correct it: append them to the source's file, or push them (--serve), for example with "
                f"negative weights"
            )
        elif closes:
            super().__init__(
                f"step {step} of {of} cannot be computed: {why}. This step closes windows. To "
                f"keep these windows open, run the query again with --skip-step {step} (an option of nebuli run "
                f"and nebuli start), and add rows that correct the result; then run the query with --close"
            )
        else:
            super().__init__(
                f"step {step} of {of} cannot be computed: {why}. To continue without the rows that fail, run the query "
                f"again with --skip-step {step} (an option of nebuli run and nebuli start), which writes these rows to "
                f"a file"
            )


class Forsaken(Exception):
    """A member has had no coordinator for so long that others may have taken its place."""

    def __init__(self, member: int, for_s: float) -> None:
        super().__init__(
            f"member {member} ends, because no coordinator has been connected for {for_s:g} s: "
            f"another process has taken the member's place, or the member's command has ended"
        )


class MembersFailed(Exception):
    """The members cannot be kept running; the message has the reason and the remedy."""


class MembersEnd(MembersFailed):
    """A member's process ends again and again."""

    def __init__(self, member: int, ends: int, within_s: float, how: str, said: Sequence[str]) -> None:
        self.member = member
        last = "\n".join(said)
        super().__init__(
            f"member {member} has ended {ends} times within {within_s:g} s (the last time: {how}), "
            f"without progress in between: it is not started again. Fix the cause, and run the "
            f"query again: it continues where it was" + (f"\n{last}" if last else "")
        )


class StageEnds(MembersFailed):
    """The Spark ``what`` of the members has ended ``times``, while nothing was done."""

    def __init__(self, what: str, times: int, within_s: float, why: str, said: Sequence[str] = ()) -> None:
        last = "\n".join(said)
        super().__init__(
            f"the Spark {what} of the members has ended {times} times within {within_s:g} s, "
            f"without progress in between: it is not started again. The last time: {why}. Fix the "
            f"cause, and run the query again: it continues where it was" + (f"\n{last}" if last else "")
        )


class TooFewSlots(MembersFailed):
    """Spark has ``slots`` for the members, which hold one each forever."""

    def __init__(self, master: str, slots: int, members: int, waited_s: float) -> None:
        waited = f" after {waited_s:g} s" if waited_s else ""
        super().__init__(
            f"{members} members hold {members} slots of Spark as long as they run, but {master} "
            f"has {slots}{waited}: give the cluster more cores, end its other applications, or use fewer --members"
        )


class SparkRefuses(MembersFailed):
    """There is no session at ``master``."""

    def __init__(self, master: str, why: str) -> None:
        super().__init__(
            f"there is no session of Spark at {master}: {why}. Check that the cluster runs, and "
            f"that the master shows this address as its own; then run the query again"
        )


class HomeUnfit(MembersFailed):
    """Members cannot live there; the message has the remedy."""


class StateOfAnother(MembersFailed):
    """The state folder is that of something else."""

    def __init__(self, folder: str, what: str, difference: str) -> None:
        self.what = what
        super().__init__(
            f"the state in {folder} is that of another {what}: {difference}. Run the query as "
            f"before, or start it from scratch with another --state"
        )


class StateInUse(MembersFailed):
    """Another process is using the state; ``which`` shows how to find it."""

    def __init__(self, place: str, which: str) -> None:
        super().__init__(
            f"another process is using the state in {place} ({which}): end that process first, "
            f"or give another --state"
        )


class StateGone(MembersFailed):
    """The state of ``whose`` in ``folder`` is missing, and the ``rest`` is there.

    ``restart`` shows how to start without it.
    """

    def __init__(self, folder: str, whose: str, rest: str, restart: str) -> None:
        super().__init__(
            f"{folder} must contain the state of {whose}, but is missing or empty, although {rest} exists: nothing "
            f"was opened. Restore it from a copy, or {restart}, so that the query starts from scratch"
        )


class NotScaled(MembersFailed):
    """The query continues with its current members, not with so many ``members``."""

    def __init__(self, members: int, why: str) -> None:
        self.members = members
        super().__init__(
            f"the query does not change to {members} member{'' if members == 1 else 's'}, but continues as "
            f"it was: {why}; when that is fixed, try again"
        )


class TakeoverLost(MembersFailed):
    """State given to a member is lost with the process that took it."""

    def __init__(self, member: str, how: str) -> None:
        super().__init__(
            f"the process of {member} {how}, while it took over the state of other members; these members "
            f"continue without it"
        )


class SourcesGone(MembersFailed):
    """Members before a member have read what it does not find: ``sources`` by their names."""

    def __init__(self, member: int, sources: Sequence[str]) -> None:
        more = f", and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
        super().__init__(
            f"files that were read are gone: member {member} must continue to read them, but does not find "
            f"{', '.join(sources[:_NAMED])}{more} (each file is shown as its pattern's name and a digest of "
            f"its path): put these files back"
        )


class StepNotSkipped(MembersFailed):
    """The rows pushed for a step cannot be left out, or not any more; the message has the reason.

    Nothing was changed.
    """

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"--skip-step {step}: {why}; nothing was changed")


class WindowsWritten(StepNotSkipped):
    """The windows that a step without rows closes are in ``outputs`` already: left open, they would come out twice."""

    def __init__(self, step: int, outputs: Sequence[str]) -> None:
        self.outputs = tuple(outputs)
        super().__init__(
            step,
            f"windows that this step closes cannot stay open, because they are already written to "
            f"{', '.join(outputs)}, and would be written twice. Correct the rows, and run the "
            f"query from scratch: with nebuli run, give another --state and new files for its sinks; a "
            f"registered query must be unregistered, and started from its files",
        )


class FolderUnusable(MembersFailed):
    """The state folder cannot be made, read or written."""

    def __init__(self, folder: str, why: str) -> None:
        super().__init__(
            f"the state folder {folder} cannot be used: {why}. Give --state a folder that can be "
            f"created and written, and give the same folder at the next run"
        )


class FolderOfOthers(MembersFailed):
    """The folder that is to be for state has ``others``, files and folders that are not state."""

    def __init__(self, folder: str, others: Sequence[str]) -> None:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        super().__init__(
            f"{folder} has other files in it ({', '.join(others[:_NAMED])}{more}), but the state "
            f"of a query in steps needs a folder of its own: give --state a folder that is empty "
            f"or does not exist yet, such as {folder}/state"
        )


class ClaimDamaged(MembersFailed):
    """The folder's record of its query cannot be read."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(
            f"{file} does not identify the query of this state: {why}. Restore the folder from a copy, or "
            f"start the query from scratch with another --state"
        )


class FailedStep(NamedTuple):
    """A step that cannot be computed: the inputs that reach the place, and the operator, if it is known."""

    step: int
    inputs: list[str]
    operator: str | None


_FAILED = re.compile(r"step ([0-9]+) of inputs? (.*?) cannot be computed: (?:operator (.*?): )?")


def failed_step_in(reason: str) -> FailedStep | None:
    """The step of a `StepFailed`, in what was reported of it; None if the reason is something else."""
    found = _FAILED.match(reason)
    return None if found is None else FailedStep(int(found[1]), found[2].split(", "), found[3])


_LOST = re.compile(r"lost ([0-9]+): (.*)", re.DOTALL)


def as_reason(error: ExchangeFailed) -> str:
    """Return the reason for the others when this member gives up.

    They are to name the lost member, and not this one.
    """
    return f"lost {error.member}: {error.why}" if isinstance(error, PeerLost | PeerMissing) else str(error)


def lost_in(reason: str) -> tuple[int, str] | None:
    """Return the lost member and the cause from the reason that a member gave; None if it is something else."""
    found = _LOST.fullmatch(reason)
    return None if found is None else (int(found[1]), found[2])
