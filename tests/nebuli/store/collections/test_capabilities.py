"""Who may still read what: holds and leases of collections, and renditions that are made and dropped by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

from nebuli import Collections
from nebuli.store import Store
from nebuli.store.collections.errors import (
    CollectionMisused,
    CollectionUnknown,
    RenditionRefused,
    RenditionUnknown,
    TooLate,
)
from nebuli.store.errors import ShardUnknown
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, batch, counted
from tests.support.waiting import until_async


async def held(collections: Collections, name: str) -> dict[str, int]:
    """The holds of others than the collection itself."""
    found = (await collections.describe(name)).holds
    return {hold: each.time for hold, each in found.items() if hold != "history"}


async def test_holds_are_listed_moved_and_released(collections: Collections, other: Collections) -> None:
    """ST-CTL-3, ST-SH-10: the lowest one says from when on the collection can be read, whoever has it."""
    await collections.create("sales", SCHEMA, keep=0)
    times = [await collections.insert("sales", batch(("a", number))) for number in range(6)]

    async def since() -> int:
        await collections.keep_house()
        return (await other.describe("sales")).since

    await collections.hold("sales", "report", times[1])
    await other.hold("sales", "copy", times[3])
    assert await held(other, "sales") == {"report": times[1], "copy": times[3]}
    assert await since() == times[1]
    assert counted(await other.snapshot("sales", times[1])).total() == 2
    await other.hold("sales", "report", times[4])
    assert await since() == times[3]
    for who, hold, at in ((other, "copy", times[2]), (collections, "new", times[1])):
        with pytest.raises(
            TooLate, match=rf"cannot be read at time {at} any more, only at times from {times[3]} on"
        ):
            await who.hold("sales", hold, at)
    await collections.release("sales", "copy")
    await collections.release("sales", "copy")
    assert await held(collections, "sales") == {"report": times[4]}
    assert await since() == times[4]
    assert counted(await other.snapshot("sales", times[4])).total() == 5
    await other.release("sales", "report")
    assert await since() == times[5]
    assert await held(collections, "sales") == {}


async def test_a_hold_whose_lease_is_over_holds_nothing_up(
    collections: Collections, other: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-CTL-3, ST-REN-3: whoever was killed keeps a rendition as long as its lease, and no longer."""
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    await collections.create("sales", SCHEMA, keep=0)
    at = await collections.insert("sales", batch(("a", 1)))
    await other.hold("sales", "killed", at, lease_s=60)
    await collections.new_rendition("sales", rendition="r2")
    over = await collections.handover("sales", "r2")
    now += 59
    await collections.insert("sales", batch(("b", 1)))
    await collections.keep_house()
    assert await held(collections, "sales") == {"killed": at}
    assert counted(await other.snapshot("sales", over - 1)) == Counter({("a", 1): 1})
    now += 2
    await collections.insert("sales", batch(("c", 1)))
    await collections.keep_house()
    status = await other.describe("sales")
    assert await held(other, "sales") == {}
    assert [each.name for each in status.renditions] == ["r2"]
    assert status.since > over
    with pytest.raises(TooLate):
        await other.hold("sales", "killed", at, lease_s=60)


