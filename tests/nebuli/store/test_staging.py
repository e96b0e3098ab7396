"""Rows that are staged for a push: where they are, how long, and that nobody has them for anything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nebuli.steps.logs.input_log import InputLog
from nebuli.store import Store
from nebuli.store.errors import BlobDamaged, SequenceGap, SequencePassed, StagedLost, StagingFull, StoreFull
from nebuli.store.staging import Staging
from tests.support.stores import (
    SCHEMA,
    HeldPuts,
    Place,
    Plan,
    RefusedDeletes,
    store_at,
    store_with,
    weights,
    zset,
)

_HANDLES = {"a": SCHEMA}


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def staging(store: Store, clock: Clock) -> AsyncIterator[Staging]:
    opened = Staging(store.blob_folder("m/staged"), kept_s=60.0, max_bytes=100, clock=clock)
    yield opened
    await opened.close()


async def test_pieces_are_there_for_whoever_opens_the_store_next(store: Store, staging: Staging) -> None:
    names = [await staging.stage("p", 3, rows) for rows in (b"one", b"three", b"three")]
    assert len(set(names)) == 3
    later = Staging(store.blob_folder("m/staged"), kept_s=1e12)
    with pytest.raises(StagedLost):
        later.size("p", 3, names)
    await later.catch_up()
    assert (later.size("p", 3, names), later.bytes) == (13, 13)
    assert [bytes(await later.read(name)) for name in names] == [b"one", b"three", b"three"]


async def test_a_piece_is_of_one_number_of_one_producer_and_counts_once(staging: Staging) -> None:
    name = await staging.stage("p", 3, b"rows")
    for producer, number, pieces in (
        ("q", 3, [name]),
        ("p", 4, [name]),
        ("p", 3, [name, name]),
        ("p", 3, ["../m"]),
        ("p", 3, [name[:-1]]),
    ):
        with pytest.raises(StagedLost):
            staging.size(producer, number, pieces)
    staging.drop("q", [name])
    assert staging.size("p", 3, [name]) == 4
    staging.drop("p", [name, "nothing"])
    with pytest.raises(StagedLost):
        await staging.read(name)
    await staging.swept()
    assert staging.bytes == 0


async def test_with_a_push_all_that_was_staged_for_it_and_before_is_forgotten(
    store: Store, staging: Staging
) -> None:
    kept = [await staging.stage("p", 5, b"later"), await staging.stage("q", 1, b"other")]
    for number in (2, 3, 4):
        gone = await staging.stage("p", number, b"rows")
    staging.drop_up_to("p", 4)
    with pytest.raises(StagedLost):
        staging.size("p", 4, [gone])
    await staging.swept()
    assert await store.blob_folder("m/staged").names() == sorted(kept)


async def test_what_nobody_pushes_is_forgotten_in_time_also_by_another_process(
    store: Store, staging: Staging, clock: Clock
) -> None:
    old = await staging.stage("p", 1, b"rows")
    clock.now += 59
    young = await staging.stage("p", 2, b"rows")
    assert staging.size("p", 1, [old]) == 4
    clock.now += 2
    later = Staging(store.blob_folder("m/staged"), kept_s=60.0, clock=clock)
    await later.catch_up()
    await later.swept()
    assert await store.blob_folder("m/staged").names() == [young]
    clock.now += 60
    staging.forget_old()
    await staging.swept()
    assert (await store.blob_folder("m/staged").names(), staging.bytes) == ([], 0)


async def test_no_more_is_staged_than_may_be(staging: Staging, clock: Clock) -> None:
    await staging.stage("p", 1, b"x" * 60)
    with pytest.raises(StagingFull, match="60 bytes are staged here, and the limit is 100"):
        await staging.stage("p", 1, b"x" * 41)
    await staging.stage("p", 1, b"x" * 40)
    clock.now += 61  # what is old makes way
    await staging.stage("p", 1, b"x" * 100)


async def test_what_is_damaged_or_gone_is_not_pushed(store: Store, staging: Staging, tmp_path: Path) -> None:
    folder = store.blob_folder("m/staged")
    damaged, gone = await staging.stage("p", 1, b"rows"), await staging.stage("p", 1, b"rows")
    await folder.delete([damaged, gone])
    await folder.put(damaged, [b"Rows"])
    await folder.put("strange", [b"what is this"])
    with pytest.raises(BlobDamaged):
        await staging.read(damaged)
    with pytest.raises(StagedLost):
        await staging.read(gone)
    await staging.catch_up()
    await staging.swept()
    assert await folder.names() == [damaged]


# -- deleting


async def test_what_is_dropped_on_its_way_is_deleted_once_it_is_there(place: Place) -> None:
    """A delete that came before it would leave it there for good: counted by nobody."""
    puts = HeldPuts()
    async with store_with(place, puts) as store:
        folder = store.blob_folder("m/staged")
        staging = Staging(folder)
        puts.held = True
        losing = asyncio.create_task(staging.stage("p", 1, b"rows"))
        await asyncio.to_thread(puts.begun.wait, 30)
        staging.drop_up_to("p", 1)
        await staging.swept()
        assert staging.bytes == 4
        puts.go_on.set()
        with pytest.raises(StagedLost):
            await losing
        await staging.swept()
        assert (await folder.names(), staging.bytes) == ([], 0)
        await staging.close()


async def test_what_is_put_for_one_who_was_cancelled_counts_until_it_is_old(
    place: Place, clock: Clock
) -> None:
    puts = HeldPuts()
    async with store_with(place, puts) as store:
        folder = store.blob_folder("m/staged")
        staging = Staging(folder, kept_s=60.0, max_bytes=6, clock=clock)
        puts.held = True
        cancelled = asyncio.create_task(staging.stage("p", 1, b"rows"))
        await asyncio.to_thread(puts.begun.wait, 30)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        puts.go_on.set()
        with pytest.raises(StagingFull):
            await staging.stage("p", 1, b"rows")
        await staging.close()
        assert len(await folder.names()) == 1
        later = Staging(folder, kept_s=60.0, max_bytes=6, clock=clock)
        await later.catch_up()
        clock.now += 61
        await later.stage("p", 1, b"rows")
        assert (len(await folder.names()), later.bytes) == (1, 4)
        await later.close()


async def test_what_cannot_be_deleted_counts_and_keeps_nobody_from_anything(
    place: Place, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, behind all others, and said once."""
    deletes = RefusedDeletes()
    async with store_with(place, deletes) as store:
        folder = store.blob_folder("m/staged")
        staging = Staging(folder, kept_s=60.0, max_bytes=100, clock=clock)
        names = [await staging.stage("p", number, b"x" * 10) for number in range(6)]
        deletes.prefixes = tuple(names[:3])
        clock.now += 61
        await staging.close()
        staging = Staging(folder, kept_s=60.0, max_bytes=100, clock=clock)
        await staging.catch_up()
        await staging.swept()
        assert deletes.tried == sorted(names)[:3]  # what is away may be so for long
        young = await staging.stage("p", 9, b"x" * 10)
        await staging.swept()
        assert await folder.names() == sorted([*names[:3], young])
        assert staging.bytes == 40
        with pytest.raises(StagedLost):
            staging.size("p", 0, names[:1])
        assert caplog.text.count("cannot be deleted yet") == 1
        deletes.prefixes = ()
        staging.forget_old()
        await staging.swept()
        assert (await folder.names(), staging.bytes) == ([young], 10)
        await staging.close()


