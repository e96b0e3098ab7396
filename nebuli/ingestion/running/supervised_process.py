"""`SupervisedProcess`: an instance of a source, started by this process, or by one that is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from nebuli.processes import signal_name

from .instance_process import TAKEN, order

if TYPE_CHECKING:
    from pathlib import Path

    from nebuli.store.store_url import StorePlace

    from .process_lock import LockHolder, ProcessLock

_STOP_S = 10.0
"""How long an instance has to come to its end before it is killed."""


class SupervisedProcess:
    """The system's descriptor of a process stays that of this one, when its pid comes again (pidfd_open(2))."""

    def __init__(self, pid: int, descriptor: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._child = child

    @classmethod
    def started(cls, place: StorePlace, lock: ProcessLock, source: str, name: str, log: Path) -> Self:
        """Start an instance, which continues when this process has ended. Raises OSError."""
        with log.open("ab") as output:
            child = subprocess.Popen(
                # -P, because the working directory is the user's, and its files are not modules of ours.
                [sys.executable, "-P", "-m", "nebuli.ingestion.running.instance_process", source, name],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        assert child.stdin is not None
        with suppress(ConnectionError), child.stdin:
            child.stdin.write(order(place, lock))
        return cls(child.pid, os.pidfd_open(child.pid), child)

    @classmethod
    def adopted(cls, holder: LockHolder) -> Self | None:
        """Have one that runs already, as this process or a former supervisor has started it; None: it has ended."""
        try:
            descriptor = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            return None
        if not holder.is_running:  # it has ended, and another process has its pid
            os.close(descriptor)
            return None
        return cls(holder.pid, descriptor, None)

    async def ended(self) -> str | None:
        """Wait for its end; how it came to that, unless its source was dropped or another process is that instance."""
        await self._wait()
        if self._child is None:
            return "has ended"
        code = self._child.wait()  # which it has come to
        if code in (0, TAKEN):
            return None
        return f"was killed by {signal_name(-code)}" if code < 0 else f"has ended with exit code {code}"

    async def end(self) -> None:
        """End it, by force if it does not come to its end, and wait for that. Harmless if it has ended."""
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._wait()
        except TimeoutError:
            self._send(signal.SIGKILL)
            await self._wait()
        if self._child is not None:
            self._child.wait()

    def close(self) -> None:
        """Let go of its descriptor; the process is what it was."""
        os.close(self._descriptor)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    async def _wait(self) -> None:
        """Wait until it has ended."""
        has_ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, has_ended.set)
        try:
            await has_ended.wait()
        finally:
            loop.remove_reader(self._descriptor)


async def end_process(holder: LockHolder) -> None:
    """End an instance that may run, and wait for that. Raises OSError."""
    process = SupervisedProcess.adopted(holder)
    if process is not None:
        try:
            await process.end()
        finally:
            process.close()
