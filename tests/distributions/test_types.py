"""The types of what is installed reach a user's checker: what is right passes, and each wrong call is found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("distributions")]

SCRIPT = """
import asyncio
from collections.abc import AsyncIterator, Iterator

import netchannel
import netchannel.aio
from nebuli.connectors import Signal, Source


async def produce(to: str) -> int:
    async with netchannel.SenderServer(secret="s") as server:
        channel = server.register_channel("c", to=to, buffer=netchannel.BufferPolicy(max_messages=10))
        await channel.send(b"1", note=b"first")
        report: netchannel.CloseReport = await channel.close()
        counted: netchannel.SenderChannelStatistics = channel.statistics()
        server.register_channel("c", to=8)  # wrong
        server.register_channel("c", to=to, bufer=None)  # wrong
        channel.send(b"2")  # wrong
        await channel.flush(within=3)  # wrong
        await channel.ack(1)  # wrong
        print(counted.late)  # wrong
        netchannel.BufferPolicy(when_full="explode")  # wrong
        return counted.sent


async def consume(server: netchannel.ReceiverServer) -> AsyncIterator[bytes]:
    channel = server.register_channel("c", ack="explicit")
    while (message := await channel.recv_message()).sequence < 10:
        await channel.ack(message.sequence)
        yield b""
    server.register_channel("c", ack="never")  # wrong
    server.retain_channel("c", 3)  # wrong
    await channel.recv(1)  # wrong


async def elsewhere() -> None:
    sender = netchannel.aio.sender_server()
    channel = sender.register_channel("c", to="127.0.0.1:1")
    await channel.send(b"1")
    await channel.close()
    sender.register_channel("c")  # wrong
    await channel.close("2")  # wrong


def blocking() -> Iterator[object]:
    channel = netchannel.receiver_server("127.0.0.1:0").register_channel("c")
    yield from channel
    channel.recv(timeout="1")  # wrong
    netchannel.sender_server().register_channel("c", "127.0.0.1:1", ack="receipt")  # wrong


class Numbers(Source):
    def open(self) -> int:  # wrong
        return 1

    def poll(self) -> Signal:
        return Signal.END

    def close(self, reason: str) -> None:
        print(reason)


try:
    asyncio.run(produce("127.0.0.1:1"))
except netchannel.ChannelBroken as error:
    print(error)
"""
WRONG = {number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}


@pytest.fixture(scope="module")
def python(installed: Callable[..., Path]) -> Path:
    return installed("netchannel", "nebuli") / "python"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "users.py"
    path.write_text(SCRIPT, "utf-8")
    return path


def lines(script: Path, pattern: str, *command: str | Path) -> set[int]:
    """Those in which a checker finds something."""
    name, *arguments = command
    done = subprocess.run(
        [Path(sys.executable).with_name(str(name)), *arguments, script],
        cwd=script.parent,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    found = {int(line) for line in re.findall(pattern, done.stdout)}
    assert found, done.stdout + done.stderr
    return found


def test_mypy_finds_each_wrong_call_and_nothing_else(python: Path, script: Path) -> None:
    # Arrow has no types of its own.
    (script.parent / "mypy.ini").write_text(
        "[mypy]\n[mypy-pyarrow.*]\nignore_missing_imports = True\n", "utf-8"
    )
    assert (
        lines(script, r"users\.py:(\d+): error", "mypy", "--strict", "--python-executable", python) == WRONG
    )


def test_basedpyright_finds_each_wrong_call_and_nothing_else(python: Path, script: Path) -> None:
    (script.parent / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}', "utf-8")
    found = lines(script, r"users\.py:(\d+):\d+ - error", "basedpyright", "--pythonpath", python)
    assert found == WRONG
