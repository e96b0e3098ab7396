"""Workers of this machine, as whoever started them sees them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from nebuli.fleet.client import WorkerUnreachable
from nebuli.fleet.errors import NodeUnreachable
from nebuli.fleet.local import LocalWorkers, WorkerDied


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
