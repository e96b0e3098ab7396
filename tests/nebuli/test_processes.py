"""Processes that asyncio waits for, and that somebody ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from nebuli.processes import is_running, send_signal, tell
from tests.support.loops import new_uvloop
from tests.support.waiting import wait_for

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


@pytest.mark.parametrize("loop", [new_uvloop, asyncio.SelectorEventLoop])
def test_a_process_is_told_lines_and_it_is_harmless_once_it_has_ended(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """As where a driver of Spark is killed while it is told to begin its stage again."""

    async def told() -> tuple[bytes, int]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        await tell(process, "one")
        first = await process.stdout.readline()
        send_signal(process, signal.SIGKILL)
        for _ in range(40):
            await tell(process, "two")
            await asyncio.sleep(0.01)
        return first, await process.wait()

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(told()) == (b"one\n", -signal.SIGKILL)


CALLING = """
import asyncio, nebuli, grpc.aio, uvloop

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            await channel.unary_unary("/no/such")(b"")
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        for _ in range(5):
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0
    await server.stop(None)

uvloop.run(main())
"""


def test_processes_begin_without_handlers_of_grpc() -> None:
    """Which say so where they cannot do what they would, as somebody is calling."""
    ended = subprocess.run(
        [sys.executable, "-c", CALLING], check=False, capture_output=True, encoding="utf-8", timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_that_its_parent_has_yet_to_reap_runs_no_more() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_running(process.pid)
        process.kill()
        wait_for(lambda: not is_running(process.pid), "its end")
        assert process.returncode is None, "nothing has waited for it"
    assert not is_running(process.pid)
