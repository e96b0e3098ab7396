"""Collections for their users: made, written, read at a time, followed, and dropped."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.store.collections.errors import (
    CollectionDropped,
    CollectionError,
    CollectionExists,
    CollectionMisused,
    CollectionUnknown,
    RowsMismatch,
    TooLate,
)
from nebuli.store.errors import FINISHED, NotYet, SchemaMismatch, SequencePassed, StoreClosed
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, added, batch, counted, zset


async def test_what_is_inserted_is_read_by_all(collections: Collections, other: Collections) -> None:
    """ST-CL-1, ST-CTL-1: consumers name the collection, and see of all that was acknowledged all."""
    await collections.create("sales", SCHEMA, shards=3)
    first = await collections.insert("sales", batch(("a", 1), ("b", 2), ("b", 2)))
    second = await other.insert("sales", zset(("b", 2, -1), ("c", 3, 1)))
    assert second > first
    for each in (collections, other):
        assert await each.list() == ["sales"]
        assert counted(await each.snapshot("sales")) == Counter({("a", 1): 1, ("b", 2): 1, ("c", 3): 1})
        assert counted(await each.snapshot("sales", first)) == Counter({("a", 1): 1, ("b", 2): 2})
        assert counted(await each.snapshot("sales", first - 1)) == Counter()
    weighted = await other.snapshot("sales", first, weighted=True)
    assert counted(weighted) == Counter({("a", 1, 1): 1, ("b", 2, 2): 1})


async def test_readers_at_random_times_read_the_same(collections: Collections, other: Collections) -> None:
    """ST-COL-1, ST-SH-9: snapshots and subscriptions of three readers agree with a model at every time."""
    generator = random.Random(7)
    await collections.create("sales", SCHEMA, shards=3)
    model: list[tuple[int, Counter[tuple[str, int]]]] = []
    start = await collections.latest("sales")
    for _ in range(40):
        rows = [
            (generator.choice("abcd"), generator.randrange(5), generator.choice([1, 1, 2, -1]))
            for _ in range(4)
        ]
        at = await generator.choice([collections, other]).insert("sales", zset(*rows))
        changes: Counter[tuple[str, int]] = Counter()
        for shop, amount, weight in rows:
            changes[shop, amount] += weight
        model.append((at, changes))
    last = model[-1][0]
    for reader in (collections, other, collections):
        as_of = generator.randrange(start, last)
        found = await reader.snapshot("sales", as_of, weighted=True)
        contents = Counter(
            {(shop, amount): weight for shop, amount, weight in zip(*found.to_pydict().values(), strict=True)}
        )
        assert contents == added(model, as_of)
        whole = Accumulated()
        async with aclosing(reader.subscribe("sales", as_of, snapshot=True)) as spans:
            await whole.follow(spans, last)
        for time in range(as_of, last + 1):
            assert whole.at(time) == added(model, time)


async def test_a_subscription_begins_where_the_snapshot_ends(collections: Collections) -> None:
    """ST-SH-9: both together are everything, once."""
    await collections.create("sales", SCHEMA)
    await collections.insert("sales", batch(("a", 1)))
    as_of = await collections.latest("sales")
    changes = Accumulated()
    async with aclosing(collections.subscribe("sales", as_of)) as spans:
        last = await collections.insert("sales", batch(("b", 2)))
        await changes.follow(spans, last)
    assert changes.now == Counter({("b", 2): 1})
    assert counted(await collections.snapshot("sales", as_of)) + changes.now == counted(
        await collections.snapshot("sales", last)
    )


async def test_leaving_the_collections_lets_go_of_what_a_cancelled_reader_held(
    folder: Path, other: Collections
) -> None:
    await other.create("sales", SCHEMA)
    await other.insert("sales", batch(("a", 1)))
    async with Collections(folder, tick_s=0.05) as reader:
        spans = reader.subscribe("sales", snapshot=True)
        assert (await anext(spans)).updates
        held = (await other.describe("sales")).holds
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Accumulated().follow(spans, FINISHED), 0.2)
        assert held.keys() == (await other.describe("sales")).holds.keys() > {"history"}
    assert (await other.describe("sales")).holds.keys() == {"history"}
    for _ in range(2):
        with pytest.raises(StoreClosed):
            await anext(spans)


async def test_idle_collections_move_on_together_and_only_while_somebody_reads(
    collections: Collections, other: Collections
) -> None:
    for number in range(20):
        await collections.create(f"c{number}", SCHEMA, shards=2)
    before = collections._open.space.clock.shard.state.sequence
    readers = [Accumulated() for _ in range(20)]
    start = await collections.latest("c0")

    async def read(number: int) -> None:
        who = collections if number % 2 else other
        async with aclosing(who.subscribe(f"c{number}", start)) as spans:
            await readers[number].follow(spans, start + 500)

    await asyncio.gather(*(read(number) for number in range(20)))
    assert all(not each.now for each in readers)
    await collections.list()
    passed_ms = await collections.latest("c0") - start
    ticks = collections._open.space.clock.shard.state.sequence - before
    assert 0 < ticks <= passed_ms / 50 + 2, "one for each 50 ms at most, whoever reads"
    at_rest = await collections.latest("c0")
    await asyncio.sleep(0.3)
    assert await other.latest("c0") == at_rest, "nobody reads"


async def test_a_time_to_come_is_waited_for(collections: Collections) -> None:
    """ST-SH-3: at an upper and beyond it a read waits, below the since it fails."""
    await collections.create("sales", SCHEMA, keep=0)
    at = await collections.insert("sales", batch(("a", 1)))
    assert counted(await collections.snapshot("sales", at + 150)) == Counter({("a", 1): 1})
    with pytest.raises(
        NotYet, match=rf"sales is complete only below \d+, and did not reach {at + 60_000} within 0.1 s"
    ):
        await collections.snapshot("sales", at + 60_000, deadline_s=0.1)
    await collections.insert("sales", batch(("b", 2)))
    await collections.keep_house()
    with pytest.raises(
        TooLate, match=rf"sales cannot be read at time {at} any more, only at times from \d+ on"
    ):
        await collections.snapshot("sales", at)
    for early in (collections.snapshot("sales", 5), collections.hold("sales", "mine", 5)):
        with pytest.raises(TooLate, match=r"sales cannot be read at time 5 any more"):
            await early


async def test_a_producer_may_say_it_again(collections: Collections, other: Collections) -> None:
    await collections.create("sales", SCHEMA)
    at = await collections.insert("sales", batch(("a", 1)), producer="p", sequence=4)
    assert await other.insert("sales", batch(("a", 1)), producer="p", sequence=4) == at
    both = await asyncio.gather(
        *(
            each.insert("sales", batch(("b", 2)), producer="p", sequence=5)
            for each in (collections, other) * 2
        )
    )
    assert len(set(both)) == 1
    with pytest.raises(SequencePassed, match="sent its number 4, but its next is 6"):
        await collections.insert("sales", batch(("a", 1)), producer="p", sequence=4)
    await other.insert("sales", batch(("a", 1)), producer="q", sequence=0)
    assert counted(await collections.snapshot("sales")) == Counter({("a", 1): 2, ("b", 2): 1})


async def test_who_inserts_together_with_a_bad_number_is_not_refused(collections: Collections) -> None:
    await collections.create("sales", SCHEMA)
    bad = [("p", 1 << 63), ("p", 1.5), ("\ud800", 1), (5, 1)]
    inserts = [
        collections.insert("sales", batch(("bad", 0)), producer=producer, sequence=sequence)
        for producer, sequence in bad
    ]
    *refused, good = await asyncio.gather(
        *inserts, collections.insert("sales", batch(("good", 1))), return_exceptions=True
    )
    assert {type(each) for each in refused} == {CollectionMisused}
    assert counted(await collections.snapshot("sales", good)) == Counter({("good", 1): 1})


async def test_many_that_insert_at_once_share_appends(collections: Collections) -> None:
    await collections.create("sales", SCHEMA, shards=2)
    await collections.create("returns", SCHEMA)
    before = collections._open.space.clock.shard.state.sequence
    await asyncio.gather(
        *(
            collections.insert(
                "sales" if number % 2 else "returns", batch(("a", number)), producer=f"p{number}", sequence=0
            )
            for number in range(200)
        )
    )
    assert collections._open.space.clock.shard.state.sequence - before < 20
    for name, odd in (("sales", 1), ("returns", 0)):
        assert counted(await collections.snapshot(name)) == Counter(
            {("a", each): 1 for each in range(odd, 200, 2)}
        )


async def test_large_rows_are_kept_once_whoever_is_first(
    collections: Collections, other: Collections, folder
) -> None:
    await collections.create("sales", SCHEMA, shards=2)
    rows = pa.record_batch([pa.array(["x"] * 400_000), pa.array(range(400_000))], schema=SCHEMA)
    stop = asyncio.Event()

    async def others() -> None:
        while not stop.is_set():
            await other.insert("sales", batch(("y", 0)))

    task = asyncio.create_task(others())
    at = await collections.insert("sales", rows)
    stop.set()
    await task
    found = await collections.snapshot("sales", at)
    assert found.num_rows - counted(found.filter(pa.compute.equal(found["shop"], "y"))).total() == 400_000
    assert len(list((folder / "blobs").rglob("*-*"))) == 2


async def test_what_is_dropped_is_gone(collections: Collections, other: Collections, folder) -> None:
    """ST-CTL-1: for whoever reads, writes or follows it, too; and another of its name is another."""
    await collections.create("sales", SCHEMA)
    rows = pa.record_batch([pa.array(["x"] * 400_000), pa.array(range(400_000))], schema=SCHEMA)
    await collections.insert("sales", rows)
    assert (await other.snapshot("sales")).num_rows == 400_000
    async with aclosing(other.subscribe("sales")) as spans:
        await anext(spans)
        await collections.drop("sales")
        with pytest.raises(CollectionDropped, match="collection sales was dropped with its rows"):
            await Accumulated().follow(spans, 1 << 62)
    for act in (
        other.snapshot("sales"),
        other.insert("sales", batch(("a", 1))),
        other.describe("sales"),
        other.drop("sales"),
    ):
        with pytest.raises(CollectionUnknown, match="unknown collection sales"):
            await act
    assert list((folder / "blobs").rglob("*-*")) == []
    await collections.create("sales", SCHEMA)
    await other.insert("sales", batch(("a", 1)))
    assert counted(await collections.snapshot("sales")) == Counter({("a", 1): 1})


async def test_writers_are_told_of_a_drop_in_the_middle(collections: Collections, other: Collections) -> None:
    """Each insert is there or says that the collection was dropped."""
    await collections.create("sales", SCHEMA)
    await other.insert("sales", batch(("a", 1)))
    writes = [asyncio.create_task(other.insert("sales", batch(("b", each)))) for each in range(20)]
    await asyncio.sleep(0)
    await collections.drop("sales")
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert {type(each) for each in done} <= {int, CollectionDropped}
    with pytest.raises(CollectionUnknown):
        await other.insert("sales", batch(("c", 1)))


@pytest.mark.parametrize(
    ("keep", "kept_s"), [("1h", 3600), ("90 min", 5400), ("250ms", 0.25), ("1.5d", 129_600), (2, 2), ("7", 7)]
)
async def test_a_collection_is_kept_for_so_long(
    keep: str | float, kept_s: float, collections: Collections
) -> None:
    await collections.create("sales", SCHEMA, keep=keep)
    assert (await collections.describe("sales")).history_ms == 1000 * kept_s


async def test_what_is_older_than_keep_is_forgotten_and_the_rest_is_not(folder: Path) -> None:
    """The collection's own hold, on a clock that is set by hand: an hour, to the millisecond."""
    now = 10_000_000
    async with Collections(folder, now=lambda: now, tick_s=0.005) as collections:
        await collections.create("sales", SCHEMA, keep="1h")
        for number in range(3):
            await collections.insert("sales", batch(("a", number)))
            now += 1000
        now = 10_001_000 + 3_600_000
        await collections.move_on()
        await collections.keep_house()
        with pytest.raises(TooLate) as late:
            await collections.snapshot("sales", 10_000_999)
        assert late.value.since == 10_001_000
        assert counted(await collections.snapshot("sales", 10_001_000)) == Counter({("a", 0): 1, ("a", 1): 1})


