"""A file system in memory that loses what was not synced, from a seed; fills up; and fails where it is told to."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from netchannel.storage.files import NOTE_BYTES, Buffer, Locked, write_all

_Write = tuple[int, bytes]
_Operation = _Write | int  # a write at an offset, or the size that the file is cut to


class Crash(BaseException):
    """The machine stopped: no call to the file system returns any more, until `SimulatedFiles.power_on`."""


class _Contents:
    """A file: what processes see, what is on the disk, and the operations in between."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.stored = bytearray()
        self.unsynced: list[_Operation] = []

    def apply(self, operation: _Operation) -> None:
        _apply(self.seen, operation)
        self.unsynced.append(operation)

    def copy(self) -> _Contents:
        copied = _Contents()
        copied.seen, copied.stored = bytearray(self.seen), bytearray(self.stored)
        copied.unsynced = list(self.unsynced)
        return copied


class SimulatedFiles:
    """A `netchannel.storage.FileSystem` for one process after another.

    ``kill`` ends the process: locks and open files are gone, everything else is kept by the kernel. ``crash`` and
    ``power_on`` lose power: of every operation since the last sync of its file or directory any part survives, in any
    order, writes torn at any byte. A sync that was made to fail drops what it should have written, though
    it is still seen until the power goes. ``crash_at`` counts down over changing operations; ``capacity`` bounds the
    bytes of all files.
    """

    def __init__(self, seed: int = 0, *, capacity: int | None = None) -> None:
        self._random = random.Random(seed)
        self.capacity = capacity
        self.crash_at: int | None = None
        self.operations = 0
        self.process = 1
        self._off = False
        self._faults: dict[str, list[int]] = {}
        self._seen: dict[Path, _Contents | None] = {Path("/"): None}  # None: a directory
        self._stored = dict(self._seen)
        self._unsynced: list[tuple[Path, Path, _Contents | None, bool]] = []
        self._locks: set[Path] = set()
        self.handles: list[SimulatedFile] = []  # that were opened, closed since or not

    # -- what tests do

    def copy(self) -> SimulatedFiles:
        """Another disk with the same on it, locks and faults and luck too; open files stay with this one.

        As `copy.deepcopy` would, in a tenth of the time: tests that harm each byte once make thousands.
        """
        copied = SimulatedFiles(capacity=self.capacity)
        copied._random.setstate(self._random.getstate())
        copied.crash_at, copied.operations, copied.process = self.crash_at, self.operations, self.process
        copied._off = self._off
        copied._faults = {operation: list(fault) for operation, fault in self._faults.items()}
        files: dict[int, _Contents] = {}  # a file may have two names, or another one on the disk still

        def same(contents: _Contents | None) -> _Contents | None:
            if contents is None:
                return None
            if id(contents) not in files:
                files[id(contents)] = contents.copy()
            return files[id(contents)]

        copied._seen = {path: same(contents) for path, contents in self._seen.items()}
        copied._stored = {path: same(contents) for path, contents in self._stored.items()}
        copied._unsynced = [
            (path, old, same(contents), exists) for path, old, contents, exists in self._unsynced
        ]
        copied._locks = set(self._locks)
        return copied

    def fail(self, operation: str, code: int, *, after: int = 0, times: int = 1) -> None:
        """Let ``operation`` (the method's name) fail with ``code``, ``times`` times after ``after`` good ones."""
        self._faults[operation] = [after, times, code]

    def kill(self) -> None:
        """The process ends, also the one that met a `Crash`, and the machine goes on; another can be started."""
        self._off = False
        self._locks.clear()
        self.process += 1
        self._faults.clear()
        self.crash_at = None

    def crash(self) -> None:
        """The power goes; also raised as `Crash` by the operation that ``crash_at`` names."""
        self._off = True

    def power_on(self) -> None:
        """The machine starts with what survived."""
        self.kill()
        survivors = dict(self._stored)
        for path, source, contents, exists in self._unsynced:
            if not self._chance():
                continue
            if not exists:
                survivors.pop(path, None)
                continue
            if source != path:
                survivors.pop(source, None)
            survivors[path] = contents
        for path in sorted(survivors):
            if path != path.parent and path.parent not in survivors:
                del survivors[path]
        for contents in {id(contents): contents for contents in survivors.values() if contents}.values():
            self._lose(contents)
        self._seen, self._stored, self._unsynced = survivors, dict(survivors), []

    def flip(self, path: Path, offset: int, bits: int = 0xFF) -> None:
        """Damage a byte, for good."""
        contents = self._file(path)
        for data in (contents.seen, contents.stored):
            if offset < len(data):
                data[offset] ^= bits

    def lose(self, path: Path) -> None:
        """Remove a file, for good and behind everybody's back."""
        for names in (self._seen, self._stored):
            names.pop(path, None)
        self._unsynced = [change for change in self._unsynced if path not in change[:2]]

    def names(self, path: Path) -> list[str]:
        """What is in a directory, whatever the faults."""
        return sorted(each.name for each in self._seen if each.parent == path and each != path)

    def bytes_of(self, path: Path) -> bytes:
        """A file's contents."""
        return bytes(self._file(path).seen)

    # -- the file system

    def make_directories(self, path: Path) -> None:
        if path in self._seen:
            self.sync_directory(path.parent)
            return
        self.make_directories(path.parent)
        self._changes("make_directories")
        self._rename(path, path, None, exists=True)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        self._changes("sync_directory")
        kept = []
        for change in self._unsynced:
            name, source, contents, exists = change
            if name.parent != path:
                kept.append(change)
            elif exists:
                self._stored.pop(source, None)
                self._stored[name] = contents
            else:
                self._stored.pop(name, None)
        self._unsynced = kept

    def list_directory(self, path: Path) -> list[str]:
        self._running("list_directory")
        names = self.names(path)
        self._random.shuffle(names)
        return names

    def remove_directory(self, path: Path) -> None:
        self._changes("remove_directory")
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._rename(path, path, None, exists=False)

    def free_bytes(self, path: Path) -> int:
        self._running("free_bytes")
        if self.capacity is None:
            return 1 << 60
        return self.capacity - sum(len(each.seen) for each in self._seen.values() if each)

    def create(self, path: Path) -> SimulatedFile:
        self._changes("create")
        if path in self._seen:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        contents = _Contents()
        self._rename(path, path, contents, exists=True)
        return SimulatedFile(self, contents)

    def open(self, path: Path) -> SimulatedFile:
        self._running("open")
        return SimulatedFile(self, self._file(path))

    def rename(self, old: Path, new: Path) -> None:
        self._changes("rename")
        self._rename(new, old, self._file(old), exists=True)

    def unlink(self, path: Path) -> None:
        self._changes("unlink")
        self._file(path)
        self._rename(path, path, None, exists=False)

    def lock(self, path: Path) -> SimulatedLock:
        self._changes("lock")
        if path.parent not in self._seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path in self._locks:
            raise Locked(self.process)
        if path not in self._seen:
            self._rename(path, path, _Contents(), exists=True)
        self._locks.add(path)
        return SimulatedLock(self._locks, path, self.open(path))

    # -- inside

    def _file(self, path: Path) -> _Contents:
        contents = self._seen.get(path)
        if contents is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return contents

    def _rename(self, path: Path, source: Path, contents: _Contents | None, *, exists: bool) -> None:
        self._seen.pop(source, None)
        if exists:
            self._seen[path] = contents
        self._unsynced.append((path, source, contents, exists))

    def _running(self, operation: str) -> None:
        if self._off:
            raise Crash
        fault = self._faults.get(operation)
        if fault is None:
            return
        fault[0] -= 1
        if fault[0] < 0:
            fault[1] -= 1
            if not fault[1]:
                del self._faults[operation]
            raise OSError(fault[2], os.strerror(fault[2]))

    def _changes(self, operation: str) -> None:
        self._running(operation)
        self.operations += 1
        if self.crash_at is not None:
            self.crash_at -= 1
            if self.crash_at < 0:
                self.crash()
                raise Crash

    def _chance(self) -> bool:
        return self._random.random() < 0.5

    def _lose(self, contents: _Contents) -> None:
        contents.stored = self._survived(contents)
        contents.seen = bytearray(contents.stored)
        contents.unsynced = []

    def _survived(self, contents: _Contents) -> bytearray:
        """What is on the disk when some of the unsynced operations were carried out."""
        disk = bytearray(contents.stored)
        how = self._random.choice(["all", "none", "first", "any"])
        operations = contents.unsynced
        if how == "none":
            return disk
        if how == "first" and operations:
            operations = operations[: self._random.randrange(len(operations)) + 1]
            last = operations[-1]
            if not isinstance(last, int):
                operations = [*operations[:-1], (last[0], last[1][: self._random.randint(0, len(last[1]))])]
        for operation in operations:
            if how != "any":
                _apply(disk, operation)
            elif isinstance(operation, int):
                if self._chance():
                    _apply(disk, operation)
            else:
                for piece in self._pieces(operation, len(contents.stored)):
                    _apply(disk, piece)
        return disk

    def _pieces(self, write: _Write, stored: int) -> list[_Write]:
        """Some pieces of a write; one beyond what was stored may be garbage.

        What is written over is old or new, as disks promise for a sector.
        """
        offset, data = write
        cuts = sorted(self._random.randint(0, len(data)) for _ in range(self._random.randrange(4)))
        pieces = []
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if self._chance():
                piece = data[start:stop]
                if offset + start >= stored and self._random.random() < 0.1:
                    piece = self._random.randbytes(len(piece))
                pieces.append((offset + start, piece))
        return pieces

    def write(self, contents: _Contents, data: bytes, offset: int) -> int:
        if self.capacity is not None and data:
            used = sum(len(each.seen) for each in self._seen.values() if each)
            room = self.capacity - used
            grown = offset + len(data) - len(contents.seen)
            if grown > room:
                data = data[: max(0, len(data) - grown + max(0, room))]
                if not data:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(data) > 1 and self._random.random() < 0.05:
            data = data[: self._random.randrange(1, len(data))]  # a short write, as any system call may
        try:
            self._changes("pwritev")
        except Crash:
            contents.apply((offset, data))  # it may get to the disk still
            raise
        contents.apply((offset, data))
        return len(data)

    def sync(self, contents: _Contents) -> None:
        try:
            self._changes("fdatasync")
        except OSError:
            # Some was written, the rest is forgotten, and the next sync knows nothing of it. Sizes are the journal's.
            for operation in contents.unsynced:
                if isinstance(operation, int) or self._chance():
                    _apply(contents.stored, operation)
            contents.unsynced = []
            raise
        for operation in contents.unsynced:
            _apply(contents.stored, operation)
        contents.unsynced = []

    def truncate(self, contents: _Contents, size: int) -> None:
        self._changes("truncate")
        contents.apply(size)


