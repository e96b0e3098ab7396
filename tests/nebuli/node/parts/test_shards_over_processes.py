"""A view of an operator in shards, each a process of its own: who is asked, and what is read while some are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.dataflow.partial.shard_nodes import shards_of
from nebuli.views import LookupTimedOut, Views
from tests.nebuli.node.parts.test_views_over_processes import (
    SHOPS,
    Made,
    Reader,
    Writer,
    chain,
    is_all_there,
    running,
)
from tests.support.killing import Watched
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SHARDS = ("query/by_shop>0", "query/by_shop>1", "query/by_shop>2")


def in_shards(directory: Path) -> Made:
    """The collection is at the first of three nodes, the shards and the view at the last: what leads to each shard
    passes the one between."""
    topology, query, nodes = chain(directory)
    query["operators"][1]["shard"] = {"into": 3}
    topology["nodes"][0]["capacity"] = 0
    return topology, query, nodes


async def which_have_rows(run: Watched, shard: int) -> list[bool]:
    """Into which shards rows have come, once some have come into this one."""

    async def told() -> list[bool] | None:
        found = [run.fragments[id_].rows_in > 0 for id_ in SHARDS if id_ in run.fragments]
        return found if len(found) == len(SHARDS) and found[shard] else None

    return await until_async(told, f"rows have come into shard {shard}", 30.0)


async def read(views: Views, writer: Writer, shops: list[str]) -> None:
    rows = (await views.get("totals", shops, 20.0)).rows
    found = {row["shop"]: (row["sales"], row["total"]) for row in rows.to_pylist()}
    assert found == {shop: (writer.sales[shop], writer.totals[shop]) for shop in shops}


def by_shard() -> list[list[str]]:
    """The shops that each shard has."""
    found: list[list[str]] = [[], [], []]
    for shop, shard in zip(SHOPS, shards_of([pa.array(SHOPS)], len(SHOPS), 3), strict=True):
        found[shard].append(shop)
    return found


async def test_a_lookup_asks_the_shard_of_its_key(tmp_path: Path) -> None:
    """PS-EX-2, over processes: the rows of its keys come to one shard, and to the others nothing at all."""
    of_shards = by_shard()
    async with running(tmp_path, in_shards) as (run, writer, views, _):
        have = [False, False, False]
        for shard in (2, 0, 1):
            await read(views, writer, of_shards[shard])
            have[shard] = True
            assert await which_have_rows(run, shard) == have
        await writer.insert(100)
        await until_async(lambda: is_all_there(views, writer), "all rows are there", 30.0)


async def test_a_lookup_waits_for_the_shard_of_its_key_alone(tmp_path: Path) -> None:
    """PS-EX-2, over processes: one shard stands still, and keys of the others, missing so far, are answered."""
    of_shards = by_shard()
    async with running(tmp_path, in_shards) as (run, writer, views, _):
        await read(views, writer, [shops[0] for shops in of_shards])
        pid = run.fragments[SHARDS[1]].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await read(views, writer, of_shards[0] + of_shards[2])
            with pytest.raises(LookupTimedOut) as caught:
                await views.get("totals", SHOPS, 1.0)
            assert sorted(caught.value.missing) == sorted((shop,) for shop in of_shards[1][1:])
        finally:
            os.kill(pid, signal.SIGCONT)
        await read(views, writer, SHOPS)


@pytest.mark.long
async def test_a_shard_is_killed_and_no_read_is_wrong(tmp_path: Path) -> None:
    """PS-INV-1, PS-EX-2: and so is the process that gives rows to all of them; in the end all is right."""
    async with running(tmp_path, in_shards) as (run, writer, views, _):
        reader = Reader(views, writer)
        await until_async(lambda: is_all_there(views, writer), "the first rows are read", 30.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.go_on())
            reading = group.create_task(reader.go_on())
            for fragment in (SHARDS[1], "query/sales", SHARDS[2]):
                os.kill(run.fragments[fragment].pid, signal.SIGKILL)
                await reader.goes_on()
            writer.enough = True
            reading.cancel()
        await until_async(lambda: is_all_there(views, writer), "all rows are there", 30.0)
        assert run.said == []
        assert run.deployments == []
