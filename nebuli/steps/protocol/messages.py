"""Messages between a coordinator and the members of its circuit, as values and as bytes, checked where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Generic, NewType, TypeVar, get_type_hints

import msgpack

from .errors import MalformedMessage

_Message = TypeVar("_Message")
_Value = TypeVar("_Value")
Reader = Callable[[Any], Any]
"""From what MessagePack gives to a value. Raises ValueError, which names the expected type."""
Instant = NewType("Instant", int)
"""Microseconds since 1970."""
_NUMBERS = 1 << 64
_TEXT_LIMIT = 1 << 12


class Vocabulary(Generic[_Message]):
    """Messages by their kinds.

    ``types`` are those of fields, in addition to numbers, booleans and strings, with their readers.
    """

    def __init__(self, kinds: Mapping[str, type[_Message]], types: Mapping[Any, Reader]) -> None:
        self._kinds = dict(kinds)
        self._names = {kind: name for name, kind in kinds.items()}
        readers = {int: number, bool: truth, str: text, **types}
        self._fields = {
            kind: [(field, readers[hint]) for field, hint in get_type_hints(kind).items()]
            for kind in kinds.values()
        }

    def values(self, message: _Message) -> list[Any]:
        """The kind of a message, and its fields."""
        kind = type(message)
        return [self._names[kind], *(getattr(message, field) for field, _ in self._fields[kind])]

    def message(self, values: list[Any]) -> _Message:
        """The message of these values. Raises ValueError."""
        if not values or not isinstance(values[0], str):
            raise ValueError(f"expected an array that begins with a kind, got {str(values)[:80]!r}")
        name, *given = values
        kind = self._kinds.get(name)
        if kind is None:
            raise ValueError(f"the kind {name[:40]!r} is unknown here")
        fields = self._fields[kind]
        if len(given) != len(fields):
            raise ValueError(f"{name!r} has {len(given)} fields; expected {len(fields)}")
        read = []
        for (field, reader), value in zip(fields, given, strict=True):
            try:
                read.append(reader(value))
            except ValueError as error:
                raise ValueError(f"{field} of {name!r} is {str(value)[:80]!r}, {error}") from error
        return kind(*read)


def packed(values: list[Any]) -> bytes:
    """The bytes of an array; a dataclass in it is the array of its fields."""
    data: bytes = msgpack.packb(values, default=astuple)
    return data


def read(data: bytes, sender: str, parse: Callable[[list[Any]], _Value]) -> _Value:
    """Return the result of ``parse`` for the array in these bytes. Raises MalformedMessage, which names the sender."""
    try:
        return parse(_unpacked(data))
    except ValueError as error:
        raise malformed(data, sender, error) from error


def malformed(data: bytes, sender: str, error: ValueError) -> MalformedMessage:
    """Return the error of the sender of these bytes."""
    return MalformedMessage(sender, f"sent {len(data)} bytes that are not a message: {error}")


def _unpacked(data: bytes) -> list[Any]:
    try:
        values = msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"expected MessagePack ({str(error) or type(error).__name__})") from error
    if not isinstance(values, list):
        raise ValueError(f"expected an array, got {str(values)[:80]!r}")  # noqa: TRY004 - see truth
    return values


# -- readers


def number(value: Any) -> int:
    """A whole number, from 0 on."""
    if type(value) is not int or not 0 <= value < _NUMBERS:
        raise ValueError("not a number of 64 bits")
    return value


def numbers(value: Any) -> tuple[int, ...]:
    """An array of numbers."""
    return tuple(number(each) for each in array(value))


def instant(value: Any) -> Instant:
    """A time in microseconds since 1970, also one before."""
    if type(value) is not int or not -(_NUMBERS >> 1) <= value < _NUMBERS >> 1:
        raise ValueError("not a time in microseconds")
    return Instant(value)


def truth(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")  # noqa: TRY004 - one type for all that is wrong with bytes
    return value


def text(value: Any) -> str:
    """A text that is not too long."""
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT:
        raise ValueError(f"not a text of at most {_TEXT_LIMIT} characters")
    return value


def array(value: Any) -> list[Any]:
    """An array of anything."""
    if not isinstance(value, list):
        raise ValueError("not an array")  # noqa: TRY004 - see truth
    return value


def texts(value: Any) -> tuple[str, ...]:
    """An array of texts."""
    return tuple(text(each) for each in array(value))


MESSAGE_LIMIT = 1 << 17
"""The largest message in bytes: one that opens has the addresses of all members."""


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A version of a member's state, and the step that is applied to it next. Version 0 is what a new member has."""

    version: int
    step: int


