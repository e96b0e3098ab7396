"""Views over several processes: they are read while rows are written and processes are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nebuli
from nebuli.control.supervision import Policy
from nebuli.control.view_addition import add_views
from nebuli.views import LookupTimedOut, Views, ViewUnreachable
from tests.support.killing import Watched, watched
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

COLUMNS = [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}]
SCHEMA = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
Made = tuple[dict[str, Any], dict[str, Any], dict[str, str]]
"""A topology, a query, and the nodes by names."""
SHOPS = [f"shop-{number}" for number in range(20)]


def chain(directory: Path) -> Made:
    """A collection at the first of three nodes, a view at the last; the one between only passes on."""
    addresses = free_addresses(6)
    nodes: list[dict[str, Any]] = [
        {"address": address, "grpc": grpc} for address, grpc in zip(addresses[:3], addresses[3:], strict=True)
    ]
    nodes[0]["links"] = {"downstream": [addresses[1]]}
    nodes[1] |= {"links": {"downstream": [addresses[2]]}, "capacity": 0}
    nodes[0]["physical"] = [
        {"logical": "sales", "type": "Collection", "store": str(directory / "store"), "collection": "sales"}
    ]
    query = {
        "operators": [
            {"id": "sales", "type": "source", "logical": "sales"},
            {
                "id": "by_shop",
                "type": "aggregate",
                "input": "sales",
                "by": ["shop"],
                "aggregates": {"sales": "count(*)", "total": "sum(amount)"},
            },
            {"id": "totals", "type": "view", "input": "by_shop", "key": ["shop"], "node": addresses[2]},
        ]
    }
    topology = {"logical": [{"name": "sales", "schema": COLUMNS}], "nodes": nodes}
    return topology, query, dict(zip(("base", "bridge", "view"), addresses[:3], strict=True))


class Writer:
    """Inserts rows all the time. ``known`` is what is durable: of each shop its sales and their sum."""

    def __init__(self, collections: nebuli.Collections) -> None:
        self._collections = collections
        self._draw = random.Random(7)
        self.sales: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.amounts: Counter[int] = Counter()
        self.begun: Counter[str] = Counter()
        self.enough = False

    async def insert(self, count: int = 20) -> None:
        rows = [(self._draw.choice(SHOPS), self._draw.randrange(100)) for _ in range(count)]
        self.begun.update(shop for shop, _ in rows)
        shops, amounts = zip(*rows, strict=True)
        batch = pa.record_batch([pa.array(shops), pa.array(amounts)], schema=SCHEMA)
        await self._collections.insert("sales", batch)
        self.sales.update(shops)
        self.amounts.update(amounts)
        for shop, amount in rows:
            self.totals[shop] += amount

    async def go_on(self) -> None:
        """Insert until it is enough: an insert that is cancelled has happened or has not."""
        while not self.enough:
            await self.insert()
            await asyncio.sleep(0.02)


class Reader:
    """Reads shops all the time: what a shop has sold never becomes less, nor more than was inserted."""

    def __init__(self, views: Views, writer: Writer) -> None:
        self._views = views
        self._writer = writer
        self._draw = random.Random(11)
        self._seen: Counter[str] = Counter()
        self.reads = 0

    async def go_on(self) -> None:
        while True:
            try:
                await self.read(self._draw.sample(SHOPS, 3), 2.0)
            except (LookupTimedOut, ViewUnreachable):  # somebody is away
                await asyncio.sleep(0.05)
            else:
                self.reads += 1

    async def goes_on(self) -> None:
        """Wait until so much more was read that some of it is behind what has happened before."""
        enough = self.reads + 50

        async def has_read() -> bool:
            return self.reads >= enough

        await until_async(has_read, "50 reads more", 60.0)

    async def read(self, shops: list[str], deadline: float) -> None:
        rows = (await self._views.get("totals", shops, deadline)).rows
        for row in rows.to_pylist():
            assert self._seen[row["shop"]] <= row["sales"] <= self._writer.begun[row["shop"]]
            self._seen[row["shop"]] = row["sales"]


@asynccontextmanager
async def running(
    tmp_path: Path, made: Callable[[Path], Made] = chain
) -> AsyncIterator[tuple[Watched, Writer, Views, dict[str, str]]]:
    topology, query, nodes = made(tmp_path)
    async with nebuli.Collections(str(tmp_path / "store")) as collections:
        await collections.create("sales", SCHEMA)
        writer = Writer(collections)
        await writer.insert(200)
        async with watched(tmp_path, topology, query, Policy.WAIT, nodes) as run:
            supervising = asyncio.create_task(run.supervisor.watch())
            shown = run.workers.trusts[nodes["view"]]
            try:
                async with Views(nodes["view"], tls=shown.tls, secret=shown.secret) as views:
                    yield run, writer, views, nodes
            finally:
                supervising.cancel()
                await asyncio.gather(supervising, return_exceptions=True)


async def is_all_there(views: Views, writer: Writer) -> bool:
    try:
        rows = (await views.get("totals", SHOPS, 2.0)).rows
    except (LookupTimedOut, ViewUnreachable):
        return False
    found = {row["shop"]: (row["sales"], row["total"]) for row in rows.to_pylist()}
    return found == {shop: (writer.sales[shop], writer.totals[shop]) for shop in writer.sales}


async def kill(run: Watched, node: str, killed: set[int]) -> None:
    """The process of a node's fragment."""

    async def pid() -> int:
        status = run.seen.get(run.nodes[node])
        return status.pid if status is not None and status.pid not in killed else 0

    found = await until_async(pid, f"{node} has a process", 30.0)
    killed.add(found)
    os.kill(found, signal.SIGKILL)