# -- numbers that grow


@pytest.fixture
async def log(store: Store) -> AsyncIterator[InputLog]:
    async with await InputLog.open(store, "m", _HANDLES) as opened:
        yield opened


async def test_numbers_may_be_left_out_and_the_last_one_comes_again_without_effect(
    log: InputLog, store: Store
) -> None:
    await log.push_later("a", zset((1, 1)), producer="p", number=4)
    await log.push_later(
        "a", zset((2, 1)), producer="p", number=4
    )  # other rows, as a query may give that is run again
    await log.push_later("a", zset((3, 1)), producer="p", number=9)
    for number in (4, 8):
        with pytest.raises(SequencePassed, match=f"sent its number {number}, but its next is 10"):
            await log.push_later("a", zset((4, 1)), producer="p", number=number)
        with pytest.raises(SequencePassed):
            await log.has_logged("p", number)
    assert (await log.has_logged("p", 9), await log.has_logged("p", 10)) == (True, False)
    with pytest.raises(SequenceGap):
        await log.push("a", zset((4, 1)), producer="p", sequence=11)
    assert weights((await log.fix(0)).values()) == {1: 1, 3: 1}
    await log.__aexit__(None, None, None)
    async with await InputLog.open(store, "m", _HANDLES) as again:
        assert (await again.has_logged("p", 9), again.next_sequence("p")) == (True, 10)


async def test_what_is_on_its_way_is_not_logged_before_it_is_and_not_if_it_fails(place: Place) -> None:
    """Who was told that it is would leave his part of it away, and the next attempt would have half of it."""
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        plan.before, plan.at = lambda _: StoreFull("the store", "the disk is full"), len(plan.calls)
        pushing = asyncio.create_task(log.push_later("a", zset((1, 1)), producer="p", number=0))
        await asyncio.sleep(0)
        assert log.next_sequence("p") == 1
        with pytest.raises(StoreFull):
            await log.has_logged("p", 0)
        with pytest.raises(StoreFull):
            await pushing
        assert not await log.has_logged("p", 0)
        await log.push_later("a", zset((1, 1)), producer="p", number=0)
        assert await log.has_logged("p", 0)
        assert weights((await log.fix(0)).values()) == {1: 1}