async def test_who_reads_has_a_hold_as_long_as_it_reads(
    collections: Collections, other: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-CTL-3: it is listed, renewed where the reader is by then, and let go, in whatever way it ends."""
    monkeypatch.setattr("nebuli.store.collections.reader_holds._AGAIN_S", 0.01)
    await collections.create("sales", SCHEMA, keep=0)
    start = await collections.insert("sales", batch(("a", 1)))
    reader = Accumulated()
    async with aclosing(other.subscribe("sales", start, snapshot=True)) as spans:
        await reader.follow(spans, start)
        ((name, at),) = (await held(collections, "sales")).items()
        assert name.startswith("reader-")
        assert at == start
        expires = (await collections.describe("sales")).holds[name].expires
        assert expires is not None
        last = await collections.insert("sales", batch(("b", 1)))
        await reader.follow(spans, last)
        following = asyncio.ensure_future(anext(spans))

        async def has_moved() -> bool:
            return (await held(collections, "sales"))[name] >= last

        await until_async(has_moved, "the hold is where the reader is")
        assert ((await collections.describe("sales")).holds[name].expires or 0.0) > expires
        await following
    assert await held(collections, "sales") == {}
    waiting = asyncio.create_task(other.snapshot("sales", last + 60_000))

    async def has_hold() -> bool:
        return bool(await held(collections, "sales"))

    await until_async(has_hold, "it reads")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await held(collections, "sales") == {}


async def test_renditions_are_made_handed_over_to_and_dropped(
    collections: Collections, other: Collections
) -> None:
    """ST-CTL-2: each command is seen by all, says why it is refused, and leaves nothing where it is."""
    await collections.create("sales", SCHEMA, shards=2)
    at = await collections.insert("sales", batch(("a", 1)))
    for name in ("r2", "r3"):
        await collections.new_rendition("sales", rendition=name, shards=3)
    shards = await collections._open.space.store.shards()
    found = {each.name: each for each in (await other.describe("sales")).renditions}
    assert {name: (each.shards, each.begin) for name, each in found.items()} == {
        "r1": (2, 0), "r2": (3, None), "r3": (3, None),
    }  # fmt: skip
    over = await other.handover("sales", "r2")
    status = await collections.describe("sales")
    assert status.active == "r2"
    periods = {each.name: (each.begin, each.end) for each in status.renditions}
    assert periods == {"r1": (0, over), "r2": (over, None), "r3": (None, None)}
    await other.drop_rendition("sales", "r3")
    assert len(await collections._open.space.store.shards()) == len(shards) - 3
    for act, error, said in (
        (
            lambda: collections.new_rendition("sales", rendition="r2"),
            RenditionRefused,
            "already has a rendition r2",
        ),
        (
            lambda: collections.new_rendition("sales", rendition="r 2"),
            CollectionMisused,
            "'r 2' cannot be the name",
        ),
        (
            lambda: collections.new_rendition("sales", rendition="r4", shards=257),
            CollectionMisused,
            "257 shards",
        ),
        (
            lambda: collections.new_rendition("sale", rendition="r4"),
            CollectionUnknown,
            "unknown collection sale",
        ),
        (lambda: collections.handover("sales", "r2"), RenditionRefused, "r2 is or was the current rendition"),
        (
            lambda: collections.handover("sales", "r3"),
            RenditionUnknown,
            "has no rendition r3: it has r1, r2",
        ),
        (
            lambda: collections.drop_rendition("sales", "r1"),
            RenditionRefused,
            f"is read from rendition r1 at times below {over}",
        ),
        (
            lambda: collections.drop_rendition("sales", "r2"),
            RenditionRefused,
            "hand over to another rendition",
        ),
        (lambda: collections.drop_rendition("sales", "r3"), RenditionUnknown, "has no rendition r3"),
        (lambda: collections.write("sales", [], 0, 1, rendition="r3"), RenditionUnknown, "no rendition r3"),
        (lambda: other.write("sales", [], 0, 1, rendition="r3"), RenditionUnknown, "has no rendition r3"),
        (lambda: other.handover("sale", "r2"), CollectionUnknown, "unknown collection sale"),
    ):
        with pytest.raises(error, match=said):
            await act()
    left = [each for each in status.renditions if each.name != "r3"]
    assert (await collections.describe("sales")).renditions == left
    assert counted(await other.snapshot("sales", at)) == Counter({("a", 1): 1})


async def test_each_shard_of_a_rendition_is_one_of_the_store(collections: Collections, folder: Path) -> None:
    """ST-COL-6: who opens them past the collection finds its rows, each in one of them, at the same times."""
    await collections.create("sales", SCHEMA, shards=4)
    rows = [("a", number) for number in range(40)]
    at = await collections.insert("sales", batch(*rows))
    await collections.new_rendition("sales", rendition="r2", shards=2)
    (collection,) = collections._open.space._open.values()
    async with Store.at(folder) as store:
        names = await store.shards()
        for rendition, shards in (("r1", 4), ("r2", 2)):
            assert sum(f"/{rendition}." in name for name in names) == shards
        found: Counter[tuple[str, int]] = Counter()
        for each in collection.shards["r1"]:
            shard = await store.open_shard(each.name)
            assert shard.upper == at + 1
            contents = await shard.snapshot(at)
            assert contents.num_rows
            for shop, amount, weight in zip(*contents.to_pydict().values(), strict=True):
                found[shop, amount] += weight
    assert found == Counter(rows)


async def test_who_knows_of_no_handover_goes_on_all_the_same(
    collections: Collections, other: Collections
) -> None:
    """ST-CTL-2, ST-CL-1: an old rendition may be gone before a process that writes or reads has heard of it."""
    await collections.create("sales", SCHEMA, keep=0)
    at = await other.insert("sales", batch(("a", 1)), producer="p", sequence=1)
    assert counted(await other.snapshot("sales", at)) == Counter({("a", 1): 1})
    for number in range(2, 6):
        await collections.new_rendition("sales", rendition=f"r{number}", shards=number)
        await collections.write("sales", [(at, batch(("a", number)))], 0, at + 1, rendition=f"r{number}")
        await collections.handover("sales", f"r{number}")
        await collections.insert("sales", batch(("b", number)))
        await collections.keep_house()
        assert [each.name for each in (await collections.describe("sales")).renditions] == [f"r{number}"]
        if number % 2:
            await other.insert("sales", batch(("c", number)), producer="p", sequence=number)
        rows = counted(await other.snapshot("sales"))
        assert rows[("a", number)] == rows[("b", number)] == 1
        assert rows[("c", number)] == number % 2


async def test_a_reader_that_was_away_for_longer_than_its_lease_is_told(
    collections: Collections, other: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-COL-1, ST-SH-3: it is not given what is left of times that others have forgotten."""
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    await collections.create("sales", SCHEMA, keep=0)
    start = await collections.insert("sales", batch(("a", 1)))
    readers = [other.subscribe("sales", start, snapshot=True) for _ in range(2)]
    for each in readers:
        await Accumulated().follow(each, start)
    await collections.insert("sales", batch(("b", 1)))
    await collections.new_rendition("sales", rendition="r2")
    over = await collections.handover("sales", "r2")
    now += 61
    metadata = (await collections._open.space.opened("sales")).metadata
    for is_whole in (False, True):
        await collections.insert("sales", batch(("c", 1)))
        await metadata.hold("history", over + 1)
        if is_whole:
            await collections.keep_house()
        with pytest.raises(
            TooLate, match=rf"sales cannot be read at time {start} any more, only at times from \d+ on"
        ):
            await anext(readers.pop())
    assert (await collections.describe("sales")).since > over


async def test_what_is_dropped_in_the_middle_of_a_read_is_not_read_as_empty(
    collections: Collections, other: Collections
) -> None:
    """ST-SH-3: by who has the shards in hand, and no hold any more."""
    await collections.create("sales", SCHEMA)
    at = await other.insert("sales", batch(("a", 1)))
    (collection,) = other._open.space._open.values()
    (shard,) = collection.shards["r1"]
    await collections.drop("sales")
    await other._open.space.access.refresh([shard.tracked])
    for read in (lambda: shard.contents(at), lambda: shard.between(0, at + 1)):
        with pytest.raises(ShardUnknown):
            await read()


@pytest.mark.long
async def test_all_that_can_happen_at_once(collections: Collections, other: Collections) -> None:
    """ST-CTL-2, ST-CTL-3: producers, readers, handovers and housekeeping of two processes; each row is there once."""
    both = (collections, other)
    await collections.create("sales", SCHEMA, shards=2, keep=0)
    await collections.insert("sales", batch(("start", 0)))
    is_over = asyncio.Event()

    async def keep_house(who: Collections) -> None:
        while not is_over.is_set():
            await who.keep_house()
            await asyncio.sleep(0.01)

    async def read(who: Collections) -> None:
        while not is_over.is_set():
            assert ("start", 0) in counted(await who.snapshot("sales"))

    async def produce(who: Collections, name: str) -> None:
        for number in range(30):
            for _ in range(1 + number % 2):
                await who.insert("sales", batch((name, number)), producer=name, sequence=number)

    async def make_anew() -> None:
        number = 2
        while not is_over.is_set():
            name = f"r{number}"
            await other.new_rendition("sales", rendition=name, shards=1 + number % 3)
            try:
                at = await other.latest("sales")
                await other.hold("sales", "built", at)
                rows = await other.snapshot("sales", at)
                await other.write("sales", [(at, rows)], 0, at + 1, rendition=name)
                await other.handover("sales", name, built_from=at)
            except (RenditionRefused, TooLate):
                await other.drop_rendition("sales", name)
            await other.release("sales", "built")
            number += 1
            await asyncio.sleep(0.02)

    async def produce_all() -> None:
        await asyncio.gather(*(produce(who, f"{who is other}{n}") for who in both for n in range(2)))
        is_over.set()

    await asyncio.gather(
        *(keep_house(who) for who in both), *(read(who) for who in both), make_anew(), produce_all()
    )
    expected = Counter(
        (f"{who}{n}", number) for who in (True, False) for n in range(2) for number in range(30)
    )
    assert counted(await collections.snapshot("sales")) == expected + Counter({("start", 0): 1})
