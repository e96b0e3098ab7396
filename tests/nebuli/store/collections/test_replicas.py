"""Several equal writers of one rendition: as if they were one, and told at once where they differ."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

from nebuli import Collections
from nebuli.store.collections.errors import (
    CollectionMisused,
    ConflictingWrite,
    RenditionOver,
    RenditionUnknown,
)
from nebuli.store.errors import UpperMismatch
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, batch, counted, present, zset
from tests.support.waiting import until_async

_BATCHES = 60


@pytest.fixture
async def sales(collections: Collections) -> str:
    """A collection of three shards, whose writers give the times."""
    await collections.create("sales", SCHEMA, shards=3, timed="writers")
    return "sales"


def state(collections: Collections) -> list[tuple[int, int]]:
    """The entries of the shards' logs, and their uppers."""
    (collection,) = collections._open.space._open.values()
    shards = collection.shards["r1"]
    return [(each.tracked.state.sequence, each.upper) for each in shards]


@pytest.mark.parametrize("seed", range(3))
async def test_two_replicas_of_one_ingestion_write_as_one(
    collections: Collections, other: Collections, sales: str, seed: int
) -> None:
    """ST-COL-3: they race, cut times into other batches, and begin again from before; each row is there once."""
    draw = random.Random(seed)
    source = [
        [
            (draw.choice("abc"), draw.randrange(4), draw.choice([1, 1, 2, -1]))
            for _ in range(draw.randrange(4))
        ]
        for _ in range(_BATCHES)
    ]

    async def replica(who: Collections, seed: str) -> None:
        mine = random.Random(seed)
        at = 0
        while at < _BATCHES:
            upper = min(at + mine.randint(1, 5), _BATCHES)
            updates = [(time, zset(*source[time])) for time in range(at, upper)]
            mine.shuffle(updates)
            await who.write(sales, updates, at, upper)
            at = max(0, upper - mine.randint(1, 3)) if mine.random() < 0.2 else upper
            await asyncio.sleep(mine.choice([0, 0, 0.002]))

    await asyncio.gather(replica(collections, f"{seed} a"), replica(other, f"{seed} b"))
    reader = Accumulated()
    async with aclosing(other.subscribe(sales, 0, snapshot=True)) as spans:
        await reader.follow(spans, _BATCHES - 1)
    for time in range(_BATCHES):
        expected: Counter[tuple[str, int]] = Counter()
        for rows in source[: time + 1]:
            for shop, amount, weight in rows:
                expected[shop, amount] += weight
        assert reader.at(time) == present(expected)


async def test_what_another_has_written_is_not_written_again(
    collections: Collections, other: Collections, sales: str
) -> None:
    """ST-SH-1: in whatever order, and in whatever pieces; what is behind it is."""
    rows = batch(("a", 1), ("b", 2), ("b", 2), ("c", 3))
    await collections.write(sales, [(3, rows)], 0, 10)
    before = state(collections)
    await other.write(sales, [(3, batch(("c", 3), ("a", 1))), (3, zset(("b", 2, 2)))], 0, 10)
    await other.write(sales, [(3, rows)], 3, 4)
    await other.write(sales, [], 4, 10)
    await collections.describe(sales)
    assert state(collections) == before
    await other.write(sales, [(3, rows), (11, batch(("d", 4)))], 0, 12)
    assert counted(await collections.snapshot(sales, 11)) == counted(await other.snapshot(sales, 11))
    assert counted(await collections.snapshot(sales, 11)) == Counter(
        {("a", 1): 1, ("b", 2): 2, ("c", 3): 1, ("d", 4): 1}
    )


@pytest.mark.parametrize(
    ("rows", "here", "there"),
    [
        ([("a", 1), ("b", 2), ("c", 5)], r"\('c', 5\)", r"\('c', 3\)"),
        ([("a", 1), ("b", 2)], "nothing", r"\('c', 3\)"),
        ([("a", 1), ("b", 2), ("c", 3), ("c", 3)], r"\('c', 3\)", "nothing"),
        (
            [("a", 7), ("b", 7), ("c", 7), ("d", 7)],
            r"\(.*\), \(.*\), \(.*\) and 1 more",
            r"\(.*\), \(.*\), \(.*\)",
        ),
    ],
)
async def test_writers_that_differ_are_told_where(
    collections: Collections,
    other: Collections,
    sales: str,
    rows: list[tuple[str, int]],
    here: str,
    there: str,
) -> None:
    """ST-SH-2: rendition, time, and the rows of both; of all that was to be written nothing is."""
    await collections.write(sales, [(3, batch(("z", 0))), (7, batch(("a", 1), ("b", 2), ("c", 3)))], 0, 10)
    before = state(collections)
    with pytest.raises(
        ConflictingWrite,
        match=rf"rendition r1 of collection sales has other rows at time 7 .*only in the rendition: "
        rf"{there}; only at this writer: {here}\)\. ",
    ) as raised:
        await other.write(sales, [(3, batch(("z", 0))), (7, batch(*rows)), (12, batch(("x", 1)))], 0, 20)
    assert (raised.value.name, raised.value.rendition, raised.value.time) == ("sales", "r1", 7)
    with pytest.raises(
        ConflictingWrite, match=r"at time 5 .*only in the rendition: nothing; only at this writer: \('y', 1\)"
    ):
        await other.write(sales, [(5, batch(("y", 1)))], 5, 6)
    await collections.describe(sales)
    assert state(collections) == before
    assert counted(await other.snapshot(sales)).total() == 4


