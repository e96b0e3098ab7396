"""The file system as storage calls it, so that tests can put one in its place that crashes and fails."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Buffer = bytes | bytearray | memoryview
"""Anything that a vectored write takes."""

NOTE_BYTES = 15
_PID_BYTES = 20
"""A lock's file begins with as many: the process id as text, and a newline."""
_BUFFERS_PER_WRITE = 1024  # IOV_MAX on Linux


class Locked(Exception):
    """Another opener holds the lock; ``pid`` is its process, None if it has not written it yet."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


class File(Protocol):
    """An open file. Methods raise OSError."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at ``offset``; the number of bytes written, which may be fewer than given."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``: fewer at the end of the file, and whenever it likes."""

    def preadv(self, buffer: memoryview, offset: int) -> int:
        """Read from ``offset`` into ``buffer``; how many bytes, which may be fewer, as with `pread`."""

    def size(self) -> int:
        """The size in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def fdatasync(self) -> None:
        """Return once the contents are on the disk. The directory's entry is not the file's affair."""

    def hasten(self, offset: int, size: int) -> None:
        """Begin to bring ``size`` bytes from ``offset`` to the disk, so that `fdatasync` has less to wait for."""

    def close(self) -> None:
        """Give the descriptor back."""


class Lock(Protocol):
    """A lock that is held, with a note of `NOTE_BYTES` for the next holder: empty if none was written."""

    def note(self) -> bytes:
        """Return the last note. Raises OSError."""

    def write_note(self, note: bytes) -> None:
        """Make it the note, durably: a crash leaves any bytes of it. Raises OSError."""

    def release(self) -> None:
        """Let the next opener have it."""

    def abandon(self) -> None:
        """Close the descriptor: gives back the lock unless another process inherited it."""


class FileSystem(Protocol):
    """The file system. Methods raise OSError; a name that was made, moved or removed lasts after `sync_directory`."""

    def make_directories(self, path: Path) -> None:
        """Make ``path`` and what is missing above it, durably. None of them need be missing."""

    def sync_directory(self, path: Path) -> None:
        """Return once the names in ``path`` are on the disk."""

    def list_directory(self, path: Path) -> list[str]:
        """The names in ``path``, in any order."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""

    def free_bytes(self, path: Path) -> int:
        """The bytes that the disk of a directory has room for."""

    def create(self, path: Path) -> File:
        """A new file for reading and writing; FileExistsError if there is one."""

    def open(self, path: Path) -> File:
        """An existing file for reading and writing."""

    def rename(self, old: Path, new: Path) -> None:
        """Move a file, at once, over what may be there."""

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""

    def lock(self, path: Path) -> Lock:
        """Lock ``path``, made if missing. Raises `Locked` if another opener has it, of this process or another."""


def nbytes(buffer: Buffer) -> int:
    """The size in bytes, of a view of other items too."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def write_all(file: File, buffers: Sequence[Buffer], offset: int) -> None:
    """Write all of ``buffers`` at ``offset``, however often the system writes less than it was asked to."""
    left = [memoryview(buffer).cast("B") for buffer in buffers if nbytes(buffer)]
    while left:
        written = file.pwritev(left[:_BUFFERS_PER_WRITE], offset)
        if not written:
            raise OSError(errno.EIO, "a write wrote nothing")
        offset += written
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        left = left[done:]
        if written:
            left[0] = left[0][written:]


def read_all(file: File, size: int, offset: int) -> bytes:
    """``size`` bytes from ``offset``, or fewer where the file ends."""
    data = file.pread(size, offset)
    if len(data) == size or not data:
        return data
    pieces = [data]
    missing = size - len(data)
    while missing and pieces[-1]:
        pieces.append(file.pread(missing, offset + size - missing))
        missing -= len(pieces[-1])
    return b"".join(pieces)


def fill(file: File, buffer: memoryview, offset: int) -> memoryview:
    """The beginning of ``buffer``, filled with what there is in the file from ``offset`` on."""
    done = 0
    while done < len(buffer) and (count := file.preadv(buffer[done:], offset + done)):
        done += count
    return buffer[:done]


class RealFile:
    """A `File` of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at ``offset``."""
        return os.pwritev(self._descriptor, buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        """Read from ``offset``."""
        return os.pread(self._descriptor, size, offset)

    def preadv(self, buffer: memoryview, offset: int) -> int:
        """Read into memory that is there."""
        return os.preadv(self._descriptor, [buffer], offset)

    def size(self) -> int:
        """The size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._descriptor, size)

    def fdatasync(self) -> None:
        """Wait for the disk."""
        os.fdatasync(self._descriptor)

    def hasten(self, offset: int, size: int) -> None:
        """Begin to write out."""
        # Dirty pages stay in memory: they are written out, and only pages that are on the disk already could
        # be dropped.
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealLock:
    """A lock by flock: it belongs to the open file, so that two openers in one process exclude each other too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def note(self) -> bytes:
        """Read the note after the process id."""
        return os.pread(self._descriptor, NOTE_BYTES, _PID_BYTES)

    def write_note(self, note: bytes) -> None:
        """Write the note after the process id."""
        write_all(RealFile(self._descriptor), [note], _PID_BYTES)
        os.fdatasync(self._descriptor)

    def release(self) -> None:
        """Unlock: a child that inherited the descriptor does not keep the lock."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Close once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFiles:
    """The `FileSystem` of the operating system."""

    def make_directories(self, path: Path) -> None:
        """Make directories from the top, each synced into the one above it.

        An existing one is synced too: the process that made it may have been stopped before.
        """
        if path.is_dir():
            with suppress(
                PermissionError
            ):  # a directory that we may pass, not read: then it is not of our making
                self.sync_directory(path.parent)
            return
        self.make_directories(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Sync through a descriptor of the directory."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def list_directory(self, path: Path) -> list[str]:
        """List names."""
        return os.listdir(path)  # noqa: PTH208 - names are wanted, not paths

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def free_bytes(self, path: Path) -> int:
        """Bytes that are free, without what is reserved for root."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def create(self, path: Path) -> RealFile:
        """Create, exclusively."""
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def open(self, path: Path) -> RealFile:
        """Open what is there."""
        return RealFile(os.open(path, os.O_RDWR))

    def rename(self, old: Path, new: Path) -> None:
        """Move."""
        old.rename(new)

    def unlink(self, path: Path) -> None:
        """Remove."""
        path.unlink()

    def lock(self, path: Path) -> RealLock:
        """Lock by flock, and write our process id into the file."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, path):
                    # In place and of one width: a restart must not need room on a full disk.
                    write_all(RealFile(descriptor), [b"%-19d\n" % os.getpid()], 0)
                    return RealLock(descriptor)
            except BlockingIOError:
                pid = os.pread(descriptor, _PID_BYTES, 0).strip()
                os.close(descriptor)
                raise Locked(int(pid) if pid.isdigit() else None) from None
            except BaseException:
                os.close(descriptor)
                raise
            # The holder removed the file between our open and our lock: what we locked is not what others will find.
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


class _Opened(Protocol):
    def abandon(self) -> None:
        """Close the descriptors and do nothing else: the parent continues with the files."""


_opened: WeakSet[_Opened] = WeakSet()


def abandon_in_children(opened: _Opened) -> None:
    """Have ``opened`` abandoned in every child that is forked while it is in use.

    A lock, or the space of a file without a name, would otherwise outlive a killed parent.
    """
    _opened.add(opened)


def _abandon_inherited() -> None:
    for each in list(_opened):
        each.abandon()


os.register_at_fork(after_in_child=_abandon_inherited)
