"""An ordering in SQLite, and what it has next to the database: a bell, locks, and the noted ends of its logs.

A write to the bell wakes all processes that watch its file, which costs one system call.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import sqlite3
import struct
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from nebuli.disk_room import lacking, what_to_do
from nebuli.durable_files import make_directory, sync_directory
from nebuli.store.errors import (
    Conflict,
    EndLost,
    EntriesMissing,
    EntryDamaged,
    Locked,
    StorageError,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
    Unclear,
)
from nebuli.store.names import file_name

from . import Entry, checksum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from . import Change


_MODIFIED = 0x2
_CLOSE_ON_EXEC, _NON_BLOCKING = os.O_CLOEXEC, os.O_NONBLOCK

_REMEDIES = {
    errno.EMFILE: "raise fs.inotify.max_user_instances (sysctl), or open fewer stores at a time",
    errno.ENOSPC: "raise fs.inotify.max_user_watches (sysctl), or open fewer stores at a time",
    errno.ENOENT: "it was deleted or moved after it was opened",
}
_libc = ctypes.CDLL(None, use_errno=True)


class AppendSignal:
    """Notices writes to a file by inotify: nothing is polled, and a killed process leaves no trace."""

    def __init__(self, path: Path) -> None:
        """Listen to a file. Raises StoreUnusable."""
        self._descriptor: int = _libc.inotify_init1(_CLOSE_ON_EXEC | _NON_BLOCKING)
        if self._descriptor < 0:
            raise _refused(path)
        if _libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MODIFIED) < 0:
            error = _refused(path)
            os.close(self._descriptor)
            raise error

    def fileno(self) -> int:
        """The descriptor that can be read when it has rung."""
        return self._descriptor

    def silence(self) -> None:
        """Silence it: its ring was noticed."""
        try:
            while os.read(self._descriptor, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close it: nothing waits for it any more."""
        os.close(self._descriptor)


def _refused(path: Path) -> StoreUnusable:
    code = ctypes.get_errno()
    remedy = _REMEDIES.get(code)
    return StoreUnusable(
        f"{path} cannot be watched: {os.strerror(code)}{'' if remedy is None else f'; {remedy}'}"
    )


ENDS_FILE = "ordering.ends"
_SLOT = struct.Struct("<QQQ8x")
"""The last sequence, a hash of the log's key, and a checksum of both; no slot lies across two sectors of a disk."""


class _NotedEnds:
    """The ends of the logs, noted in a file of their own whenever an append is acknowledged.

    SQLite takes a damaged frame of its write-ahead log for one that a crash has torn, and drops it with all that
    follow. A lost end looks the same as one that was never written, so another file has to have it.

    A slot for each log, at its number. Each note is a lower bound: the log ends there, or later.

    Nothing is synced with an append, which would cost a second sync. A note outlives its process, as the kernel has it;
    a loss of power may take the last of them, and never leaves one beyond what the log has synced before.
    """

    def __init__(self, folder: Path) -> None:
        """Open the file, made if it is not there. Raises OSError."""
        self._descriptor = os.open(folder / ENDS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._map: mmap.mmap | None = None

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
        os.close(self._descriptor)

    def read(self) -> dict[int, tuple[int, int]]:
        """The noted ends by the number of the log, with the hash of its key. Raises OSError.

        A slot that is not as it was written notes nothing.
        """
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, size - size % _SLOT.size, 0)
        found = {}
        for number, (last, key, found_checksum) in enumerate(_SLOT.iter_unpack(data)):
            if last and found_checksum == _slot_checksum(number, last, key):
                found[number] = last, key
        return found

    def note(self, ends: Iterable[tuple[int, str, int]]) -> None:
        """Note where logs end, by number and key. A disk that is full leaves an older note."""
        for number, key, last in ends:
            slots = self._slots(number)
            if slots is not None:
                hashed = _hash_of(key)
                _SLOT.pack_into(
                    slots, number * _SLOT.size, last, hashed, _slot_checksum(number, last, hashed)
                )

    def _slots(self, number: int) -> mmap.mmap | None:
        """The file in memory, large enough for a slot: to write there costs no call, and changes no times."""
        end = (number + 1) * _SLOT.size
        if self._map is None or len(self._map) < end:
            with suppress(OSError):
                size = max(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, os.fstat(self._descriptor).st_size)
                os.posix_fallocate(self._descriptor, 0, size)  # a page without a place would end the process
                self._map = mmap.mmap(self._descriptor, 0)
        return self._map if self._map is not None and len(self._map) >= end else None

    def note_all(self, ends: Mapping[int, tuple[str, int]]) -> None:
        """The same, durably, if it is not noted yet."""
        noted = self.read()
        new = [
            (number, key, last)
            for number, (key, last) in ends.items()
            if noted.get(number) != (last, _hash_of(key))
        ]
        self.note(new)
        if new:
            with suppress(OSError):
                os.fsync(self._descriptor)