@pytest.mark.story
@pytest.mark.parametrize("node", ["base", "bridge", "view"])
async def test_processes_of_a_view_are_killed_and_no_read_is_wrong(tmp_path: Path, node: str) -> None:
    """PS-INV-1, over processes: what is read never goes back, and in the end it is what was inserted."""
    async with running(tmp_path) as (run, writer, views, _):
        reader = Reader(views, writer)
        await until_async(lambda: is_all_there(views, writer), "the first rows are read", 30.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.go_on())
            reading = group.create_task(reader.go_on())
            killed: set[int] = set()
            for _ in range(2):
                await kill(run, node, killed)
                await reader.goes_on()
            writer.enough = True
            reading.cancel()
        await until_async(lambda: is_all_there(views, writer), "all rows are there", 30.0)
        assert run.said == []
        assert run.deployments == []


MORE = {
    "base": [
        {"id": "large", "type": "filter", "input": "sales", "predicate": "amount >= 50"},
        {
            "id": "by_amount",
            "type": "aggregate",
            "input": "large",
            "by": ["amount"],
            "aggregates": {"sales": "count(*)"},
        },
        {"id": "amounts", "type": "view", "input": "by_amount", "key": ["amount"]},
    ],
    "view": [{"id": "sums", "type": "view", "input": "totals", "key": ["shop"]}],
}
"""By the node that they are at: one has what came before it was there, one reads another view."""


@pytest.mark.parametrize("node", ["base", "view"])
async def test_a_running_query_gets_views_and_keeps_them_when_its_processes_are_killed(
    tmp_path: Path, node: str
) -> None:
    """PS-AFT-1: they are readable at once, while others are read; added twice, they are there once."""
    async with running(tmp_path) as (run, writer, views, nodes):
        reader = Reader(views, writer)
        supervisor = run.supervisor

        async def add(where: str) -> None:
            active = supervisor.active
            text = json.dumps({"operators": MORE[where]})
            await add_views(
                text, None, active, run.workers, lambda each: supervisor.keep(replace(active, fragments=each))
            )

        async def right() -> bool:
            return await is_all_there(views, writer) and await has_added(run, nodes, writer)

        async with asyncio.TaskGroup() as group:
            group.create_task(writer.go_on())
            reading = group.create_task(reader.go_on())
            given_up = asyncio.create_task(add("base"))
            await asyncio.sleep(0.01)
            given_up.cancel()
            await asyncio.wait([given_up])
            for where in ("base", "view", "base"):
                await add(where)
                await reader.goes_on()
            shown = run.workers.trusts[nodes["base"]]
            async with Views(nodes["base"], tls=shown.tls, secret=shown.secret) as there:
                found = await there.get("amounts", [49, 50], 10.0)
                assert (set(found.rows.column("amount").to_pylist()), found.hits) == ({50}, [False, False])
            killed: set[int] = set()
            await kill(run, node, killed)
            await reader.goes_on()
            writer.enough = True
            reading.cancel()
        await until_async(right, "all rows are there, in all views", 30.0)
        assert run.said == []
        assert len(supervisor.active.fragments[0].added) == 2


async def has_added(run: Watched, nodes: dict[str, str], writer: Writer) -> bool:
    """Whether the views that were added have what was inserted."""
    large = Counter({amount: count for amount, count in writer.amounts.items() if amount >= 50})
    found = []
    for node, view, keys in (("base", "amounts", [*range(100)]), ("view", "sums", SHOPS)):
        shown = run.workers.trusts[nodes[node]]
        async with Views(nodes[node], tls=shown.tls, secret=shown.secret) as views:
            try:
                found.append((await views.get(view, keys, 2.0)).rows.to_pylist())
            except (LookupTimedOut, ViewUnreachable):
                return False
    amounts, sums = found
    return (
        Counter({row["amount"]: row["sales"] for row in amounts}) == large
        and {row["shop"]: row["total"] for row in sums} == writer.totals
    )
