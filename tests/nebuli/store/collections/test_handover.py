"""Handovers while others insert: they win, with every row once, or say that they did not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing

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
            await collections.create_rendition("sales", name, shards=number)
            rows_ = pa.RecordBatch.from_pylist(mended, schema=SCHEMA)
            await collections.write("sales", [(built_from, rows_)], 0, built_from + 1, rendition=name)
            await writer.reach(before + 5)
            over = await collections.hand_over("sales", name, built_from=built_from)
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
    await collections.create_rendition("sales", "r2")
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
        HandoverLate, match=r"not handed over to r2 within 0.2 s: others were first \d+ times"
    ):
        await collections.hand_over("sales", "r2", built_from=at, deadline_s=0.2)
    monkeypatch.setattr(access, "append", append)
    assert (await collections.describe("sales")).active == "r1"
    assert inserted > 1
    expected = Counter({("a", 1): 1}) + Counter(("b", each) for each in range(inserted))
    over = await other.hand_over("sales", "r2", built_from=at)
    assert counted(await collections.snapshot("sales", over)) == expected


async def test_what_came_since_has_to_be_there_still(collections: Collections) -> None:
    await collections.create("sales", SCHEMA, history_s=0)
    at = await collections.insert("sales", batch(("a", 1)))
    await collections.create_rendition("sales", "r2")
    await collections.insert("sales", batch(("b", 1)))
    last = await collections.insert("sales", batch(("c", 1)))
    await collections.snapshot("sales", last + 2)
    await collections.keep_house()
    with pytest.raises(TooLate, match=f"cannot be read at {at} any more"):
        await collections.hand_over("sales", "r2", built_from=at)


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
    with pytest.raises(CollectionMisused, match="the hold handover is that of a handover"):
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
    await collections.create_rendition("sales", "r2")
    with pytest.raises(RenditionRefused, match=f"is written below 0 only, and was to be built .* as of {at}"):
        await collections.hand_over("sales", "r2", built_from=at)
    await collections.write("sales", [(at, batch(("a", 1)))], 0, at + 1, rendition="r2")
    await collections.insert("sales", batch(("b", 1)))
    with pytest.raises(
        RenditionRefused, match=f"cannot be built from it as of {at * 1000}, as it is written below"
    ):
        await collections.hand_over("sales", "r2", built_from=at * 1000)
    over = await collections.hand_over("sales", "r2", built_from=at)
    assert counted(await collections.snapshot("sales", over)) == Counter({("a", 1): 1, ("b", 1): 1})


@pytest.mark.parametrize("asked", ["described", "handed over to another one"])
async def test_another_one_is_made_and_handed_over_to_meanwhile(
    collections: Collections, other: Collections, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at which renditions there are and one at which of them it is: that one is not known yet."""
    await collections.create("sales", SCHEMA, timed="writers")
    await collections.write("sales", [(5, batch(("a", 1)))], 0, 10)
    await collections.create_rendition("sales", "r2")
    space = collections._open.space
    look = space.look

    async def look_behind_another(*arguments):
        monkeypatch.setattr(space, "look", look)
        await other.create_rendition("sales", "r3")
        await other.hand_over("sales", "r3")
        return await look(*arguments)

    monkeypatch.setattr(space, "look", look_behind_another)
    if asked == "described":
        assert (await collections.describe("sales")).active == "r3"
    else:
        await collections.hand_over("sales", "r2")
        assert (await collections.describe("sales")).active == "r2"
    found = [each.name for each in (await collections.describe("sales")).renditions]
    assert sorted(found) == ["r1", "r2", "r3"]
