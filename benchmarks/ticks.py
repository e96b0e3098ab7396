"""The kernel's timer as a file: it wakes blocking code and event loops alike, on the microsecond."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from types import TracebackType
from typing import Self

NANOSECONDS = 1_000_000_000
_ABSOLUTE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Times(ctypes.Structure):
    """C's `struct itimerspec`."""

    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "first_s", "first_ns")]


class Ticks:
    """One every ``interval_ns``, the first of them at ``start_ns`` on the monotonic clock."""

    def __init__(self, start_ns: int, interval_ns: int) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._ticked = 0
        self._file = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
        times = _Times(*divmod(interval_ns, NANOSECONDS), *divmod(start_ns, NANOSECONDS))
        if self._file < 0 or _libc.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(times), None) < 0:
            raise OSError(ctypes.get_errno(), "the kernel gives no timer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._file)
        os.close(self._file)

    def wait(self) -> int:
        """Block until there is one; how many there were since the last call."""
        return int.from_bytes(os.read(self._file, 8), "little")

    async def arrived(self) -> int:
        """The same for coroutines."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._file, self._on_tick)
        if not self._ticked:
            self._waiting = self._loop.create_future()
            await self._waiting
        ticked, self._ticked = self._ticked, 0
        return ticked

    def _on_tick(self) -> None:
        self._ticked += self.wait()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
