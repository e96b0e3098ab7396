"""Pins: before the greatest first step of all members, all of them hold what is read."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from nebuli.dataflow.state import Run
from nebuli.dataflow.zset import weighted
from nebuli.steps.member.calls.pins import NotPinned, Pins

SCHEMA = weighted(pa.schema([("a", pa.int64())]))


class World:
    """A member whose table has the number of each step that it has done."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.pins = Pins(["t", "gone"], self._contents)

    def _contents(self, table: str) -> list[Run] | None:
        rows = pa.record_batch([pa.array(self.steps), pa.array([1] * len(self.steps))], schema=SCHEMA)
        return None if table == "gone" else [Run.of(rows, ["a"])]

    def step(self) -> None:
        self.steps.append(len(self.steps))
        self.pins.between(len(self.steps))

    async def read(self, name: str, step: int) -> list[int]:
        rows = (await self.pins.rows(name, step))["t"]
        assert rows is not None
        return sorted(value for batch in rows for value in batch.column(0).to_pylist())


async def test_every_step_is_held_until_one_is_read() -> None:
    """Steps go on before, and after."""
    world = World()
    world.pins.open(1, 0, 0)
    for _ in range(3):
        world.step()
    assert await world.pins.pin("p", ["t", "gone"], 0, 60) == 2, "the step before is still there"
    for _ in range(5):
        world.step()
    assert await world.read("p", 3) == [0, 1, 2]
    assert (await world.pins.rows("p", 3))["gone"] is None
    world.step()
    assert await world.read("p", 3) == [0, 1, 2], "which goes on to be read"
    world.pins.release("p")
    with pytest.raises(NotPinned):
        await world.read("p", 3)


async def test_a_step_that_is_still_to_come_is_waited_for() -> None:
    """Where the reader has to see one that this member has not done, or another member has only a later one."""
    world = World()
    world.pins.open(1, 0, 0)
    first = asyncio.create_task(world.pins.pin("p", ["t"], 1, 60))
    reading = asyncio.create_task(world.read("p", 2))
    await asyncio.sleep(0)
    world.step()
    assert await first == 1
    assert not reading.done()
    world.step()
    assert await reading == [0, 1]
    world.pins.release("p")


async def test_nothing_is_seen_that_an_earlier_answer_had_and_this_one_has_not() -> None:
    """Taken back to a checkpoint, a member repeats what is in its log before it is read."""
    world = World()
    world.pins.open(1, 0, 3)
    assert await world.pins.pin("p", ["t"], 0, 60) == 3
    reading = asyncio.create_task(world.read("p", 3))
    for _ in range(3):
        world.step()
    assert await reading == [0, 1, 2]
    world.pins.release("p")


async def test_all_steps_of_a_pin_can_be_read_as_they_lie() -> None:
    """Whoever asks several members learns only then which step is the one."""
    world = World()
    world.pins.open(1, 0, 0)
    first = await world.pins.pin("p", ["t"], 0, 60)
    for _ in range(2):
        world.step()
    for step in (2, first, 1):
        runs = (await world.pins.runs("p", step))["t"]
        assert runs is not None
        assert sum(run.rows.num_rows for run in runs) == step
    world.pins.release("p")
    with pytest.raises(NotPinned):
        await world.pins.runs("p", 2)


async def test_the_end_of_an_epoch_ends_pins() -> None:
    """Whoever waits for them, too, as their time does."""
    world = World()
    world.pins.open(1, 0, 0)
    await world.pins.pin("p", ["t"], 0, 60)
    reading = asyncio.create_task(world.read("p", 4))
    await asyncio.sleep(0)
    world.pins.leave()
    with pytest.raises(NotPinned):
        await reading
    opening = asyncio.create_task(world.pins.pin("q", ["t"], 0, 0.01))
    with pytest.raises(NotPinned):
        await opening
    with pytest.raises(KeyError):
        await world.pins.pin("r", ["other"], 0, 1)
