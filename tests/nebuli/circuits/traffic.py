"""Producers that push into a circuit without a pause, and readers that check every step of its outputs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nebuli.circuits import Circuit
from tests.nebuli.circuits.conftest import Rows, added, batch, counted, totals
from tests.support.waiting import until_async

PRODUCERS = 4


class Traffic:
    """The rows that were pushed, and the sum of all steps of each output."""

    def __init__(self, circuit: Circuit, seed: int, within_s: float) -> None:
        self._circuit = circuit
        self._seed = seed
        self._within_s = within_s
        self.pushed: Rows = Counter()
        self.pushes = 0
        self.enough = asyncio.Event()
        self.read: dict[str, Rows] = {}

    async def produce(self, number: int) -> None:
        drawn = random.Random(f"{self._seed}/{number}")
        name, handle, sequence = f"producer-{number}", "abc"[number % 3], 0
        while not self.enough.is_set():
            rows = [
                (f"shop-{drawn.randrange(20)}", drawn.randrange(1000)) for _ in range(drawn.randrange(30))
            ]
            await self._circuit.push(handle, batch(*rows), producer=name, sequence=sequence)
            self.pushed.update(rows)
            self.pushes += 1
            sequence += 1
            assert await self._circuit.next_sequence(handle, name) == sequence

    async def follow(self, output: str) -> None:
        """Each step comes once, in order, also to a reader that continues with other members."""
        self.read[output] = Counter()
        next_step = 0
        async for step, change in self._circuit.output(output):
            assert step == next_step
            next_step += 1
            self.read[output] = added(self.read[output], counted(change))
        raise AssertionError(f"{output} has ended")

    async def goes_on(self, pushes: int = PRODUCERS * 3) -> None:
        """Wait until so many more pushes are durable."""
        until = self.pushes + pushes

        async def are_there() -> bool:
            return self.pushes >= until

        await until_async(are_there, f"{pushes} more pushes", self._within_s)

    async def all_read(self, output: str) -> None:
        """Wait until the steps of an output add up to all that was pushed."""
        expected = self.pushed if output == "rows" else totals(self.pushed)

        async def is_read() -> bool:
            return self.read[output] == expected

        await until_async(is_read, f"all rows are in {output}", self._within_s)


@asynccontextmanager
async def traffic_on(
    circuit: Circuit,
    seed: int,
    *,
    producers: int = PRODUCERS,
    outputs: Sequence[str] = ("rows", "totals"),
    within_s: float = 60.0,
) -> AsyncIterator[Traffic]:
    """Producers push until the end of the context, and readers read until they have all rows.

    The last step may reach a reader before the producer's push returns: so no reader decides that it has all.
    """
    traffic = Traffic(circuit, seed, within_s)
    async with asyncio.TaskGroup() as readers:
        following = [readers.create_task(traffic.follow(output)) for output in outputs]
        async with asyncio.TaskGroup() as pushing:
            for number in range(producers):
                pushing.create_task(traffic.produce(number))
            yield traffic
            traffic.enough.set()
        for output in outputs:
            await traffic.all_read(output)
        for each in following:
            each.cancel()
