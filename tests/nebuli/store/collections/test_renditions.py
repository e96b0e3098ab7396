"""Renditions of a collection: written from scratch, handed over to at one time, and gone once nobody reads them."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli import Collections
from nebuli.store import Shard
from nebuli.store.collections.controller import RenditionStatus
from nebuli.store.collections.errors import RenditionRefused, RenditionUnknown, TooLate
from nebuli.store.collections.space import Collection
from nebuli.store.errors import NotYet
from nebuli.store.shards.access import ENTRIES
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, batch, counted, present, zset
from tests.support.sizes import examples

_LARGE = 20_000
"""So many rows are not part of an entry, but a blob."""


class Hand:
    """A clock that is moved by hand."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand(100)


@pytest.fixture
async def slow(folder: Path, hand: Hand, stack: AsyncExitStack) -> Collections:
    """Collections whose time moves by hand."""
    return await stack.enter_async_context(Collections(folder, now=hand, tick_s=0.005))


async def opened(collections: Collections, name: str) -> Collection:
    return await collections._open.space.opened(name, fresh=True)


async def rendition(collections: Collections, name: str, which: str) -> RenditionStatus:
    (found,) = [each for each in (await collections.describe(name)).renditions if each.name == which]
    return found


async def renditions(collections: Collections, name: str) -> list[str]:
    return sorted(each.name for each in (await collections.describe(name)).renditions)


async def said(metadata: Shard) -> list[tuple[int, str, int]]:
    """All that the metadata says: at its since, and behind that."""
    await metadata.refresh()
    since = metadata.since
    updates: list[tuple[int, Any]] = [(since, each) for each in (await metadata.contents(since)).to_batches()]
    if metadata.upper > since + 1:
        updates += await metadata.read(since + 1, metadata.upper)
    return [
        (at, name, weight)
        for at, rows in updates
        for name, weight in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    ]


def large(shop: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array([shop] * _LARGE), pa.array(range(_LARGE))], schema=SCHEMA)


def blobs(folder: Path) -> int:
    return len(list((folder / "blobs").rglob("*-*")))


# -- written anew


async def test_a_decoder_that_was_mended_writes_all_anew_and_readers_are_told_what_differs(
    slow: Collections, hand: Hand
) -> None:
    """ST-COL-4, ST-REN-6: who follows has the old rows below the time of the handover, the new ones from it on."""
    raw = pa.schema([("text", pa.string())])
    await slow.create("raw", raw)
    await slow.create("sales", SCHEMA, shards=2, timed="writers")
    written: list[tuple[int, list[str]]] = []
    for texts in (["a 1", "b 22"], ["c 333"], ["d 4"]):
        hand.now += 10
        written.append((await slow.insert("raw", pa.record_batch([texts], schema=raw)), texts))

    def decoded(texts: list[str], digits: int) -> pa.RecordBatch:
        return batch(*((text[0], int(text[2:][:digits])) for text in texts))

    def contents(until: int, digits: int) -> Counter[Any]:
        return Counter(
            (text[0], int(text[2:][:digits])) for at, texts in written if at <= until for text in texts
        )

    await slow.write("sales", [(at, decoded(texts, 1)) for at, texts in written], 0, written[-1][0] + 1)
    reader = Accumulated()
    hand.now += 10
    async with aclosing(slow.subscribe("sales", 100, snapshot=True)) as spans:
        await reader.follow(spans, written[-1][0])
        await slow.new_rendition("sales", rendition="r2", shards=3)
        async with aclosing(slow.subscribe("raw", 100, snapshot=True)) as again:
            source = Accumulated()
            await source.follow(again, written[-1][0])
        updates = [
            (at, decoded([text for (text,) in rows], 3)) for at, rows in sorted(source.changes.items())
        ]
        await slow.write("sales", updates, 0, written[-1][0] + 1, rendition="r2")
        at = await slow.handover("sales", "r2")
        hand.now = at + 10
        written.append((at + 5, ["e 555"]))
        await slow.write("sales", [(at + 5, decoded(["e 555"], 3))], written[-2][0] + 1, at + 10)
        await reader.follow(spans, at + 9)
    for time in range(100, at):
        assert reader.at(time) == contents(time, 1)
    for time in range(at, at + 10):
        assert reader.at(time) == contents(time, 3)
    for as_of in (at - 1, at, at + 9):
        assert counted(await slow.snapshot("sales", as_of)) == reader.at(as_of)


