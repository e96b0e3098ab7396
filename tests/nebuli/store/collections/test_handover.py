"""Handovers while others insert: they win, with every row once, or say that they did not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.store.collections.errors import CollectionMisused, HandoverLate, RenditionRefused, TooLate
from nebuli.store.collections.reader_holds import HELD_OFF, HELD_OFF_S, set_hold
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, batch, counted


class Inserting:
    """Inserts one after the other, as fast as it can."""

    def __init__(self, collections: Collections, rows: int) -> None:
        self.count = 0
        self._collections = collections
        self._rows = rows
        self._ended = False

    async def run(self) -> None:
        while not self._ended:
            rows = pa.record_batch([[f"n{self.count}"] * self._rows, range(self._rows)], schema=SCHEMA)
            self.last = await self._collections.insert("sales", rows)
            self.count += 1

    async def reach(self, count: int) -> None:
        """Wait until so many are inserted."""
        async with asyncio.timeout(60):
            while self.count < count:  # noqa: ASYNC110 - beside one that never waits for anybody
                await asyncio.sleep(0.001)

    def end(self) -> None:
        self._ended = True

    def all(self) -> Counter[tuple[str, int]]:
        return Counter((f"n{each}", row) for each in range(self.count) for row in range(self._rows))


@pytest.mark.parametrize("rows", [1, 5_000], ids=["small", "large"])
@pytest.mark.parametrize("is_other", [False, True], ids=["same client", "another client"])
async def test_a_handover_wins_while_another_inserts_as_fast_as_it_can(
    collections: Collections, other: Collections, rows: int, is_other: bool
) -> None:
    """ST-CTL-2: what is inserted meanwhile is in the new rendition, once; readers see no difference but the mended."""
    await collections.create("sales", SCHEMA, shards=2)
    writer = Inserting(other if is_other else collections, rows)
    start = await collections.insert("sales", batch(("wrong", 1), ("right", 2)))
    task = asyncio.create_task(writer.run())
    try:
        await writer.reach(5)
        for number in (2, 3):
            built_from = await collections.latest("sales")
            contents = await collections.snapshot("sales", built_from)
            mended = [row for row in contents.to_pylist() if row["shop"] != "wrong"]
            name, before = f"r{number}", writer.count
            await collections.new_rendition("sales", rendition=name, shards=number)
            rows_ = pa.RecordBatch.from_pylist(mended, schema=SCHEMA)
            await collections.write("sales", [(built_from, rows_)], 0, built_from + 1, rendition=name)
            await writer.reach(before + 5)
            over = await collections.handover("sales", name, built_from=built_from)
            assert over > built_from
    finally:
        writer.end()
        await task
    expected = writer.all() + Counter({("right", 2): 1})
    last = await collections.insert("sales", batch(("end", 0)))
    assert counted(await other.snapshot("sales", last - 1)) == expected
    reader = Accumulated()
    async with aclosing(other.subscribe("sales", start, snapshot=True)) as spans:
        await reader.follow(spans, last)
    assert reader.at(last - 1) == expected
    assert reader.at(start) == Counter({("wrong", 1): 1, ("right", 2): 1})


async def test_a_handover_that_is_never_first_says_so(
    collections: Collections, other: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has happened then, what was added is not added again, and it can be made again."""
    await collections.create("sales", SCHEMA)
    at = await collections.insert("sales", batch(("a", 1)))
    await collections.new_rendition("sales", rendition="r2")
    await collections.write("sales", [(at, batch(("a", 1)))], 0, at + 1, rendition="r2")
    access = collections._open.space.access
    append = access.append
    inserted = 0

    async def append_behind_another(parts, *more, **named):
        nonlocal inserted
        if len(parts) > 2 and parts[1].shard is collections._open.space.clock.shard:
            await other.insert("sales", batch(("b", inserted)))
            inserted += 1
        await append(parts, *more, **named)

    monkeypatch.setattr(access, "append", append_behind_another)
    with pytest.raises(
        HandoverLate, match=r"not handed over to rendition r2 within 0.2 s .* was first: \d+\)"
    ):
        await collections.handover("sales", "r2", built_from=at, deadline_s=0.2)
    monkeypatch.setattr(access, "append", append)
    assert (await collections.describe("sales")).active == "r1"
    assert inserted > 1
    expected = Counter({("a", 1): 1}) + Counter(("b", each) for each in range(inserted))
    over = await other.handover("sales", "r2", built_from=at)
    assert counted(await collections.snapshot("sales", over)) == expected


