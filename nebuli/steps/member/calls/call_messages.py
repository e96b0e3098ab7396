"""Questions to a member about the keys of a view, and its answers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import xxhash

from nebuli.steps.protocol.messages import (
    Reader,
    Vocabulary,
    array,
    malformed,
    number,
    packed,
    read,
    text,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.steps.protocol.errors import MalformedMessage


@dataclass(frozen=True, slots=True)
class LookUp:
    """Asks for the rows of keys of a view, before the first available step from this one on.

    Keys are the IPC message of a batch of the key's columns, each of them once. With a ``name`` the view is held under
    it before each step from there on, for ``within_s`` at most; without one nothing is held, and so long is waited.
    """

    view: str
    keys: bytes
    name: str
    step: int
    within_s: float


@dataclass(frozen=True, slots=True)
class LookUpPinned:
    """As `LookUp`, before just this step, of a view that is held."""

    view: str
    keys: bytes
    name: str
    step: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The rows of the keys before this step of an epoch, in their order: how many rows each, and the rows.

    ``counts`` are int32, little-endian. ``rows`` is the IPC message of a Z-set in the view's schema.
    """

    epoch: int
    step: int
    counts: bytes
    rows: bytes


@dataclass(frozen=True, slots=True)
class TooMuch:
    """The keys have so many bytes of rows, and so many at most are answered at once."""

    size: int
    most: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Keep rows, as in `Push`, for a number of a producer; they count for nothing until that is pushed."""

    handle: str
    producer: str
    sequence: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class PushStaged:
    """Log what was staged in these pieces, as one push, and forget what else was; wait at most ``within_s`` for room.

    The producer's numbers grow, and it may leave some out.
    """

    handle: str
    producer: str
    sequence: int
    within_s: float
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropStaged:
    """Forget these pieces."""

    handle: str
    producer: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """They are durable, under this name."""

    piece: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The number is not beyond the last one that was logged; nothing happened."""

    expected: int


@dataclass(frozen=True, slots=True)
class TooLarge:
    """So many bytes are staged in the pieces, and so many at most are pushed at once; nothing happened."""

    staged_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A piece is not there any more; nothing happened."""

    piece: str


def calls(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which the member is asked."""
    return f"{circuit}/members/{member}/{session}/calls"