async def test_a_rendition_has_as_many_shards_as_it_was_made_with(collections: Collections) -> None:
    """ST-COL-5: more of them are another rendition, and who follows is told of no change."""
    await collections.create("sales", SCHEMA, shards=2)
    rows = batch(*(("a", number) for number in range(50)))
    at = await collections.insert("sales", rows)
    with pytest.raises(
        RenditionRefused, match=r"sales already has a rendition r1, with a fixed number of shards \(2\)"
    ):
        await collections.new_rendition("sales", rendition="r1", shards=5)
    assert (await rendition(collections, "sales", "r1")).shards == 2
    await collections.new_rendition("sales", rendition="r2", shards=5)
    await collections.write("sales", [(at, rows)], 0, at + 1, rendition="r2")
    reader = Accumulated()
    async with aclosing(collections.subscribe("sales", at, snapshot=True)) as spans:
        over = await collections.handover("sales", "r2", built_from=at)
        await reader.follow(spans, over)
    assert list(reader.changes) == [at]
    last = await collections.insert("sales", batch(("b", 1)))
    new = (await opened(collections, "sales")).shards["r2"]
    filled = [(await each.snapshot(each.upper - 1)).num_rows for each in new]
    assert len(filled) == 5
    assert all(filled)
    assert sum(filled) == 51
    assert counted(await collections.snapshot("sales", last)).total() == 51


async def test_what_was_written_since_it_was_built_is_not_lost_by_a_handover(
    collections: Collections,
) -> None:
    await collections.create("sales", SCHEMA)
    at = await collections.insert("sales", batch(("a", 1)))
    await collections.new_rendition("sales", rendition="r2")
    await collections.write("sales", [(at, batch(("a", 1)))], 0, at + 1, rendition="r2")
    later = await collections.insert("sales", batch(("b", 2)))
    over = await collections.handover("sales", "r2", built_from=at)
    assert counted(await collections.snapshot("sales", over)) == Counter({("a", 1): 1, ("b", 2): 1})
    await collections.new_rendition("sales", rendition="built")
    with pytest.raises(RenditionRefused, match=rf"as of {later}, but the collection has changed since"):
        await collections.handover("sales", "built", built_from=later)
    with pytest.raises(RenditionRefused, match="r1 is or was the current rendition"):
        await collections.handover("sales", "r1")
    with pytest.raises(RenditionUnknown, match="has no rendition r3: it has built, r1, r2"):
        await collections.handover("sales", "r3")


# -- what the metadata say

_STEPS = st.lists(
    st.sampled_from(["hand over", "insert", "hold", "keep house", "drop"]), min_size=5, max_size=40
)


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None)
@given(steps=_STEPS, moves=st.lists(st.integers(0, 3), min_size=40, max_size=40), history=st.integers(0, 5))
def test_each_time_has_one_rendition(steps: list[str], moves: list[int], history: int) -> None:
    """ST-COL-7: whatever was handed over, held and forgotten, the metadata add up to one name at each time."""

    async def go_through(folder: Path) -> None:
        hand = Hand(10)
        async with Collections(folder, now=hand, tick_s=0.005) as collections:
            await collections.create("sales", SCHEMA, keep=history / 1000)
            metadata = (await opened(collections, "sales")).metadata
            begins = [(0, "r1")]
            for number, (step, move) in enumerate(zip(steps, moves, strict=False)):
                hand.now += move
                match step:
                    case "hand over":
                        await collections.new_rendition("sales", rendition=f"n{number}", shards=1 + move)
                        begins.append((await collections.handover("sales", f"n{number}"), f"n{number}"))
                    case "insert":
                        await collections.insert("sales", batch(("a", number)))
                    case "hold":
                        at = (await collections.latest("sales")) - move
                        try:
                            await collections.hold("sales", f"h{number % 2}", at)
                        except TooLate:
                            assert at < metadata.since
                    case "keep house":
                        await collections.release("sales", f"h{number % 2}")
                        await collections.keep_house()
                    case _:
                        await collections.new_rendition("sales", rendition=f"n{number}")
                        await collections.drop_rendition("sales", f"n{number}")
                status = await collections.describe("sales")
                said_ = await said(metadata)
                for time in range(status.since, status.upper):
                    names: Counter[str] = Counter()
                    for at, name, weight in said_:
                        if at <= time:
                            names[name] += weight
                    active = [name for begin, name in begins if begin <= time][-1]
                    assert {name: weight for name, weight in names.items() if weight} == {active: 1}
            for time in range(status.since, status.upper):
                await collections.snapshot("sales", time)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(go_through(Path(folder)))


