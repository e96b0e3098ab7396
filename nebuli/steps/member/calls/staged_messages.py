"""Questions to a member about pushes in pieces, and its answers; see `call_messages`."""

from __future__ import annotations

from dataclasses import dataclass


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