def answers(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which it answers."""
    return f"{circuit}/members/{member}/{session}/answers"


def log_name(handle: str, producer: str) -> str:
    """The producer's name in the input log: its numbers count for one input, and it is not a source of the topology."""
    return json.dumps([handle, producer])


def owner(name: str, members: int) -> int:
    """The member whose log has all of a producer's rows: one log checks their numbers."""
    return xxhash.xxh3_64_intdigest(name.encode()) % members


@dataclass(frozen=True, slots=True)
class Push:
    """Log rows, given as the IPC message of a batch in the input's schema; wait at most ``within_s`` for room."""

    handle: str
    producer: str
    sequence: int
    within_s: float
    rows: bytes


@dataclass(frozen=True, slots=True)
class AskNext:
    """Asks for the next number."""

    handle: str
    producer: str


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """Asks for an output from a step on; the member waits at most ``within_s`` until there is some.

    That may be much, and comes in pieces: this is the one of the number ``piece``, from 0 on.
    """

    output: str
    step: int
    piece: int
    within_s: float


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Asks what counts for a step."""

    step: int


@dataclass(frozen=True, slots=True)
class Publish:
    """When it is stopped next, the sinks are to have their results."""


@dataclass(frozen=True, slots=True)
class GiveAhead:
    """Give what never changes to the members of a layout, given as JSON, which listen at these addresses."""

    layout: bytes
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give them the rest of state and logs.

    It is between two steps, and stays there; nothing is logged until `TakeBack`, or the end of the session.
    """

    layout: bytes
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The handed-over state was not taken: continue."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Hold tables, inputs and outputs, under a name, before each step from this one on; for so long at most."""

    name: str
    tables: tuple[str, ...]
    step: int
    within_s: float


@dataclass(frozen=True, slots=True)
class ReadPinned:
    """Asks for a table of a pin before a step, in these columns: the piece with number ``piece``, from 0."""

    name: str
    step: int
    table: str
    columns: tuple[str, ...]
    piece: int


@dataclass(frozen=True, slots=True)
class Unpin:
    """It is no longer read."""

    name: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Take no more rows for an input, from sources or producers, until it is let go."""

    handle: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """Accept rows for an input again."""

    handle: str


@dataclass(frozen=True, slots=True)
class AskFigures:
    """Asks for the member's figures."""


@dataclass(frozen=True, slots=True)
class AskProfile:
    """Look at the process for so long: at its ``heap``, or at what it is busy with (``calls``)."""

    kind: str
    for_s: float


Asked = (
    Push
    | Stage
    | PushStaged
    | DropStaged
    | AskNext
    | ReadOutput
    | AskOffsets
    | Publish
    | GiveAhead
    | HandOver
    | TakeBack
    | Pin
    | ReadPinned
    | Unpin
    | LookUp
    | LookUpPinned
    | Hold
    | LetGo
    | AskFigures
    | AskProfile
)


@dataclass(frozen=True, slots=True)
class Logged:
    """It is durable, and in no step before this one if it came for the first time."""

    step: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers before it are missing; nothing happened."""

    expected: int


@dataclass(frozen=True, slots=True)
class Reused:
    """The number was used for other rows; nothing happened."""

    expected: int


@dataclass(frozen=True, slots=True)
class Full:
    """So many rows wait for a step, but no step was made in time; nothing happened."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Crowded:
    """So many bytes of pushes wait here for room, and so many at most do; nothing happened."""

    waiting_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Next:
    """The number that comes next."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of what an output has below step ``upper``, of so many ``pieces``.

    ``updates`` are steps and their rows, as IPC messages of batches in the output's schema.
    """

    upper: int
    pieces: int
    updates: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class NothingYet:
    """The output has not come so far."""

    upper: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The output is there from a later step on."""

    since: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """The input of a step: by input, the first arrival that counts, and the first that does not any more."""

    ranges: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NoSuchStep:
    """It is known from ``first`` on, up to but not including ``last``."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """All members of the layout have theirs, durably; the next step is this one."""

    step: int


@dataclass(frozen=True, slots=True)
class Noted:
    """It will be done."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """They are held before this step, and before each that follows until one is read."""

    step: int


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """A piece of a table's Z-set, of so many ``pieces``, as an IPC stream; a row may stand in several.

    Without a column of weights, each of its rows is there once.
    """

    pieces: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class NotPinned:
    """Nothing is held under that name before that step: pin it again."""


@dataclass(frozen=True, slots=True)
class NotKept:
    """Its contents are no longer known, or were not kept from the first step."""


@dataclass(frozen=True, slots=True)
class Figures:
    """They are an object in JSON."""

    json: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CouldNot:
    """The store could not do it, or it is not known whether it could; it may be asked again."""

    why: str


Answer = (
    Logged
    | Gap
    | Reused
    | Full
    | Crowded
    | Staged
    | Passed
    | Lost
    | TooLarge
    | Next
    | Piece
    | NothingYet
    | Forgotten
    | Ranges
    | NoSuchStep
    | HandedOver
    | Noted
    | Pinned
    | PinnedRows
    | LookedUp
    | TooMuch
    | NotPinned
    | NotKept
    | Figures
    | Profile
    | CouldNot
)


def encode_asked(at: int, asked: Asked) -> bytes:
    """The message that asks it, under a number that the answer has, too."""
    return packed([at, *_QUESTIONS.values(asked)])


def read_asked(data: bytes, sender: str) -> tuple[int, Asked | MalformedMessage]:
    """Return a question and its number: if the number can be read, other errors can be answered.

    Raises MalformedMessage, which names the sender, as the one that is returned does.
    """
    return read(data, sender, partial(_numbered, data, sender, _QUESTIONS))


def encode_answer(at: int, answer: Answer) -> bytes:
    """The message that answers what had this number."""
    return packed([at, *_ANSWERS.values(answer)])


def read_answer(data: bytes, sender: str) -> tuple[int, Answer | MalformedMessage]:
    """An answer, and the number of what it answers, as `read_asked`."""
    return read(data, sender, partial(_numbered, data, sender, _ANSWERS))


_Message = TypeVar("_Message")


def _numbered(
    data: bytes, sender: str, vocabulary: Vocabulary[_Message], values: list[Any]
) -> tuple[int, _Message | MalformedMessage]:
    if not values:
        raise ValueError("expected an array that begins with a number, got []")
    at = number(values[0])
    try:
        return at, vocabulary.message(values[1:])
    except ValueError as error:
        return at, malformed(data, sender, error)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("not a time in seconds")
    return float(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("not bytes")  # noqa: TRY004 - one type for all that is wrong with bytes
    return value


def _pair(value: Any) -> list[Any]:
    pair = array(value)
    if len(pair) != 2:
        raise ValueError("not a pair")
    return pair


def _updates(value: Any) -> tuple[tuple[int, bytes], ...]:
    return tuple((number(step), _bytes(rows)) for step, rows in map(_pair, array(value)))


def _ranges(value: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(value, dict):
        raise ValueError("not a map from inputs to ranges")  # noqa: TRY004 - one type for all that is wrong with bytes
    pairs = {text(key): _pair(each) for key, each in value.items()}
    return {key: (number(first), number(until)) for key, (first, until) in pairs.items()}


_TYPES: Mapping[Any, Reader] = {
    float: _seconds,
    bytes: _bytes,
    tuple[str, ...]: texts,
    tuple[tuple[int, bytes], ...]: _updates,
    dict[str, tuple[int, int]]: _ranges,
}
_QUESTIONS: Vocabulary[Asked] = Vocabulary(
    {
        "push": Push,
        "stage": Stage,
        "push staged": PushStaged,
        "drop staged": DropStaged,
        "next": AskNext,
        "read": ReadOutput,
        "offsets": AskOffsets,
        "publish": Publish,
        "give ahead": GiveAhead,
        "hand over": HandOver,
        "take back": TakeBack,
        "pin": Pin,
        "read pinned": ReadPinned,
        "unpin": Unpin,
        "look up": LookUp,
        "look up pinned": LookUpPinned,
        "hold": Hold,
        "let go": LetGo,
        "figures": AskFigures,
        "profile": AskProfile,
    },
    _TYPES,
)
_ANSWERS: Vocabulary[Answer] = Vocabulary({kind.__name__: kind for kind in get_args(Answer)}, _TYPES)
