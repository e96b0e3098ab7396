"""Stores whose servers answer late, with an error, or not at all, though it has happened: it happens once."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from nebuli.store import Store
from nebuli.store.blobs.objects import ObjectBlobs
from nebuli.store.errors import Locked, StoreAway, StoreBusy, Unclear, UpperMismatch
from nebuli.store.ordering import Change
from nebuli.store.ordering.postgres import PostgresOrdering
from nebuli.store.shards.payloads import INLINE_BYTES
from nebuli.store.store_url import StoreUrl
from tests.support.object_store import ObjectStore
from tests.support.postgres import Server
from tests.support.sizes import seeds
from tests.support.stores import SCHEMA, Away, blobs_at, fill, found, store_at, weights, zset
from tests.support.unsteady import Faults, Way, unsteady
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

_APPENDERS, _APPENDS = 3, 12


@pytest.fixture
def way(postgres: Server) -> Iterator[Way]:
    """To the database: nothing fails yet."""
    with unsteady(postgres.port, Faults(), 0) as made:
        yield made


def by(way: Way, url: StoreUrl) -> StoreUrl:
    """The same place, by that way."""
    server = url.server.rpartition(":")[0]
    return replace(url, server=f"{server}:{way.port}/postgres")


@pytest.mark.parametrize("seed", seeds(range(6)))
async def test_every_append_of_several_is_there_once_whatever_was_answered(
    url: StoreUrl, postgres: Server, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One question in five goes wrong: lost, answered late, by an error of HTTP, or not although it was done."""
    database = Faults(
        lost=0.06, unclear=0.08, slow=0.04, slow_s=0.05, after=8
    )  # behind what opens a connection
    bucket = Faults(lost=0.05, unclear=0.05, refused=0.08, slow=0.02, slow_s=0.05)
    objects_port = int(objects.endpoint.rpartition(":")[2])
    with (
        unsteady(postgres.port, database, seed) as to_database,
        unsteady(objects_port, bucket, seed) as to_bucket,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{to_bucket.port}")
        place = by(to_database, url)
        async with asyncio.timeout(240):
            await asyncio.gather(*(append_all(place, number, seed) for number in range(_APPENDERS)))
        # Which questions there are depends on who is first: each kind is there nearly always, two are always.
        assert len({"lost", "unclear", "slow"} & {*to_database.seen}) >= 2
        assert {*to_bucket.seen} & {"lost", "unclear", "refused"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", objects.endpoint)
    async with Store.at(url) as store:
        shard = await store.open_shard("s")
        assert weights(await shard.snapshot(shard.upper - 1)) == dict.fromkeys(
            range(_APPENDERS * _APPENDS), 1
        )
        assert shard.upper == _APPENDERS * _APPENDS
        await shard.compact(full=True)
        assert {part.blob for part in shard._tracked.state.parts if part.blob} == {*blobs_at(Away(url))}


async def append_all(place: StoreUrl, number: int, seed: int) -> None:
    """Each of the numbers of one appender, again until it was acknowledged; some are too large for an entry."""
    draw = random.Random(f"{seed} {number}")
    async with store_at(Away(place)) as store:
        shard = None
        for n in range(number * _APPENDS, (number + 1) * _APPENDS):
            id_ = draw.randbytes(16)
            rows = zset((n, 1), padding=draw.choice([0, 2 * INLINE_BYTES]))
            while True:
                with suppress(Unclear, StoreBusy):
                    shard = shard or await store.create_shard("s", SCHEMA)
                    at = shard.upper
                    try:
                        await shard.compare_and_append([(at, rows)], at, at + 1, append_id=id_)
                    except UpperMismatch:
                        await shard.refresh()
                        continue
                    break


def test_after_an_unclear_answer_the_truth_is_read_back(way: Way, database: StoreUrl) -> None:
    ordering = PostgresOrdering(by(way, database))
    ordering.open()
    fill(ordering, "a", b"1")
    way.faults = Faults(unclear=1.0)
    with pytest.raises(Unclear, match="its outcome is not known"):
        ordering.append([Change("a", 1, b"2")])
    way.faults = Faults(lost=1.0)
    threading.Timer(0.3, lambda: setattr(way, "faults", Faults())).start()
    assert found(ordering, "a") == [(1, b"1"), (2, b"2")]
    way.faults = Faults(lost=1.0)
    with pytest.raises(Unclear):
        ordering.append([Change("a", 2, b"3")])
    way.faults = Faults()
    assert found(ordering, "a") == [(1, b"1"), (2, b"2")]
    ordering.close()


def test_a_server_that_stands_still_is_one_that_is_away(
    way: Way, database: StoreUrl, caplog: pytest.LogCaptureFixture
) -> None:
    """It has taken the question, and says nothing: no call waits without an end, and one warning is said."""
    ordering = PostgresOrdering(by(way, database), answer_s=0.3, away_s=0.5)
    ordering.open()
    fill(ordering, "a", b"1")
    way.stand_still()
    with pytest.raises(Unclear, match=r"has not answered within 0\.3 s"):
        ordering.append([Change("a", 1, b"2")])
    way.faults = Faults(lost=1.0)  # of what comes from here on
    way.go_on()
    caplog.clear()
    with pytest.raises(StoreAway, match=r"did not answer for 0\.[56]\d* s .*start again to continue"):
        ordering.heads(["a"])
    assert [each.message.partition(" (")[0] for each in caplog.records if each.name == "nebuli.store"] == [
        f"{by(way, database).database}"
    ]
    way.faults = Faults()
    assert ordering.heads(["a"])["a"] in (1, 2)
    ordering.close()


async def test_a_store_that_is_left_waits_for_no_server(way: Way, url: StoreUrl) -> None:
    """It would for two minutes; what waits says so."""
    async with asyncio.timeout(30):
        async with Store.at(by(way, url)) as store:
            shard = await store.create_shard("s", SCHEMA)
            way.faults = Faults(lost=1.0)
            waiting = asyncio.create_task(shard.refresh())
            await until_async(lambda: lost(way), "it has tried")
        with pytest.raises(StoreAway):
            await waiting


async def lost(way: Way) -> bool:
    return way.seen["lost"] > 0


def test_a_blob_that_was_put_and_said_not_to_be_is_there_once(
    bucket: str, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unsteady(int(objects.endpoint.rpartition(":")[2]), Faults(refused=1.0), 0) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{way.port}")
        blobs = ObjectBlobs(lambda: bucket)
        for call in (
            lambda: blobs.put("a", "1", [b"x" * 1000]),
            lambda: blobs.put("a", "2", [os.urandom(1 << 20) for _ in range(20)]),  # in parts
            lambda: blobs.get("a", "1"),
            lambda: blobs.names("a"),
            lambda: blobs.delete("a", ["1"]),
        ):
            way.faults = Faults(refused=1.0)
            threading.Timer(0.3, lambda: setattr(way, "faults", Faults())).start()
            call()
        assert way.seen["refused"] >= 5
        assert blobs.names("a") == ["2"]
        assert blobs.get("a", "2").size == 20 << 20


async def test_whoever_has_lost_its_database_without_a_word_commits_nothing(url: StoreUrl) -> None:
    """Its lock went with a connection. What the next one has committed is whole, and what it opened stays."""
    long = bytes(1 << 13)
    async with Store.at(url) as mine, Store.at(url) as other:
        async with await mine.state_store("member").open(0) as first:
            await first.put("t", b"k", long)
            await first.commit()
        lost = await mine.state_store("member").open(1)
        await lost.put("t", b"k", b"of the lost" + long)
        with psycopg.connect(url.server, autocommit=True) as connection:
            name = f"state/member, process {os.getpid()} on %"
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s",
                (name,),
            )
        theirs = await other.state_store("member").open(1)
        await theirs.put("t", b"k", b"of the next" + long)
        with pytest.raises(Locked):
            await lost.commit()
        await theirs.commit()
        async with await other.state_store("member").open(2) as last:
            value = await last.get("t", b"k")
            assert value is not None
            assert value.to_pybytes() == b"of the next" + long
    assert len(blobs_at(Away(url))) == 1
