"""Files that are looked at now and then: those that a path or a pattern names, also those that come later."""

from __future__ import annotations

import asyncio
import errno
import glob
import logging
import os
import socket
import stat
import time
from abc import abstractmethod
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from nebuli.connectors.sinks.sink_locks import SinkLock
from nebuli.connectors.sinks.used_files import UsedFiles
from nebuli.ingestion.errors import AddressGone, IngestionError, SourceAway, SourceUnusable
from nebuli.ingestion.source_reader import SourceReader

from .seen_files import Marks, SeenFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nebuli.ingestion.message_addresses import Addresses, Messages

_log = logging.getLogger("nebuli.ingestion")

SHORTEST_S = 0.2
"""How long it takes, where looking costs little, until something new is noticed."""
_LONGEST_S = 60.0
_IDLE_TIMES = 250
"""So many times what a look has cost is waited until the next one: it takes 0.4 % of a core, however many there are."""
_USUAL = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR}
"""Errors that do not go away on their own."""
_Result = TypeVar("_Result")

Look = tuple[int, int, int]
"""By what is seen that a file is another one or has changed: inode, size, and time of its last change."""
_GONE: Look = (0, 0, 0)


def look_of(found: os.stat_result) -> Look:
    """Return the observed state of a file."""
    return found.st_ino, found.st_size, found.st_mtime_ns


class Part:
    """A file, and what comes next of it: the message ``at`` an address."""

    __slots__ = ("at", "is_waiting", "marks", "not_before", "path", "seen")

    def __init__(self, path: str, at: int) -> None:
        self.path = path
        self.at = at
        self.marks = Marks()
        self.seen: Look | None = None
        """How it looked as there was nothing more to read."""
        self.is_waiting = False
        """True if it has changed, and is to be read."""
        self.not_before = 0.0
        """When it is worth the effort to read it again."""


PartT = TypeVar("PartT", bound=Part)


