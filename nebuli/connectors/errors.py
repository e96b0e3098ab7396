"""Errors that end a fragment before its input does.

::

    FragmentError
    ├── InputError       a source is missing, or is not as described in the topology
    │   ├── InputChanged     rows that were read before are gone, or were changed
    │   ├── InputReplaced    it is not the source whose rows were read
    │   └── InputGone        the next rows of a source are gone
    ├── OutputError      a sink cannot be written, or the result does not fit its mode
    │   ├── SinkInUse        another fragment uses the same file
    │   ├── SinkIsSource     the query reads the file, too, or writes it otherwise
    │   ├── OutputChanged    rows that were written before were changed
    │   ├── RowsUnfit        rows came that a sink cannot take in its mode
    │   ├── OutputGone       rows that were written before are gone
    │   └── OutputForgotten  the first rows, needed to write a sink from its beginning, are no longer kept
    ├── RowsLate         rows came when their window was over, and the query is to fail then
    ├── RowsWithoutTime  rows came to a window whose time is null, and the query is to fail then
    ├── InputLost        a part of what it reads is gone with the process that had it
    ├── NeighbourEnded   a fragment at the other end of a channel is over, with its reason
    │   ├── UpstreamFailed   one that this one reads has failed
    │   └── DownstreamLeft   the one that reads this one takes nothing more
    └── FragmentStopped  on request
"""

from __future__ import annotations

import errno
import glob
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.disk_room import what_to_do

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "DownstreamLeft",
    "FragmentError",
    "FragmentStopped",
    "InputChanged",
    "InputError",
    "InputGone",
    "InputLost",
    "InputReplaced",
    "NeighbourEnded",
    "OutputChanged",
    "OutputError",
    "OutputForgotten",
    "OutputGone",
    "RowInvalid",
    "RowsLate",
    "RowsUnfit",
    "RowsWithoutTime",
    "SinkInUse",
    "UpstreamFailed",
    "fill_in_times",
    "printable",
    "short",
    "shown_names",
    "unreadable",
    "unwritable",
    "without_time",
]

_SHOWN_NAMES = 50
_SHOWN_CHARACTERS = 80


class FragmentError(Exception):
    """Base of what a fragment's sources and sinks raise; the message is a sentence for people."""


class ViewInUse(FragmentError):
    """Views are read by names, at a node by each one."""

    def __init__(self, view: str, error: Exception) -> None:
        super().__init__(
            f"this node already has a view {view!r} ({error}): stop that view's query, or give "
            f"this view another name"
        )


class InputError(FragmentError):
    """The input is wrong: no retry helps before the file or the topology is fixed."""


class InputChanged(InputError):
    """The input of a step has changed since in the source that is to repeat it."""

    def __init__(self, reads: str, first: int, until: int, found: int) -> None:
        has = (
            "these rows are different" if found == until - first else f"the source has only {found:,} of them"
        )
        super().__init__(
            f"{reads}: to repeat steps, the query reads {until - first:,} rows again, from row {first + 1:,} "
            f"on, but now {has}: the source was changed after it was first read; restore it, or start from "
            f"scratch with another state folder"
        )


class InputReplaced(InputError):
    """A source to resume is not the one whose rows were read."""

    def __init__(self, reads: str, rows: int, found: int) -> None:
        has = f"the source has only {found:,}" if found < rows else "the last of them differ"
        super().__init__(
            f"{reads}: steps already contain its first {rows:,} rows, but now {has}: the source was replaced "
            f"or rewritten; restore it, with new rows only at its end, or start from scratch with another "
            f"state folder"
        )


class InputGone(InputError):
    """The next rows of a source are gone: they were freed or replaced."""


class InputLost(FragmentError):
    """The received rows are not the next ones: a process that had some of them is gone, and they are not sent again."""


class OutputError(FragmentError):
    """The result cannot be written where and how the topology requires."""


class SinkInUse(OutputError):
    """Another fragment uses the same file, of which rows would be lost; the message names it."""

    def __init__(self, path: str, holder: str, how: str = "in use as a sink") -> None:
        super().__init__(
            f"{path} is {how} by {holder}: stop that query, wait for its end, or give this sink another path"
        )


class OutputChanged(OutputError):
    """Rows that were written before were changed: the output is neither continued nor overwritten."""

    def __init__(
        self,
        path: str,
        what: str,
        remedy: str = (
            "it was changed since; restore it, or move it away and start from scratch with another state "
            "folder"
        ),
    ) -> None:
        super().__init__(f"{path} {what}: {remedy}")


