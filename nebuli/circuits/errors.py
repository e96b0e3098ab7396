"""What goes wrong for whoever pushes into a running circuit or reads from it.

::

    CircuitError
    ├── CircuitUnreachable     nobody answers there, or not in time; a push may be logged or not
    │   └── CircuitDenied        who answers has another secret, or wants one
    ├── UnknownInput           there is no input of that name, or its rows come from elsewhere
    ├── UnknownOutput          there is no output of that name
    ├── WrongRows              the rows are not of the input's schema
    ├── SequenceError          a producer and the circuit do not agree about its numbers
    │   ├── SequenceGap          something is missing before it
    │   ├── SequenceReused       the number was used for other rows
    │   └── SequencePassed       a later number of rows that were staged was pushed
    ├── StagedLost             rows that were staged are not there any more
    ├── InputFull              so many rows wait for a step that no more are taken
    ├── CircuitShutDown        it was told to end, and takes no rows until it runs again
    ├── StepUnavailable        a step that is asked for
    │   ├── StepForgotten        is not kept any more
    │   └── StepNotThere         is not there yet
    ├── NotScaled              it goes on with the members that it has
    ├── CheckpointNotMade      a checkpoint was given up; steps go on
    ├── QueryError             a query is not answered
    │   ├── WrongQuery           it is none that can be
    │   ├── ContentsUnknown      what a table of it adds up to is not known
    │   ├── QueryTooLarge        it reads, holds or gives too much
    │   └── QueryTimedOut        it took too long
    └── CircuitFailed          something else, which the message says
"""

from __future__ import annotations

from nebuli.rpc import circuit_pb2 as wire


class CircuitError(Exception):
    """The circuit did not do it; the message says why, and what to do."""


class CircuitUnreachable(CircuitError):
    """Nobody answers there, or not in time.

    What was asked for has happened or not; a push is sent again with its number, and happens once.
    """


class CircuitDenied(CircuitUnreachable):
    """Who answers has another secret, or wants one."""


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

    So it is when a circuit goes on with another number of members, and when they are too old.
    """


class InputFull(CircuitError):
    """So many rows wait for a step that no more were taken before the deadline; nothing was logged."""


class CircuitShutDown(CircuitError):
    """The circuit was told to end, and takes no rows until it runs again; nothing of this push was logged."""


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
    """The checkpoint was given up; steps go on."""


class NotScaled(CircuitError):
    """The circuit goes on with the members that it has."""


class QueryError(CircuitError):
    """A query is not answered."""


class WrongQuery(QueryError):
    """It is no statement that only reads, or not of the tables that there are; the message shows the place."""


class ContentsUnknown(QueryError):
    """What an input or an output adds up to was not kept, or has rows that were taken back and never given."""


class QueryTooLarge(QueryError):
    """It reads, holds or gives more than is allowed."""


class QueryTimedOut(QueryError):
    """It was stopped at its deadline, or not all members were there until then."""


class CircuitFailed(CircuitError):
    """Something else, which the message says."""


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
    """What a circuit's refusal is here."""
    bounded = _BOUNDED.get(refusal.reason)
    if bounded is not None:
        return bounded(refusal.message, refusal.expected)
    return _PLAIN.get(refusal.reason, CircuitFailed)(refusal.message)


def refusal_of(error: CircuitError) -> wire.Refusal:
    """What a circuit answers instead of raising this."""
    for reason, kind in (*_PLAIN.items(), *_BOUNDED.items()):
        if type(error) is kind:
            expected = getattr(error, "expected", getattr(error, "bound", 0))
            return wire.Refusal(reason=reason, message=str(error), expected=expected)
    return wire.Refusal(reason=wire.Refusal.REASON_FAILED, message=str(error))