class PolledFiles(SourceReader, Generic[PartT]):
    """One file, or all that match a pattern, each a part by its path; subclasses read their contents.

    A thread does all that may wait for a disk, and has the files' state; of its work, one piece is under way at a
    time, and is not lost with the call that waits for it.
    """

    def __init__(self, path: str, *, name: str, seen: SeenFiles | None = None) -> None:
        """``seen`` is of the readers before this one."""
        self._path = path
        self._name = name
        self._seen = seen or SeenFiles()
        self._is_pattern = glob.has_magic(path)
        self._parts: dict[str, PartT] = {}
        self._ready: deque[PartT] = deque()
        self._look_at = 0.0
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"files of {name}")
        self._turn: asyncio.Future[Messages | None] | None = None
        self._is_closed = False
        self._note: SinkLock | None = None
        """In which sinks on this machine find that it is read."""
        self._turning = Lock()
        self._measuring = Lock()

    @property
    def reads(self) -> str:
        """The source's name, and the path."""
        return f"{self._name} ({self._path})"

    async def open(self, at: Mapping[str, int]) -> None:
        """As `SourceReader.open`; a file of a pattern that is not there any more is taken as done, with a warning."""
        self._note_use()
        await self._in_thread(lambda: self._open(at))

    async def next(self) -> Messages:
        """As `SourceReader.next`; some MiB."""
        while True:
            if self._turn is None:
                self._turn = asyncio.get_running_loop().run_in_executor(self._pool, self._take_turn)
            await asyncio.wait([self._turn])
            turn, self._turn = self._turn, None
            if (found := turn.result()) is not None:
                return found
            await asyncio.sleep(max(0.0, self._look_at - time.monotonic()))

    async def ends(self) -> Addresses:
        """As `SourceReader.ends`; a file that is gone ends where it was read to."""
        return await self._in_thread(self._ends)

    async def close(self) -> None:
        """Let go of the thread, and of what it has open."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.add_done_callback(_is_not_asked_for)
        if not self._is_closed:
            self._is_closed = True
            self._pool.submit(self._let_go)
            self._pool.shutdown(wait=False)
        if self._note is not None:
            self._note.release()
            self._note = None

    def _note_use(self) -> None:
        if self._note is not None:
            return
        used = UsedFiles(
            query=self._name,
            fragment="",
            node=socket.gethostname(),
            directory=Path.cwd(),
            reads=(self._path,),
            writes=(),
        )
        if (note := used.written()) is not None:
            self._note = SinkLock(*note)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    # -- what is in them

    @abstractmethod
    def _new(self, path: str, at: int) -> PartT:
        """The state of a file that is to be read from an address on."""

    @abstractmethod
    def _check(self, part: PartT) -> None:
        """Raise AddressGone where a file that is there does not have the message that comes next; OSError."""

    @abstractmethod
    def _read(self, part: PartT) -> Messages | None:
        """Return the next messages, and advance; None: none yet. Raises OSError.

        Where there is nothing more, ``part.seen`` is how it looked then.
        """

    @abstractmethod
    def _end(self, part: PartT) -> int:
        """Return the address after all its present messages, not below ``part.at``. Raises OSError."""

    def _overdue(self, part: PartT, now: float) -> None:
        """Log it if it should have come to its end."""

    def _let_go(self) -> None:
        """Close open files; called once, after all else, with `_turning` held."""

    # -- on the thread

    def _open(self, at: Mapping[str, int]) -> None:
        self._is_pattern &= self._path not in at
        self._check_directory()
        self._parts = {path: self._begun_at(path, address) for path, address in at.items()}
        there, gone = {*self._paths()}, list[PartT]()
        for path, part in self._parts.items():
            if path in there:
                try:
                    if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as below
                        self._check(part)
                except OSError as error:
                    self._is_away(part, error)
            else:
                part.seen = _GONE
                gone.append(part)
        self._tell_gone(gone)
        self._look()

    def _tell_gone(self, gone: Sequence[PartT]) -> None:
        """Log missing files in one line: they may be many, and each new reader logs them."""
        if gone:
            _log.warning(
                "%s: %d file(s) that were read no longer exist, and are treated as complete; for example, %s was "
                "read up to %s %d",
                *(self._name, len(gone), gone[-1].path, self.unit[:-1], gone[-1].at),
            )

    def _begun_at(self, path: str, at: int) -> PartT:
        part = self._new(path, at)
        part.marks = self._seen.begin(path, at)
        return part

    def _check_directory(self) -> None:
        """Raise if the fixed part of a pattern cannot be listed, which looks as if nothing matched it."""
        if not self._is_pattern or _is_file(self._path):
            return
        names = Path(self._path).parts
        plain = Path(*names[: next(place for place, name in enumerate(names) if glob.has_magic(name))])
        try:
            os.scandir(plain).close()
        except OSError as error:
            raise self._refusal(str(plain), error) from error

    def _take_turn(self) -> Messages | None:
        with self._turning:
            return None if self._is_closed else self._read_some()

    def _read_some(self) -> Messages | None:
        """Read some of one file, those that have something in turn; None: there is nothing in any."""
        if time.monotonic() >= self._look_at:
            self._look()
        while self._ready:
            part = self._ready[0]
            try:
                found = self._read(part)
            except OSError as error:
                self._is_away(part, error)
                found = None
            self._ready.popleft()
            part.is_waiting = False
            if found is not None:
                if part.seen is None:
                    self._go_on(part)
                return found
        return None

    def _wait_for_turn(self, part: PartT) -> None:
        part.is_waiting = True
        self._ready.append(part)

    def _go_on(self, part: PartT) -> None:
        """Read more of it once the others have had their turn, as it may grow forever."""
        self._wait_for_turn(part)

    def _look(self) -> None:
        """See which files are there, and which have changed."""
        begun, now = time.thread_time(), time.monotonic()
        there = self._paths()
        for path in there:
            part = self._parts.get(path)
            if part is None:
                self._check_name(path)
                part = self._parts[path] = self._begun_at(path, 0)
            self._look_at_one(part, now)
        gone = sorted(self._parts.keys() - {*there})
        self._tell_gone([part for part in map(self._parts.__getitem__, gone) if self._is_gone(part)])
        cost = time.thread_time() - begun
        self._look_at = time.monotonic() + min(max(SHORTEST_S, _IDLE_TIMES * cost), _LONGEST_S)

    def _check_name(self, path: str) -> None:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise SourceUnusable(
                f"{self._name}: the name of {path.encode(errors='backslashreplace').decode()} is "
                f"not UTF-8, so the file cannot be recorded: rename it"
            ) from error

    def _look_at_one(self, part: PartT, now: float) -> None:
        try:
            found = os.stat(part.path)  # noqa: PTH116 - a Path for each file at each look costs more than all else
        except OSError as error:
            self._is_away(part, error)
            return
        self._overdue(part, now)
        if not stat.S_ISREG(found.st_mode):
            self._is_no_file(part)
        elif not part.is_waiting and now >= part.not_before and look_of(found) != part.seen:
            part.seen = None
            self._wait_for_turn(part)

    def _is_no_file(self, part: PartT) -> None:
        if not self._is_pattern:
            raise SourceUnusable(
                f"{self._name}: {part.path} is not a regular file; expected a file, or a pattern"
            )

    def _paths(self) -> list[str]:
        self._is_pattern = self._is_pattern and not _is_file(self._path)  # which may be named so
        if not self._is_pattern:
            return [self._path]
        return sorted(glob.glob(self._path, recursive=True))  # noqa: PTH207 - with paths as the pattern has them

    def _is_away(self, part: PartT, error: OSError) -> None:
        """Raise what follows from that, but where a file was read and may go."""
        if not isinstance(error, FileNotFoundError):
            raise self._refusal(part.path, error) from error
        if self._is_pattern:
            self._tell_gone([part] if self._is_gone(part) else [])
        elif part.at:
            raise AddressGone(
                f"{self._name}: {part.path} was read up to {self.unit[:-1]} {part.at}, but is gone: put it "
                "back, or start from scratch"
            ) from error
        else:
            raise SourceAway(f"{self._name}: {part.path} does not exist; waiting for it") from error

    def _is_gone(self, part: PartT) -> bool:
        """True if that is news. A file of a pattern may go once it is read; AddressGone where there was more in it."""
        if not part.at:
            self._parts.pop(part.path, None)  # it was never seen, as if it had never been there
        elif part.is_waiting:
            raise AddressGone(
                f"{self._name}: {part.path} is gone, and was read only up to {self.unit[:-1]} {part.at}: put "
                f"it back, or start from scratch"
            )
        elif part.seen != _GONE:
            part.seen = _GONE
            return True
        return False

    def _refusal(self, path: str, error: OSError) -> IngestionError:
        """Return our error; one of Arrow, which has no number, is about the contents of a file."""
        kind = SourceUnusable if error.errno is None or error.errno in _USUAL else SourceAway
        why = error.strerror or str(error).partition("\n")[0]
        return kind(f"{self._name}: {path} cannot be read: {why}")

    def _ends(self) -> Addresses:
        with self._measuring:  # of one that was cancelled, too
            parts = dict(self._parts)
            found = {}
            for path in dict.fromkeys([*parts, *self._paths()]):
                part = parts.get(path) or self._new(path, 0)
                try:
                    if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as above
                        found[path] = self._end(part)
                except OSError as error:
                    if not (self._is_pattern and isinstance(error, FileNotFoundError)):
                        self._is_away(part, error)
                    found[path] = part.at
            return found


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - as above
    except OSError:
        return False


def _is_not_asked_for(turn: asyncio.Future[Messages | None]) -> None:
    """Silence the error of a task that is not waited for."""
    if not turn.cancelled():
        turn.exception()