async def test_a_rendition_begins_at_the_highest_since_and_ends_at_the_lowest_upper(
    slow: Collections,
) -> None:
    """ST-REN-1: of three shards with since 2, 5 and 3 and upper 9, 7 and 8 these are 5 and 7."""
    await slow.create("sales", SCHEMA, shards=3, timed="writers")
    shards = (await opened(slow, "sales")).shards["r1"]
    for shard, since, upper in zip(shards, (2, 5, 3), (9, 7, 8), strict=True):
        await shard.compare_and_append([], 0, upper)
        await shard.hold("collection", since)
    found = await rendition(slow, "sales", "r1")
    assert (found.since, found.upper) == (5, 7)
    assert (await slow.describe("sales")).upper == 7
    assert await slow.latest("sales") == 6


async def test_one_entry_of_the_metadata_hands_over(slow: Collections, hand: Hand) -> None:
    """ST-REN-2: the one rendition goes and the other one comes by one append, with the clock's."""
    await slow.create("sales", SCHEMA)
    metadata = (await opened(slow, "sales")).metadata
    await slow.new_rendition("sales", rendition="r2")
    before, clock = metadata.tracked.state.sequence, slow._open.space.clock.shard
    hand.now = 500
    assert await slow.handover("sales", "r2") == 500
    await metadata.refresh()
    assert metadata.tracked.state.sequence == before + 1
    assert clock.state.upper == metadata.upper == 501
    assert sorted(await said(metadata)) == [(0, "r1", 1), (500, "r1", -1), (500, "r2", 1)]


async def test_a_rendition_stays_as_long_as_somebody_reads_it(
    collections: Collections, other: Collections
) -> None:
    """ST-REN-3: a hold below the time of the handover keeps it, by whatever process."""
    await collections.create("sales", SCHEMA, keep=0)
    at = await collections.insert("sales", batch(("a", 1)))
    await other.hold("sales", "slow", at)
    await collections.new_rendition("sales", rendition="r2")
    await collections.write("sales", [(at, batch(("a", 2)))], 0, at + 1, rendition="r2")
    over = await collections.handover("sales", "r2")
    for time in (at, over - 1):
        await other.hold("sales", "slow", time)
        await collections.insert("sales", batch(("b", 1)))
        await collections.keep_house()
        assert await renditions(other, "sales") == ["r1", "r2"]
        assert counted(await other.snapshot("sales", time)) == Counter({("a", 1): 1})
        with pytest.raises(
            RenditionRefused,
            match=rf"is read from rendition r1 at times below {over}: the rendition is dropped automatically",
        ):
            await collections.drop_rendition("sales", "r1")
    await other.hold("sales", "slow", over)
    await collections.keep_house()
    assert await renditions(other, "sales") == ["r2"]
    assert counted(await other.snapshot("sales", over)) == Counter({("a", 2): 1})