# -- from the coordinator


@dataclass(frozen=True, slots=True)
class Greet:
    """A new epoch begins: leave all work, and report your state."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Open:
    """Open this version, forget the others. ``addresses`` are those of all members, for the exchange."""

    epoch: int
    checkpoint: Checkpoint
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Run this step. If it is ``replayed``, some member has it in its log: a member without it runs it with no input.

    ``ended``: event time ends with it, so that windows that have begun are over.
    """

    epoch: int
    step: int
    replayed: bool
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Take the state before ``step`` and write it, while steps continue.

    ``attempt`` numbers checkpoints of an epoch.
    """

    epoch: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Commit:
    """All have prepared: make it a version."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """One could not prepare: drop what was written."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Trim:
    """No version that a member may open needs input below this step."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class AskPause:
    """Finish issued steps, and report the next one. ``attempt`` numbers pauses of an epoch."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AskStart:
    """Continue with steps."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AskStop:
    """Run what is issued below ``step``, then make the state a version, and close. It is not the end: see `Dismiss`.

    ``complete``: the run ends there, so that sinks have their results; else it was stopped.
    """

    epoch: int
    step: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Dismiss:
    """All have stopped, and that is recorded: end. For any process of a member, also of one that was not greeted."""

    epoch: int


# -- from a member


@dataclass(frozen=True, slots=True)
class Joined:
    """The state of a member.

    Its versions, one or two, and its input log from ``first`` up to but not including ``last``.

    ``incarnation`` is another for every process; ``address`` is where its exchange listens.
    """

    epoch: int
    members: int
    incarnation: str
    fingerprint: str
    address: str
    checkpoints: tuple[Checkpoint, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The log has the input of these steps, ``last`` is not among them. Comes before `Opened`.

    ``ended`` are the steps with which event time ended.
    """

    epoch: int
    first: int
    last: int
    ended: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """The version is open, others are forgotten, and ``step`` can be run."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Received:
    """So many rows more are logged, for this step at the earliest."""

    epoch: int
    step: int
    rows: int


@dataclass(frozen=True, slots=True)
class Ended:
    """All inputs of this member have ended; what came of them was reported before."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """The step is done, its output is written."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """All of the state is written; a commit needs no more than an entry."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """It could not be written."""

    epoch: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class Committed:
    """It is a version, in addition to the previous one."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class IsPaused:
    """All that was issued is done; ``step`` is next."""

    epoch: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class IsStopped:
    """The state before ``step`` is a version, and nothing is open; others may need this member all the same."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Left:
    """It is notified that it is dismissed, and ends."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Late:
    """So many rows were late at an operator here, since the circuit's first step; sent before a version is reported."""

    epoch: int
    operator: str
    rows: int


@dataclass(frozen=True, slots=True)
class WithoutTime:
    """So many rows had no time in a window's column here, since the circuit's first step.

    Sent before a version is reported.
    """

    epoch: int
    operator: str
    column: str
    rows: int


@dataclass(frozen=True, slots=True)
class WindowsOpen:
    """Windows that an operator holds open here, from the start of the first to the end of the last, in microseconds.

    A member sends it at the end of a run, before it has stopped.
    """

    epoch: int
    operator: str
    begin_us: Instant
    end_us: Instant


