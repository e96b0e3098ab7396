"""A query in steps over collections of two stores: what it writes at a time is of what both were at that time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import yaml

from nebuli import Circuit, Collections
from nebuli.circuits.errors import CircuitUnreachable
from nebuli.dataflow.zset import weights_of
from tests.support.commands import Command
from tests.support.ports import free_addresses
from tests.support.seeds import drawn_seed
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

ROWS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
KEYS, ROUNDS, KILLS = 5, 150, 4
Sums = dict[int, tuple[int, int]]


class Query:
    """Sums of two collections, by key, side by side: written into a third one, in the first one's store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self.address,) = free_addresses(1)
        self._options = (
            *("run", "--stepped", "--members", "2", "--state", directory / "state"),
            *("--checkpoint-every", "0.3", "--serve", self.address),
            *(directory / "topology.yaml", directory / "query.json"),
        )
        sources = [
            {
                "logical": name,
                "type": "Collection",
                "store": str(directory / f"store-{name}"),
                "collection": name,
                "reader": "sums",
            }
            for name in "ab"
        ]
        sink = {
            "name": "out",
            "type": "Collection",
            "store": str(directory / "store-a"),
            "collection": "sums",
        }
        columns = [{"name": name, "type": "int64"} for name in ROWS.names]
        topology = {
            "logical": [{"name": name, "schema": columns} for name in "ab"],
            "nodes": [{"address": "127.0.0.1:27900", "physical": sources, "sinks": [sink]}],
        }
        operators: list[dict[str, Any]] = [{"id": name, "type": "source", "logical": name} for name in "ab"]
        operators += [
            {
                "id": f"of_{name}",
                "type": "project",
                "input": name,
                "columns": {"k": "k"} | {each: "n" if each == name else "n - n" for each in "ab"},
            }
            for name in "ab"
        ]
        operators += [
            {"id": "both", "type": "union", "inputs": ["of_a", "of_b"]},
            {
                "id": "sums",
                "type": "aggregate",
                "input": "both",
                "by": ["k"],
                "aggregates": {"a": "sum(a)", "b": "sum(b)"},
            },
            {"id": "out", "type": "sink", "input": "sums", "sink": "out"},
        ]
        (directory / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
        (directory / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")

    def start(self) -> None:
        self.command = Command(*self._options, directory=self._directory)

    def kill_something(self, generator: random.Random) -> None:
        children = psutil.Process(self.command.process.pid).children(recursive=True)
        if children and generator.random() < 0.5:
            with suppress(psutil.NoSuchProcess):
                generator.choice(children).kill()
            return
        self.command.process.kill()
        self.command.end()
        self.start()

    def end(self) -> None:
        self.command.process.terminate()
        self.command.end()


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[Collections, Collections]]:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(Collections(tmp_path / f"store-{name}", tick_s=0.2))
            for name in "ab"
        ]
        for store, name in ((first, "a"), (second, "b")):
            await store.create(name, ROWS, shards=2)
        yield first, second


async def test_what_is_written_at_a_time_is_of_what_was_read_up_to_it(
    stores: tuple[Collections, Collections], tmp_path: Path
) -> None:
    """ST-CL-2, ST-COL-1: at each time, whatever is killed; two stores have no clock in common."""
    first, second = stores
    query = Query(tmp_path)
    with drawn_seed() as seed:
        generator = random.Random(seed)
        for store, name in ((second, "b"), (first, "a")):  # they begin at different times
            await store.insert(name, pa.record_batch([[1], [1]], schema=ROWS))
        query.start()
        try:
            await asyncio.to_thread(query.command.wait_until_said, "serving at")
            async with asyncio.timeout(200):
                async with asyncio.TaskGroup() as group:
                    group.create_task(inserts(first, "a", random.Random(seed + 1)))
                    group.create_task(inserts(second, "b", random.Random(seed + 2)))
                    group.create_task(troubles(query, generator))
                await check(first, second)
        finally:
            query.end()


async def inserts(collections: Collections, name: str, generator: random.Random) -> None:
    """Rows, some of which are taken back."""
    there: list[tuple[int, int]] = []
    for _ in range(ROUNDS):
        rows = [(generator.randrange(KEYS), generator.randrange(100)) for _ in range(3)]
        weights = [1, 1, 1]
        there += rows
        if generator.random() < 0.5:
            rows.append(there.pop(generator.randrange(len(there))))
            weights.append(-1)
        columns = [pa.array(values, pa.int64()) for values in (*zip(*rows, strict=True), weights)]
        await collections.insert(name, pa.record_batch(columns, names=["k", "n", "_weight"]))
        await asyncio.sleep(generator.uniform(0, 0.1))


async def troubles(query: Query, generator: random.Random) -> None:
    async with Circuit(query.address, deadline_s=60.0) as circuit:

        async def is_there() -> bool:
            with suppress(CircuitUnreachable):
                return bool(await circuit.status())
            return False

        for kill in range(KILLS):
            await asyncio.sleep(generator.uniform(0.1, 1.5))
            if kill == KILLS // 2:
                await until_async(is_there, "the command is started again")
                await circuit.scale(3)
            query.kill_something(generator)


async def check(first: Collections, second: Collections) -> None:
    """Follow what was written until all is, and compare it at each of its times."""
    there: Counter[tuple[int, int, int]] = Counter()
    wanted = sums(await first.snapshot("a"), await second.snapshot("b"))
    since = (await first.describe("sums")).since
    times = 0
    async for span in first.subscribe("sums", since, snapshot=True):
        by_time: dict[int, list[pa.RecordBatch]] = {}
        for at, rows in span.updates:
            by_time.setdefault(at, []).append(rows)
        for at, batches in by_time.items():
            for rows in batches:
                values = zip(*(rows.column(name).to_pylist() for name in ("k", "a", "b")), strict=True)
                for row, weight in zip(values, weights_of(rows).tolist(), strict=True):
                    there[row] += weight
            times += 1
            then = sums(await first.snapshot("a", at), await second.snapshot("b", at))
            assert {row: count for row, count in there.items() if count} == dict.fromkeys(
                ((k, a, b) for k, (a, b) in then.items()), 1
            ), f"at {at}"
        if {k: (a, b) for (k, a, b), count in there.items() if count} == wanted:
            assert times > KILLS
            return


