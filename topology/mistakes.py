"""Mistakes in files that people write, and where they are."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from topology.file_kinds import FIRST_BYTES, kind_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Location = tuple[str | int, ...]
"""The way from a document's root to a value: keys and indices."""
MISPLACED = "misplaced"
"""The type of a `PydanticCustomError` of a whole model: it has ``what`` is wrong, and ``at`` which path in it."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A position in a text; both numbers count from 1."""

    line: int
    column: int

    @classmethod
    def at(cls, text: str, offset: int) -> Spot:
        """The position of the character at ``offset``."""
        return cls(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def spots_in(text: str) -> Callable[[int], Spot]:
    """A ``Spot.at`` for many offsets of one text."""
    lines = [0, *(end.end() for end in re.finditer("\n", text))]

    def at(offset: int) -> Spot:
        line = bisect_right(lines, offset)
        return Spot(line, offset - lines[line - 1] + 1)

    return at


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct: what is wrong and what was expected, and where, as far as that is known."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = [str(part) for part in (self.file, self.line, self.column) if part is not None]
        message = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], self.message)
        message = _LONG_WORD.sub(lambda word: f"{word[0][:_SHOWN]}...", message)  # such as a name
        return ":".join([*where, f" {message}" if where else message])


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONG_WORD = re.compile(r"\S{300,}")
_SHOWN = 80
Spots = tuple[Mapping[Location, Spot], Mapping[Location, Spot]]


class Marks:
    """The places of a document's keys and values.

    ``find`` gives both as mappings from path to spot; it is called once, at the first mistake, because most
    files have none.
    """

    def __init__(self, file: str | None = None, find: Callable[[], Spots] = lambda: ({}, {})) -> None:
        self.file = file
        self._find = find

    @cached_property
    def _spots(self) -> Spots:
        return self._find()

    def mistake(self, path: Location, message: str, *, at_key: bool = False) -> Mistake:
        """The mistake ``message`` at the value (or key) of ``path``, or at the nearest value around it."""
        keys, values = self._spots
        spot = keys.get(path) if at_key else None
        while spot is None and path:
            spot = values.get(path)
            path = path[:-1]
        spot = spot or values.get(())
        if spot is None:
            return Mistake(message, self.file)
        return Mistake(message, self.file, spot.line, spot.column)


def in_file_order(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """The mistakes as a reader of the file meets them, each once."""
    return sorted(dict.fromkeys(mistakes), key=lambda mistake: (mistake.line or 0, mistake.column or 0))


def read_text(path: Path) -> str | Mistake:
    """The text of a file, or the reason why it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        looked_at = "" if path.is_absolute() else f" (looked at {path.absolute()})"
        return Mistake(f"cannot read the file: {error.strerror}{looked_at}", str(path))
    return decoded(data, str(path))


def decoded(data: bytes, file: str) -> str | Mistake:
    """Return the text of a file, or the place where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if (kind := kind_of_bytes(data[:FIRST_BYTES])) is not None:
            return Mistake(f"the file is not text: {kind}", file)
        before = data[: error.start].decode("utf-8-sig")
        spot = Spot.at(before, len(before))
        return Mistake(
            f"not UTF-8: byte 0x{data[error.start]:02x}; save the file in UTF-8", file, spot.line, spot.column
        )


class TopologyError(Exception):
    """One or more mistakes in a topology; ``mistakes`` holds all that were found, in file order."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))


class ConnectorUnusable(Exception):
    """A type of source or sink that is not known, or not available here; the message has the remedy."""
