"""Buffers on a real file system that is full, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from netchannel import ReceiverServer
from tests.support.needs import leave_out
from tests.support.waiting import until_async

TOTAL = 100
"""Messages of 64 KiB; the disk takes fewer than half of them."""

PRODUCER = """
import asyncio, json, os, signal, sys, netchannel
def body(number):
    return b"%d:" % number + bytes([number]) * 65_536
async def main():
    directory, address, total, when_full, resumed = *sys.argv[1:3], int(sys.argv[3]), *sys.argv[4:6]
    settings = {"when_full": when_full, "directory": directory} if when_full != "spill" else {"when_full": when_full}
    async with netchannel.SenderServer() as sender:
        policy = netchannel.BufferPolicy(max_bytes=1 << 20, **settings)
        outbox = sender.register_channel("c", to=address, codec="bytes", buffer=policy)
        try:
            while outbox.position < total:
                async with asyncio.timeout(0.5 if resumed == "no" else None):
                    await outbox.send(body(outbox.position))
        except (netchannel.BufferFull, TimeoutError) as error:
            print(json.dumps({"sent": outbox.position, "error": type(error).__name__, "text": str(error)}), flush=True)
            if when_full != "spill":
                os.kill(os.getpid(), signal.SIGKILL)
            while outbox.position < total:
                await outbox.send(body(outbox.position))
        await outbox.close()
        print(json.dumps({"sent": outbox.position}), flush=True)
asyncio.run(main())
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        leave_out("mounting a tmpfs is not permitted here", "run the tests as root")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@asynccontextmanager
async def producer(
    disk: Path, address: str, when_full: str, *, resumed: bool
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PRODUCER),
        *(str(disk), address, str(TOTAL), when_full, "yes" if resumed else "no"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(disk)},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def told(process: asyncio.subprocess.Process) -> dict[str, object]:
    """What the producer says next."""
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())  # type: ignore[no-any-return]


async def consume(address: str) -> list[bytes]:
    async with ReceiverServer(address) as receiver:
        inbox = receiver.register_channel("c", codec="bytes")
        return [bytes(body) async for body in inbox]


def expected() -> list[bytes]:
    return [b"%d:" % number + bytes([number]) * 65_536 for number in range(TOTAL)]


@pytest.mark.processes
@pytest.mark.parametrize(("when_full", "error"), [("block", "TimeoutError"), ("fail", "StorageFull")])
async def test_a_durable_buffer_on_a_full_disk(
    disk: Path, free_address: str, when_full: str, error: str
) -> None:
    """CH-BUF-2, CH-DUR-3: `send` waits or raises, all that it returned for is there; with space again it goes on."""
    async with producer(disk, free_address, when_full, resumed=False) as process:
        full = await told(process)
        assert full["error"] == error
        assert 10 < full["sent"] < TOTAL // 2  # type: ignore[operator]
        assert await process.wait() == -signal.SIGKILL
    async with producer(disk, free_address, "block", resumed=True) as process:
        assert await consume(free_address) == expected()
        assert await told(process) == {"sent": TOTAL}


@pytest.mark.processes
async def test_a_spilling_buffer_on_a_full_disk(disk: Path, free_address: str) -> None:
    """CH-BUF-2: `send` waits, says so once, and goes on as the consumer takes what is there."""
    async with producer(disk, free_address, "spill", resumed=False) as process:
        assert (await told(process))["error"] == "TimeoutError"
        assert list(disk.iterdir()) == []  # files without names
        assert await consume(free_address) == expected()
        assert await told(process) == {"sent": TOTAL}
        _, stderr = await process.communicate()
    assert stderr.count(b"no space is left") == 1


@pytest.mark.story
@pytest.mark.processes
@pytest.mark.parametrize("when_full", ["block", "spill"])
async def test_space_that_somebody_frees_is_used(disk: Path, free_address: str, when_full: str) -> None:
    """CH-BUF-2: the same process goes on by itself, without its receiver, and has said what to do."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    async with producer(disk, free_address, when_full, resumed=True) as process:
        assert process.stderr is not None
        said = (await process.stderr.readuntil(b"trying again")).decode()
        assert re.search(r"no space is left .* for a record of \d+ bytes .*; free some", said)
        ballast.unlink()

        async def used() -> bool:
            return shutil.disk_usage(disk).used > 2 << 20

        await until_async(used, "more on the disk than there was room for beside the ballast")
        assert await consume(free_address) == expected()
        assert await told(process) == {"sent": TOTAL}
