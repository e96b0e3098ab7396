"""Errors of clients that push into a running circuit or read from it.

::

    CircuitError
    ├── CircuitUnreachable     there is no answer, or not in time; a push may be logged or not
    │   └── CircuitDenied        the server has another secret, or requires one
    ├── UnknownInput           there is no input of that name, or its rows come from elsewhere
    ├── UnknownOutput          there is no output of that name
    ├── WrongRows              the rows do not match the input's schema
    ├── SequenceError          a producer and the circuit do not agree about its numbers
    │   ├── SequenceGap          something is missing before it
    │   ├── SequenceReused       the number was used for other rows
    │   └── SequencePassed       a later number of rows that were staged was pushed
    ├── StagedLost             staged rows are gone
    ├── InputFull              so many rows wait for a step that no more are accepted
    ├── CircuitShutDown        it was asked to end, and takes no rows until it runs again
    ├── StepUnavailable        a requested step
    │   ├── StepForgotten        it is no longer kept
    │   └── StepNotThere         it is not there yet
    ├── NotScaled              it continues with its current members
    ├── CheckpointNotMade      a checkpoint was given up; steps continue
    ├── QueryError             a query is not answered
    │   ├── WrongQuery           it is not a valid query
    │   ├── ContentsUnknown      the contents of one of its tables are not known
    │   ├── QueryTooLarge        it reads, holds or gives too much
    │   └── QueryTimedOut        it took too long
    └── CircuitFailed          another error, given in the message
"""

from __future__ import annotations

from nebuli.rpc import circuit_pb2 as wire


class CircuitError(Exception):
    """The circuit did not do it; the message has the reason and the remedy."""


class CircuitUnreachable(CircuitError):
    """There is no answer, or not in time.

    The request has taken effect or not; a push is sent again with its number, and happens once.
    """


class CircuitDenied(CircuitUnreachable):
    """The server has another secret, or requires one."""


class UnknownInput(CircuitError):
    """There is no input of that name, or its rows come from sources of the topology."""


class UnknownOutput(CircuitError):
    """There is no output of that name."""


class WrongRows(CircuitError):
    """The rows are not of the input's schema; nothing was logged."""


class SequenceError(CircuitError):
    """A producer and the circuit do not agree about its numbers; ``expected`` is its next. Nothing was logged."""

    def __init__(self, message: str, expected: int) -> None:
        self.expected = expected
        super().__init__(message)


class SequenceGap(SequenceError):
    """Numbers before this one are missing."""


class SequenceReused(SequenceError):
    """The number was used for other rows."""


class SequencePassed(SequenceError):
    """A later number was pushed: of rows that were staged, only the last one may come again."""


class StagedLost(CircuitError):
    """Rows that were staged are not there any more; nothing was logged: stage all of them again.

    This happens when a circuit changes its number of members, and when they are too old.
    """


class InputFull(CircuitError):
    """So many rows wait for a step that no more were taken before the deadline; nothing was logged."""


class CircuitShutDown(CircuitError):
    """The circuit was asked to end, and takes no rows until it runs again; nothing of this push was logged."""


class StepUnavailable(CircuitError):
    """A step cannot be given; ``bound`` is the first that is kept, or the next that comes."""

    def __init__(self, message: str, bound: int) -> None:
        self.bound = bound
        super().__init__(message)


class StepForgotten(StepUnavailable):
    """It is not kept any more; ``bound`` is the first that is."""


class StepNotThere(StepUnavailable):
    """It is not there yet; ``bound`` is the next that comes."""


class CheckpointNotMade(CircuitError):
    """The checkpoint was given up; steps continue."""


class NotScaled(CircuitError):
    """The circuit continues with its current members."""


class QueryError(CircuitError):
    """A query is not answered."""


class WrongQuery(QueryError):
    """The statement does more than read, or reads a table that does not exist; the message shows the place."""


class ContentsUnknown(QueryError):
    """The contents of an input or an output were not kept, or have rows that were retracted and never added."""


class QueryTooLarge(QueryError):
    """It reads, holds or gives more than is allowed."""


class QueryTimedOut(QueryError):
    """It was stopped at its deadline, or not all members were there until then."""


class CircuitFailed(CircuitError):
    """Another error, given in the message."""


_PLAIN = {
    wire.Refusal.REASON_UNKNOWN_INPUT: UnknownInput,
    wire.Refusal.REASON_UNKNOWN_OUTPUT: UnknownOutput,
    wire.Refusal.REASON_WRONG_ROWS: WrongRows,
    wire.Refusal.REASON_INPUT_FULL: InputFull,
    wire.Refusal.REASON_NO_CHECKPOINT: CheckpointNotMade,
    wire.Refusal.REASON_NOT_SCALED: NotScaled,
    wire.Refusal.REASON_WRONG_QUERY: WrongQuery,
    wire.Refusal.REASON_CONTENTS_UNKNOWN: ContentsUnknown,
    wire.Refusal.REASON_QUERY_TOO_LARGE: QueryTooLarge,
    wire.Refusal.REASON_QUERY_TIMED_OUT: QueryTimedOut,
    wire.Refusal.REASON_STAGED_LOST: StagedLost,
    wire.Refusal.REASON_SHUT_DOWN: CircuitShutDown,
}
_BOUNDED = {
    wire.Refusal.REASON_SEQUENCE_GAP: SequenceGap,
    wire.Refusal.REASON_SEQUENCE_REUSED: SequenceReused,
    wire.Refusal.REASON_SEQUENCE_PASSED: SequencePassed,
    wire.Refusal.REASON_STEP_FORGOTTEN: StepForgotten,
    wire.Refusal.REASON_STEP_NOT_THERE: StepNotThere,
}


def refused(refusal: wire.Refusal) -> CircuitError:
    """Return the error for a circuit's refusal."""
    bounded = _BOUNDED.get(refusal.reason)
    if bounded is not None:
        return bounded(refusal.message, refusal.expected)
    return _PLAIN.get(refusal.reason, CircuitFailed)(refusal.message)


def refusal_of(error: CircuitError) -> wire.Refusal:
    """Return a circuit's answer for this error."""
    for reason, kind in (*_PLAIN.items(), *_BOUNDED.items()):
        if type(error) is kind:
            expected = getattr(error, "expected", getattr(error, "bound", 0))
            return wire.Refusal(reason=reason, message=str(error), expected=expected)
    return wire.Refusal(reason=wire.Refusal.REASON_FAILED, message=str(error))