async def test_bad_input_is_said_and_nothing_is_written(collections: Collections) -> None:
    await collections.create("sales", SCHEMA)
    with pytest.raises(CollectionExists, match="collection sales exists already"):
        await collections.create("sales", SCHEMA)
    with pytest.raises(
        CollectionUnknown,
        match=r"unknown collection sale: expected one of sales, or create it first",
    ):
        await collections.snapshot("sale")
    with pytest.raises(CollectionMisused, match="'a b' cannot be the name of a collection"):
        await collections.create("a b", SCHEMA)
    with pytest.raises(CollectionMisused, match="cannot have 0 shards"):
        await collections.create("other", SCHEMA, shards=0)
    with pytest.raises(SchemaMismatch):
        await collections.create("other", pa.schema([("a", pa.list_(pa.int64()))]))
    for names, said in (
        (["a", "a"], "repeats column names \\(a\\)"),
        (["_weight"], "cannot be named _weight"),
    ):
        with pytest.raises(CollectionMisused, match=said):
            await collections.create("other", pa.schema([(each, pa.int64()) for each in names]))
    for keep, said in (
        ("1 week", "'1 week' is not a length of time: give a number with one of ms, s"),
        ("", "''"),
    ):
        with pytest.raises(CollectionMisused, match=said):
            await collections.create("other", SCHEMA, keep=keep)
    for keep in (-1, float("nan"), 1e300):
        with pytest.raises(
            CollectionMisused, match=f"cannot be {keep:g} s long: give 0 to".replace("+", ".")
        ):
            await collections.create("other", SCHEMA, keep=keep)
    for change in (collections.hold("sales", "history", 1), collections.release("sales", "history")):
        with pytest.raises(CollectionMisused, match="the hold history belongs to the collection"):
            await change
    wrong = pa.record_batch([pa.array([1])], names=["amount"])
    with pytest.raises(
        RowsMismatch, match=r"sales have shop: string, amount: int64; the given rows have amount: int64"
    ):
        await collections.insert("sales", wrong)
    needy = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    await collections.create("needy", needy)
    missing = pa.array([None], pa.int64())
    for name, rows, said in (
        ("sales", zset(("a", 1, None)), "1 of 1 rows for collection sales have no _weight"),
        ("sales", zset(("a", 1, 1), ("b", 1, 1 << 62)), f"sales has the weight {1 << 62}"),
        ("needy", pa.record_batch([missing], schema=needy), "1 of 1 rows for collection needy have no a"),
    ):
        with pytest.raises(CollectionMisused, match=said):
            await collections.insert(name, rows)
        assert (await collections.snapshot(name)).num_rows == 0
    with pytest.raises(CollectionMisused, match="a producer and a sequence, or neither"):
        await collections.insert("sales", batch(("a", 1)), producer="p")
    with pytest.raises(CollectionMisused, match="the store assigns the times"):
        await collections.write("sales", [(1, batch(("a", 1)))], 0, 2)
    for late in (collections.snapshot("sales", 1 << 64), collections.hold("sales", "h", 1 << 64)):
        with pytest.raises(CollectionMisused, match="18446744073709551616 is not a time of collection sales"):
            await late
    for late in ("now", 1.5, b"1"):
        with pytest.raises(CollectionMisused, match="is not a time of collection sales: times have 64 bits"):
            await collections.snapshot("sales", late)
    with pytest.raises(CollectionMisused, match="sales has no part 2 of 2: the number of a part must be "):
        await collections.snapshot("sales", part=(2, 2))
    await collections.create("much", SCHEMA)
    for _ in range(3):
        await collections.insert("much", zset(("a", 1, 1 << 32)))
    with pytest.raises(CollectionError, match=f"much has {3 << 32} rows at"):
        await collections.snapshot("much")
    await collections.insert("sales", zset(("a", 1, -2)))
    with pytest.raises(
        CollectionError, match=r"has the row \('a', 1\) -2 times .*; insert it 2 times to repair this"
    ):
        await collections.snapshot("sales")
    assert (await collections.snapshot("sales", weighted=True))["_weight"].to_pylist() == [-2]
    await collections.insert("sales", batch(("a", 1), ("a", 1)))
    assert (await collections.snapshot("sales")).num_rows == 0
    assert await collections.list() == ["much", "needy", "sales"]
