"""Instances are killed at any moment, and servers and keepers with them: all that came is there, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.source_client import Sources
from tests.nebuli.ingestion.feeds import ChannelFeed, CsvFeed, Feed, JsonFeed, NatsFeed, ParquetFeed
from tests.nebuli.ingestion.instance_processes import (
    InstanceProcesses,
    followed,
    in_background,
    instance_processes,
    more_is_followed,
)
from tests.nebuli.ingestion.postgres_feeds import PostgresFeed, TransactionsFeed
from tests.nebuli.store.collections.rows import Accumulated, counted, present
from tests.support.nats import nats_server
from tests.support.postgres import server
from tests.support.seeds import drawn_seed
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

_ROUNDS = 8
_LEAST = 100
"""Messages that there are in the end, at least."""


async def killed_and_started(
    random: Random, feed: Feed, instances: InstanceProcesses, follower: Accumulated
) -> None:
    """Some rounds: one to three are there, and some of them are killed; or the server is, or all of them at once."""
    for turn in range(_ROUNDS):
        instances.have(random.randint(1, 3))
        if turn % 2:
            await more_is_followed(follower, random.randint(1, 5))
        await asyncio.sleep(random.uniform(0, 0.5))
        if turn in (2, 5) and feed.kill():
            await asyncio.sleep(random.uniform(0, 0.3))
            instances.have(random.randint(1, 3))
            await asyncio.sleep(random.uniform(0, 0.3))
            instances.kill(random)
            await feed.start()
        else:
            instances.kill(random)
        if not instances:
            await asyncio.sleep(random.uniform(0, 0.3))


async def run_killed(folder: Path, feed: Feed, random: Random) -> None:
    """Put messages while instances are killed, and see that all is as if nobody had been."""
    count, is_over = 0, asyncio.Event()

    async def put() -> None:
        nonlocal count
        while count < _LEAST or not is_over.is_set():
            await feed.put(count)
            count += 1
            await asyncio.sleep(random.uniform(0, 2 * feed.pause_s))
        await feed.end()

    store = folder / "store"
    async with Sources(store) as sources:
        await feed.begin()
        await sources.create(parse_definition(f"name: orders\n{feed.definition}"))
        async with instance_processes(store, "orders") as instances, followed(sources, "orders") as follower:
            async with in_background(asyncio.create_task(put())):
                await killed_and_started(random, feed, instances, follower)
                is_over.set()
            instances.have(2)
            await all_is_there(sources, feed, count, follower)
            instances.check()
            await they_agree(sources)


async def all_is_there(sources: Sources, feed: Feed, count: int, follower: Accumulated) -> None:
    """What so many messages come to is in the collection, and with the reader; and the source lets go of them."""
    expected = feed.expected(count)

    async def is_there() -> bool:
        return counted(await sources.collections.snapshot("orders")) == expected

    async def is_followed() -> bool:
        return present(follower.now) == expected

    async def is_let_go() -> bool:
        return await feed.is_let_go(await sources.describe("orders"))

    await until_async(is_there, f"what {count} messages come to is in the collection")
    await until_async(is_followed, "what was followed comes to the same")
    await until_async(is_let_go, "the source keeps no more than it needs to")
    assert counted(await sources.collections.snapshot("orders")) == expected
    feed.check_changes(follower.changes)


async def they_agree(sources: Sources) -> None:
    """The two that are there run, and none, these or others, has ever written what another one would not."""

    async def run() -> bool:
        statuses = {each.instance: each.health for each in await sources.instances("orders")}
        return statuses["1"] == statuses["2"] == "running"

    await until_async(run, "both instances run")
    for each in await sources.instances("orders"):
        assert each.health != "conflict"
        said = f"{each.error} {each.last_error}"
        assert "new rendition" not in said
        assert "cannot be read at" not in said  # others had let go of it, and it has begun anew


@asynccontextmanager
async def closed(feed: Feed) -> AsyncIterator[Feed]:
    try:
        yield feed
    finally:
        await feed.close()


@pytest.mark.story
@pytest.mark.parametrize("make", [CsvFeed, JsonFeed, ParquetFeed, ChannelFeed])
async def test_files_and_channels_are_ingested_once_whoever_is_killed(
    tmp_path: Path, make: Callable[[Path, int], Feed]
) -> None:
    """ST-ING-1, ST-ING-2, ST-ING-3, ST-ING-7."""
    folder = tmp_path / "outside"
    folder.mkdir()
    with drawn_seed() as seed:
        async with closed(make(folder, seed)) as feed:
            await run_killed(tmp_path, feed, Random(seed))


async def test_a_stream_of_nats_is_ingested_once_whoever_is_killed(tmp_path: Path) -> None:
    """ST-ING-1, ST-ING-2, ST-ING-3, ST-ING-7."""
    with drawn_seed() as seed, nats_server() as started:
        async with closed(NatsFeed(started)) as feed:
            await run_killed(tmp_path, feed, Random(seed))


@pytest.mark.parametrize("make", [PostgresFeed, TransactionsFeed])
async def test_a_table_of_postgres_is_ingested_once_whoever_is_killed(
    tmp_path: Path, make: type[PostgresFeed]
) -> None:
    """ST-ING-1, ST-ING-2, ST-ING-3, ST-ING-7; with transactions, ST-ING-20 and ST-ING-21."""
    with drawn_seed() as seed, server(wal_level="logical", max_prepared_transactions=20) as started:
        async with closed(make(started, seed)) as feed:
            await run_killed(tmp_path, feed, Random(seed))
