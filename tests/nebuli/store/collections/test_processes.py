"""Collections between processes: writers of three kinds, which are killed, and readers, which see the same."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import yaml

from nebuli import Collections
from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.source_client import Sources
from nebuli.store.errors import StorageError
from tests.nebuli.ingestion.instance_processes import InstanceProcesses, instance_processes
from tests.support.commands import Command
from tests.support.seeds import drawn_seed
from tests.support.starter import Forked, start_program
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

ORDERS, SHOPS, NOTES = 240, 7, 80
PORTIONS, TIMES = 6, 8
SOURCE = """
name: orders
from: {type: File, path: ORDERS}
format: JSON
shards: 2
schema: [{name: shop, type: int64}, {name: amount, type: int64}]
"""
QUERY = """
{"operators": [
  {"id": "orders", "type": "source", "logical": "orders"},
  {"id": "by-shop", "type": "aggregate", "input": "orders", "by": ["shop"],
   "aggregates": {"orders": "count(*)", "amount": "sum(amount)"}},
  {"id": "out", "type": "sink", "input": "by-shop", "sink": "totals"}
]}
"""
_INSERTER = """
import asyncio
import sys
import pyarrow as pa
from nebuli import Collections

async def main(store, first, end):
    async with Collections(store) as collections:
        for number in range(int(first), int(end)):
            row = pa.record_batch({"n": pa.array([number], pa.int64())})
            await collections.insert("notes", row, producer="p", sequence=number)
            await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
"""
_READER = """
import asyncio
import json
import sys
from contextlib import aclosing
from nebuli import Collections
from tests.nebuli.store.collections.rows import Accumulated, counted

async def contents(collections, name, times, follows):
    if not follows:
        return [counted(await collections.snapshot(name, each)) for each in times]
    found = Accumulated()
    async with aclosing(collections.subscribe(name, min(times), snapshot=True)) as spans:
        await found.follow(spans, max(times))
    return [found.at(each) for each in times]

