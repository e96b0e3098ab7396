"""Sources whose rows are not logged: each step has the same rows, whenever and by whomever they are read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from nebuli.connectors.errors import InputError
from nebuli.connectors.sources import csv_source, generator_source, row_groups
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.remap import Address
from nebuli.steps.member.inputs.replayable_source import ReplayableSource
from nebuli.steps.member.inputs.step_inputs import LeftOutRows, ReplayableSources, StepInputs
from nebuli.store import Store
from nebuli.store.errors import StorageError, Unclear
from placement.plan import BoundSource
from placement.stepped_plan import Feed, SteppedPlan
from tests.support.keeper import Keeper, numbers
from tests.support.sizes import seeds
from tests.support.stores import Plan, faulty_store
from tests.support.waiting import until_async
from topology import SOURCES, Column, DataType

COLUMNS = (Column(name="n", type=DataType.INT64),)
ROWS = 100
PER_MESSAGE = 5
NEVER: Mapping[str, float | None] = MappingProxyType({})
_NOTHING_LEFT_OUT = LeftOutRows(SteppedPlan.model_construct())


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "_BLOCK_BYTES", 32)
    monkeypatch.setattr(row_groups, "_BATCH_ROWS", 9)
    monkeypatch.setattr(generator_source, "_BATCH_ROWS", 7)


def feed(settings: dict[str, object]) -> Feed:
    physical = SOURCES.named(str(settings["type"])).model_validate({"logical": "numbers", **settings})
    source = BoundSource(id="in", logical="numbers", schema=COLUMNS, physical=physical)
    return Feed(input="in", name=str(settings["type"]), source=source)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper() as running:
        for first in range(3000, 3000 + ROWS, PER_MESSAGE):
            running.send(numbers(first, PER_MESSAGE))
        running.end()
        yield running


def feeds(folder: Path, keeper: Keeper) -> list[Feed]:
    """A source of each type that gives the same rows each time, with other numbers."""
    text = "n\n" + "".join(f"{number}\n" for number in range(1000, 1000 + ROWS))
    (folder / "numbers.csv").write_text(text, "utf-8")
    numbers = pa.array(range(2000, 2000 + ROWS), pa.int64())
    pa.parquet.write_table(pa.table({"n": numbers}), folder / "numbers.parquet")
    return [
        feed({"type": "CSV", "path": str(folder / "numbers.csv")}),
        feed({"type": "Parquet", "path": str(folder / "numbers.parquet")}),
        feed({"type": "Generator", "count": ROWS}),
        feed(
            {"type": "Channel", "address": keeper.address, "channel": "c", "consumer": "steps", "holder": "m"}
        ),
    ]


WANTED = [first + number for first in (0, 1000, 2000, 3000) for number in range(ROWS)]


class Process:
    """A member's process, as far as its inputs go; it reads when it is let."""

    def __init__(self, log: InputLog, readings: ReplayableSources) -> None:
        self.log = log
        self.readings = readings
        self.inputs = StepInputs(log, readings, _NOTHING_LEFT_OUT)
        self._let = asyncio.Semaphore(0)
        self.reading = [asyncio.create_task(each.read(self._room, lambda _: None)) for each in readings]

    async def _room(self) -> None:
        await self._let.acquire()

    async def read(self, batches: int) -> None:
        """Let so many batches come in."""
        for _ in range(batches):
            self._let.release()

        async def read() -> bool:
            return not self._let._value or all(each.done() for each in self.reading)

        await until_async(read, "they have come in")

    def let_all(self) -> None:
        """Let everything come in."""
        for _ in range(10_000):
            self._let.release()

    async def rows(self, step: int) -> list[int]:
        return (await self.given(step))[0]

    async def given(self, step: int) -> tuple[list[int], set[str]]:
        """The rows of a step, and the sources that are not waited for from there on."""
        logged, sources = await self.inputs.of(step, replayed=False, ended=False)
        assert not logged, "all sources can be read again"
        given = sources["in"]
        numbers = [
            number for each in given.values() for rows in each.rows for number in rows.column(0).to_pylist()
        ]
        return numbers, {name for name, each in given.items() if not each.awaited}

    async def end(self) -> None:
        """Have it be killed."""
        for each in self.reading:
            each.cancel()
        await asyncio.gather(*self.reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def process(
    store: Store,
    sources: list[Feed],
    idle_after_s: Mapping[str, float | None] = NEVER,
    **more: Any,
) -> AsyncIterator[Process]:
    schema = zset.weighted(arrow_schema(COLUMNS))
    async with (
        await InputLog.open(store, "m", {"in": schema}) as log,
        ReplayableSources(sources, log, idle_after_s, **more) as readings,
    ):
        running = Process(log, readings)
        try:
            yield running
        finally:
            await running.end()


@pytest.mark.parametrize("seed", seeds(range(30)))
async def test_a_step_has_the_same_rows_whenever_it_is_read(
    seed: int, tmp_path: Path, keeper: Keeper
) -> None:
    """Over kills, replays from any step that is kept, and appends whose outcome is not known."""
    rng = Random(seed)
    sources = feeds(tmp_path, keeper)
    plan = Plan()
    steps: list[tuple[list[int], set[str]]] = []
    async with faulty_store(tmp_path / "store", plan) as store, asyncio.timeout(60):
        first, ended = 0, False
        while not ended:
            async with process(store, sources) as running:
                for _ in range(rng.randrange(6)):
                    await running.read(rng.randrange(8))
                    match rng.choice(["step", "step", "replay", "trim", "unclear"]):
                        case "step":
                            steps.append(await running.given(len(steps)))
                        case "replay" if len(steps) > first:
                            for step in range(rng.randrange(first, len(steps)), len(steps)):
                                assert await running.given(step) == steps[step]
                        case "trim" if len(steps) > first:
                            first = rng.randrange(first, len(steps) + 1)
                            await running.log.trim(first)
                            await running.readings.release(first)
                        case "unclear":
                            plan.calls.clear()
                            plan.at = rng.randrange(3)
                            plan.after = lambda _: Unclear("the answer", "is lost")
                            with contextlib.suppress(StorageError):
                                await running.rows(len(steps))
                            plan.at = -1
                            await running.read(rng.randrange(3))
                            steps.append(await running.given(len(steps)))
                ended = sum(len(rows) for rows, _ in steps) == len(WANTED)
            gone = sum(number >= 3000 for rows, _ in steps[:first] for number in rows)
            assert keeper.heads.oldest <= gone / PER_MESSAGE
        async with process(store, sources) as running:
            for step in range(first, len(steps)):
                assert await running.given(step) == steps[step]
            await running.read(100)
            assert await running.given(len(steps)) == ([], {each.name for each in sources})
    assert sorted(number for rows, _ in steps for number in rows) == WANTED
    for source in (range(at, at + ROWS) for at in (0, 1000, 2000, 3000)):
        assert [number for rows, _ in steps for number in rows if number in source] == list(source)


async def test_a_kept_channel_is_acknowledged_where_no_state_needs_it(tmp_path: Path, keeper: Keeper) -> None:
    source = feeds(tmp_path, keeper)[-1]
    async with Store.at(tmp_path / "store") as store, process(store, [source]) as running:
        steps = 0
        while steps < 2 or await running.log.where(steps) != await running.log.where(steps - 1):
            await running.read(1)
            await running.rows(steps)
            steps += 1
        assert keeper.heads.oldest == 0
        await running.log.trim(steps)
        await running.readings.release(steps)

        async def acknowledged() -> bool:
            return keeper.heads.oldest == ROWS / PER_MESSAGE

        await until_async(acknowledged, "all is acknowledged")


async def test_rows_are_not_logged(tmp_path: Path) -> None:
    """Where a source gives its rows again, what is kept does not grow with them."""
    (tmp_path / "numbers.csv").write_text("n\n" + "".join(f"{number}\n" for number in range(10_000)), "utf-8")
    source = feed({"type": "CSV", "path": str(tmp_path / "numbers.csv")})
    async with Store.at(tmp_path / "store") as store, process(store, [source]) as running:
        await running.read(10_000)
        assert await running.rows(0) == list(range(10_000))
    kept = sum(each.stat().st_size for each in (tmp_path / "store" / "blobs").rglob("*") if each.is_file())
    assert kept < 10_000


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ("n\n0\n1\n2\n77\n4\n5\n6\n7\n", r"these rows are different"),
        ("n\n0\n1\n2\n", r"8 rows again, from row 1 on, .* now the source has only 3 of them"),
        ("m\n0\n", "no column n"),
        (None, "numbers.csv"),
    ],
)
async def test_a_file_that_was_changed_is_no_silent_change_of_the_past(
    now: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("n\n0\n1\n2\n3\n4\n5\n6\n7\n", "utf-8")
    source = feed({"type": "CSV", "path": str(path)})
    async with Store.at(tmp_path / "store") as store:
        async with process(store, [source]) as running:
            await running.read(10)
            assert await running.rows(0) == list(range(8))
        path.unlink()
        if now is not None:
            path.write_text(now, "utf-8")
        async with process(store, [source]) as running:
            with pytest.raises(InputError, match=message):
                await running.rows(0)


async def test_rows_that_are_read_again_do_not_wait_for_their_rate(tmp_path: Path) -> None:
    source, slow = (feed({"type": "Generator", "count": ROWS, "rows_per_s": rate}) for rate in (None, 0.01))
    async with Store.at(tmp_path / "store") as store:
        async with process(store, [source]) as running:
            await running.read(ROWS)
            assert await running.rows(0) == list(range(ROWS))
        async with process(store, [slow]) as running, asyncio.timeout(60):
            assert await running.rows(0) == list(range(ROWS)), "at their rate it is hours"


async def test_a_file_that_has_grown_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("n\n0\n1\n2\n3\n", "utf-8")
    source = feed({"type": "CSV", "path": str(path)})
    async with Store.at(tmp_path / "store") as store:
        async with process(store, [source]) as running:
            await running.read(10)
            assert await running.rows(0) == [0, 1, 2, 3]
        with path.open("a", encoding="utf-8") as file:
            file.write("4\n5\n")
        async with process(store, [source]) as running:
            await running.read(10)
            assert [await running.given(0), await running.given(1)] == [
                ([0, 1, 2, 3], {source.name}),
                ([4, 5], {source.name}),
            ]


async def test_what_has_ended_is_waited_for_again_by_the_next_process(tmp_path: Path) -> None:
    """Which does not know that nothing follows before it has looked; it may have grown."""
    path = tmp_path / "numbers.csv"
    path.write_text("n\n0\n", "utf-8")
    source = feed({"type": "CSV", "path": str(path)})
    async with Store.at(tmp_path / "store") as store:
        async with process(store, [source]) as running:
            await running.read(10)
            assert await running.given(0) == ([0], {source.name})
        with path.open("a", encoding="utf-8") as file:
            file.write("1\n")
        async with process(store, [source]) as running:
            assert await running.given(1) == ([], set()), "nothing is let in"
            await running.read(10)
            assert await running.given(2) == ([1], {source.name})


async def test_a_source_that_may_grow_is_waited_for_at_its_end_where_a_further_run_reads_it(
    tmp_path: Path, keeper: Keeper
) -> None:
    """Files are; a generator with a count and a channel whose stream has ended have nothing more."""
    sources = feeds(tmp_path, keeper)
    async with Store.at(tmp_path / "store") as store, process(store, sources, awaits_growth=True) as running:
        running.let_all()
        numbers: list[int] = []
        step = 0
        while len(numbers) < len(WANTED):
            numbers += await running.rows(step)
            step += 1
            await asyncio.sleep(0.01)
        await asyncio.wait(running.reading)
        assert (await running.given(step))[1] == {"Generator", "Channel"}


async def test_without_event_time_only_what_ends_by_itself_is_waited_for(
    tmp_path: Path, keeper: Keeper
) -> None:
    sources = feeds(tmp_path, keeper)
    async with Store.at(tmp_path / "store") as store, process(store, sources, untimed={"in"}) as running:
        assert await running.given(0) == ([], {"Channel"}), "nothing is let in"


async def test_the_end_of_a_source_that_event_time_waits_for_makes_a_step(tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("n\n0\n", "utf-8")
    source = feed({"type": "CSV", "path": str(tmp_path / "numbers.csv")})
    for is_timed, wanted in ((True, [1, 1]), (False, [1])):
        arrived: list[int] = []
        with ThreadPoolExecutor(2) as threads:
            reading = ReplayableSource(source, Address(), threads, is_timed=is_timed, idle_after_s=None)
            await reading.read(_room, arrived.append)
            reading.close()
        assert arrived == wanted


async def _room() -> None: ...


async def test_a_source_that_has_nothing_for_long_is_not_waited_for_until_it_has(tmp_path: Path) -> None:
    """From the step on in which it is found out, which says the same when it is repeated."""
    steps: list[tuple[list[int], set[str]]] = []
    with Keeper() as keeper:
        source = feed(
            {"type": "Channel", "address": keeper.address, "channel": "c", "consumer": "steps", "holder": "m"}
        )
        async with Store.at(tmp_path / "store") as store:
            async with process(store, [source], {"in": 0.05}) as running, asyncio.timeout(60):
                running.let_all()
                for first in (0, 10):
                    keeper.send(numbers(first, 10))
                    for awaited in (True, False):
                        while not steps or (source.name not in steps[-1][1]) != awaited:
                            steps.append(await running.given(len(steps)))
                            await asyncio.sleep(0.01)
            async with process(store, [source]) as running:
                assert [await running.given(step) for step in range(len(steps))] == steps
    assert [number for rows, _ in steps for number in rows] == list(range(20))
    assert all(not rows or not idle for rows, idle in steps)
