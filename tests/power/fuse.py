"""The kernel's protocol for file systems in processes: one that is mounted, and what the kernel asks of it.

As linux/fuse.h has it, version 7.31, of which only what a program needs that uses files: no times, no links, no
locks (these the kernel keeps itself). Nothing is cached, each system call is a request; but for files that programs
share as memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

MAX_WRITE = 1 << 20
ROOT = 1
"""The number by which the kernel knows the root."""

_IN = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, and two that are of no use
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_OPENED = struct.Struct("<QII")
_TRANSFER = struct.Struct(
    "<QQIIQII"
)  # of a read, and of a write: handle, offset, size, and what is of no use
_SIZE_IS_SET, _SIZE_AT = 1 << 3, 16
_DIRECT_IO, _KEEP_CACHE = 1, 2
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_NO_SUID, _NO_DEVICES, _DETACHED = 2, 4, 2
_NEVER_ANSWERED = {2, 36, 42}  # what the kernel forgets, and does not wait for any more

_libc = ctypes.CDLL(None, use_errno=True)


class PowerOff(Exception):
    """The request is not answered, and no other one."""


class Files(Protocol):
    """What a file system does, by numbers of files. Methods raise OSError."""

    def lookup(self, directory: int, name: str) -> int:
        """The number of what has that name."""

    def size(self, number: int) -> int | None:
        """Of a file; None for a directory."""

    def is_memory(self, number: int) -> bool:
        """Whether it is a file that programs share as memory."""

    def names(self, number: int) -> list[str]:
        """Of a directory, in any order."""

    def space(self) -> tuple[int, int]:
        """All bytes, and those that are free."""

    def create(self, directory: int, name: str) -> int:
        """A file."""

    def make_directory(self, directory: int, name: str) -> int:
        """A directory."""

    def unlink(self, directory: int, name: str) -> None:
        """Remove the name of a file."""

    def remove_directory(self, directory: int, name: str) -> None:
        """Remove an empty one."""

    def rename(self, directory: int, old: str, new: str) -> None:
        """Within a directory."""

    def read(self, number: int, offset: int, size: int) -> bytes:
        """What is there."""

    def write(self, number: int, offset: int, data: bytes) -> int:
        """How much was written."""

    def truncate(self, number: int, size: int) -> None:
        """Cut or grow it."""

    def sync(self, number: int) -> None:
        """The contents of a file, or the names in a directory."""


class Mounted:
    """A file system that is mounted. Raises OSError where that is not allowed."""

    def __init__(self, files: Files, place: Path) -> None:
        self.place = place
        self._files = files
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        options = (
            f"fd={self._device},rootmode={stat.S_IFDIR:o},user_id={os.geteuid()},group_id={os.getegid()}"
        )
        try:
            _call("mount", b"forgetful", bytes(place), b"fuse", _NO_SUID | _NO_DEVICES, options.encode())
        except OSError:
            os.close(self._device)
            raise
        self._answers: dict[int, Callable[[int, memoryview], bytes]] = {
            1: self._lookup, 3: self._attributes, 4: self._change, 9: self._make_directory, 10: self._unlink,
            11: self._remove_directory, 12: self._rename, 45: self._rename2, 14: self._open, 15: self._read,
            16: self._write, 17: self._space, 18: self._nothing, 20: self._sync, 25: self._nothing,
            26: self._begin, 27: self._open, 28: self._list, 29: self._nothing, 30: self._sync,
            35: self._create,
        }  # fmt: skip

    def fileno(self) -> int:
        """The descriptor that has something to read when the kernel asks for something."""
        return self._device

    def abort(self) -> None:
        """End it at once: whatever waits in it or holds something open gets an error, now and ever after."""
        os.close(self._device)
        _call("umount2", bytes(self.place), _DETACHED)

    def answer(self) -> None:
        """Do what the kernel asks for. Raises `PowerOff` as the file system does."""
        try:
            request = memoryview(os.read(self._device, MAX_WRITE + (1 << 16)))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                return  # whoever asked does not wait any more
            raise
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in _NEVER_ANSWERED:
            return
        try:
            code, body = 0, self._answers.get(opcode, self._unknown)(node, request[_IN.size :])
        except OSError as error:
            code, body = -(error.errno or errno.EIO), b""
        try:
            os.write(self._device, _OUT.pack(_OUT.size + len(body), code, unique) + body)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the same
                raise

    # -- each kind of request

    def _unknown(self, node: int, data: memoryview) -> bytes:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def _nothing(self, node: int, data: memoryview) -> bytes:
        return b""

    def _begin(self, node: int, data: memoryview) -> bytes:
        read_ahead = struct.unpack_from("<III", data)[2]
        return struct.pack(
            "<IIIIHHIIHHIIH22x", 7, 31, read_ahead, _BIG_WRITES | _MAX_PAGES, 16, 12, MAX_WRITE, 1,
            MAX_WRITE // 4096, 0, 0, 0, 0,
        )  # fmt: skip

    def _attributes_of(self, node: int) -> bytes:
        size = self._files.size(node)
        mode = stat.S_IFDIR | 0o700 if size is None else stat.S_IFREG | 0o600
        size = size or 0
        return _ATTRIBUTES.pack(
            node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, os.geteuid(), os.getegid(), 0, 4096, 0
        )

    def _entry(self, node: int) -> bytes:
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + self._attributes_of(node)

    def _lookup(self, node: int, data: memoryview) -> bytes:
        return self._entry(self._files.lookup(node, _names(data)[0]))

    def _attributes(self, node: int, data: memoryview) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes_of(node)

    def _change(self, node: int, data: memoryview) -> bytes:
        if int.from_bytes(data[:4], "little") & _SIZE_IS_SET:
            self._files.truncate(node, int.from_bytes(data[_SIZE_AT : _SIZE_AT + 8], "little"))
        return self._attributes(node, data)

    def _make_directory(self, node: int, data: memoryview) -> bytes:
        return self._entry(self._files.make_directory(node, _names(data[8:])[0]))

    def _create(self, node: int, data: memoryview) -> bytes:
        created = self._files.create(node, _names(data[16:])[0])
        return self._entry(created) + self._open(created, data)

    def _unlink(self, node: int, data: memoryview) -> bytes:
        self._files.unlink(node, _names(data)[0])
        return b""

    def _remove_directory(self, node: int, data: memoryview) -> bytes:
        self._files.remove_directory(node, _names(data)[0])
        return b""

    def _rename(self, node: int, data: memoryview, names_at: int = 8) -> bytes:
        if int.from_bytes(data[:8], "little") != node:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self._files.rename(node, *_names(data[names_at:]))
        return b""

    def _rename2(self, node: int, data: memoryview) -> bytes:
        if int.from_bytes(data[8:12], "little"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._rename(node, data, 16)

    def _open(self, node: int, data: memoryview) -> bytes:
        flags = _DIRECT_IO if self._files.size(node) is not None else 0
        return _OPENED.pack(node, _KEEP_CACHE if self._files.is_memory(node) else flags, 0)

    def _read(self, node: int, data: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(data)
        return self._files.read(node, offset, size)

    def _write(self, node: int, data: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(data)
        body = bytes(data[_TRANSFER.size : _TRANSFER.size + size])
        return struct.pack("<II", self._files.write(node, offset, body), 0)

    def _sync(self, node: int, data: memoryview) -> bytes:
        self._files.sync(node)
        return b""

    def _space(self, node: int, data: memoryview) -> bytes:
        total, free = self._files.space()
        return struct.pack(
            "<QQQQQIIII24x", total >> 12, free >> 12, free >> 12, 1 << 20, 1 << 20, 4096, 255, 4096, 0
        )

    def _list(self, node: int, data: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(data)
        listed = b""
        for place, name in enumerate(self._files.names(node)[offset:], offset + 1):
            encoded = name.encode()
            entry = struct.pack("<QQII", ROOT, place, len(encoded), 0) + encoded
            entry += bytes(-len(entry) & 7)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


def _names(data: memoryview) -> list[str]:
    return [name.decode() for name in bytes(data).split(b"\0")[:-1]]


def _call(name: str, *arguments: bytes | int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