def sums(a: pa.Table, b: pa.Table) -> Sums:
    """The sums by key."""
    found: dict[int, list[int]] = {}
    for place, rows in enumerate((a, b)):
        for k, n in zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True):
            found.setdefault(k, [0, 0])[place] += n
    return {k: (a, b) for k, (a, b) in found.items()}


class Pushed:
    """A query with the rows that are pushed into it and those of a collection, or only the first."""

    def __init__(self, directory: Path, started: list[Command], *, reads: bool, **sink: str) -> None:
        self.directory = directory
        self.started = started
        (self.address,) = free_addresses(1)
        store = {"type": "Collection", "store": str(directory / "store-a")}
        source = {"logical": "a", **store, "collection": "a", "reader": "r"}
        node = {
            "address": "127.0.0.1:27900",
            "physical": [source] if reads else [],
            "sinks": [{"name": "out", **store, "collection": "all", **sink}],
        }
        columns = [{"name": name, "type": "int64"} for name in ROWS.names]
        inputs = ["p", "a"] if reads else ["p"]
        topology = {"logical": [{"name": name, "schema": columns} for name in inputs], "nodes": [node]}
        operators: list[dict[str, Any]] = [{"id": name, "type": "source", "logical": name} for name in inputs]
        if reads:
            operators.append({"id": "rows", "type": "union", "inputs": inputs})
        operators.append({"id": "out", "type": "sink", "input": "rows" if reads else "p", "sink": "out"})
        (directory / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
        (directory / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")

    def start(self, state: str = "state") -> Command:
        options = ("--stepped", "--members", "2", "--state", self.directory / state, "--serve", self.address)
        files = self.directory / "topology.yaml", self.directory / "query.json"
        started = Command("run", *options, *files, directory=self.directory)
        self.started.append(started)
        return started


@pytest.fixture
def started() -> Iterator[list[Command]]:
    """The commands that a test has started, which end with it."""
    started: list[Command] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.end()


@pytest.mark.parametrize("reads", [True, False])
async def test_rows_that_are_pushed_get_a_time(
    stores: tuple[Collections, Collections], tmp_path: Path, started: list[Command], reads: bool
) -> None:
    """Also while nobody writes what is read besides; who goes on behind a kill adds nothing twice."""
    first, _ = stores
    await first.insert("a", pa.record_batch([[7], [7]], schema=ROWS))
    query = Pushed(tmp_path, started, reads=reads)
    wanted = [(7, 7)] if reads else []
    for life in range(3):
        command = query.start()
        await asyncio.to_thread(command.wait_until_said, "serving at")
        async with Circuit(query.address, deadline_s=60.0) as circuit:
            for number in range(10 * life, 10 * life + 10):
                rows = pa.record_batch([[number], [life]], schema=ROWS)
                await circuit.push("p", rows, producer="test", sequence=number)
                wanted.append((number, life))
        if life == 1:  # what is durable is written by the next one
            command.process.kill()
        else:
            await contents(first, wanted)
            command.process.terminate()
        command.end()
    assert (await first.describe("all")).timed == "writers"


async def contents(collections: Collections, wanted: list[tuple[int, int]]) -> None:
    """Wait until these rows are there, and no others."""

    async def is_there() -> bool:
        return "all" in await collections.list()

    await until_async(is_there, "the query has made it")
    async with asyncio.timeout(60):
        found: Counter[tuple[int, int]] = Counter()
        since = (await collections.describe("all")).since
        async for span in collections.subscribe("all", since, snapshot=True):
            for _, rows in span.updates:
                values = zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True)
                for row, weight in zip(values, weights_of(rows).tolist(), strict=True):
                    found[row] += weight
            assert set(found.values()) <= {1}, "once"
            if sorted(found) == sorted(wanted):
                return


async def test_a_query_that_begins_anew_writes_another_rendition(
    stores: tuple[Collections, Collections], tmp_path: Path, started: list[Command]
) -> None:
    """ST-COL-4: it would write its rows a second time; readers see what is different, once it is handed over."""
    first, _ = stores
    await first.insert("a", pa.record_batch([[1], [1]], schema=ROWS))
    query = Pushed(tmp_path, started, reads=True)
    command = query.start()
    await asyncio.to_thread(command.wait_until_said, "serving at")
    await contents(first, [(1, 1)])
    command.process.terminate()
    command.end()
    again = query.start("other")
    ended = await asyncio.to_thread(again.end)
    assert ended.exit_code == 1
    assert "rendition r1 was written up to" in ended.error
    assert "give the sink a new rendition" in ended.error
    await first.insert("a", pa.record_batch([[2], [2]], schema=ROWS))
    anew = Pushed(tmp_path, started, reads=True, rendition="r2").start("anew")
    await asyncio.to_thread(anew.wait_until_said, "serving at")
    await until_async(lambda: rendition(first, "r2"), "r2 is written")
    await first.handover("all", "r2")
    await contents(first, [(1, 1), (2, 2)])


async def rendition(collections: Collections, name: str) -> list[int]:
    """The upper of a rendition, once something is written of it."""
    return [
        each.upper
        for each in (await collections.describe("all")).renditions
        if each.name == name and each.upper > 1
    ]
