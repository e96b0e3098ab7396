"""Scalings that do not come to their end, or that nobody waits for any more: the circuit goes on with all it has."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psutil
import pytest

from nebuli.circuits import Circuit, CircuitUnreachable, NotScaled
from nebuli.steps.coordinator import circuit_run, succession
from nebuli.steps.coordinator.generation import Generation
from nebuli.steps.protocol.triggers import TriggerSettings
from tests.nebuli.circuits.conftest import (
    Rows,
    Serve,
    Served,
    added,
    batch,
    counted,
    member_processes,
    totals,
)
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

OFTEN = TriggerSettings(checkpoint_s=0.3)
GIVES_UP_S = 7.0
"""Longer than who gives tries to reach one that does not answer."""
BRIEF_S = 6.0
"""Longer than it takes members to come to rest."""
ASKED_NOTHING = "gets no more requests"


class Pushing:
    """A producer that pushes without a pause, and knows what is durable."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._enough = False
        self.pushed: Rows = Counter()
        self.number = 0

    async def push(self) -> None:
        """Until `check`."""
        while not self._enough:
            row = (f"shop-{self.number % 7}", self.number)
            await self._circuit.push("a", batch(row), producer="one", sequence=self.number)
            self.pushed[row] += 1
            self.number += 1

    async def some_more(self) -> None:
        """Wait until it has gone on."""
        number = self.number + 3

        async def has_gone_on() -> bool:
            return self.number >= number

        await until_async(has_gone_on, "pushes go on")

    async def check(self, pushing: asyncio.Task[None]) -> None:
        """All that was pushed comes out, each row once, and the totals are those of all."""
        self._enough = True
        await pushing
        for output, expected in (("rows", self.pushed), ("totals", totals(self.pushed))):
            found: Rows = Counter()
            async for _, change in self._circuit.output(output):
                found = added(found, counted(change))
                if found == expected:
                    break


class AtRest:
    """Has one of the members that are to take over stand still: what it is given stays undone.

    Once the others rest; or ``ahead`` of that, while steps go on.
    """

    def __init__(self) -> None:
        self.ahead = False
        self.is_so = asyncio.Event()
        self.halted: psutil.Process | None = None

    def halt(self, before: Generation) -> None:
        if self.is_so.is_set():
            return
        old = {before.members.process(member) for member in range(before.plan.members)}
        for each in member_processes():
            if each.pid not in old:
                each.send_signal(signal.SIGSTOP)
                self.halted = each
                self.is_so.set()
                return

    def send(self, number: signal.Signals) -> None:
        assert self.halted is not None
        self.halted.send_signal(number)


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> Iterator[AtRest]:
    found = AtRest()
    rest, begun, give = Generation.rest, succession.begun, succession.given_ahead

    async def resting(self: Generation) -> int:
        step = await rest(self)
        if not found.ahead:
            found.halt(self)
        return step

    before: list[Generation] = []

    async def giving(now: Generation, *to: Any) -> Any:
        before.append(now)
        return await give(now, *to)

    async def begin(after: Generation) -> Any:
        addresses = await begun(after)
        if found.ahead:
            found.halt(before[-1])
        return addresses

    monkeypatch.setattr(Generation, "rest", resting)
    monkeypatch.setattr(circuit_run, "given_ahead", giving)
    monkeypatch.setattr(succession, "begun", begin)
    yield found
    if found.halted is not None and found.halted.is_running():
        found.send(signal.SIGKILL)


async def pids(circuit: Circuit) -> set[int]:
    return {*(await circuit.status()).members}


@pytest.mark.parametrize("ahead", [False, True], ids=["at rest", "ahead"])
@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "silent"])
async def test_members_take_back_what_they_were_giving_to_one_that_is_lost(
    serve: Serve, at_rest: AtRest, how: signal.Signals | None, ahead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In the same processes, epoch and sessions, with nothing lost; and the next scalings succeed."""
    at_rest.ahead = ahead
    caplog.set_level(logging.INFO, "nebuli")
    async with serve(members=2, settings=OFTEN) as here, Circuit(here.address) as circuit:
        producer = Pushing(circuit)
        pushing = asyncio.create_task(producer.push())
        await producer.some_more()
        before, epoch = await pids(circuit), here.run.coordinator.epoch
        scaling = asyncio.create_task(circuit.scale(3))
        await at_rest.is_so.wait()
        if ahead:  # while the give does not end
            await producer.some_more()
        loop = asyncio.get_running_loop()
        if how is not None:
            at_rest.send(how)
        with pytest.raises(NotScaled):
            await scaling
        over = loop.time()
        await producer.some_more()
        assert (await pids(circuit), here.run.coordinator.epoch) == (before, epoch)
        assert ASKED_NOTHING not in caplog.text
        while (
            loop.time() < over + GIVES_UP_S
        ):  # whatever is left of the one that was given up has shown by then
            await circuit.scale(3)
            await producer.some_more()
            await circuit.scale(2)
        assert len((await pids(circuit)) & before) == 0
        await producer.check(pushing)


async def by_ctrl_c(here: Served, at_rest: AtRest) -> None:
    """Somebody asks on the command line, and presses Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nebuli", "scale", "--members", "3", here.address)
    )
    await at_rest.is_so.wait()
    process.send_signal(signal.SIGINT)
    assert await process.wait() != 0


async def by_a_deadline(here: Served, at_rest: AtRest) -> None:
    """A program asks, and does not wait for long enough."""
    async with Circuit(here.address) as circuit:
        asking = asyncio.create_task(circuit.scale(3, deadline_s=BRIEF_S))
        await at_rest.is_so.wait()
        with pytest.raises(CircuitUnreachable):
            await asking


Leaves = Callable[[Served, AtRest], Awaitable[None]]


@pytest.mark.parametrize("leaves", [by_ctrl_c, by_a_deadline])
async def test_a_scaling_that_nobody_waits_for_goes_to_its_end(
    serve: Serve, at_rest: AtRest, leaves: Leaves
) -> None:
    async with serve(members=2, settings=OFTEN) as here, Circuit(here.address) as circuit:
        producer = Pushing(circuit)
        pushing = asyncio.create_task(producer.push())
        await producer.some_more()
        await leaves(here, at_rest)
        at_rest.send(signal.SIGCONT)

        async def has_more() -> bool:
            return len(await pids(circuit)) == 3

        await until_async(has_more, "it has as many members as it was asked for")
        await producer.some_more()
        await producer.check(pushing)