def _hash_of(key: str) -> int:
    """The hash that a note has of its log's key."""
    return xxh3_64_intdigest(key.encode())


def _slot_checksum(number: int, last: int, key: int) -> int:
    return xxh3_64_intdigest(struct.pack("<QQQ", number, last, key))


FILE = "ordering.db"
APPLICATION, FORMAT = 0x4E424C53, 1  # "NBLS"
_BITS = 40
"""Bits of an entry's id for its sequence; those above are for its log's number."""
_MASK = (1 << _BITS) - 1
_PAGES = 2000
"""Pages in the write-ahead log, at about which it is copied into the file: 8 MB."""
_TABLES = (
    "create table logs (number integer primary key, key text not null unique)",
    "create table entries (id integer primary key, checksum integer not null, data blob not null)",
    "create view log as select key, id & 0xffffffffff as sequence, data from entries join logs on number = id >> 40",
    f"pragma application_id = {APPLICATION}",
    f"pragma user_version = {FORMAT}",
)
_PAUSE_S = 0.0002, 0.002
"""Seconds between attempts while others write, at least and at most; an append takes about half a millisecond."""
_UNCLEAR = {sqlite3.SQLITE_IOERR}
_ENDINGS = ("", "-wal", "-shm")
"""Suffixes of its files, which SQLite keeps next to each other."""
_NO_ROOM = {sqlite3.SQLITE_FULL}
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteOrdering:
    """An ordering in ``ordering.db`` of a folder: a write-ahead log, synced before an append returns.

    An entry's id is the number of its log and its sequence, so that appending to a log goes to one place of one tree.
    """

    def __init__(self, folder: Path, *, busy_s: float = 30.0) -> None:
        self._folder = folder
        self._busy_s = busy_s
        self._path = str(folder / FILE)
        self._open_connection: sqlite3.Connection | None = None
        self._bell = -1
        self._ends: _NotedEnds | None = None
        self._numbers: dict[str, int] = {}
        self._version = -1

    # -- life

    def open(self) -> None:
        """Make the file, if it is not there, and open it. Raises StoreUnusable, StoreReadOnly, StoreFull, EndLost."""
        try:
            make_directory(self._folder)
            with self._one_at_a_time():
                self._ends = _NotedEnds(self._folder)
                self._open_connection = self._connected(self._ends)
                sync_directory(self._folder)
            self._bell = os.open(self._folder / "bell", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, sqlite3.Error) as error:
            self.close()
            if (lack := self._lack()) is not None:
                raise StoreFull(self._path, *lack) from error
            if _forbids_writing(error):
                raise StoreReadOnly(str(self._folder), error) from error
            raise StoreUnusable(f"{self._folder} cannot be used as a store: {error}") from error
        except StorageError:
            self.close()
            raise

    def hurry(self) -> None:
        """It waits for other writers, which are soon done."""

    def close(self) -> None:
        """Another one may be open in this process."""
        connection, self._open_connection = self._open_connection, None
        if connection is not None:
            connection.close()
        ends, self._ends = self._ends, None
        if ends is not None:
            ends.close()
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """SQLite does not wait for another that makes the same file."""
        descriptor = os.open(self._folder / "opening.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _connected(self, ends: _NotedEnds) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
        )
        try:
            self._begin_with(connection, ends)
            connection.execute("pragma busy_timeout = 0")
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_with(self, connection: sqlite3.Connection, ends: _NotedEnds) -> None:
        noted = ends.read()  # before the logs: others may append
        (application,) = connection.execute("pragma application_id").fetchone()
        (version,) = connection.execute("pragma user_version").fetchone()
        if (application, version) not in ((0, 0), (APPLICATION, FORMAT)):
            raise StoreUnusable(
                f"{self._path} has format {version} (application {application:#x}), but this program reads "
                f"format {FORMAT} ({APPLICATION:#x}): use a program of that version, or another folder"
            )
        if not version:
            _check(self._path, noted, {})
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute(f"pragma wal_autocheckpoint = {_PAGES}")
        if not version:
            connection.execute("begin immediate")
            for each in _TABLES:
                connection.execute(each)
            connection.execute("commit")
        # By the table itself: its index may be damaged, and it would find no log then, or another one.
        logs = connection.execute("select number, key from logs not indexed").fetchall()
        found = {number: (key, _head(connection, number)) for number, key in logs}
        _check(self._path, noted, found)
        self._numbers = {key: number for number, key in logs}
        ends.note_all(found)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._open_connection is None:
            raise StoreClosed
        return self._open_connection

    # -- reading

    def heads(self, keys: Sequence[str]) -> dict[str, int]:
        """The last sequence of each log, all at one moment."""
        with self._reading():
            return {key: self._head(self._number(key)) for key in keys}

    def scan(self, key: str, after: int) -> list[Entry]:
        """The entries above ``after`` that are kept."""
        with self._reading():
            number = self._number(key)
            if number is None:
                return []
            head = self._head(number)
            rows = self._connection.execute(
                "select id, checksum, data from entries where id between ? and ? order by id",
                ((number << _BITS) + after + 1, (number << _BITS) + _MASK),
            ).fetchall()
        found = []
        for id_, expected, data in rows:
            computed = checksum(key, id_ & _MASK, data)
            if computed != expected:
                raise EntryDamaged(
                    f"{key} in {self._path}", id_ & _MASK, expected % (1 << 64), computed % (1 << 64)
                )
            found.append(Entry(id_ & _MASK, data))
        # All from some entry on: those below may be truncated.
        if head > after and (not found or len(found) != head - found[0].sequence + 1):
            raise EntriesMissing(self._path, key, head, len(found))
        return found

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so, in order."""
        with self._reading():
            rows = self._connection.execute("select key from logs not indexed").fetchall()
        return sorted(key for (key,) in rows if key.startswith(prefix))

    def unchanged(self) -> bool:
        """True if nothing has changed, by a counter in memory that all processes share."""
        with self._failing("reading"):
            (version,) = self._connection.execute("pragma data_version").fetchone()
        before, self._version = self._version, int(version)
        return before == self._version

    def _number(self, key: str) -> int | None:
        if key not in self._numbers:
            row = self._connection.execute("select number from logs where key = ?", (key,)).fetchone()
            if row is None:
                return None
            self._numbers[key] = row[0]
        return self._numbers[key]

    def _head(self, number: int | None) -> int:
        return 0 if number is None else _head(self._connection, number)

    # -- writing

    def append(self, changes: Sequence[Change]) -> None:
        """Append all in one transaction, with one sync."""
        ends = []
        with self._writing(unclear=True):
            numbers = {each.key: self._number(each.key) for each in changes}
            found = {key: self._head(number) for key, number in numbers.items()}
            if any(found[each.key] != each.expected for each in changes):
                raise Conflict(found)
            for each in changes:
                number, sequence = numbers[each.key], each.expected + 1
                if number is None:
                    row = self._connection.execute("insert into logs (key) values (?)", (each.key,))
                    number = row.lastrowid or 0
                self._connection.execute(
                    "insert into entries values (?, ?, ?)",
                    ((number << _BITS) + sequence, checksum(each.key, sequence, each.data), each.data),
                )
                ends.append((number, each.key, sequence))
        if self._ends is not None:
            self._ends.note(ends)
        self._ring()

    def truncate(self, key: str, below: int) -> None:
        """Forget entries in pieces, so that others need not wait for long."""
        with self._reading():
            number = self._number(key)
            below = min(below, self._head(number))
        if number is None:
            return
        with self._writing(unclear=False):
            self._connection.execute(
                "delete from entries where id between ? and ?",
                (number << _BITS, (number << _BITS) + below - 1),
            )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A context within which all that is read is of one moment."""
        with self._failing("reading"):
            self._begin("begin", "select 1 from logs limit 1")
            try:
                yield
            finally:
                self._connection.execute("commit")

    @contextmanager
    def _writing(self, *, unclear: bool) -> Iterator[None]:
        with self._failing("writing", unclear=unclear):
            self._begin("begin immediate")
            try:
                yield
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self._connection.execute("rollback")
                raise

    def _begin(self, *statements: str) -> None:
        """Begin a transaction, once others let it be.

        SQLite's own pauses grow with the waiting time, so that others are always first.
        """
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                for each in statements:
                    self._connection.execute(each)
            except sqlite3.OperationalError as error:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(*_PAUSE_S))  # noqa: S311 - no secret
            else:
                return

    @contextmanager
    def _failing(self, doing: str, *, unclear: bool = False) -> Iterator[None]:
        """Errors of SQLite are ours from here on."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._ours(error, doing, unclear=unclear) from error

    def _ours(self, error: sqlite3.Error, doing: str, *, unclear: bool) -> StorageError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        said = f"{error} ({getattr(error, 'sqlite_errorname', 'no code')})"
        if code == sqlite3.SQLITE_BUSY:
            return StoreBusy(self._path, self._busy_s)
        if code in _NO_ROOM:
            return StoreFull(self._path, said)
        if code in _DAMAGED:
            return StoreUnusable(f"{self._path} is damaged: {said}; restore the store's folder from a copy")
        if code in _UNCLEAR:
            lack = self._lack()
            if unclear:
                return Unclear(f"{doing} {self._path}", ": ".join(lack or (said,)))
            if lack is not None:
                return StoreFull(self._path, *lack)
        is_forbidden = _forbids_writing(error)
        return (
            StoreReadOnly(str(self._folder), said) if is_forbidden else StoreFailed(self._path, doing, said)
        )

    def _lack(self) -> tuple[str, str] | None:
        """Return the lack of room, which SQLite reports as an I/O error, if it is that; and its remedy."""
        found = lacking(self._folder, [self._folder / f"{FILE}{end}" for end in _ENDINGS])
        remedy = None if found is None else what_to_do(found)
        return None if found is None or remedy is None else (found.strerror or str(found), remedy)

    # -- others

    def _ring(self) -> None:
        with suppress(
            OSError
        ):  # a bell that does not ring costs others the time until they look on their own
            os.pwrite(self._bell, b"!", 0)

    def bell(self) -> AppendSignal:
        """A bell on the file that is written to after each append."""
        return AppendSignal(self._folder / "bell")

    def lock(self, name: str) -> FileLock:
        """A lock by a file below ``locks``."""
        return FileLock(self._folder / "locks" / f"{file_name(name)}.lock", name)


def _forbids_writing(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NOT_WRITABLE
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY


def _check(path: str, noted: Mapping[int, tuple[int, int]], found: Mapping[int, tuple[str, int]]) -> None:
    """No log may end below its noted end. Raises EndLost."""
    for number, (last, hashed) in noted.items():
        key, end = found.get(number, ("", 0))
        if _hash_of(key) != hashed or end < last:
            raise EndLost(path, key or f"log {number}", last, end)


def _head(connection: sqlite3.Connection, number: int) -> int:
    (last,) = connection.execute(
        "select max(id) from entries where id between ? and ?",
        (number << _BITS, (number << _BITS) + _MASK),
    ).fetchone()
    return (last or 0) & _MASK


class FileLock:
    """A lock on a file, which ends with the process; the file names its holder."""

    def __init__(self, path: Path, name: str) -> None:
        """Lock a file. Raises Locked, StoreFailed."""
        try:
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreFailed(str(path), "locking", error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "another"
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise Locked(name, f"process {holder}") from None
            raise StoreFailed(str(path), "locking", error) from error
        with suppress(OSError):  # a full disk: it is locked all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def close(self) -> None:
        """Let it go."""
        os.close(self._descriptor)
