"""A worker's records of its fragments beyond its own end: one note for each, in its own place."""

from __future__ import annotations

import fcntl
import itertools
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from nebuli.durable_files import make_directory
from nebuli.rpc.status import FragmentStatus
from nebuli.store.errors import Locked, StorageError
from nebuli.store.notes import Notes
from placement.stepped_plan import AnyFragment
from topology.connectors import unusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from nebuli.store.store_url import StorePlace, StoreUrl

__all__ = ["FRAGMENT", "FragmentRecord", "Records", "StateUnusable"]

_ENDING = ".json"
_AWAY_S = 5.0
"""How long to wait for a server: the worker does not answer meanwhile."""
FRAGMENT: TypeAdapter[AnyFragment] = TypeAdapter(AnyFragment)
"""Reads what a worker is given to run."""


class StateUnusable(Exception):
    """The directory cannot be used; the message has its name, the reason and the remedy."""


class FragmentRecord(BaseModel):
    """A fragment, and how far it had come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fragment: AnyFragment
    status: FragmentStatus


class Records:
    """The notes at ``place``, which is locked as long as this is entered. Each is there whole or not at all.

    They have numbers for names, in the order in which the fragments came: ids are others' to choose.
    """

    def __init__(self, place: StorePlace) -> None:
        self._place = place
        self._notes = Notes(place, away_s=_AWAY_S)
        self._lock = ExitStack()
        self._names: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        """Take the place. Raises StateUnusable if another worker has it, or it cannot be written."""
        place = self._place
        self._lock.enter_context(_folder_locked(place) if isinstance(place, Path) else _url_locked(place))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.close()

    def load(self) -> list[FragmentRecord]:
        """All records, in the order in which they came. Raises StateUnusable for a malformed note.

        At a URL all are written once more: a worker that has lost the place without a word cannot write them then.
        """
        found = []
        for name in self._notes.names(_ENDING):
            try:
                said = self._notes.read(name)
                if said is None:
                    continue
                found.append((int(name.removesuffix(_ENDING)), FragmentRecord.model_validate_json(said)))
                if not isinstance(self._place, Path):
                    self._notes.write(name, said)
            except (ValueError, OSError) as error:
                raise self._none(name, error) from error
            self._names[found[-1][1].status.id] = name
        found.sort(key=lambda each: each[0])
        self._numbers = itertools.count(found[-1][0] + 1 if found else 1)
        return [record for _, record in found]

    def _none(self, name: str, error: ValueError | OSError) -> StateUnusable:
        path = f"{self._place}/{name}"
        if isinstance(error, ValidationError) and (lacking := unusable(error)):
            return StateUnusable(
                f"{path} is the record of a fragment whose connector is not available: {lacking}; install its "
                f"package, and start the worker again"
            )
        if not name.removesuffix(_ENDING).isdecimal():
            return StateUnusable(
                f"{path} is not a fragment's record: give the worker its own --state, a folder that is empty "
                f"or does not exist yet"
            )
        return StateUnusable(f"{path} is not a fragment's record: {error}; remove it")

    def save(self, record: FragmentRecord) -> None:
        """Keep a record, durably when this returns. Raises OSError."""
        id_ = record.status.id
        if id_ not in self._names:
            self._names[id_] = f"{next(self._numbers)}{_ENDING}"
        of_its_process = {"status": {"views"}}
        text = record.model_dump_json(by_alias=True, exclude=of_its_process)
        self._notes.write(self._names[id_], text.encode())

    def forget(self, id_: str) -> None:
        """The fragment was unregistered. Raises OSError."""
        name = self._names.get(id_)
        if name is not None:
            self._notes.forget([name])
            del self._names[id_]


@contextmanager
def _folder_locked(directory: Path) -> Iterator[None]:
    try:
        make_directory(directory)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StateUnusable(
            f"{directory} is in use by another worker: stop that worker, or give each worker its own --state"
        ) from None
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise StateUnusable(
            f"{directory} cannot be used: {why}; give a folder for --state that this user can create and "
            "write"
        ) from error
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def _url_locked(url: StoreUrl) -> Iterator[None]:
    from nebuli.store.held_lock import HeldLock  # which needs what most installations do not have

    try:
        lock = HeldLock(url, "worker")
    except Locked as error:
        raise StateUnusable(
            f"{url} is in use by another worker ({error.holder}): stop that worker, or give each "
            f"worker its own --state; the claim of a lost machine expires within 12 s"
        ) from None
    except StorageError as error:
        raise StateUnusable(str(error)) from error
    try:
        yield
    finally:
        lock.close()
