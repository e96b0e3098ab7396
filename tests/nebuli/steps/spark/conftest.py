"""A circuit whose members are tasks of Spark, as a command, with programs that push and read meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nebuli.circuits import Circuit
from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY, Rows, added, batch, counted, totals
from tests.support.commands import Command, Ended
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

_PRODUCERS = 3
_SPARK_S = 240.0
"""How long Spark may take to begin all members again on a busy machine."""


class Traffic:
    """Producers who push without a pause, and a reader who checks every step, until it is enough."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._enough = asyncio.Event()
        self._pushes = 0
        self.pushed: Rows = Counter()

    async def produce(self, number: int) -> None:
        drawn = random.Random(number)
        handle = "abc"[number % 3]
        sequence = 0
        while not self._enough.is_set():
            rows = [(f"shop-{drawn.randrange(20)}", drawn.randrange(1000)) for _ in range(30)]
            await self._circuit.push(handle, batch(*rows), producer=f"p{number}", sequence=sequence)
            self.pushed.update(rows)
            sequence += 1
            self._pushes += 1

    async def read(self) -> None:
        """Each step comes once, in order, and they add up to what was pushed."""
        found: Rows = Counter()
        next_step = 0
        async for step, change in self._circuit.output("rows"):
            assert step == next_step
            next_step += 1
            found = added(found, counted(change))
            if self._enough.is_set() and found == self.pushed:
                return
        raise AssertionError("the output has ended")

    async def goes_on(self, pushes: int = 20) -> None:
        """Wait until so many more pushes are durable."""
        more = self._pushes + pushes

        async def are_there() -> bool:
            return self._pushes >= more

        await until_async(are_there, f"{pushes} more pushes", _SPARK_S)

    def end(self) -> None:
        self._enough.set()


class Run:
    """``nebuli run --on spark`` in a folder, at an address that stays the same."""

    def __init__(self, folder: Path, state: str | Path, members: int, master: str | None) -> None:
        self.folder = folder
        (self.address,) = free_addresses(1)
        named = f"\n    master: {master}" if master else ""
        (folder / "topology.yaml").write_text(
            TOPOLOGY.replace("sinks:", f"engine: spark{named}\n    sinks:", 1), "utf-8"
        )
        (folder / "query.json").write_text(QUERY, "utf-8")
        self._arguments = (
            *("run", "--stepped", "--on", "spark", "--members", str(members), "--state", state),
            *("--checkpoint-every", "0.5", "--serve", self.address),
            *(folder / "topology.yaml", folder / "query.json"),
        )
        self.command: Command

    def start(self) -> None:
        self.command = Command(*self._arguments, directory=self.folder)

    def end(self) -> Ended:
        return self.command.end()

    def everything(self) -> list[psutil.Process]:
        """All that it has started, and is there."""
        with suppress(psutil.Error):
            return psutil.Process(self.command.process.pid).children(recursive=True)
        return []


def descendants(processes: Iterable[psutil.Process], *parts: str) -> list[psutil.Process]:
    """Those of them that have one of these in their command."""
    found = []
    for each in processes:
        with suppress(psutil.Error):
            if any(part in word for part in parts for word in each.cmdline()):
                found.append(each)
    return found


def check_totals(folder: Path, pushed: Rows) -> None:
    """What the sink has is what a Counter counts."""
    _, *lines = (folder / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    rows = [line.split(",") for line in lines]
    assert Counter({(shop, int(sales), int(amount)): 1 for shop, sales, amount in rows}) == totals(pushed)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Those whose processes are to be gone at the end, whatever the test does."""
    made: list[Run] = []
    yield made
    for run in made:
        left = run.everything()
        if not run.command.has_been_ended:  # the test has failed: what it says tells why
            run.command.process.send_signal(signal.SIGKILL)
            sys.stdout.write(run.command.end().stderr)
        _, alive = psutil.wait_procs(left, 20)
        for each in alive:
            each.kill()
