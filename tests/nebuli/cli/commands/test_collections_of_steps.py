"""Queries in steps that write collections and read them, while everything is killed: each row is there once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from nebuli import Collections
from nebuli.store.errors import StorageError
from tests.support.commands import Command
from tests.support.seeds import drawn_seed
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

ROWS, PER_SECOND, KEYS, KILLS = 6_000, 2_000, 7, 4


class Queries:
    """One that writes numbers into a collection, and one that adds up what is in it into another one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, Command] = {}
        self._write(
            "numbers",
            {"type": "Generator", "count": ROWS, "rows_per_s": PER_SECOND},
            [{"id": "out", "type": "sink", "input": "in", "sink": "out"}],
        )
        self._write(
            "totals",
            {
                "type": "Collection",
                "store": str(self.directory / "store"),
                "collection": "numbers",
                "reader": "totals",
            },
            [
                {"id": "key", "type": "project", "input": "in", "columns": {"k": f"n % {KEYS}", "n": "n"}},
                {
                    "id": "sums",
                    "type": "aggregate",
                    "input": "key",
                    "by": ["k"],
                    "aggregates": {"n": "sum(n)", "rows": "count(*)"},
                },
                {"id": "out", "type": "sink", "input": "sums", "sink": "out"},
            ],
        )

    def _write(self, name: str, source: dict[str, Any], operators: list[dict[str, Any]]) -> None:
        node = {
            "address": "127.0.0.1:27900",
            "physical": [{"logical": "in", **source}],
            "sinks": [
                {
                    "name": "out",
                    "type": "Collection",
                    "store": str(self.directory / "store"),
                    "collection": name,
                }
            ],
        }
        topology = {"logical": [{"name": "in", "schema": [{"name": "n", "type": "int64"}]}], "nodes": [node]}
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(topology), "utf-8")
        first = {"id": "in", "type": "source", "logical": "in"}
        (self.directory / f"{name}.json").write_text(json.dumps({"operators": [first, *operators]}), "utf-8")

    def start(self, name: str) -> None:
        here = self.directory
        options = (
            "--stepped",
            "--members",
            "2",
            "--state",
            here / f"state-{name}",
            "--checkpoint-every",
            "0.2",
        )
        files = here / f"{name}.yaml", here / f"{name}.json"
        (here / f"{name}.run").mkdir(exist_ok=True)
        self.running[name] = Command("run", *options, *files, directory=here / f"{name}.run")

    def kill_something(self, name: str, generator: random.Random) -> None:
        """A member, which is begun again, or the command, which is started again here."""
        command = self.running[name]
        if command.process.poll() is not None:  # numbers come to an end
            assert (name, command.process.returncode) == ("numbers", 0)
            return
        children = psutil.Process(command.process.pid).children(recursive=True)
        if children and generator.random() < 0.5:
            with suppress(psutil.NoSuchProcess):
                generator.choice(children).kill()
        else:
            command.process.kill()
            command.end()
            self.start(name)

    def stop(self) -> None:
        for command in self.running.values():
            if command.process.poll() is None:
                command.process.send_signal(signal.SIGTERM)
            command.end()


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    queries = Queries(tmp_path)
    yield queries
    queries.stop()


async def test_what_is_killed_loses_and_doubles_nothing(queries: Queries, tmp_path: Path) -> None:
    """ST-CL-2, ST-COL-2: a collection is an output of one circuit and an input of another one."""
    with drawn_seed() as seed:
        generator = random.Random(seed)
        async with Collections(tmp_path / "store", tick_s=0.1) as collections, asyncio.timeout(120):
            await _run(queries, collections, generator)


async def _run(queries: Queries, collections: Collections, generator: random.Random) -> None:
    queries.start("numbers")
    await _contents(collections, "numbers", 1)
    queries.start("totals")
    for _ in range(KILLS):
        await asyncio.sleep(generator.uniform(0.1, 0.8))
        queries.kill_something(generator.choice(["numbers", "totals"]), generator)
    numbers = await _contents(collections, "numbers", ROWS)
    assert sorted(row["n"] for row in numbers) == list(range(ROWS))
    wanted = {key: sum(range(key, ROWS, KEYS)) for key in range(KEYS)}

    async def totals() -> list[dict[str, Any]] | None:
        rows = await _contents(collections, "totals", 1)
        return rows if {row["k"]: row["n"] for row in rows} == wanted else None

    rows = await until_async(totals, "all is added up", 120)
    assert rows is not None
    assert sorted(row["k"] for row in rows) == list(range(KEYS)), "each sum once"
    assert sum(row["rows"] for row in rows) == ROWS


async def _contents(collections: Collections, name: str, rows: int) -> list[dict[str, Any]]:
    """The rows of a collection, once there are as many."""
    while True:
        try:
            found = await collections.snapshot(name)
        except StorageError:  # it is not made yet
            found = None
        if found is not None and found.num_rows >= rows:
            return found.to_pylist()
        await asyncio.sleep(0.1)
