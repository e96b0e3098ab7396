"""What a shard promises to one who appends and one who reads, in one process or two."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow.zset import weighted
from nebuli.store import FINISHED, Shard, Span, StorageError, Store
from nebuli.store.errors import (
    NotYet,
    SchemaMismatch,
    ShardFinished,
    ShardUnknown,
    SinceMismatch,
    StoreClosed,
    UpperMismatch,
)
from nebuli.store.shards.access import ENTRIES
from nebuli.store.shards.payloads import INLINE_BYTES
from nebuli.store.shards.shard_state import ShardState
from tests.support.stores import (
    EACH_PLACE,
    SCHEMA,
    Place,
    blobs_at,
    by_time,
    listened,
    place_of,
    store_at,
    weights,
    zset,
)

_LONG = INLINE_BYTES // 2
"""A padding with which three rows are too many for an entry."""


@pytest.fixture(params=EACH_PLACE)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


@pytest.fixture
async def shard(store: Store) -> Shard:
    return await store.create_shard("s", SCHEMA)


async def fill(shard: Shard, *zsets: pa.RecordBatch) -> None:
    """One at each time, from the upper on."""
    for rows in zsets:
        await shard.compare_and_append([(shard.upper, rows)], shard.upper, shard.upper + 1)


async def shard_state(shard: Shard) -> ShardState:
    """The shard's state by now."""
    await shard.refresh()
    return shard.tracked.state


async def test_a_new_shard_is_empty(shard: Shard, store: Store) -> None:
    assert (shard.since, shard.upper, shard.holds) == (0, 0, {})
    assert shard.schema == SCHEMA
    assert await store.shards() == ["s"]


async def test_what_was_appended_is_there_for_all_and_after_it_was_closed(place: Place, other: Store) -> None:
    async with store_at(place) as store:
        shard = await store.create_shard("s", SCHEMA)
        await shard.compare_and_append([(3, zset((1, 1), (2, 5))), (0, zset((1, 1)))], 0, 5)
        await fill(shard, zset((2, -5)))
    for name in ("other", "later"):
        async with store_at(place) as later:
            shard = await (other if name == "other" else later).open_shard("s")
            assert shard.upper == 6
            assert weights(await shard.snapshot(2)) == {1: 1}
            assert weights(await shard.snapshot(4)) == {1: 2, 2: 5}
            snapshot = await shard.snapshot(5)
            assert snapshot.schema == SCHEMA
            assert [tuple(row.values()) for row in snapshot.to_pylist()] == [(1, "1", 2)]


async def test_of_several_that_expect_the_same_upper_one_wins(shard: Shard, other: Store) -> None:
    """ST-SH-4: and the others are told its upper."""
    shards = [shard, await other.open_shard("s")] * 4
    results = await asyncio.gather(
        *(each.compare_and_append([(0, zset((n, 1)))], 0, n + 1) for n, each in enumerate(shards)),
        return_exceptions=True,
    )
    (winner,) = [n for n, result in enumerate(results) if result is None]
    for error in results[:winner] + results[winner + 1 :]:
        assert isinstance(error, UpperMismatch)
        assert (error.shard, error.expected, error.found) == ("s", 0, winner + 1)
        assert f"shard s was expected to be 0, but is {winner + 1}" in str(error)
    assert weights(await shard.snapshot(0)) == {winner: 1}


async def test_an_upper_that_was_not_reached_yet_is_a_mismatch_too(shard: Shard, other: Store) -> None:
    with pytest.raises(UpperMismatch) as raised:
        await shard.compare_and_append([], 3, 4)
    assert raised.value.found == 0
    await (await other.open_shard("s")).compare_and_append([], 0, 3)
    await shard.compare_and_append([], 3, 4)  # not known here until it was looked for