async def test_a_new_rendition_makes_a_conflict_good(
    collections: Collections, other: Collections, sales: str
) -> None:
    """ST-SH-2, ST-COL-4: it is written from scratch and handed over to; who follows is told of the difference."""
    await collections.write(sales, [(3, batch(("a", 1)))], 0, 10)
    with pytest.raises(ConflictingWrite):
        await other.write(sales, [(3, batch(("a", 2)))], 0, 10)
    await other.new_rendition(sales, rendition="r2", shards=2)
    reader = Accumulated()
    async with asyncio.timeout(20), aclosing(collections.subscribe(sales, 0, snapshot=True)) as spans:
        for each in (other, collections):
            await each.write(sales, [(3, batch(("a", 2)))], 0, 10, rendition="r2")
        over = await other.handover(sales, "r2")
        for each in (collections, other):
            await each.write(sales, [(over + 1, batch(("b", 1)))], 10, over + 2, rendition="r2")
        await reader.follow(spans, over + 1)
    assert reader.at(over - 1) == Counter({("a", 1): 1})
    assert reader.at(over) == Counter({("a", 2): 1})
    assert reader.now == Counter({("a", 1): 0, ("a", 2): 1, ("b", 1): 1})


async def test_of_two_that_differ_and_race_one_is_told(
    collections: Collections, other: Collections, sales: str
) -> None:
    """ST-SH-2: whoever is first is in it as a whole, over all shards."""
    for at in range(0, 100, 10):
        mine, theirs = (batch(*((shop, number) for number in range(12))) for shop in "mt")
        results = await asyncio.gather(
            collections.write(sales, [(at, mine)], at, at + 10),
            other.write(sales, [(at, theirs)], at, at + 10),
            return_exceptions=True,
        )
        (error,) = [each for each in results if each is not None]
        assert isinstance(error, ConflictingWrite)
        assert error.time == at
        winner = "m" if results[0] is None else "t"
        reader = Accumulated()
        async with aclosing(collections.subscribe(sales, at - 1 if at else 0, snapshot=not at)) as spans:
            await reader.follow(spans, at + 9)
        assert reader.changes[at] == Counter({(winner, number): 1 for number in range(12)})


async def test_a_writer_that_goes_on_too_far_on_is_told(collections: Collections, sales: str) -> None:
    """ST-SH-5: times are of the write, and what lies before it is written."""
    await collections.write(sales, [], 0, 10)
    with pytest.raises(
        UpperMismatch, match="is written only for times below 10, but this writer continues at 12"
    ):
        await collections.write(sales, [(12, batch(("a", 1)))], 12, 13)
    for at in (9, 12):
        with pytest.raises(CollectionMisused, match=f"are at time {at}, but must be from 10 to 11"):
            await collections.write(sales, [(at, batch(("a", 1)))], 10, 12)
    for lower, upper in ((-1, 1), (0, (1 << 64) + 1)):
        with pytest.raises(CollectionMisused, match="times begin at 0 and have 64 bits"):
            await collections.write(sales, [(lower, batch(("a", 1)))], lower, upper)
    with pytest.raises(CollectionMisused, match="the upper must be above the lower"):
        await collections.write(sales, [], 10, 10)
    with pytest.raises(CollectionMisused, match="get their times from its writers"):
        await collections.insert(sales, batch(("a", 1)))
    assert state(collections) == [(2, 10)] * 3


async def test_a_replica_that_was_away_for_long_goes_on_where_the_other_is(
    collections: Collections, other: Collections, folder: Path
) -> None:
    """ST-SH-1: what it wrote is consolidated and cannot be compared any more; it is not an error to write it again."""
    await collections.create("sales", SCHEMA, timed="writers", keep=0)
    source = [batch(("a", at)) for at in range(50)]
    for at in range(40):
        await collections.write("sales", [(at, source[at])], at, at + 1)
    await collections.keep_house()

    async def is_forgotten() -> bool:
        return (await other.describe("sales")).since == 39

    await until_async(is_forgotten, "the history is over")
    await other.write("sales", list(enumerate(source)), 0, 50)
    assert counted(await collections.snapshot("sales", 49)) == Counter({("a", at): 1 for at in range(50)})


async def test_a_replica_does_not_go_on_with_another_rendition_unasked(
    collections: Collections, other: Collections, sales: str
) -> None:
    """The rows of an old decoder are not for the new one's rendition, unless somebody says so."""
    await collections.write(sales, [(1, batch(("old", 1)))], 0, 2)
    await other.new_rendition(sales, rendition="r2")
    await other.write(sales, [(1, batch(("new", 1)))], 0, 2, rendition="r2")
    await other.handover(sales, "r2")
    for _ in range(2):
        with pytest.raises(
            RenditionOver,
            match=r"writes rendition r1 of collection \w+, but the current rendition from time \d+ on is r2",
        ):
            await collections.write(sales, [(2, batch(("old", 2)))], 2, 3)
    await collections.write(sales, [(2, batch(("new", 2)))], 2, 3, rendition="r2")
    await other.write(sales, [(2, batch(("new", 2)))], 2, 3)


async def test_a_rendition_that_is_dropped_in_the_middle_of_a_write_is_named(
    collections: Collections, other: Collections, sales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call that the write makes; the collection is there still."""
    access = collections._open.space.access
    for name in ("known_behind", "append", "read", "track_all"):
        await other.new_rendition(sales, rendition="r2")
        await other.write(sales, [(1, batch(("a", 1)))], 0, 2, rendition="r2")
        call, dropped = getattr(access, name), []

        async def behind_a_drop(*arguments, call=call, dropped=dropped, **named):
            if not dropped:
                dropped.append("r2")
                await other.drop_rendition(sales, "r2")
            return await call(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(access, name, behind_a_drop)
            with pytest.raises(RenditionUnknown, match="has no rendition r2: it has r1"):
                await collections.write(
                    sales, [(1, batch(("a", 1))), (2, batch(("b", 1)))], 0, 3, rendition="r2"
                )
        assert dropped