async def test_what_came_since_has_to_be_there_still(collections: Collections) -> None:
    await collections.create("sales", SCHEMA, keep=0)
    at = await collections.insert("sales", batch(("a", 1)))
    await collections.new_rendition("sales", rendition="r2")
    await collections.insert("sales", batch(("b", 1)))
    last = await collections.insert("sales", batch(("c", 1)))
    await collections.snapshot("sales", last + 2)
    await collections.keep_house()
    with pytest.raises(TooLate, match=f"cannot be read at time {at} any more"):
        await collections.handover("sales", "r2", built_from=at)


async def test_inserts_wait_for_a_handover_as_long_as_its_lease(
    collections: Collections, other: Collections
) -> None:
    """Whoever hands over and is killed holds up nothing longer."""
    await collections.create("sales", SCHEMA)
    await collections.insert("sales", batch(("a", 1)))
    start = time.monotonic()
    space = collections._open.space
    opened = await space.opened("sales")
    await set_hold(space, opened, HELD_OFF, await collections.latest("sales"), 0.3)
    await other.insert("sales", batch(("b", 1)))
    with pytest.raises(CollectionMisused, match="the hold handover belongs to a handover"):
        await collections.hold("sales", HELD_OFF, 0)
    assert time.monotonic() - start >= 0.3


async def test_inserts_do_not_wait_for_a_lease_of_before_the_clock_was_set_back(
    collections: Collections, other: Collections
) -> None:
    await collections.create("sales", SCHEMA)
    at = await collections.insert("sales", batch(("a", 1)))
    space = collections._open.space
    await set_hold(space, await space.opened("sales"), HELD_OFF, at, HELD_OFF_S + 3600)
    async with asyncio.timeout(30):
        await other.insert("sales", batch(("b", 1)))


async def test_a_rendition_is_built_from_what_was_there_and_is_written_up_to_that(
    collections: Collections,
) -> None:
    """Else rows would be lost: those of the time that was not written, or those up to the time to come."""
    await collections.create("sales", SCHEMA, shards=2)
    at = await collections.insert("sales", batch(("a", 1)))
    await collections.new_rendition("sales", rendition="r2")
    with pytest.raises(
        RenditionRefused,
        match=f"built .* as of {at}, because the rendition is written only for times below 0",
    ):
        await collections.handover("sales", "r2", built_from=at)
    await collections.write("sales", [(at, batch(("a", 1)))], 0, at + 1, rendition="r2")
    await collections.insert("sales", batch(("b", 1)))
    with pytest.raises(
        RenditionRefused,
        match=f"cannot be built from the collection as of {at * 1000}, because the collection is "
        f"written only for times below",
    ):
        await collections.handover("sales", "r2", built_from=at * 1000)
    over = await collections.handover("sales", "r2", built_from=at)
    assert counted(await collections.snapshot("sales", over)) == Counter({("a", 1): 1, ("b", 1): 1})


