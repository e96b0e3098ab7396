"""What a worker remembers of its fragments beyond its own end: one file for each, in a directory of its own."""

from __future__ import annotations

import fcntl
import itertools
import os
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from nebuli.durable_files import make_directory, sync_directory, write_durably
from nebuli.rpc.status import FragmentStatus
from placement.stepped import AnyFragment
from topology.connectors import unusable

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["FRAGMENT", "Record", "Records", "StateUnusable"]


FRAGMENT: TypeAdapter[AnyFragment] = TypeAdapter(AnyFragment)
"""Reads what a worker is given to run."""


class StateUnusable(Exception):
    """The directory cannot be used; the message names it, and says why and what to do."""


class Record(BaseModel):
    """A fragment, and how far it had come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fragment: AnyFragment
    status: FragmentStatus


class Records:
    """The files below ``directory``, which is locked as long as this is entered. Each is there whole or not at all.

    They have numbers for names, in the order in which the fragments came: ids are others' to choose.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._paths: dict[str, Path] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        """Take the directory. Raises StateUnusable if another worker has it, or it cannot be written."""
        try:
            make_directory(self._directory)
            self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateUnusable(
                f"{self._directory} is in use by another worker: stop that one, or give each a --state of its own"
            ) from None
        except OSError as error:
            why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
            raise StateUnusable(
                f"{self._directory} cannot be used: {why}; give --state a folder that can be made and written"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def load(self) -> list[Record]:
        """All records, in the order in which they came. Raises StateUnusable for a file that is none."""
        found = []
        for path in self._directory.glob("*.json"):
            try:
                found.append((int(path.stem), Record.model_validate_json(path.read_text())))
            except (ValueError, OSError) as error:
                if isinstance(error, ValidationError) and (lacking := unusable(error)):
                    raise StateUnusable(
                        f"{path} is a fragment's record, and a connector of it cannot be had: {lacking}; install its "
                        f"package, and start the worker again"
                    ) from error
                if not path.stem.isdecimal():
                    raise StateUnusable(
                        f"{path} is no fragment's record, but somebody else's: give the worker a --state of its own, a "
                        f"folder that is empty or not there yet at first"
                    ) from error
                raise StateUnusable(f"{path} is no fragment's record: {error}; remove it") from error
            self._paths[found[-1][1].status.id] = path
        found.sort(key=lambda each: each[0])
        self._numbers = itertools.count(found[-1][0] + 1 if found else 1)
        return [record for _, record in found]

    def save(self, record: Record) -> None:
        """Keep a record, durably when this returns. Raises OSError."""
        id_ = record.status.id
        if id_ not in self._paths:
            self._paths[id_] = self._directory / f"{next(self._numbers)}.json"
        write_durably(self._paths[id_], record.model_dump_json(by_alias=True))

    def forget(self, id_: str) -> None:
        """The fragment was unregistered."""
        path = self._paths.pop(id_, None)
        if path is not None:
            path.unlink(missing_ok=True)
            sync_directory(self._directory)
