"""Members that are processes: over connections that break, and with one of them killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.support.chaos import ChaosProxy
from tests.support.members import host
from tests.support.ports import free_addresses
from tests.support.seeds import drawn_seed
from tests.support.sizes import seeds

pytestmark = [pytest.mark.processes, pytest.mark.long]

Process = asyncio.subprocess.Process


def listening(members: int, hosts: int) -> list[str]:
    """Where each is to listen."""
    ports = [address.rpartition(":")[2] for address in free_addresses(members)]
    return [f"{host(number % hosts + 1)}:{port}" for number, port in enumerate(ports)]


@asynccontextmanager
async def started(listen: list[str], addresses: list[str], steps: int) -> AsyncIterator[list[Process]]:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.member",
            str(number),
            at,
            str(steps),
            *addresses,
            stdout=asyncio.subprocess.PIPE,
        )
        for number, at in enumerate(listen)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def said(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 120)
    return dict(json.loads(line))


@pytest.mark.parametrize(("members", "hosts"), seeds([(4, 2), (2, 2), (8, 2), (3, 3), (4, 4), (16, 4)]))
async def test_members_exchange_2048_rounds_while_their_connections_are_cut(members: int, hosts: int) -> None:
    """DBSP-DIST-8: Feldera's matrix; one connection in about a hundred rounds is cut, wherever it is in a message."""
    steps = 1024
    listen = listening(members, hosts)
    mean_bytes = 8_000 * members * (members - 1)
    with drawn_seed() as seed:
        async with AsyncExitStack() as stack:
            proxies = [
                await stack.enter_async_context(ChaosProxy(at, seed=seed + number, mean_bytes=mean_bytes))
                for number, at in enumerate(listen)
            ]
            addresses = [proxy.address for proxy in proxies]
            processes = await stack.enter_async_context(started(listen, addresses, steps))
            assert [await said(process) for process in processes] == [{"rounds": 2 * steps}] * members
            cuts = sum(proxy.resets for proxy in proxies)
            assert cuts >= 2 * steps / 100, f"{cuts} connections were cut"


async def test_of_a_member_that_is_killed_all_others_know_at_once() -> None:
    """DBSP-REQ-2: also those that wait for what another one sends, long before it is silent for the servers' 5 s."""
    listen = listening(4, 2)
    async with started(listen, listen, 3) as processes:
        assert [await said(process) for process in processes] == [{"rounds": 6}] * 4
        processes[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for number in (0, 2):
            told = await said(processes[number])
            assert (told["error"], told["member"]) == ("PeerLost", 1)
            assert f"member 1 at {listen[1]} is lost in step 3, exchange 0" in told["text"]
            assert "nothing listens there any more" in told["text"]
            assert told["at"] - killed < 4.5
