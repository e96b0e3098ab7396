"""What waits at a circuit's service is bounded: the room for it, and a real process that is pushed into without end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from nebuli import circuits
from nebuli.circuits import Circuit
from nebuli.circuits.admission import Room
from nebuli.circuits.push_limit import MESSAGE_BYTES
from nebuli.steps.member.inputs.step_inputs import WAITING_ROWS
from tests.nebuli.circuits.conftest import Rows, batch, read_until
from tests.support.waiting import until_async

MIB = 1 << 20
WAITING = 32 * MIB
"""What waits in the test, beside the room for one more message."""
SERVING = """
import asyncio, pathlib, sys
from nebuli.circuits.served_run import served
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY
from topology import parse_topology

async def serve():
    query = stepped_query(parse_query(QUERY, "totals", "q"), parse_topology(TOPOLOGY, "t"), 1)
    here = pathlib.Path.cwd()
    async with LocalRun(query, here / "state", here, TriggerSettings(checkpoint_s=None)) as run:
        async with served(run, "127.0.0.1:0", waiting_bytes=int(sys.argv[1])) as address:
            print(address, flush=True)
            await run.until_shut_down()

asyncio.run(serve())
"""


async def took(room: Room, size: int) -> asyncio.Task[None]:
    """Whoever asks for room; on its way."""
    task = asyncio.create_task(room.take(size))
    await asyncio.sleep(0)
    return task


async def test_room_is_taken_in_turn_and_never_more_than_there_is() -> None:
    room = Room(10)
    await room.take(6)
    large, small = await took(room, 8), await took(room, 1)
    assert (large.done(), small.done(), room.taken) == (False, False, 6)
    room.give(4)
    await large
    assert (small.done(), room.taken) == (False, 10)
    room.give(8)
    await small
    assert room.taken == 3


async def test_who_does_not_wait_any_more_holds_up_nobody() -> None:
    room = Room(10)
    await room.take(6)
    large, small = await took(room, 8), await took(room, 2)
    large.cancel()
    await small
    assert room.taken == 8
    granted = await took(room, 5)
    room.give(8)  # its turn comes, and at once it does not wait any more
    granted.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await granted
    assert room.taken == 0


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[psutil.Process, str]]:
    """A process that serves the circuit, and where."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVING, str(MESSAGE_BYTES + WAITING)),
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield psutil.Process(process.pid), (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.timed
@pytest.mark.processes
@pytest.mark.long
async def test_a_paused_circuit_that_is_pushed_into_without_end_holds_pushers_back_and_not_their_rows(
    tmp_path: Path,
) -> None:
    """60 producers push 4 MiB each: of these 240 MiB 32 wait in each process at most, and all count in the end."""
    row, producers = ("x" * 4 * MIB, 1), 60
    async with (
        asyncio.timeout(200),
        serving(tmp_path) as (process, address),
        Circuit(address, deadline_s=100.0) as circuit,
    ):
        await circuit.pause()
        many = batch(*(("y", each) for each in range(WAITING_ROWS)))
        await circuit.push("a", many, producer="p", sequence=0)
        (member,) = process.children()
        before = process.memory_info().rss, member.memory_info().rss
        pushing = [
            asyncio.create_task(circuit.push("a", batch(row), producer=f"p{each}", sequence=0))
            for each in range(producers)
        ]
        seen = [0, 0, 0]

        async def at_rest() -> bool:
            seen.append(process.memory_info().rss)
            return seen[-1] - before[0] > WAITING and max(seen[-20:]) - min(seen[-20:]) < MIB

        await until_async(at_rest, "nothing more is taken")
        grown = [each.memory_info().rss - then for each, then in zip((process, member), before, strict=True)]
        assert max(grown) < 220 * MIB, [each // MIB for each in grown]
        async with Circuit(address, deadline_s=2.0) as hasty:
            with pytest.raises(
                circuits.InputFull,
                match=rf"\d+ of at most {MESSAGE_BYTES + WAITING} bytes of pushes already wait here,",
            ):
                await hasty.push("a", batch(("z", 1)), producer="hasty", sequence=0)
            assert await hasty.next_sequence("a", "hasty") == 0
        await circuit.start()
        await asyncio.gather(*pushing)
        expected: Rows = Counter({("y", each): 1 for each in range(WAITING_ROWS)}) + Counter({row: producers})
        await read_until(circuit, "rows", expected)
        await circuit.shut_down()
