"""Child processes: their output and input, the signal that killed them, and how to end them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

__all__ = ["is_running", "lines", "send_signal", "signal_name", "tell"]

_TOO_LONG = "(a line, or a part of one, that is too long to be shown)"


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Each without its end, to the last. One above the limit of ``reader`` is skipped, and reported."""
    while True:
        try:
            data = await reader.readline()
        except ValueError:  # the part that was read is gone; without further reads the process would block
            yield _TOO_LONG
            continue
        if not data:
            return
        yield data.decode(errors="replace").rstrip()


async def tell(process: Process, line: str) -> None:
    """Write a line on the standard input of a process; harmless when it has ended: its end is reported separately."""
    assert process.stdin is not None
    if process.stdin.is_closing():  # uvloop raises RuntimeError, which does not have the reason
        return
    with suppress(ConnectionError):
        process.stdin.write(line.encode() + b"\n")
        await process.stdin.drain()


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process that asyncio waits for; harmless when it has ended.

    Its own methods check first if it has ended (Python's issue 87744, until 3.13), and so take its exit code from
    the thread that waits for it, which logs an unknown child, and reports that its exit code is 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def is_running(pid: int) -> bool:
    """Return True if a process of this pid runs on this machine; a zombie, yet to be reaped, does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:  # of another account
        return True
    return state != "Z"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, most of which have no name
        return f"signal {number}"
