"""Notes: short documents by name, next to a store or above several, each complete or absent."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nebuli.durable_files import sync_directory, write_durably
from nebuli.store.backends import AWAY_S, backends_at
from nebuli.store.errors import LogTaken, StorageError
from nebuli.store.ordering import Change
from nebuli.store.ordering.single_append import append_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nebuli.store.ordering import Ordering
    from nebuli.store.store_url import StorePlace

_PREFIX = "note/"
_CHECKSUM = "checksum"


def sealed(document: Mapping[str, Any]) -> bytes:
    """A JSON object as a note, with a checksum of all that is in it."""
    return json.dumps({**document, _CHECKSUM: _checksum(document)}, indent=2).encode()


def unsealed(said: bytes) -> dict[str, Any]:
    """The object in a note. Raises ValueError where it was damaged; notes of older versions have no checksum."""
    try:
        document = json.loads(said)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - as any other damage
    noted = document.pop(_CHECKSUM, None)
    if noted not in (None, _checksum(document)):
        raise ValueError(
            f"its checksum is {_checksum(document)}, and the recorded one is {noted}: it was damaged"
        )
    return document


def why_damaged(error: ValueError) -> str:
    """A sentence of what `unsealed`, or a model of the object, has raised."""
    return str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


class Notes:
    """Those of a place: files of a folder, or by URL logs of which the last entry counts. Blocking.

    Methods raise OSError, as if what is at a URL was on a disk. At a URL, a process that wrote or read a note writes
    the next one after it, or not at all: of two that take themselves for its owner, one gets an error.
    """

    def __init__(self, place: StorePlace, *, away_s: float = AWAY_S) -> None:
        """``away_s`` is how long a server is waited for."""
        self.place = place
        self._away_s = away_s
        self._known: dict[str, int] = {}  # the sequences of those that were read or written

    def names(self, ending: str) -> list[str]:
        """Those that end so, in order; forgotten ones may be among them."""
        if isinstance(self.place, Path):
            return sorted(file.name for file in self.place.glob(f"*{ending}"))
        with self._open() as ordering:
            names = [key.removeprefix(_PREFIX) for key in ordering.keys(_PREFIX)]
        return [name for name in names if name.endswith(ending)]

    def read(self, name: str) -> bytes | None:
        """Return the last contents; None if there are none, or they were forgotten."""
        if isinstance(self.place, Path):
            file = self.place / name
            return file.read_bytes() if file.exists() else None
        with self._open() as ordering:
            return self._last(ordering, name)

    def write(self, name: str, said: bytes) -> None:
        """Write one, which is not empty; durable when it returns."""
        if isinstance(self.place, Path):
            write_durably(self.place / name, said.decode())
            return
        with self._open() as ordering:
            self._append(ordering, name, said)

    def forget(self, names: Iterable[str]) -> None:
        """Forget some, durably; it does not matter whether they were there."""
        if isinstance(self.place, Path):
            for name in names:
                (self.place / name).unlink(missing_ok=True)
            sync_directory(self.place)
            return
        with self._open() as ordering:
            for name in names:
                if self._last(ordering, name) is not None:
                    self._append(ordering, name, b"")

    @contextmanager
    def _open(self) -> Iterator[Ordering]:
        ordering, _ = backends_at(self.place, away_s=self._away_s)
        try:
            ordering.open()
            try:
                yield ordering
            finally:
                ordering.close()
        except StorageError as error:
            raise OSError(errno.EIO, str(error), str(self.place)) from error

    def _last(self, ordering: Ordering, name: str) -> bytes | None:
        entries = ordering.scan(f"{_PREFIX}{name}", 0)
        self._known[name] = entries[-1].sequence if entries else 0
        return (entries[-1].data or None) if entries else None

    def _append(self, ordering: Ordering, name: str, said: bytes) -> None:
        if name not in self._known:
            self._last(ordering, name)
        last = self._known[name]
        append_once(ordering, Change(f"{_PREFIX}{name}", last, said), LogTaken(f"{name} of {self.place}"))
        self._known[name] = last + 1
        ordering.truncate(f"{_PREFIX}{name}", last + 1)


class Note:
    """One note, for an event loop: writes are sequential, even if a caller is cancelled."""

    def __init__(self, notes: Notes, name: str) -> None:
        self._notes = notes
        self._name = name
        self._turn = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None

    async def write(self, said: bytes) -> None:
        """Write it, durably. Raises OSError; after that, or a cancel, it is so or not."""
        async with self._turn:
            if self._writing is not None:  # of a call that was cancelled, perhaps: it continues
                await asyncio.wait([self._writing])
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._notes.write, self._name, said))
            await asyncio.shield(self._writing)