async def test_an_append_that_is_repeated_with_its_id_happens_once(
    shard: Shard, other: Store, place: Place
) -> None:
    for padding in (0, _LONG):
        upper = shard.upper
        rows = zset((1, 1), (2, 1), (3, 1), padding=padding)
        theirs = await other.open_shard("s")
        for each in (shard, theirs, shard):
            await each.compare_and_append([(upper, rows)], upper, upper + 1, append_id=b"this%d" % padding)
        with pytest.raises(UpperMismatch):
            await shard.compare_and_append([(upper, rows)], upper, upper + 1, append_id=b"another")
        await fill(shard, zset((4, 1)))
        await theirs.compare_and_append([(upper, rows)], upper, upper + 1, append_id=b"this%d" % padding)
    assert weights(await shard.snapshot(shard.upper - 1)) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert len(blobs_at(place)) == 1  # the blobs of those that did not happen are gone


async def test_several_shards_are_appended_to_or_none(shard: Shard, store: Store, other: Store) -> None:
    second = await store.create_shard("t", SCHEMA, keeps="updates")
    await store.append([shard.part([(0, zset((1, 1)))], 0, 1), second.part([(4, zset((2, 1)))], 0, 5)])
    await (await other.open_shard("t")).compare_and_append([], 5, 6)
    with pytest.raises(UpperMismatch) as raised:
        await store.append([shard.part([(1, zset((3, 1)))], 1, 2), second.part([(5, zset((4, 1)))], 5, 6)])
    assert (raised.value.shard, raised.value.expected, raised.value.found) == ("t", 5, 6)
    assert (shard.upper, second.upper) == (1, 6)
    id_ = b"both"
    for _ in range(2):
        await store.append([shard.part([], 1, 2), second.part([(6, zset((4, 1)))], 6, 7)], append_id=id_)
    assert by_time(await listened(second, 0, 7)) == {4: {2: 1}, 6: {4: 1}}


async def test_a_snapshot_waits_for_its_time(shard: Shard, other: Store) -> None:
    """ST-SH-3: at the upper, and beyond it."""
    snapshot = asyncio.create_task(shard.snapshot(1))
    theirs = await other.open_shard("s")
    await fill(theirs, zset((1, 1)))
    await asyncio.sleep(0)
    assert not snapshot.done()
    await fill(theirs, zset((2, 1)), zset((3, 1)))
    assert weights(await asyncio.wait_for(snapshot, 60)) == {1: 1, 2: 1}


async def test_a_snapshot_that_does_not_come_says_so(shard: Shard) -> None:
    await fill(shard, zset((1, 1)))
    with pytest.raises(
        NotYet, match=r"time 7 yet: its upper is 1, and has not risen above 7 within 0\.01 s"
    ) as raised:
        await shard.snapshot(7, deadline_s=0.01)
    assert (raised.value.asked, raised.value.upper) == (7, 1)


async def test_what_is_heard_is_what_a_snapshot_lacks(shard: Shard, other: Store) -> None:
    """ST-SH-9: at whatever time, both together are all that was appended, once."""
    theirs = await other.open_shard("s")
    sums: dict[int, int] = {}
    for time in range(12):
        await fill(theirs, zset((time % 4, 1), (time % 3, -1), padding=0))
        sums = {n: w for n in range(4) if (w := sums.get(n, 0) + (time % 4 == n) - (time % 3 == n))}
    for as_of in range(12):
        heard = await listened(shard, as_of + 1, 12) if as_of < 11 else []
        later = [rows for span in heard for _, rows in span.updates]
        assert weights([*(await shard.snapshot(as_of)).to_batches(), *later]) == sums


async def test_an_append_without_updates_moves_the_upper(shard: Shard, other: Store) -> None:
    """ST-SH-6: who listens is told how far nothing has happened."""
    heard = (await other.open_shard("s")).listen(0)
    for lower, upper in ((0, 10), (10, 11)):
        span = asyncio.ensure_future(anext(heard))
        await shard.compare_and_append([(lower, zset())] if lower else [], lower, upper)
        assert await asyncio.wait_for(span, 60) == Span(lower, upper, [])
        assert shard.upper == upper
    assert weights(await shard.snapshot(10)) == {}
    assert shard.stored == []
    await heard.aclose()


