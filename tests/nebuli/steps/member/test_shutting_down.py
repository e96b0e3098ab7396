"""A circuit that is shut down: its outputs have every row whose push has returned, in whatever phase it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nebuli.circuits import CircuitShutDown
from nebuli.circuits.circuit_calls import CircuitCalls
from nebuli.rpc.status import FragmentState
from tests.support.coordinator_fragments import circuit_of, running, until_final, until_running
from tests.support.sizes import some
from tests.support.told_members import Members, numbers, pushed_query, rows, until

TRIALS = range(50)
PRODUCERS = 4
"""Each has its rows at one of the two members."""


class Pushing:
    """Producers that push a row each, one after the other, as fast as they can."""

    def __init__(self, calls: CircuitCalls) -> None:
        self._calls = calls
        self.returned: Counter[int] = Counter()
        self.refused = 0

    async def some(self, number: int) -> None:
        """So many rows of each producer."""
        await asyncio.gather(*(self._push(producer, range(number)) for producer in range(PRODUCERS)))

    async def until_refused(self) -> None:
        """Rows of each producer, until they are refused as the circuit was shut down."""
        with pytest.raises(CircuitShutDown):
            await asyncio.gather(
                *(self._push(producer, range(1000, 100_000)) for producer in range(PRODUCERS))
            )
        self.refused += 1

    async def _push(self, producer: int, sequences: range) -> None:
        for sequence in sequences:
            row = producer * 100_000 + sequence
            batch = rows(self._calls.inputs["a"], [row])
            next_ = await self._calls.next_sequence("a", f"p{producer}")
            await self._calls.push("a", f"p{producer}", next_, batch, 30.0)
            self.returned[row] += 1


@asynccontextmanager
async def pushed(
    folder: Path, phase: str, trial: int
) -> AsyncIterator[tuple[Members, Pushing, CircuitCalls]]:
    """A circuit in a phase, with rows whose push has returned; left when it has ended."""
    async with asyncio.timeout(60), Members(pushed_query(2, spread="a"), folder) as members:
        if phase == "started again":  # where steps are replayed
            async with running(members, is_new=True) as runner:
                await until_running(runner)
                await Pushing(CircuitCalls(circuit_of(runner))).some(3)
                await until(lambda: circuit_of(runner).coordinator.next_step > 0, "a step is made")
        async with running(members, is_new=True) as runner:
            await until(lambda: runner.circuit, "it has begun")
            circuit = circuit_of(runner)
            calls = CircuitCalls(circuit)
            if phase in {"running", "paused"}:
                await until_running(runner)
            if phase == "paused":
                await calls.pause()
            pushing = Pushing(calls)
            await pushing.some(1 + trial % 3)
            yield members, pushing, calls
            assert await until_final(runner) is FragmentState.FINISHED, runner.status
            await calls.close()


async def result(members: Members) -> Counter[int]:
    return sum(map(numbers, await members.output()), Counter())


@pytest.mark.parametrize("phase", ["begun", "running", "paused", "started again"])
async def test_each_row_whose_push_has_returned_is_in_the_result(phase: str, tmp_path: Path) -> None:
    for trial in some(TRIALS):
        async with pushed(tmp_path / str(trial), phase, trial) as (members, pushing, calls):
            await calls.shut_down()
            with pytest.raises(CircuitShutDown, match="nothing of this push was kept; run its query again"):
                await pushing.some(1)
            await calls.pause()  # which keeps no row from its step any more
        assert pushing.returned <= await result(members), trial


async def test_rows_that_are_pushed_meanwhile_are_refused_or_in_the_result(tmp_path: Path) -> None:
    """Whether a push comes before the end or after it is open; the two do not contradict each other."""
    for trial in some(TRIALS):
        async with pushed(tmp_path / str(trial), "running", trial) as (members, pushing, calls):
            refused = asyncio.create_task(pushing.until_refused())
            await asyncio.sleep(0.002 * (trial % 7))
            await calls.shut_down()
            await refused
        assert pushing.refused == 1
        assert pushing.returned == await result(members), trial


async def test_a_member_that_is_lost_meanwhile_comes_back_with_its_rows(tmp_path: Path) -> None:
    for trial in some(TRIALS):
        async with pushed(tmp_path / str(trial), "running", trial) as (members, pushing, calls):
            await calls.shut_down()
            await asyncio.sleep(0.002 * (trial % 11))
            if not members.members[1].closed.is_set():
                port = members.members[1].receiver.address
                await members.end(1)
                await members.start(1, listen=port)
        assert pushing.returned == await result(members), trial
