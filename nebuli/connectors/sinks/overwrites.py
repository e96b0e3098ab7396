"""Files that a query would write over while it reads them, or write twice."""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.connectors.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SinkIsSource", "check_files", "is_same", "matches"]


class SinkIsSource(OutputError):
    """A file that a query writes is one that it reads, or that it writes otherwise, too."""

    def __init__(self, written: str, other: str, how: str) -> None:
        same = "" if written == other else f", which is the same file as {other},"
        super().__init__(f"{written}{same} is {how} by the same query: give the sink another path")


def check_files(reads: Iterable[str], writes: Iterable[str], directory: Path) -> None:
    """Raise SinkIsSource where a file that is written is read, or written twice.

    Relative paths start at ``directory``. Paths that are read may be patterns. Links and hard links are the file that
    they lead to.
    """
    written = list(writes)
    for path in written:
        for read in reads:
            if matches(path, read, directory):
                raise SinkIsSource(path, read, "read")
    for one, other in combinations(written, 2):
        if is_same(one, other, directory):
            raise SinkIsSource(one, other, "written")


def is_same(one: str, other: str, directory: Path) -> bool:
    """True if two paths lead to one file, which is regular or is not there yet."""
    first, second = directory / one, directory / other
    try:
        return first.samefile(second) and first.is_file()
    except OSError:  # one of them is not there yet
        return os.path.realpath(first) == os.path.realpath(second)


def matches(written: str, read: str, directory: Path) -> bool:
    """True if a file is the one that is read, which may be a pattern."""
    if is_same(written, read, directory):
        return True
    if not glob.has_magic(read):
        return False
    there = glob.glob(read, root_dir=directory, recursive=True)  # noqa: PTH207 - a path may be absolute
    if any(is_same(written, each, directory) for each in there):
        return True
    path, pattern = (os.path.abspath(directory / each) for each in (written, read))  # noqa: PTH100 - of a pattern
    parts, wanted = Path(path).parts, Path(pattern).parts
    if "**" in wanted:
        return fnmatchcase(path, pattern)
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
