"""Processes that asyncio waits for, and that somebody ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import pytest

from nebuli.processes import send_signal

pytestmark = pytest.mark.processes

ITS_OWN = 7


def test_a_signal_to_a_process_that_has_just_ended_leaves_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that waits for it has not had its turn yet, as under load; asyncio's own methods would be first."""
    turn = threading.Event()
    waitpid = os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        assert turn.wait(60)
        return waitpid(pid, options)

    async def ended() -> int:
        monkeypatch.setattr(os, "waitpid", late)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"raise SystemExit({ITS_OWN})")
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.returncode is None
        send_signal(process, signal.SIGTERM)
        turn.set()
        return await process.wait()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        assert runner.run(ended()) == ITS_OWN
    assert "Unknown child process" not in caplog.text


async def test_a_signal_ends_a_process_and_is_harmless_after_that() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    send_signal(process, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    send_signal(process, signal.SIGKILL)
