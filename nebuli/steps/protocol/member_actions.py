"""Tasks of a member, and their outcomes. Each has the epoch that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nebuli.steps.protocol.messages import Checkpoint, FromCoordinator, FromMember


# -- to do, in order


@dataclass(frozen=True, slots=True)
class Say:
    """Send it to the coordinator that greeted last; a `Refused` to every one that is connected."""

    message: FromMember


@dataclass(frozen=True, slots=True)
class LookAround:
    """Leave everything that an older epoch began: step, exchange, state that is being written. Then report `Found`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class OpenState:
    """Open this version and forget the others, open the exchange with ``addresses``. Then report `HasOpened`."""

    epoch: int
    checkpoint: Checkpoint
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run it; with no input if it is ``replayed`` and not in the log. Then report `HasStepped`.

    ``ended``: event time ends with it; also if it is replayed, and this log has no note of that.
    """

    epoch: int
    step: int
    replayed: bool
    ended: bool = False


@dataclass(frozen=True, slots=True)
class WriteState:
    """Take the state at once, write it in the background. Then report `HasWritten` or `CouldNotWrite`."""

    epoch: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class CommitState:
    """Make what was written a version, keep the one before. Then report `HasCommitted`."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class DropState:
    """Stop writing it, or drop it."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Input below this step may go, at any time."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class CloseState:
    """Make the state before ``step`` a version, keep the one before, close everything. Then report `HasClosed`.

    ``complete``: the run ends there, and sinks have their results.
    """

    epoch: int
    step: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is wanted of this member any more: its process may end."""


Task = (
    Say
    | LookAround
    | OpenState
    | RunStep
    | WriteState
    | CommitState
    | DropState
    | TrimLog
    | CloseState
    | Leave
)


# -- what happened


@dataclass(frozen=True, slots=True)
class Told:
    """A coordinator sent a message."""

    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class Found:
    """Nothing of an older epoch runs; this is there, and the log from ``first`` up to but not including ``last``.

    ``ended`` are the steps of the log with which event time ended.
    """

    epoch: int
    checkpoints: tuple[Checkpoint, ...]
    first: int
    last: int
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HasOpened:
    """The version is the only one; ``waiting`` rows are logged and in no step yet."""

    epoch: int
    waiting: int


@dataclass(frozen=True, slots=True)
class HasStepped:
    """Its output is written."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HasWritten:
    """It is durable."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CouldNotWrite:
    """It is not written; the member continues all the same."""

    epoch: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class HasCommitted:
    """It is a version."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class HasClosed:
    """It is a version, and nothing is open."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HasFailed:
    """Something else could not be done; ``lasting`` if it could not a second time either. Running work is abandoned.

    ``of_input``: because of what a source reads.
    """

    epoch: int
    why: str
    lasting: bool = False
    of_input: bool = False


@dataclass(frozen=True, slots=True)
class HasArrived:
    """So many rows more are logged; of no epoch: they stay."""

    rows: int


@dataclass(frozen=True, slots=True)
class HasEnded:
    """All inputs of this member have ended, and are logged; of no epoch: they stay so."""


Happening = (
    Told
    | Found
    | HasOpened
    | HasStepped
    | HasWritten
    | CouldNotWrite
    | HasCommitted
    | HasClosed
    | HasFailed
    | HasArrived
    | HasEnded
)