async def test_a_rendition_that_nobody_can_read_is_gone_with_its_blobs(
    collections: Collections, other: Collections, folder: Path
) -> None:
    """ST-REN-4: and the metadata say no more than which one it is."""
    await collections.create("sales", SCHEMA, shards=2, keep=0)
    at = await collections.insert("sales", large("a"))
    metadata = (await opened(collections, "sales")).metadata
    await collections.new_rendition("sales", rendition="r2", shards=1)
    await collections.write("sales", [(at, large("b"))], 0, at + 1, rendition="r2")
    assert blobs(folder) == 3
    async with aclosing(other.subscribe("sales", at, snapshot=True)) as spans:
        reader = Accumulated()
        await reader.follow(spans, at)
        over = await collections.handover("sales", "r2")
        await collections.keep_house()
        assert blobs(folder) == 3, "somebody reads it"
        await reader.follow(spans, over)
    await collections.insert("sales", batch(("c", 1)))
    await collections.keep_house()
    assert await renditions(other, "sales") == ["r2"]
    assert blobs(folder) == 1
    assert [row[1:] for row in await said(metadata)] == [("r2", 1)]
    await metadata.compact(full=True)
    assert [each.rows for each in metadata.tracked.state.parts] == [1]
    names = await collections._open.space.store.shards()
    assert [name for name in names if "/r1/" in name] == []
    assert (await other.snapshot("sales")).num_rows == _LARGE + 1
    with pytest.raises(TooLate):
        await other.snapshot("sales", at)


# -- readers


async def test_a_clock_that_stands_still_stalls_readers_and_nothing_else(
    slow: Collections, hand: Hand
) -> None:
    """ST-REN-5: what is written is told as far as it is sure to be of this rendition, and the rest of it then."""
    await slow.create("sales", SCHEMA, timed="writers")
    updates = [(at, batch(("a", at))) for at in range(90, 120)]
    reader = Accumulated()
    async with aclosing(slow.subscribe("sales", 95)) as spans:
        await slow.write("sales", updates, 0, 200)
        await reader.follow(spans, 100)
        assert reader.upper == 101
        assert sorted(reader.changes) == [*range(96, 101)]
        more = asyncio.ensure_future(anext(spans))
        await asyncio.sleep(0.1)
        assert not more.done()
        hand.now = 110
        reader.take(await more)
        assert reader.upper <= 111
        hand.now = 300
        await reader.follow(spans, 199)
        assert reader.upper == 200, "behind it nothing is written"
    assert reader.now == Counter({("a", at): 1 for at in range(96, 120)})


async def test_time_goes_on_behind_a_clock_that_was_set_back(slow: Collections, hand: Hand) -> None:
    """Who reads is told of what is there, and goes on; a time that is far off does not come sooner."""
    hand.now = 100_000
    await slow.create("sales", SCHEMA)
    last = await slow.insert("sales", batch(("a", 1)))
    hand.now = 50_000
    async with asyncio.timeout(20), aclosing(slow.subscribe("sales", last - 1)) as spans:
        reader = Accumulated()
        await reader.follow(spans, last + 3)
    assert reader.now == Counter({("a", 1): 1})
    assert await slow.latest("sales") <= last + 50
    with pytest.raises(NotYet):
        await slow.snapshot("sales", last + 60_000, deadline_s=0.1)
    assert await slow.insert("sales", batch(("b", 1))) > last


async def test_what_a_reader_has_is_the_one_before_a_handover_and_the_other_one_at_it(
    collections: Collections,
) -> None:
    """ST-REN-6, ST-REN-7: with all that was written at that very time; what is equal in both is not a change."""
    await collections.create("sales", SCHEMA, shards=2)
    first = await collections.insert("sales", batch(("a", 1), ("b", 2), ("c", 3), ("c", 3)))
    reader = Accumulated()
    async with aclosing(collections.subscribe("sales", first, snapshot=True)) as spans:
        await reader.follow(spans, first)
        await collections.new_rendition("sales", rendition="r2", shards=3)
        await collections.write(
            "sales", [(first, batch(("a", 1), ("b", 3), ("c", 3)))], 0, first + 1, rendition="r2"
        )
        over = await collections.handover("sales", "r2")
        last = await collections.insert("sales", batch(("d", 4)))
        await reader.follow(spans, last)
    old = Counter({("a", 1): 1, ("b", 2): 1, ("c", 3): 2})
    new = Counter({("a", 1): 1, ("b", 3): 1, ("c", 3): 1})
    assert reader.at(over - 1) == old == counted(await collections.snapshot("sales", over - 1))
    assert reader.at(over) == new == counted(await collections.snapshot("sales", over))
    assert reader.changes[over] == Counter({("b", 2): -1, ("b", 3): 1, ("c", 3): -1})
    assert sorted(reader.changes) == [first, over, last]