async def test_who_listens_is_told_of_times_without_rows_and_of_the_end(shard: Shard, other: Store) -> None:
    """ST-SH-7: at the end it ends, for who comes later, too."""
    theirs = await other.open_shard("s")

    async def write() -> None:
        await theirs.compare_and_append([], 0, 10)
        await theirs.compare_and_append([(15, zset((1, 1)))], 10, 20)
        await theirs.finish(20)

    writing = asyncio.create_task(write())
    heard = await listened(shard, 0, FINISHED)
    await writing
    assert [each async for each in shard.listen(FINISHED)] == []
    assert [each.upper async for each in shard.listen(0)][-1] == heard[-1].upper == FINISHED
    assert by_time(heard) == {15: {1: 1}}


async def test_who_waits_is_woken_and_does_not_look_again_and_again(
    shard: Shard, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two stores as over two processes; the fallback is out of reach."""
    monkeypatch.setattr("nebuli.store.shards.access._FALLBACK_S", 1000.0)
    theirs = await other.open_shard("s")
    looks = 0
    look = type(shard._access)._look

    async def counted(access: object) -> None:
        nonlocal looks
        looks += 1
        await look(access)  # type: ignore[arg-type]

    monkeypatch.setattr(type(shard._access), "_look", counted)
    heard = shard.listen(0)
    for time in range(20):
        waiting = asyncio.ensure_future(anext(heard))
        await asyncio.sleep(0.005)
        assert not waiting.done()
        await fill(theirs, zset((time, 1)))
        assert (await asyncio.wait_for(waiting, 60)).upper == time + 1
    assert looks <= 2 * 20 + 2
    await heard.aclose()


async def test_what_comes_just_before_it_is_waited_for_is_not_missed(
    shard: Shard, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bell has rung, and somebody who waits for another shard has looked, before this one waits."""
    monkeypatch.setattr("nebuli.store.shards.access._FALLBACK_S", 1000.0)
    another = asyncio.create_task((await store.create_shard("t", SCHEMA)).snapshot(0))
    theirs = await other.open_shard("s")
    await asyncio.sleep(0.05)
    refreshed = shard._access.refreshed

    async def slowly(tracked: Any) -> Any:
        state = await refreshed(tracked)
        await fill(theirs, zset((1, 1)))
        await asyncio.sleep(0.1)
        return state

    monkeypatch.setattr(shard._access, "refreshed", slowly)
    assert weights(await shard.snapshot(0, deadline_s=10)) == {1: 1}
    another.cancel()
    await asyncio.gather(another, return_exceptions=True)


async def test_who_waits_is_told_when_the_store_is_closed(place: Place) -> None:
    async with store_at(place) as store:
        shard = await store.create_shard("s", SCHEMA)
        heard, snapshot = (
            asyncio.ensure_future(anext(shard.listen(0))),
            asyncio.ensure_future(shard.snapshot(0)),
        )
        await asyncio.sleep(0.05)
    for waiting in (heard, snapshot):
        with pytest.raises(StoreClosed):
            await waiting
    with pytest.raises(StoreClosed):
        await shard.compare_and_append([], 0, 1)


async def test_nothing_is_appended_to_a_finished_shard(shard: Shard, other: Store) -> None:
    """ST-SH-7: whatever upper is expected, by whoever was there before."""
    await fill(shard, zset((1, 1)))
    await shard.compare_and_append([(1, zset((2, 1)))], 1, FINISHED)
    for each in (shard, await other.open_shard("s")):
        assert each.upper == FINISHED
        for expected in (0, 2, FINISHED - 1):
            with pytest.raises(ShardFinished, match="is finished"):
                await each.compare_and_append([], expected, FINISHED)
        assert weights(await each.snapshot(FINISHED - 1)) == {1: 1, 2: 1}


async def test_times_have_64_bits(shard: Shard) -> None:
    last = FINISHED - 2
    await shard.compare_and_append([(last, zset((1, 1)))], 0, FINISHED - 1)
    await shard.hold("h", last)
    await shard.compact(full=True)
    assert weights(await shard.snapshot(last)) == {1: 1}
    with pytest.raises(StorageError, match=rf"{FINISHED - 1} .*{FINISHED + 1} .* at most {FINISHED}$"):
        await shard.compare_and_append([], FINISHED - 1, FINISHED + 1)
    with pytest.raises(StorageError, match="upper must increase"):
        await shard.compare_and_append([], FINISHED - 1, FINISHED - 1)


async def test_an_update_has_a_time_of_its_append(shard: Shard) -> None:
    """ST-SH-5: otherwise nothing of the append is written."""
    await shard.compare_and_append([(0, zset((1, 1)))], 0, 4)
    before = shard.tracked.state
    for time in (3, 6):
        with pytest.raises(StorageError, match=f"is at time {time}, but has to be from 4 up to 5"):
            await shard.compare_and_append([(4, zset((2, 1))), (time, zset((1, 1)))], 4, 6)
    await shard.refresh()
    assert shard.tracked.state == before
    await shard.compare_and_append([(4, zset((2, 1))), (5, zset((3, 1)))], 4, 6)


# -- schemas and names


async def test_the_schema_is_that_of_its_creation(shard: Shard, store: Store, other: Store) -> None:
    another = weighted(pa.schema([("n", pa.int32())]))
    with pytest.raises(SchemaMismatch, match=r"n: int64, text: string, _weight: int64; .* n: int32"):
        await store.create_shard("s", another)
    with pytest.raises(SchemaMismatch, match="keeps='contents'"):
        await store.create_shard("s", SCHEMA, keeps="updates")
    rows = pa.record_batch([pa.array([1], pa.int32()), [1]], schema=another)
    with pytest.raises(SchemaMismatch, match="schema of shard s is fixed"):
        await shard.compare_and_append([(0, rows)], 0, 1)
    again = await other.create_shard("s", SCHEMA.with_metadata({"a": "b"}))
    await fill(again, zset((1, 1)))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("n", pa.int64())]), "expected _weight .int64. as the last column"),
        (
            pa.schema([("n", pa.int64()), ("_weight", pa.int32())]),
            "expected _weight .int64. as the last column",
        ),
        (pa.schema([]), "expected _weight .int64. as the last column"),
        (weighted(pa.schema([("_time", pa.int64())])), "cannot be named _time"),
        (weighted(pa.schema([("list", pa.list_(pa.int64()))])), "its rows cannot be compared"),
    ],
)
async def test_a_shard_is_of_zsets(store: Store, schema: pa.Schema, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        await store.create_shard("s", schema)
    assert await store.shards() == []


async def test_any_type_of_column_comes_back(store: Store) -> None:
    schema = weighted(
        pa.schema(
            [
                ("list", pa.list_(pa.int32())),
                ("time", pa.timestamp("us", "UTC")),
                ("code", pa.dictionary(pa.int32(), pa.string())),
                ("null", pa.float64()),
            ]
        )
    )
    shard = await store.create_shard("s", schema, keeps="updates")
    rows = pa.RecordBatch.from_pylist(
        [{"list": [1, None], "time": 5, "code": "a", "null": None, "_weight": -3}] * 5, schema=schema
    )
    await shard.compare_and_append([(0, rows), (1, rows.slice(1, 2))], 0, 2)
    found = [(at, each.to_pylist()) for at, each in await shard.read(0, 2)]
    assert found == [(0, rows.to_pylist()), (1, rows.slice(1, 2).to_pylist())]


@pytest.mark.parametrize("name", ["a", "a/b", "..", ".", "a%2Fb", "größe 1", "x" * 200, "q\"'"])
async def test_any_printable_name_will_do(store: Store, name: str, place: Place) -> None:
    shard = await store.create_shard(name, SCHEMA)
    await fill(shard, zset((1, 1), (2, 1), (3, 1), padding=_LONG))
    assert await store.shards() == [name]
    assert len(blobs_at(place)) == 1
    assert weights(await (await store.open_shard(name)).snapshot(0)) == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("name", ["", "a\n", "x" * 201, "ö" * 40])
async def test_a_name_that_files_cannot_have_is_refused(store: Store, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be a name"):
        await store.create_shard(name, SCHEMA)


async def test_a_shard_that_is_not_there_is_said_to_be(store: Store) -> None:
    with pytest.raises(ShardUnknown, match="there is no shard s"):
        await store.open_shard("s")


# -- holds and compaction


async def test_the_since_is_that_of_the_lowest_hold(shard: Shard, other: Store) -> None:
    """ST-SH-3, ST-SH-10: it never goes back."""
    await fill(shard, *(zset((time, 1)) for time in range(10)))
    await shard.hold("a", 3)
    assert shard.since == 3
    await (await other.open_shard("s")).hold("b", 7)
    await shard.refresh()
    assert (shard.since, {name: each.time for name, each in shard.holds.items()}) == (3, {"a": 3, "b": 7})
    await shard.hold("a", 9)
    assert shard.since == 7
    with pytest.raises(SinceMismatch) as raised:
        await shard.hold("c", 6)
    assert (raised.value.asked, raised.value.since) == (6, 7)
    await shard.release("b")
    assert shard.since == 9
    await shard.release("b")
    await shard.release("a")
    assert (shard.since, shard.holds) == (9, {})


async def test_a_hold_that_was_not_known_here_is_released_all_the_same(shard: Shard, other: Store) -> None:
    theirs = await other.open_shard("s")
    await shard.hold("a", 3)
    assert theirs.holds == {}
    await theirs.release("a")
    await shard.refresh()
    assert shard.holds == {}
    await theirs.hold("b", 5)
    await shard.release("b")
    await shard.hold("b", 5)
    await theirs.hold("b", 5)  # there again, since it was let go by another
    assert theirs.holds["b"].time == 5


async def test_a_hold_moves_with_an_append(shard: Shard, store: Store) -> None:
    await store.append([shard.part([(0, zset((1, 1)))], 0, 5, holds={"writer": 4})])
    assert (shard.since, shard.upper) == (4, 5)
    with pytest.raises(SinceMismatch):
        await store.append([shard.part([], 5, 6, holds={"writer": 3})])
    assert (shard.since, shard.upper) == (4, 5)


async def test_a_hold_whose_lease_is_over_holds_nothing(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(shard, *(zset((time, 1)) for time in range(10)))
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    await shard.hold("leased", 1, lease_s=60)
    await shard.hold("kept", 5)
    now += 59
    await shard.hold("leased", 2, lease_s=60)
    now += 59
    await shard.compact()
    assert (shard.since, shard.holds["leased"].time) == (2, 2)
    now += 2
    await shard.compact(full=True)
    assert (shard.since, list(shard.holds)) == (5, ["kept"])
    await shard.hold("leased", 6, lease_s=60)
    now += 61
    await shard.hold("kept", 8)
    assert (shard.since, list(shard.holds)) == (8, ["kept"])


async def test_since_follows_leased_readers_as_persist_has_it(
    shard: Shard, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-SH-10: its script since_downgrade_leased; a lower downgrade, which it ignores, is refused here."""
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    theirs = await other.open_shard("s")

    async def since() -> int:
        await theirs.compact()
        assert theirs.since == (await shard_state(shard)).since
        return theirs.since

    await shard.hold("r0", 0, lease_s=60)
    assert await since() == 0
    for at in (2, 2):
        await shard.hold("r0", at, lease_s=60)
        assert await since() == 2
    with pytest.raises(SinceMismatch):
        await shard.hold("r0", 1, lease_s=60)
    assert (await since(), shard.holds["r0"].time) == (2, 2)
    await theirs.hold("r1", 2, lease_s=120)
    await theirs.hold("r1", 3, lease_s=120)
    assert await since() == 2
    await shard.hold("r0", 5, lease_s=60)
    assert await since() == 3
    now += 61
    assert await since() == 3, "the one that is gone was ahead"
    await shard.hold("r2", 3, lease_s=120)
    await shard.hold("r2", 10, lease_s=120)
    assert await since() == 3
    now += 60
    assert await since() == 10, "the one that is gone was the last"
    now += 61
    assert (await since(), theirs.holds) == (10, {})


async def test_below_its_since_a_shard_keeps_its_contents(shard: Shard, other: Store, place: Place) -> None:
    """ST-SH-3, ST-SH-11: from the since on all reads are as they were, below it none is answered."""
    await fill(shard, *(zset((1, 1), (time, 1), (time - 1, -1), padding=_LONG) for time in range(2, 12)))
    before = {time: weights(await shard.snapshot(time)) for time in range(10)}
    assert len(blobs_at(place)) == 10
    await shard.hold("reader", 6)
    assert await shard.compact(full=True)
    assert len(blobs_at(place)) == 1
    for each in (shard, await other.open_shard("s")):
        for time in range(6, 10):
            assert weights(await each.snapshot(time)) == before[time]
        for time in range(6):
            with pytest.raises(
                SinceMismatch, match=f"cannot be read at time {time} any more, because 6 is the earliest"
            ):
                await each.snapshot(time)
        with pytest.raises(SinceMismatch):
            await anext(each.listen(6))
        assert sorted(by_time(await listened(each, 7, 10))) == [7, 8, 9]
    await shard.hold("reader", 9)
    assert await shard.compact(full=True)
    (snapshot,) = (await shard.snapshot(9)).to_batches()
    assert snapshot.num_rows == len(before[9])
    assert not await shard.compact(full=True) or len(blobs_at(place)) == 1


async def test_below_its_since_a_log_keeps_nothing(store: Store, other: Store, place: Place) -> None:
    shard = await store.create_shard("s", SCHEMA, keeps="updates")
    await fill(shard, *(zset((time, 1), (time, -1), (0, 1), padding=_LONG) for time in range(10)))
    await shard.hold("reader", 6)
    assert await shard.compact()
    theirs = await other.open_shard("s")
    for each in (shard, theirs):
        heard = await listened(each, 6, 10)
        assert [at for span in heard for at, _ in span.updates] == [6, 7, 8, 9]
        assert sum(rows.num_rows for span in heard for _, rows in span.updates) == 12  # as they were
        for call in (each.read(5, 7), each.snapshot(7)):
            with pytest.raises(SinceMismatch):
                await call
    assert len(blobs_at(place)) == 1
    await shard.hold("reader", 10)
    await shard.compact()
    assert blobs_at(place) == []
    assert await shard.read(10, 10) == []


async def test_what_is_read_while_it_is_compacted_by_another_is_read_from_the_new(
    shard: Shard, other: Store
) -> None:
    theirs = await other.open_shard("s")
    await fill(shard, *(zset((time, 1), (50, 1), (51, 1), padding=_LONG) for time in range(10)))
    await theirs.refresh()
    await shard.hold("a", 4)
    await shard.compact(full=True)
    assert theirs.since == 0  # it knows nothing of it
    assert len(weights(await theirs.snapshot(9))) == 12
    assert theirs.since == 0 or theirs.since == 4
    await fill(shard, zset((9, 1)))
    await shard.hold("a", 10)
    await shard.compact(full=True)
    with pytest.raises(SinceMismatch):
        await theirs.snapshot(5)


async def test_a_log_of_entries_does_not_grow_for_ever(store: Store, other: Store) -> None:
    """Every row is written again a few times only, and who reads behind sees all of it."""
    shard = await store.create_shard("s", SCHEMA, keeps="updates")
    heard = asyncio.create_task(listened(await other.open_shard("s"), 0, 4 * ENTRIES))
    for time in range(4 * ENTRIES):
        await shard.compare_and_append([(time, zset((time, 1)))], time, time + 1)
    found = by_time(await heard)
    assert found == {time: {time: 1} for time in range(4 * ENTRIES)}
    await asyncio.gather(*shard._access._compacting.values())
    assert len(shard._tracked.state.parts) < 2 * ENTRIES
    entries = shard._access._ordering.scan("shard/s", 0)  # type: ignore[attr-defined]
    assert len(entries) <= 2 * ENTRIES
    assert by_time(await listened(await other.open_shard("s"), 0, 4 * ENTRIES)) == found


async def test_the_second_of_two_compactions_leaves_nothing(shard: Shard, other: Store, place: Place) -> None:
    await fill(shard, *(zset((time, 1), (50, 1), (51, 1), padding=_LONG) for time in range(10)))
    await shard.hold("a", 9)
    results = await asyncio.gather(
        *(each.compact(full=True) for each in (shard, await other.open_shard("s")) * 2)
    )
    assert any(results)
    await shard.compact(full=True)
    await shard.refresh()
    assert len(blobs_at(place)) == len([part for part in shard._tracked.state.parts if part.blob])
    assert len(weights(await shard.snapshot(9))) == 12
