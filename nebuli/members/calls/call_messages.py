"""What a coordinator's process asks a member of its logs, and what the member answers.

They go over two channels for each session that the two have (see `nebuli.coordinator.control_channels`): what is still
on its way in an older one finds no channel of that name.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any

import msgpack

PUSH, NEXT, READ, OFFSETS, PUBLISH = "push", "next", "read", "offsets", "publish"


def calls(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which the member is asked."""
    return f"{circuit}/members/{member}/{session}/calls"


def answers(circuit: str, member: int, session: str) -> str:
    """The id of the channel on which it answers."""
    return f"{circuit}/members/{member}/{session}/answers"


def log_name(handle: str, producer: str) -> str:
    """The producer's name in the input log: its numbers count for one input, and it is no source of the topology."""
    return json.dumps([handle, producer])


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
    """Say which number comes next."""

    handle: str
    producer: str


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """Say what an output has from a step on; wait at most ``within_s`` until it has something.

    That may be much, and comes in pieces: this is the one of the number ``piece``, from 0 on.
    """

    output: str
    step: int
    piece: int
    within_s: float


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Say what counts for a step."""

    step: int


@dataclass(frozen=True, slots=True)
class Publish:
    """When it is stopped next, the sinks are to have their results."""


Asked = Push | AskNext | ReadOutput | AskOffsets | Publish
_ASKED: dict[str, type[Asked]] = {
    PUSH: Push,
    NEXT: AskNext,
    READ: ReadOutput,
    OFFSETS: AskOffsets,
    PUBLISH: Publish,
}
_KINDS = {kind: name for name, kind in _ASKED.items()}


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
    """So many rows wait for a step, and none was made in time; nothing happened."""

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
    """What counts for a step: by input, the first arrival that does, and the first that does not any more."""

    ranges: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NoSuchStep:
    """It is known from ``first`` on, up to but not including ``last``."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Noted:
    """It will be done."""


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
    | Next
    | Piece
    | NothingYet
    | Forgotten
    | Ranges
    | NoSuchStep
    | Noted
    | CouldNot
)
_ANSWERS: dict[str, type[Answer]] = {kind.__name__: kind for kind in Answer.__args__}


def encode_asked(number: int, asked: Asked) -> bytes:
    """The message that asks it, under a number that the answer has, too."""
    packed: bytes = msgpack.packb([number, _KINDS[type(asked)], *astuple(asked)])
    return packed


def read_asked(data: bytes) -> tuple[int, Asked]:
    """What is asked, and its number."""
    number, kind, *fields = _unpacked(data)
    return number, _ASKED[kind](*fields)


def encode_answer(number: int, answer: Answer) -> bytes:
    """The message that answers what had this number."""
    packed: bytes = msgpack.packb([number, type(answer).__name__, *astuple(answer)])
    return packed


def read_answer(data: bytes) -> tuple[int, Answer]:
    """An answer, and the number of what it answers."""
    number, kind, *fields = _unpacked(data)
    return number, _ANSWERS[kind](*fields)


def _unpacked(data: bytes) -> Any:
    """Lists come as tuples, and may be as long as the message."""
    return msgpack.unpackb(data, use_list=False, max_bin_len=len(data))