async def test_new_rows_at_the_very_time_of_a_handover_are_told_once(slow: Collections, hand: Hand) -> None:
    """ST-REN-6: both renditions have rows at this time, and one of them counts."""
    await slow.create("sales", SCHEMA, timed="writers")
    await slow.new_rendition("sales", rendition="r2")
    await slow.write("sales", [(10, batch(("a", 1))), (110, batch(("never", 1)))], 0, 150)
    await slow.write("sales", [(10, batch(("a", 2))), (110, batch(("b", 1)))], 0, 150, rendition="r2")
    hand.now = 110
    assert await slow.handover("sales", "r2") == 110
    hand.now = 200
    reader = Accumulated()
    async with aclosing(slow.subscribe("sales", 5, snapshot=True)) as spans:
        await reader.follow(spans, 149)
    assert reader.at(109) == Counter({("a", 1): 1})
    assert reader.at(110) == Counter({("a", 2): 1, ("b", 1): 1})
    assert sorted(reader.changes) == [10, 110]
    assert reader.changes[110] == Counter({("a", 1): -1, ("a", 2): 1, ("b", 1): 1})


async def test_a_collection_goes_on_from_where_it_was_handed_over(slow: Collections, hand: Hand) -> None:
    """Whoever wrote the old one need not go on: it is complete up to the handover, and no time is taken back."""
    await slow.create("sales", SCHEMA, shards=2, timed="writers")
    await slow.write("sales", [(10, batch(("a", 1)))], 0, 80)
    assert await slow.latest("sales") == 79
    await slow.new_rendition("sales", rendition="r2")
    await slow.write("sales", [(10, batch(("a", 2)))], 0, 50, rendition="r2")
    hand.now = 120
    over = await slow.handover("sales", "r2")
    assert await slow.latest("sales") == over - 1
    assert (await slow.describe("sales")).upper == over
    assert counted(await slow.snapshot("sales")) == Counter({("a", 1): 1})
    await slow.write("sales", [(over, batch(("b", 1)))], 50, over + 1)
    assert counted(await slow.snapshot("sales")) == Counter({("a", 2): 1, ("b", 1): 1})
    assert counted(await slow.snapshot("sales", over - 1)) == Counter({("a", 1): 1})


async def test_a_reader_that_is_several_renditions_behind_is_told_of_all_of_them(
    collections: Collections, other: Collections, folder: Path
) -> None:
    """ST-REN-3, ST-REN-6: as long as it is behind, none of them goes, and each time it has passed is as it was."""
    await collections.create("sales", SCHEMA, keep=0)
    at = await collections.insert("sales", large("r1"))
    model = {at: "r1"}
    reader = Accumulated()
    async with aclosing(other.subscribe("sales", at, snapshot=True)) as spans:
        await reader.follow(spans, at)
        for name in ("r2", "r3", "r4", "r5"):
            await collections.new_rendition("sales", rendition=name, shards=2)
            await collections.write("sales", [(at, large(name))], 0, at + 1, rendition=name)
            model[await collections.handover("sales", name)] = name
            await collections.insert("sales", batch((name, -1)))
            await collections.keep_house()
        last = await collections.insert("sales", batch(("end", 1)))
        assert len(await renditions(other, "sales")) == 5
        while reader.upper <= last:
            await reader.follow(spans, reader.upper)
            shops = Counter(shop for shop, amount in present(reader.now) if amount >= 0 and shop != "end")
            now = model[max(begin for begin in model if begin < reader.upper)]
            assert shops == Counter({now: _LARGE})
    assert reader.now[("r5", -1)] == reader.now[("end", 1)] == 1
    assert counted(await collections.snapshot("sales")) == present(reader.now)
    await collections.insert("sales", batch(("end", 2)))
    await collections.keep_house()
    assert await renditions(other, "sales") == ["r5"]
    assert blobs(folder) == 2


