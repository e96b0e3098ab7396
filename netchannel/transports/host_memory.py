"""Memory that processes of one user on one host have in common: files without a name, handed over by Unix sockets.

Only a file that can neither shrink nor grow is mapped, so that no peer can make a read fail. A receiver's socket has an
abstract name, which goes with it; what was mapped goes with the last process that has it. Nothing is left to clean up.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from netchannel.core.shared_memory import SharedMemory
from netchannel.log_texts import log
from netchannel.values import LARGEST_SIZE, check_given
from netchannel.wire.messages import MEETING_SIZE, PLACE_SIZE, TOKEN_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED_MEMORY = 1 << 26
"""Bytes that are shared with a peer, unless a server sets another amount; pages that were never used cost nothing."""
AT_ONCE = 16
"""Messages that are read in one turn of the loop: any process on this host may send some."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if hasattr(fcntl, "F_SEAL_SEAL") else 0
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a message's sender, from the kernel."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("net", "pid", "user")


def place() -> bytes | None:
    """Return the common identity of processes that may share memory: kernel, namespaces, user.

    None if none can be shared.

    Containers of one pod have the same network, and the numbers of their users may be equal by accident.
    """
    if not _SEALS or not hasattr(os, "memfd_create"):
        return None
    try:
        found = [_BOOT.read_text("utf-8"), str(os.geteuid())]
        for name in _NAMESPACES:
            status = Path("/proc/self/ns", name).stat()
            found.append(f"{status.st_dev}:{status.st_ino}")
    except OSError:
        return None
    return blake2b("\0".join(found).encode(), digest_size=PLACE_SIZE).digest()


def within_host(sock: socket.socket | None) -> bool:
    """True if a connection stays on this host."""
    if sock is None:
        return False
    try:
        return sock.family == socket.AF_UNIX or sock.getpeername()[0] == sock.getsockname()[0]
    except OSError:  # it is lost already
        return False


def _address(meeting: bytes) -> bytes:
    return b"\0netchannel-" + meeting.hex().encode()


class HostMemory(SharedMemory):
    """Shared memory of this process, on the loop that runs when it is made: ``size`` bytes at most for each peer."""

    def __init__(self, size: int, where: bytes) -> None:
        self.size = size
        self.place = where
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._expected: dict[bytes, Callable[[memoryview | None], None]] = {}
        self._meeting = b""
        self._socket: socket.socket | None = None

    # -- the side that writes

    def hand_over(self, meeting: bytes, token: bytes, size: int) -> memoryview | None:
        try:
            descriptor = os.memfd_create("netchannel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(descriptor, size)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
                memory = mmap.mmap(descriptor, size)
                _send(_address(meeting), token, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.info("no memory is shared: %s", error)
            return None
        return memoryview(memory)

    def give_back(self, memory: memoryview, offset: int, size: int) -> None:
        whole = memory.obj
        assert isinstance(whole, mmap.mmap)
        end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        if start < end:
            with contextlib.suppress(OSError):
                whole.madvise(mmap.MADV_REMOVE, start, end - start)

    # -- the side that reads

    def expect(self, token: bytes, take: Callable[[memoryview | None], None]) -> bytes | None:
        if self._socket is None:
            try:
                self._socket = self._listen()
            except OSError as error:
                log.info("no memory can be shared: %s", error)
                return None
        self._expected[token] = take
        return self._meeting

    def expect_no_more(self, token: bytes) -> None:
        self._expected.pop(token, None)

    def _listen(self) -> socket.socket:
        self._meeting = os.urandom(MEETING_SIZE)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.bind(_address(self._meeting))
            self._loop.add_reader(sock, self._receive, sock)
        except OSError:
            sock.close()
            raise
        return sock

    def _receive(self, sock: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                token, descriptors, user = _received(sock)
            except BlockingIOError:
                return
            except OSError as error:  # e.g. no descriptor is left
                log.info("no memory is shared: %s", error)
                return
            try:
                if user == os.geteuid() and (take := self._expected.pop(token, None)) is not None:
                    take(_mapped(descriptors, self.size))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def soon(self, action: Callable[[], None]) -> None:
        call = self._loop.call_soon
        if threading.get_ident() != self._thread:
            call = self._loop.call_soon_threadsafe
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is to be notified
            call(action)

    def descriptors(self) -> list[int]:
        """The file descriptor of its socket, if it has one."""
        return [] if self._socket is None else [self._socket.fileno()]

    def close(self) -> None:
        """Take nothing more; what is mapped stays as long as it is in use."""
        self._expected.clear()
        sock, self._socket = self._socket, None
        if sock is not None:
            self._loop.remove_reader(sock)
            sock.close()


def _send(address: bytes, token: bytes, descriptor: int) -> None:
    rights = array.array("i", [descriptor])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendmsg([token], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT, address)


def _received(sock: socket.socket) -> tuple[bytes, list[int], int | None]:
    """Return the contents of one message, the descriptors that came with it, and its sender. Raises OSError."""
    descriptors = array.array("i")
    user = None
    room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(descriptors.itemsize)
    said, ancillary, _, _ = sock.recvmsg(TOKEN_SIZE + 1, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) // descriptors.itemsize * descriptors.itemsize])
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, user, _ = _CREDENTIALS.unpack(data)
    return said, list(descriptors), user


def _mapped(descriptors: list[int], most: int) -> memoryview | None:
    """The memory, to be read; None if a read of it could fail, now or later."""
    if len(descriptors) != 1:
        log.info("no memory is shared: %d files arrived instead of one", len(descriptors))
        return None
    descriptor = descriptors[0]
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        # Huge pages have a file system of their own, and may be missing when they are read.
        page = os.fstatvfs(descriptor).f_bsize
        if seals & _SEALS != _SEALS or not 0 < size <= most or page != mmap.PAGESIZE:
            text = "no memory is shared: its file has the seals %#x, %d bytes and pages of %d; the limit is %d bytes"
            log.info(text, seals, size, page, most)
            return None
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    except OSError as error:  # e.g. of a file that cannot be sealed
        log.info("no memory is shared: %s", error)
        return None


def make_shared_memory(size: int) -> HostMemory | None:
    """Return shared memory for the servers of the running loop; None if there is none, or ``size`` is 0."""
    where = place() if size else None
    return None if where is None else HostMemory(size, where)


def check_shared_memory(size: int) -> None:
    """Raise for what no setting ``shared_memory`` can be."""
    check_given("shared_memory", size, int)
    if not 0 <= size <= LARGEST_SIZE:
        raise ValueError(f"shared_memory is {size}: expected bytes up to {LARGEST_SIZE}, or 0 for none")