async def main(store, asked, follows):
    async with Collections(store) as collections:
        found = {
            name: [sorted(each.elements()) for each in await contents(collections, name, times, follows)]
            for name, times in asked.items()
        }
    print(json.dumps(found))

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "follows"))
"""
Contents = dict[str, list[list[list[int]]]]
"""The rows of a collection, in their order, at each of some times."""


def orders(count: int) -> list[list[int]]:
    return [[number % SHOPS, number] for number in range(count)]


def totals(count: int) -> list[list[int]]:
    """What the query has of so many orders."""
    amounts = [range(shop, count, SHOPS) for shop in range(SHOPS)]
    return [[shop, len(each), sum(each)] for shop, each in enumerate(amounts) if each]


class Writers:
    """Two instances of a source, a query in steps over what they write, and a program that inserts."""

    def __init__(self, folder: Path, instances: InstanceProcesses) -> None:
        self._folder = folder
        self._instances = instances
        self._inserter: Forked
        self._query: Command

    def start(self) -> None:
        self._instances.have(2)
        self._insert(0)
        self._run()

    def _insert(self, first: int) -> None:
        self._inserter = start_program(_INSERTER, self._folder / "store", first, NOTES)

    def _run(self) -> None:
        files = self._folder / "topology.yaml", self._folder / "query.json"
        options = ("--stepped", "--members", "2", "--state", self._folder / "state")
        self._query = Command("run", *options, "--checkpoint-every", "0.2", *files, directory=self._folder)

    async def kill(self, draw: random.Random, who: str, collections: Collections) -> None:
        """Some of the instances, the program, or a member of the query or all of it; each begins again."""
        match who:
            case "instances":
                self._instances.kill(draw)
                self._instances.have(2)
            case "inserter":
                self._inserter.close()
                noted = len(await now(collections, "notes"))
                self._insert(max(noted - 1, 0))  # it does not know whether its last row is there
            case "query":
                members = psutil.Process(self._query.process.pid).children(recursive=True)
                if members and draw.random() < 0.5:
                    draw.choice(members).kill()
                    return
                self._query.process.kill()
                self._query.end()
                self._run()

    def end(self) -> None:
        self._inserter.close()
        if not self._query.has_been_ended:
            self._query.process.send_signal(signal.SIGTERM)
            self._query.end()


def prepare(folder: Path) -> None:
    store = str(folder / "store")
    columns = [{"name": name, "type": "int64"} for name in ("shop", "amount")]
    source = {
        "logical": "orders",
        "type": "Collection",
        "store": store,
        "collection": "orders",
        "reader": "query",
    }
    sink = {"name": "totals", "type": "Collection", "store": store, "collection": "totals"}
    node = {"address": "127.0.0.1:27900", "physical": [source], "sinks": [sink]}
    topology = {"logical": [{"name": "orders", "schema": columns}], "nodes": [node]}
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (folder / "query.json").write_text(QUERY, "utf-8")
    (folder / "orders.jsonl").touch()


async def now(collections: Collections, name: str) -> list[list[int]]:
    """The contents at a time of now; none before the collection is there."""
    try:
        found = await collections.snapshot(name)
    except StorageError:
        return []
    return sorted([*row.values()] for row in found.to_pylist())


async def written(folder: Path, collections: Collections, writers: Writers, draw: random.Random) -> None:
    """Have all be written, with a kill after each portion of orders."""
    lines = [json.dumps({"shop": shop, "amount": amount}) for shop, amount in orders(ORDERS)]
    size = ORDERS // PORTIONS
    for portion, who in enumerate(
        draw.sample(["instances", "inserter", "query"] * (PORTIONS // 3), PORTIONS)
    ):
        with (folder / "orders.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines[portion * size : (portion + 1) * size])
        await asyncio.sleep(draw.uniform(0.05, 0.4))
        await writers.kill(draw, who, collections)

    async def is_all_there() -> bool:
        return [await now(collections, name) for name in ("orders", "totals", "notes")] == [
            sorted(orders(ORDERS)), totals(ORDERS), [[number] for number in range(NOTES)]
        ]  # fmt: skip

    await until_async(is_all_there, "all rows are there, once", 60)


async def read(folder: Path, times: dict[str, list[int]], readers: Sequence[str]) -> list[Contents]:
    """What processes read at these times, at once."""
    processes = [start_program(_READER, folder / "store", json.dumps(times), each) for each in readers]
    try:
        said: list[Any] = await asyncio.gather(*(asyncio.to_thread(each.stdout.read) for each in processes))
    finally:
        for each in processes:
            each.close()
    return [json.loads(each) for each in said]


async def test_readers_in_processes_agree_on_what_processes_of_all_kinds_have_written(tmp_path: Path) -> None:
    """ST-COL-1, ST-COL-2, ST-COL-3: at random times, also below kills; and on each it is what a model has.

    A source with two instances in one collection of two shards, a query in steps, a program that inserts. Two
    readers take snapshots, one follows.
    """
    prepare(tmp_path)
    with drawn_seed() as seed:
        draw = random.Random(seed)
        async with (
            asyncio.timeout(150),
            Sources(tmp_path / "store") as sources,
            instance_processes(tmp_path / "store", "orders") as instances,
        ):
            collections = sources.collections
            await sources.create(parse_definition(SOURCE.replace("ORDERS", str(tmp_path / "orders.jsonl"))))
            await collections.create("notes", pa.schema([("n", pa.int64())]), shards=2)
            writers = Writers(tmp_path, instances)
            writers.start()
            try:
                await written(tmp_path, collections, writers, draw)
                times = {}
                begin = (await collections.describe("orders")).created  # before any row
                for name in ("orders", "totals", "notes"):
                    status = await collections.describe(name)
                    first = max(begin, status.since)
                    times[name] = [draw.randrange(first, status.upper) for _ in range(TIMES)]
                    times[name].append(status.upper - 1)
                found = await read(tmp_path, times, ("snapshots", "snapshots", "follows"))
            finally:
                writers.end()
        assert found[0] == found[1] == found[2]
        check(found[0])


def check(found: Contents) -> None:
    """Of each collection the first rows are there, and each once; all of them at last."""
    assert all(rows == sorted(orders(len(rows))) for rows in found["orders"])
    assert all(rows == [[number] for number in range(len(rows))] for rows in found["notes"])
    assert all(rows == totals(sum(count for _, count, _ in rows)) for rows in found["totals"])
    last = [found[name][-1] for name in ("orders", "totals", "notes")]
    assert [*map(len, last)] == [ORDERS, SHOPS, NOTES]
    assert last[1] == totals(ORDERS)
