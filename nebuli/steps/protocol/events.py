"""Events of a coordinator, and its instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nebuli.steps.protocol.messages import FromCoordinator, FromMember


# -- what happens


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """This coordinator, and no other, has this epoch, which is greater than all before."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochTaken:
    """The claim failed: another coordinator has this number."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Connected:
    """A process of a member can receive messages."""

    member: int


@dataclass(frozen=True, slots=True)
class Lost:
    """It cannot any more: it has ended, or is silent for too long, or sent bytes that are not a message."""

    member: int
    why: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A member sent a message."""

    member: int
    message: FromMember


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """No steps until they are started again."""


@dataclass(frozen=True, slots=True)
class StartAsked:
    """Continue with steps."""


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A checkpoint with all that was stepped before; ``request`` comes back with what became of it."""

    request: int


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """The end, with a checkpoint if all members are there to make one.

    ``drain``: steps take all rows that members have logged by then, also where the circuit is paused.
    """

    drain: bool = False


@dataclass(frozen=True, slots=True)
class EndRecorded:
    """That all have stopped is recorded for the next coordinator."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is time that `Lockstep.deadline` has come."""


Event = (
    EpochClaimed
    | EpochTaken
    | Connected
    | Lost
    | Heard
    | PauseAsked
    | StartAsked
    | CheckpointAsked
    | ShutdownAsked
    | EndRecorded
    | TimePassed
)


# -- what is to be done, in order


@dataclass(frozen=True, slots=True)
class Tell:
    """Send it to a member."""

    member: int
    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class ClaimEpoch:
    """Take the number after ``after`` by compare-and-append, and say what came of it; ``why`` the last one ended."""

    after: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointMade:
    """All members have it, with what was stepped below ``step``; these requests are answered."""

    step: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """It was given up at all members; these requests are answered."""

    step: int
    why: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputsEnded:
    """All inputs have ended, and all that comes of them is in the outputs below ``step``."""

    step: int


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """All have stopped, with a version at ``step``: record it, for a coordinator after this one; say `EndRecorded`."""

    step: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end that was asked for. ``step``: the next one of all members, which they have a version at; or none."""

    step: int | None


@dataclass(frozen=True, slots=True)
class EpochRuns:
    """All members have opened the same checkpoint, and continue at ``step``. For observers."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class RowsLate:
    """So many rows were late at an operator of a member, since the circuit's first step. For observers."""

    member: int
    operator: str
    rows: int


@dataclass(frozen=True, slots=True)
class RowsWithoutTime:
    """So many rows had no time in a window's column, since the circuit's first step. For observers."""

    member: int
    operator: str
    column: str
    rows: int


@dataclass(frozen=True, slots=True)
class StaysOpen:
    """Windows that an operator of a member holds open at the end of the run. For observers."""

    member: int
    operator: str
    begin_us: int
    end_us: int


Order = (
    Tell
    | ClaimEpoch
    | EpochRuns
    | CheckpointMade
    | CheckpointFailed
    | RowsLate
    | RowsWithoutTime
    | StaysOpen
    | InputsEnded
    | RecordEnd
    | Finished
)