@dataclass(frozen=True, slots=True)
class Aborted:
    """It could not be done; ``lasting`` if it could not be done a second time either.

    ``of_input``: because of the data of a source; once that is fixed, it can be tried again.
    """

    epoch: int
    why: str
    lasting: bool
    of_input: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """I follow this epoch, and none that is smaller."""

    epoch: int


FromCoordinator = (
    Greet | Open | Step | Prepare | Commit | GiveUp | Trim | AskPause | AskStart | AskStop | Dismiss
)
FromMember = (
    Joined
    | Replay
    | Opened
    | Received
    | Ended
    | Stepped
    | Prepared
    | NotPrepared
    | Committed
    | IsPaused
    | IsStopped
    | Left
    | Late
    | WithoutTime
    | WindowsOpen
    | Aborted
    | Refused
)
_KINDS_OF_COORDINATOR: Mapping[str, type[FromCoordinator]] = {
    "greet": Greet,
    "open": Open,
    "step": Step,
    "prepare": Prepare,
    "commit": Commit,
    "give up": GiveUp,
    "trim": Trim,
    "pause": AskPause,
    "start": AskStart,
    "stop": AskStop,
    "dismiss": Dismiss,
}
_KINDS_OF_MEMBER: Mapping[str, type[FromMember]] = {
    "joined": Joined,
    "replay": Replay,
    "opened": Opened,
    "received": Received,
    "ended": Ended,
    "stepped": Stepped,
    "prepared": Prepared,
    "not prepared": NotPrepared,
    "committed": Committed,
    "paused": IsPaused,
    "stopped": IsStopped,
    "left": Left,
    "late": Late,
    "without time": WithoutTime,
    "windows open": WindowsOpen,
    "aborted": Aborted,
    "refused": Refused,
}


def encode(message: FromCoordinator | FromMember) -> bytes:
    """The bytes of a message."""
    return packed(_ALL.values(message))


def read_from_coordinator(data: bytes, sender: str) -> FromCoordinator:
    """Return a coordinator's message. Raises MalformedMessage, which names the sender."""
    return read(_bounded(data, sender), sender, _OF_COORDINATOR.message)


def read_from_member(data: bytes, sender: str) -> FromMember:
    """Return a member's message. Raises MalformedMessage, which names the sender."""
    return read(_bounded(data, sender), sender, _OF_MEMBER.message)


def _bounded(data: bytes, sender: str) -> bytes:
    if len(data) > MESSAGE_LIMIT:
        raise malformed(data, sender, ValueError(f"a message has at most {MESSAGE_LIMIT} bytes"))
    return data


def _checkpoint(value: Any) -> Checkpoint:
    pair = array(value)
    if len(pair) != 2:
        raise ValueError("not a version and step")
    return Checkpoint(number(pair[0]), number(pair[1]))


def _checkpoints(value: Any) -> tuple[Checkpoint, ...]:
    found = tuple(_checkpoint(each) for each in array(value))
    if len(found) not in (1, 2) or found[-1].version - found[0].version != len(found) - 1:
        raise ValueError("not one version or two consecutive versions")
    return found


_TYPES: Mapping[Any, Reader] = {
    tuple[str, ...]: texts,
    tuple[int, ...]: numbers,
    Instant: instant,
    Checkpoint: _checkpoint,
    tuple[Checkpoint, ...]: _checkpoints,
}
_OF_COORDINATOR = Vocabulary(_KINDS_OF_COORDINATOR, _TYPES)
_OF_MEMBER = Vocabulary(_KINDS_OF_MEMBER, _TYPES)
_ALL: Vocabulary[FromCoordinator | FromMember] = Vocabulary(
    {**_KINDS_OF_COORDINATOR, **_KINDS_OF_MEMBER}, _TYPES
)
