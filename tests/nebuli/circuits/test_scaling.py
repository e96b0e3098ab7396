"""A circuit that goes on with other numbers of members while programs push and read, and while processes are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from nebuli.circuits import Circuit, NotScaled
from nebuli.steps.protocol.triggers import TriggerSettings
from tests.nebuli.circuits.conftest import Rows, Serve, batch, counted, member_processes, totals
from tests.nebuli.circuits.traffic import traffic_on
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

OFTEN = TriggerSettings(checkpoint_s=0.3)


async def watch(circuit: Circuit) -> None:
    """Check that the circuit, once it has begun, does not fall below what it has shown to be made, or saved."""
    complete = saved = 0
    while True:
        status = await circuit.status()
        assert status.caught_up or not complete
        assert status.next_step >= saved
        assert status.complete >= complete
        complete, saved = status.complete, max((saved, *status.checkpoints))


@pytest.mark.parametrize("numbers", [(4, 3), (1, 2)])
async def test_a_circuit_goes_on_with_more_members_and_with_fewer(
    serve: Serve, numbers: tuple[int, ...]
) -> None:
    """DBSP-REQ-3: from 2 members to 4 and to 3, and to 1 and back, while producers push and readers read.

    Every row counts once, every output has each step once, in order.
    """
    async with serve(members=2, settings=OFTEN) as here, Circuit(here.address) as circuit:
        async with asyncio.TaskGroup() as group, traffic_on(circuit, seed=1) as traffic:
            watching = group.create_task(watch(circuit))
            for members in numbers:
                await asyncio.sleep(0.5)
                before = (await circuit.status()).next_step
                assert await circuit.scale(members) >= before
                assert len((await circuit.status()).members) == members
                assert len({psutil.Process(pid) for pid in (await circuit.status()).members}) == members
            await asyncio.sleep(0.5)
            watching.cancel()
        await circuit.shut_down()
    assert rows_of_sink(Path("totals.csv")) == totals(traffic.pushed)
    assert [*Path("state").glob("scaled-*")] == [Path("state/scaled-2")]
    assert not [*Path("state").glob("member-*")]


def rows_of_sink(path: Path) -> Rows:
    """What is in the file of the totals, all that is there once."""
    _, *lines = path.read_text("utf-8").replace('"', "").splitlines()
    rows = [line.split(",") for line in lines]
    return Counter({(shop, int(sales), int(amount)): 1 for shop, sales, amount in rows})


async def test_who_is_paused_stays_paused_and_has_what_waits(serve: Serve) -> None:
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        await circuit.pause()
        for number in range(6):
            await circuit.push("a", batch((f"shop-{number}", number)), producer=f"p{number}", sequence=0)
        assert await circuit.scale(3) == 0
        status = await circuit.status()
        assert (status.paused, status.next_step) == (True, 0)
        for number in range(6):  # what was sent before is known, and counts once
            await circuit.push("a", batch((f"shop-{number}", number)), producer=f"p{number}", sequence=0)
        await circuit.start()
        step, change = await anext(circuit.output("rows"))
        assert step == 0
        assert counted(change) == Counter({(f"shop-{number}", number): 1 for number in range(6)})


async def test_it_is_asked_for_from_the_command_line(serve: Serve) -> None:
    async with serve(members=1) as here, Circuit(here.address) as circuit:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nebuli", "scale", "--members", "2", "--json", here.address),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        assert (process.returncode, json.loads(said)) == (0, {"members": 2, "step": 0})
        assert len((await circuit.status()).members) == 2
        with pytest.raises(NotScaled, match="from 1 to 64 members, not 0"):
            await circuit.scale(0)


@pytest.mark.parametrize("whom", ["old", "new"])
async def test_where_a_member_is_killed_meanwhile_all_goes_on_as_it_was(serve: Serve, whom: str) -> None:
    async with serve(members=2, settings=OFTEN) as here, Circuit(here.address) as circuit:
        async with traffic_on(circuit, seed=2, outputs=("rows",)):
            await asyncio.sleep(0.3)
            refused = 0
            for delay in (0.0, 0.5, 1.0, 1.5):
                before = {*(await circuit.status()).members}
                scaling = asyncio.create_task(circuit.scale(3))

                async def has_begun() -> bool:
                    return scaling.done() or any(each.pid not in before for each in member_processes())  # noqa: B023

                await until_async(has_begun, "a member that is to take over")
                await asyncio.sleep(delay)
                _kill(whom, {*(await circuit.status()).members})
                try:
                    await scaling
                except NotScaled:
                    refused += 1
                else:
                    await circuit.scale(2)
        assert refused or whom == "old"
        assert len((await circuit.status()).members) == 2


def _kill(whom: str, old: set[int]) -> None:
    chosen = [each for each in member_processes() if (each.pid in old) == (whom == "old")]
    for each in chosen[:1]:
        each.send_signal(signal.SIGKILL)