class SimulatedFile:
    """An open file; it belongs to the process that opened it."""

    def __init__(self, files: SimulatedFiles, contents: _Contents) -> None:
        self._files = files
        self._contents = contents
        self._process = files.process
        self.closed = False
        files.handles.append(self)

    def _open(self, operation: str) -> None:
        if self._process != self._files.process:
            raise Crash
        assert not self.closed
        self._files._running(operation)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._open("open_file")
        return self._files.write(self._contents, b"".join(buffers), offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._open("pread")
        return bytes(self._contents.seen[offset : offset + size])

    def preadv(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        if len(data) > 1 and self._files._random.random() < 0.05:
            data = data[: len(data) // 2]  # a short read, as any system call may
        buffer[: len(data)] = data
        return len(data)

    def size(self) -> int:
        self._open("size")
        return len(self._contents.seen)

    def truncate(self, size: int) -> None:
        self._open("open_file")
        self._files.truncate(self._contents, size)

    def fdatasync(self) -> None:
        self._open("open_file")
        self._files.sync(self._contents)

    def hasten(self, offset: int, size: int) -> None:
        """Nothing: after a crash, what was not waited for may be there or not in any case."""

    def close(self) -> None:
        self.closed = True


class SimulatedLock:
    """A lock that is held."""

    def __init__(self, locks: set[Path], path: Path, file: SimulatedFile) -> None:
        self._locks = locks
        self._path = path
        self._file = file

    def note(self) -> bytes:
        return self._file.pread(NOTE_BYTES, 0)

    def write_note(self, note: bytes) -> None:
        write_all(self._file, [note], 0)
        self._file.fdatasync()

    def release(self) -> None:
        self._locks.discard(self._path)
        self._file.close()

    def abandon(self) -> None:
        self.release()


def _apply(data: bytearray, operation: _Operation) -> None:
    if isinstance(operation, int):
        del data[operation:]
        return
    offset, written = operation
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written
