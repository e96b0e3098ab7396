"""Where in the text of a statement something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.sql.sql_tree import sql_of
from topology import Marks, Mistake
from topology.mistakes import Location, Spot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr

_WIDEST = 160


class Unsupported(Exception):
    """A part of a statement that means nothing here; ``at`` is where it begins, if that is known."""

    def __init__(self, message: str, at: Expr | int | None = None) -> None:
        super().__init__(message)
        self.at = at if at is None or isinstance(at, int) else begin_of(at)


def begin_of(node: Expr) -> int | None:
    """Where a part of a tree begins in the text: at the first of its words whose place is known."""
    begins = (each.meta.get("start") for each in node.walk())
    return min((begin for begin in begins if begin is not None), default=None)


def shown(node: Expr) -> str:
    """A part of a statement in a sentence."""
    text = str(sql_of(node))
    return text if len(text) <= 60 else f"{text[:57]}..."


class TextMarks(Marks):
    """The places of operators and their fields in the text of a statement; what is wrong there is pointed at."""

    def __init__(self, text: str, file: str | None, begins: Mapping[Location, int]) -> None:
        super().__init__(file, lambda: ({}, {path: Spot.at(text, begin) for path, begin in begins.items()}))
        self._text = text

    def mistake(self, path: Location, message: str, *, at_key: bool = False) -> Mistake:
        """The mistake, with the line that it is in."""
        found = super().mistake(path, message, at_key=at_key)
        return pointed_at(self._text, found)


def mistake_at(text: str, file: str | None, begin: int | None, message: str) -> Mistake:
    """The mistake ``message`` at an offset of the text."""
    if begin is None:
        return Mistake(message, file)
    spot = Spot.at(text, begin)
    return pointed_at(text, Mistake(message, file, spot.line, spot.column))


def pointed_at(text: str, mistake: Mistake) -> Mistake:
    """The mistake with its line below, and a caret where it is in that."""
    if mistake.line is None or mistake.column is None:
        return mistake
    line = text.split("\n")[mistake.line - 1].rstrip("\r")  # lines as `Spot` counts them
    begin = max(0, min(mistake.column - 1 - _WIDEST // 2, len(line) - _WIDEST))
    before = "".join(each if each == "\t" else " " for each in line[begin : mistake.column - 1])
    more = len(line) > begin + _WIDEST
    line = f"{'... ' if begin else ''}{line[begin : begin + _WIDEST]}{' ...' if more else ''}"
    before = f"{'    ' if begin else ''}{before}"
    return Mistake(
        f"{mistake.message}\n    {line}\n    {before}^", mistake.file, mistake.line, mistake.column
    )