class RowsUnfit(OutputError):
    """Rows came that the sink cannot take in its mode: the message names them, and the remedy."""


class OutputGone(OutputError):
    """Rows that were written before are gone, or replaced by an empty file."""


class OutputForgotten(OutputError):
    """A sink has to be written from the first step on, and below ``first`` nothing is kept any more."""

    def __init__(self, output: str, kind: str, first: int) -> None:
        self.first = first
        super().__init__(
            f"the sink of {output} ({kind}) must be written from step 0 on, but steps below {first:,} are no "
            f"longer kept, because the previous sink has written them: give the sink its previous type and "
            f"mode, or start from scratch with another state folder"
        )


class RowsLate(FragmentError):
    """Rows came when their window was over, by operator, and the query is to fail then."""

    def __init__(self, late: Mapping[str, int]) -> None:
        where = ", ".join(f"{rows:,} at operator {id_}" for id_, rows in late.items())
        super().__init__(
            f"rows arrived after their window had closed: {where}; with --late fail, late rows make the query "
            f"fail: give the window more lateness, or use --late warn"
        )


class RowsWithoutTime(FragmentError):
    """Rows came to windows whose time is null, by operator; ``times`` are the windows' columns, by operator too."""

    def __init__(self, rows: Mapping[str, int], times: Mapping[str, str]) -> None:
        where = ", ".join(without_time(count, times[id_], id_) for id_, count in rows.items())
        super().__init__(
            f"rows without a time belong to no window: {where}; with --late fail, such rows make the query "
            f"fail: {fill_in_times(times[id_] for id_ in rows)}, or use --late warn"
        )


class NeighbourEnded(FragmentError):
    """A fragment at the other end of a channel is over. ``origin`` is what it gave as the reason, if it could."""

    def __init__(self, message: str, origin: str = "") -> None:
        super().__init__(message)
        self.origin = origin


class UpstreamFailed(NeighbourEnded):
    """The fragment at the other end of a network source has failed."""


class DownstreamLeft(NeighbourEnded):
    """The fragment at the other end of the network sink has left."""


class FragmentStopped(FragmentError):
    """The fragment was asked to stop."""


def short(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """The text, or its beginning: what a source holds is quoted, and may be of any length."""
    return text if len(text) <= characters else text[: characters - 3] + "..."


def printable(text: str) -> str:
    """The text with its control characters escaped: of a file there may be any."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shown_names(names: Sequence[str], among: Sequence[str] = ()) -> str:
    """Names for a sentence, never with a control character.

    A name that another one ``among`` all of them looks like is escaped, too: the two differ in how an accent is
    written (NFC and NFD).
    """
    alike = Counter(unicodedata.normalize("NFC", name) for name in {*names, *among})
    shown = [
        short(
            name
            if name.isprintable() and alike[unicodedata.normalize("NFC", name)] == 1
            else ascii(name)[1:-1]
        )
        for name in names[:_SHOWN_NAMES]
    ]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def without_time(rows: int, column: str, operator: str) -> str:
    """How many rows had no time in the column that the window ``operator`` goes by."""
    return f"{rows:,} at operator {operator}, where column {shown_names([column])} is NULL"


def fill_in_times(columns: Iterable[str]) -> str:
    """The remedy for rows that have no time in one of these columns."""
    predicates = (f"{shown_names([column])} IS NOT NULL" for column in dict.fromkeys(columns))
    return f"filter them out before the window ({', '.join(predicates)}), or fill in the time"


def unreadable(path: str, error: Exception) -> InputError:
    """Return the error for a file that could not be opened or read."""
    if isinstance(error, FileNotFoundError):
        where = "" if Path(path).is_absolute() else f" in {Path.cwd()}"
        pattern = "; patterns apply to queries in steps only (--stepped)" if glob.has_magic(path) else ""
        return InputError(f"{path}: no such file{where}{pattern}")
    return InputError(f"{path} cannot be read: {_reason(error)}")


def unwritable(path: str, error: Exception) -> OutputError:
    """Return the error for a file that could not be made or written."""
    remedy = what_to_do(error)
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "allow this user to write there, or give another path"
    return OutputError(f"{path} cannot be written: {_reason(error)}{'' if remedy is None else f'; {remedy}'}")


def _reason(error: Exception) -> str:
    return printable(error.strerror if isinstance(error, OSError) and error.strerror else str(error))


class RowInvalid(Exception):
    """A row that does not match the schema; the message has the reason.

    ``row`` counts from 0 in what was given to be read.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
