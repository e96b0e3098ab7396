"""What a coordinator's process asks a member of its input log, and what the member answers.

They go over two channels whose ids have the member's address, which each of its processes has another of: what is still
on its way to a process that ended finds no channel of that name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgpack

PUSH, NEXT = "push", "next"


def pushes(circuit: str, member: int, address: str) -> str:
    """The id of the channel on which the member that listens there is asked."""
    return f"{circuit}/members/{member}/{address}/pushes"


def answers(circuit: str, member: int, address: str) -> str:
    """The id of the channel on which it answers."""
    return f"{circuit}/members/{member}/{address}/answers"


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


Asked = Push | AskNext


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
class Next:
    """The number that comes next."""

    sequence: int


@dataclass(frozen=True, slots=True)
class NotLogged:
    """The store could not do it, or it is not known whether it could; it may be asked again."""

    why: str


Answer = Logged | Gap | Reused | Full | Next | NotLogged
_ANSWERS: dict[str, type[Answer]] = {
    kind.__name__: kind for kind in (Logged, Gap, Reused, Full, Next, NotLogged)
}


def encode_asked(number: int, asked: Asked) -> bytes:
    """The message that asks it, under a number that the answer has, too."""
    match asked:
        case Push(handle, producer, sequence, within_s, rows):
            packed: bytes = msgpack.packb([number, PUSH, handle, producer, sequence, within_s, rows])
        case AskNext(handle, producer):
            packed = msgpack.packb([number, NEXT, handle, producer])
    return packed


def read_asked(data: bytes) -> tuple[int, Asked]:
    """What is asked, and its number."""
    number, kind, *fields = msgpack.unpackb(data, max_bin_len=len(data))
    return number, Push(*fields) if kind == PUSH else AskNext(*fields)


def encode_answer(number: int, answer: Answer) -> bytes:
    """The message that answers what had this number."""
    value: Any = getattr(answer, next(iter(type(answer).__slots__)))
    packed: bytes = msgpack.packb([number, type(answer).__name__, value])
    return packed


def read_answer(data: bytes) -> tuple[int, Answer]:
    """An answer, and the number of what it answers."""
    number, kind, value = msgpack.unpackb(data)
    return number, _ANSWERS[kind](value)