async def test_one_of_several_handovers_at_once_is_made_after_the_other(
    collections: Collections, other: Collections
) -> None:
    """ST-COL-7: of two to the same rendition one is refused."""
    await collections.create("sales", SCHEMA)
    for name in ("r2", "r3", "r4"):
        await collections.new_rendition("sales", rendition=name)
    begins = await asyncio.gather(
        collections.handover("sales", "r2"),
        other.handover("sales", "r3"),
        collections.handover("sales", "r4"),
        other.handover("sales", "r4"),
        return_exceptions=True,
    )
    (refused,) = [each for each in begins if not isinstance(each, int)]
    assert isinstance(refused, RenditionRefused)
    names = ["r2", "r3", "r4", "r4"]
    order = sorted((begin, name) for begin, name in zip(begins, names, strict=True) if isinstance(begin, int))
    assert len({begin for begin, _ in order}) == 3
    expected = [(0, "r1", 1)]
    for (_, before), (begin, after) in pairwise([(0, "r1"), *order]):
        expected += [(begin, before, -1), (begin, after, 1)]
    assert await said((await opened(collections, "sales")).metadata) == expected


@pytest.mark.long
async def test_no_row_is_lost_while_the_collection_is_made_anew_again_and_again(
    collections: Collections, other: Collections
) -> None:
    """ST-COL-4: two insert, one builds a rendition of what there is and hands over, and who follows sees each row."""
    await collections.create("sales", SCHEMA, shards=2)
    start = await collections.latest("sales")
    times: dict[tuple[str, int], int] = {}
    is_over = asyncio.Event()
    generator = random.Random(3)

    async def insert(who: Collections, shop: str) -> None:
        number = 0
        while not is_over.is_set():
            times[shop, number] = await who.insert("sales", batch((shop, number)))
            number += 1
            await asyncio.sleep(generator.uniform(0, 0.1))

    async def make_anew() -> None:
        for name in ("r2", "r3", "r4", "r5"):
            await other.new_rendition("sales", rendition=name, shards=3)
            upper = 0
            while True:
                at = await other.latest("sales")
                contents = await other.snapshot("sales", at, weighted=True)
                now = Counter(
                    {
                        (shop, amount): n
                        for shop, amount, n in zip(*contents.to_pydict().values(), strict=True)
                    }
                )
                rows = [(*row, weight) for row, weight in (now - built[name]).items()]
                if at >= upper:
                    await other.write("sales", [(at, zset(*rows))], upper, at + 1, rendition=name)
                    built[name], upper = now, at + 1
                try:
                    await other.handover("sales", name, built_from=at)
                except RenditionRefused:
                    continue
                break
        is_over.set()

    built: dict[str, Counter[Any]] = {f"r{number}": Counter() for number in range(2, 6)}
    reader = Accumulated()
    async with asyncio.timeout(60), aclosing(other.subscribe("sales", start, snapshot=True)) as spans:
        await asyncio.gather(insert(collections, "a"), insert(other, "b"), make_anew())
        last = max(times.values())
        await reader.follow(spans, last)
    assert present(reader.now) == Counter(dict.fromkeys(times, 1))
    for time in sorted({*times.values(), *reader.changes}):
        if time <= last:
            assert reader.at(time) == Counter({row: 1 for row, at in times.items() if at <= time})
    assert counted(await collections.snapshot("sales", last)) == Counter(dict.fromkeys(times, 1))


async def test_readers_do_not_make_the_metadata_longer_for_ever(collections: Collections) -> None:
    await collections.create("sales", SCHEMA)
    at = await collections.insert("sales", batch(("a", 1)))
    state = (await opened(collections, "sales")).metadata.tracked
    for _ in range(2 * ENTRIES):
        await collections.snapshot("sales", at)
    await asyncio.gather(*collections._open.space.access._compacting.values())
    assert state.state.sequence - state.state.compacted < ENTRIES