@pytest.mark.parametrize("asked", ["described", "handed over to another one"])
async def test_another_one_is_made_and_handed_over_to_meanwhile(
    collections: Collections, other: Collections, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at which renditions there are and one at which of them it is: that one is not known yet."""
    await collections.create("sales", SCHEMA, timed="writers")
    await collections.write("sales", [(5, batch(("a", 1)))], 0, 10)
    await collections.new_rendition("sales", rendition="r2")
    space = collections._open.space
    look = space.look

    async def look_behind_another(*arguments):
        monkeypatch.setattr(space, "look", look)
        await other.new_rendition("sales", rendition="r3")
        await other.handover("sales", "r3")
        return await look(*arguments)

    monkeypatch.setattr(space, "look", look_behind_another)
    if asked == "described":
        assert (await collections.describe("sales")).active == "r3"
    else:
        await collections.handover("sales", "r2")
        assert (await collections.describe("sales")).active == "r2"
    found = [each.name for each in (await collections.describe("sales")).renditions]
    assert sorted(found) == ["r1", "r2", "r3"]


# -- at a given time


async def test_a_handover_is_made_at_the_time_that_is_given(folder: Path) -> None:
    """ST-CTL-2: until the millisecond before it is the one rendition, from it on the other."""
    async with Collections(folder, now=lambda: 1_000, tick_s=0.005) as collections:
        await collections.create("sales", SCHEMA)
        wrong = await collections.insert("sales", batch(("wrong", 1)))
        assert await collections.new_rendition("sales", 3) == "r2"
        await collections.write("sales", [(wrong, batch(("right", 1)))], 0, wrong + 1, rendition="r2")
        await collections.insert("sales", batch(("b", 1)))
        assert await collections.handover("sales", "r2", 1_050, built_from=wrong) == 1_050
        assert await collections.insert("sales", batch(("c", 1))) == 1_051
        reader = Accumulated()
        async with aclosing(collections.subscribe("sales", wrong, snapshot=True)) as spans:
            await reader.follow(spans, 1_051)
        assert reader.at(1_049) == Counter({("wrong", 1): 1, ("b", 1): 1})
        assert reader.at(1_050) == Counter({("right", 1): 1, ("b", 1): 1})
        assert reader.at(1_051) == Counter({("right", 1): 1, ("b", 1): 1, ("c", 1): 1})
        found = {each.name: each for each in (await collections.describe("sales")).renditions}
        assert (found["r1"].end, found["r1"].shards) == (1_050, 1)
        assert (found["r2"].begin, found["r2"].end, found["r2"].shards) == (1_050, None, 3)


async def test_a_handover_at_a_time_to_come_waits_for_it_while_others_insert(
    collections: Collections, other: Collections
) -> None:
    """ST-CTL-2: each row is there once, below the time and from it on."""
    await collections.create("sales", SCHEMA)
    built_from = await collections.insert("sales", batch(("wrong", 1)))
    await collections.new_rendition("sales", 3)
    await collections.write("sales", [(built_from, batch(("right", 1)))], 0, built_from + 1, rendition="r2")
    writer = Inserting(other, 1)
    task = asyncio.create_task(writer.run())
    reader = Accumulated()
    try:
        await writer.reach(2)
        while True:
            at = await collections.latest("sales") + 1_000
            with suppress(RenditionRefused):  # a machine that stands still misses a time
                assert await collections.handover("sales", "r2", at, built_from=built_from) == at
                break
        await writer.reach(writer.count + 2)
    finally:
        writer.end()
        await task
    async with aclosing(other.subscribe("sales", built_from, snapshot=True)) as spans:
        await reader.follow(spans, writer.last + 1)
    assert reader.at(at - 1)["wrong", 1] == 1
    assert reader.at(at) == reader.at(at - 1) - Counter({("wrong", 1): 1}) + Counter({("right", 1): 1})
    assert reader.at(writer.last) == writer.all() + Counter({("right", 1): 1})


async def test_times_at_which_it_cannot_be_handed_over_are_refused(collections: Collections) -> None:
    """Below the metadata's upper, later than is waited for, and where the new rendition cannot be read."""
    await collections.create("sales", SCHEMA)
    await collections.create("bids", SCHEMA, timed="writers")
    at = await collections.insert("sales", batch(("a", 1)))
    await collections.write("bids", [], 0, at)
    for name in ("sales", "bids"):
        await collections.new_rendition(name)
        with pytest.raises(
            RenditionRefused,
            match=f"r2 at {at}: readers may have read the current rendition at any time below {at + 1}",
        ):
            await collections.handover(name, "r2", at)
        with pytest.raises(RenditionRefused, match=r"deadline is 0\.5 s: give an earlier time"):
            await collections.handover(name, "r2", at + 600_000, deadline_s=0.5)
        assert (await collections.describe(name)).active == "r1"
    over = await collections.latest("sales") + 50
    with pytest.raises(
        RenditionRefused, match=f"cannot be read at {over}, because it is written only for times below 0"
    ):
        await collections.handover("bids", "r2", over)
    await collections.write("bids", [(7, batch(("b", 1)))], 0, over + 1_000, rendition="r2")
    over = await collections.latest("sales") + 50
    assert await collections.handover("bids", "r2", over) == over
    assert counted(await collections.snapshot("bids", over - 1)) == Counter()
    assert counted(await collections.snapshot("bids", over)) == Counter({("b", 1): 1})


async def test_renditions_without_names_are_numbered(collections: Collections, other: Collections) -> None:
    await collections.create("sales", SCHEMA)
    await collections.new_rendition("sales", rendition="r7")
    await collections.new_rendition("sales", rendition="short")
    made = await asyncio.gather(
        *(each.new_rendition("sales") for each in (collections, other) for _ in range(3))
    )
    assert sorted(made) == sorted(f"r{number}" for number in range(8, 14))
