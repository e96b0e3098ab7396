"""Python programs that a test writes, and runs as processes of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Script:
    """One that runs: it is told by the end of its stdin that it may go on, and says what it has to say in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        """Its process'."""
        return self.process.pid

    async def says(self) -> str:
        """Its next line; empty once it has ended."""
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    def go_on(self) -> None:
        """End its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def kill(self) -> None:
        """By SIGKILL, unless it has ended; and wait for it."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def ends(self) -> None:
        """Wait until it has, well, and without another line."""
        assert await self.says() == ""
        assert await self.process.wait() == 0


@asynccontextmanager
async def script(text: str, *arguments: object) -> AsyncIterator[Script]:
    """Run ``text`` with these arguments; it does not outlive the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", text, *map(str, arguments)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    running = Script(process)
    try:
        yield running
    finally:
        await running.kill()
