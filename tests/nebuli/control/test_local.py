"""Workers of this machine, as whoever started them sees them."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from nebuli.control.errors import NodeUnreachable
from nebuli.control.local import LocalWorkers, WorkerDied, WorkerNotStarted
from nebuli.rpc.worker_client import WorkerUnreachable
from tests.support.ports import free_addresses
from tests.support.waiting import until_async
from topology import Node


@dataclass
class Dying:
    """A worker whose end the system tells of only after this event."""

    told: asyncio.Event

    async def died(self) -> WorkerDied:
        await self.told.wait()
        return WorkerDied("a:1", -9)


@pytest.mark.parametrize("silent", [WorkerUnreachable, NodeUnreachable])
async def test_a_death_says_more_than_its_silence_which_is_noticed_first(
    tmp_path: Path, silent: type[Exception]
) -> None:
    told = asyncio.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, told.set)
        raise silent("worker a:1 does not answer")

    async with LocalWorkers((), tmp_path) as workers:
        workers._workers = {"a:1": Dying(told)}  # type: ignore[dict-item] - all that is asked of it here
        with pytest.raises(WorkerDied, match=r"worker a:1 died \(killed by SIGKILL\)"):
            await workers.guard(work())


@pytest.mark.processes
async def test_a_worker_starts_in_an_environment_larger_than_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 100_000)
    (address,) = free_addresses(1)
    async with LocalWorkers([Node(address=address)], tmp_path) as workers:
        assert await workers.client(address).statuses() == []


@pytest.mark.processes
@pytest.mark.parametrize("kills", [2, 3])
async def test_a_worker_that_is_killed_before_it_is_ready_is_started_again(
    tmp_path: Path, kills: int
) -> None:
    """A few times: what is killed again and again is told of."""
    (address,) = free_addresses(1)
    async with LocalWorkers([Node(address=address)], tmp_path) as workers:
        worker = workers.workers[address]
        os.kill(await workers._commands[-1].process.pid, signal.SIGKILL)

        async def is_dead() -> bool:
            return worker.is_dead

        await until_async(is_dead, "the worker is dead")
        preparing = asyncio.create_task(workers.prepare([address]))
        for number in range(kills):

            async def has_begun(wanted: int = number + 2) -> bool:
                return len(workers._commands) == wanted

            await until_async(has_begun, "another one is started")
            os.kill(await workers._commands[-1].process.pid, signal.SIGKILL)
        if kills < 3:
            await preparing
            assert await workers.client(address).statuses() == []
        else:
            with pytest.raises(WorkerNotStarted, match="it was killed by SIGKILL before it was ready"):
                await preparing


@pytest.mark.processes
def test_workers_start_after_some_whose_end_was_cancelled(tmp_path: Path) -> None:
    """Also on another event loop, in the same program: both are forked from its one template."""
    (address,) = free_addresses(1)

    async def interrupted() -> tuple[int, Path]:
        workers = await LocalWorkers([Node(address=address)], tmp_path).__aenter__()
        leaving = asyncio.create_task(workers.__aexit__(None, None, None))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        return await workers._commands[0].process.pid, Path(workers._state.name)

    async def next_ones(process: int) -> None:
        async def has_ended() -> bool:
            return not psutil.pid_exists(process)

        await until_async(has_ended, "the worker before has ended")
        async with LocalWorkers([Node(address=address)], tmp_path) as workers:
            assert await workers.client(address).statuses() == []

    process, secrets = asyncio.run(interrupted())
    assert not secrets.exists()
    asyncio.run(next_ones(process))
