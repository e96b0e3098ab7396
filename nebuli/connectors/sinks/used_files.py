"""Which files the running queries of this machine read and write, so that no sink writes over another query's source.

Each fragment has a note in memory that all processes share. A sink compares its files with the notes of others: by
path, by device and inode, and with patterns. A note counts as long as any process has its descriptor, which holds a
lock. It gets its name once it is whole and locked, so that it is never visible without its lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from nebuli.connectors.errors import SinkInUse
from nebuli.connectors.sinks.overwrites import is_same, matches

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Holder", "UsedFiles"]

_log = logging.getLogger(__name__)

_NOTES = Path("/dev/shm")  # noqa: S108 - of the machine, independent of a process' temporary folder
_PREFIX = "nebuli-files-"
_LARGEST_NOTE = 1 << 20


class Holder(BaseModel):
    """The user of a file, as it stands in a lock; a source that is ingested has no fragment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    fragment: str
    node: str
    path: str

    def __str__(self) -> str:
        if not self.fragment:
            return f"source {self.query} at {self.node}, as {self.path}"
        return f"query {self.query}, fragment {self.fragment} at {self.node}, as {self.path}"


class UsedFiles(BaseModel):
    """The files of a fragment; what it ``reads`` may be patterns. Relative paths start at ``directory``.

    One that does not run yet is noted for the other fragments of its query alone, which may start before it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    fragment: str
    node: str
    directory: Path
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    runs: bool = True

    def holder(self, path: str) -> Holder:
        """This fragment, as the user of a file."""
        return Holder(
            query=self.query, fragment=self.fragment, node=self.node, path=str(self.directory / path)
        )

    def written(self) -> tuple[str, int] | None:
        """Write a note for others: its file, and the descriptor that holds its lock.

        None where nothing is used, or where there can be no notes, which is logged.
        """
        if not self.reads and not self.writes:
            return None
        file = _NOTES / f"{_PREFIX}{secrets.token_hex(8)}"
        try:
            descriptor = os.open(_NOTES, os.O_TMPFILE | os.O_RDWR, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.pwrite(descriptor, self.model_dump_json().encode(), 0)
                # Given a descriptor for relative paths, Python follows the link to the file; otherwise it does not.
                os.link(f"/proc/self/fd/{descriptor}", file, src_dir_fd=descriptor)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            _log.warning(
                "%s: %s; sinks of other queries that overwrite these files are not detected", file, error
            )
            return None
        return str(file), descriptor

    def refuse_conflicts(self, own_note: str) -> None:
        """Raise SinkInUse if another fragment reads, or writes by another path, a file that this one writes.

        Also if it is of the same query, and writes what this one reads.
        """
        for other in _noted(but=own_note):
            if not other.runs and other.query != self.query:
                continue
            for path in self.writes:
                self._refuse_read(path, other)
                for each in other.writes:
                    if _is_same_elsewhere(self.directory / path, other.directory / each):
                        raise SinkInUse(path, str(other.holder(each)))
            if other.query == self.query:
                for path in other.writes:
                    other._refuse_read(path, self)  # noqa: SLF001 - of the same class

    def _refuse_read(self, path: str, other: UsedFiles) -> None:
        for each in other.reads:
            if matches(str(self.directory / path), each, other.directory):
                raise SinkInUse(path, str(other.holder(each)), "read")


def _is_same_elsewhere(one: Path, other: Path) -> bool:
    """True if two paths are hard links of a file; those that lead to one path have the lock there."""
    return os.path.realpath(one) != os.path.realpath(other) and is_same(str(one), str(other), Path())


def _noted(but: str) -> Iterator[UsedFiles]:
    """The notes that are locked, of this user and of root; others are removed, as their processes are dead."""
    for file in _NOTES.glob(f"{_PREFIX}*"):
        if str(file) != but:
            with suppress(OSError):  # it has gone meanwhile, for example
                yield from _read(file)


def _read(file: Path) -> Iterator[UsedFiles]:
    with file.open("rb") as note:
        if os.geteuid() not in (0, os.fstat(note.fileno()).st_uid):
            return
        try:
            fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ValidationError):  # of another version
                yield UsedFiles.model_validate_json(note.read(_LARGEST_NOTE))
        else:
            file.unlink()
