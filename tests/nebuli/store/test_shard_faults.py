"""What fails in the seams of a store, or ends in the middle of them: nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from nebuli.store import Shard, StorageError, Store
from nebuli.store.blobs import Blobs
from nebuli.store.blobs.blob_files import FileBlobs
from nebuli.store.errors import (
    BlobDamaged,
    BlobMissing,
    Damaged,
    EntryDamaged,
    StoreFailed,
    Unclear,
    UpperMismatch,
)
from nebuli.store.shards.payloads import INLINE_BYTES
from nebuli.store.shards.shard_state import Decision
from tests.support.sizes import some
from tests.support.stores import (
    ALSO_UNSTEADY,
    PLACES,
    SCHEMA,
    Killed,
    Place,
    Plan,
    blobs_at,
    only_here,
    opened_blobs,
    place_of,
    store_at,
    weights,
    zset,
)

T = TypeVar("T")


@pytest.fixture(params=ALSO_UNSTEADY)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


steady = pytest.mark.parametrize("place", PLACES, indirect=True)
"""Marks tests that choose the append whose answer is lost."""

_BLOB = INLINE_BYTES // 2
_CALLS = range(24)
"""A few more than a story makes: at those beyond, nothing goes wrong."""


def failing(name: str) -> BaseException:
    """What the seam would say: of an append it cannot know."""
    return Unclear("writing", "the disk") if name == "append" else StoreFailed("the store", name, "the disk")


def killed(_: str) -> BaseException:
    return Killed()


async def story(store: Store, place: Place, done: list[str]) -> None:
    """Appends, some with blobs, one another's, then a hold and a compaction; ``done`` are those that returned."""
    shard = await _insisted(lambda: store.create_shard("s", SCHEMA))

    async def append(at: int, *rows: tuple[int, int], padding: int = 0) -> None:
        updates = [(at, zset(*rows, padding=padding))]
        await shard.compare_and_append(updates, at, at + 1, append_id=b"append %d" % at)

    await _insisted(lambda: append(0, (1, 1), (2, 1)))
    done.append("0")
    await _insisted(lambda: append(1, (2, 1), (3, 1), (4, 1), padding=_BLOB))
    done.append("1")
    async with store_at(place) as another:
        await (await another.open_shard("s")).compare_and_append([(2, zset((5, 1)))], 2, 3)
    done.append("2")
    await _insisted(lambda: append(3, (7, 1), (6, 1), (1, -1), padding=_BLOB))
    done.append("3")
    await _insisted(lambda: shard.hold("h", 3))
    done.append("held")
    await _insisted(lambda: shard.compact(full=True))
    done.append("compacted")


async def _insisted(call: Callable[[], Awaitable[T]]) -> T:
    """Once more where it failed."""
    try:
        return await call()
    except StorageError:
        return await call()


_SUMS = [
    {1: 1, 2: 1},
    {1: 1, 2: 2, 3: 1, 4: 1},
    {1: 1, 2: 2, 3: 1, 4: 1, 5: 1},
    {2: 2, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1},
]
"""By numbers of rows, after each append."""


async def check(place: Place, done: list[str]) -> None:
    """All that was done is there; the next compaction deletes what was left."""
    async with store_at(place) as store:
        shard = await store.create_shard("s", SCHEMA)
        appended = len({*done} & {*"0123"})
        assert shard.upper in (appended, appended + 1)
        as_of = shard.upper - 1
        if shard.upper:
            assert weights(await shard.snapshot(as_of)) == _SUMS[as_of]
        assert (shard.since == 3) >= ("held" in done)
        await shard.compact(full=True)
        assert {part.blob for part in shard._tracked.state.parts if part.blob} == set(blobs_at(place))
        if shard.upper:
            assert weights(await shard.snapshot(as_of)) == _SUMS[as_of]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(_CALLS))
async def test_what_fails_once_at_any_call_happens_once(place: Place, at: int, when: str) -> None:
    plan = Plan(at, **{when: failing})
    done: list[str] = []
    async with store_at(place, plan) as store:
        await story(store, place, done)
    assert len(done) == 6
    await check(place, done)


@steady
@pytest.mark.parametrize("is_raced", [False, True])
@pytest.mark.parametrize("has_happened", [False, True])
async def test_an_append_of_unknown_fate_happens_once_or_is_a_mismatch(
    place: Place, has_happened: bool, is_raced: bool
) -> None:
    """ST-SH-8: persist's five cases: happened or not, raced before it is tried again or not; and one gone back."""

    async def race() -> None:
        async with store_at(place) as another:
            shard = await another.open_shard("s")
            await shard.compare_and_append([(shard.upper, zset((9, 1)))], shard.upper, shard.upper + 1)

    def unclear(name: str) -> BaseException:
        assert name == "append"
        if is_raced:
            asyncio.run(race())
        return failing(name)

    plan = Plan(**{"after" if has_happened else "before": unclear})
    is_lost = is_raced and not has_happened
    async with store_at(place, plan) as store:
        shard = await store.create_shard("s", SCHEMA)
        await shard.compare_and_append([(0, zset((0, 1)))], 0, 1)
        plan.at = len(plan.calls)
        for _ in range(2):
            append = shard.compare_and_append([(1, zset((1, 1)))], 1, 2, append_id=b"this")
            if is_lost:
                with pytest.raises(UpperMismatch) as raised:
                    await append
                assert (raised.value.expected, raised.value.found) == (1, 2)
            else:
                await append
        assert len(plan.calls) > plan.at
        with pytest.raises(UpperMismatch):  # one that goes back, with another id
            await shard.compare_and_append([(0, zset((0, 1)))], 0, 1, append_id=b"another")
        expected = {0: 1} | ({} if is_lost else {1: 1}) | ({9: 1} if is_raced else {})
        assert shard.upper == len(expected)
        assert weights(await shard.snapshot(shard.upper - 1)) == expected


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(_CALLS))
async def test_what_is_killed_at_any_call_has_happened_or_not(place: Place, at: int, when: str) -> None:
    plan = Plan(at, **{when: killed})
    done: list[str] = []
    with suppress(Killed):
        async with store_at(place, plan) as store:
            await story(store, place, done)
    assert plan.is_dead == (len(plan.calls) > at)
    await check(place, done)


async def test_the_story_makes_fewer_calls_than_are_tried_and_all_kinds_of_them(place: Place) -> None:
    plan = Plan()
    async with store_at(place, plan) as store:
        await story(store, place, [])
    assert len(plan.calls) < len(_CALLS)
    assert {*plan.calls} >= {"heads", "scan", "append", "truncate", "put", "get", "names", "delete"}


async def test_whether_an_append_happened_is_said_not_to_be_known_where_it_is_not(place: Place) -> None:
    """The ordering fails, and goes on failing: with its id the append can be repeated later."""
    plan = Plan()
    async with store_at(place, plan) as store:
        shard = await store.create_shard("s", SCHEMA)
        plan.at, plan.after = len(plan.calls), failing

        def broken(name: str, call: Callable[..., object], *arguments: object) -> object:
            raise failing(name)

        around, plan.around = plan.around, lambda *call: around(*call) if "append" in call else broken(*call)  # type: ignore[method-assign]
        with pytest.raises(Unclear, match="repeat it with append_id=b'this'") as raised:
            await shard.compare_and_append([(0, zset((1, 1)))], 0, 1, append_id=b"this")
        assert raised.value.append_id == b"this"
        plan.around = around  # type: ignore[method-assign]
        await shard.compare_and_append([(0, zset((1, 1)))], 0, 1, append_id=b"this")
        assert weights(await shard.snapshot(0)) == {1: 1}


async def test_an_append_whose_fate_was_forgotten_is_not_said_to_be_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nebuli.store.shards.shard_state.RECENT", 4)
    shard = await store.create_shard("s", SCHEMA)
    for time in range(10):
        await shard.compare_and_append([], time, time + 1, append_id=b"%d" % time)
    await shard.compare_and_append([], 6, 7, append_id=b"6")
    with pytest.raises(Unclear, match="its state only records later appends"):
        await shard.compare_and_append([], 3, 4, append_id=b"3")
    with pytest.raises(UpperMismatch):  # nobody has tried this one before
        await shard.compare_and_append([], 3, 4)


@steady
async def test_an_append_that_is_forgotten_before_its_fate_is_learned_is_not_said_to_be_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has happened without an answer, and more appends than are remembered follow before the log is read."""
    monkeypatch.setattr("nebuli.store.shards.shard_state.RECENT", 4)

    async def race() -> None:
        async with store_at(place) as another:
            shard = await another.open_shard("s")
            for time in range(1, 7):
                await shard.compare_and_append([], time, time + 1)

    def unclear(name: str) -> BaseException:
        asyncio.run(race())
        return failing(name)

    plan = Plan(after=unclear)
    async with store_at(place, plan) as store:
        shard = await store.create_shard("s", SCHEMA)
        plan.at = len(plan.calls)
        with pytest.raises(Unclear, match="its state only records later appends"):
            await shard.compare_and_append([], 0, 1)


# -- appends in flight, while others sweep


async def test_a_sweep_takes_no_blob_from_an_append_in_flight(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written, and is not known to the ordering, while two compactions come and go; the append happens."""
    plan = Plan()
    async with store_at(place, plan) as slow:
        shard = await slow.create_shard("s", SCHEMA)
        theirs = await store.open_shard("s")
        written, go_on = asyncio.Event(), asyncio.Event()
        change = shard._access.change
        held = [True]

        async def stopped(decisions: object) -> None:
            if held:
                held.clear()
                written.set()
                await go_on.wait()
            await change(decisions)  # type: ignore[arg-type]

        monkeypatch.setattr(shard._access, "change", stopped)
        rows = zset((1, 1), (2, 1), (3, 1), padding=_BLOB)
        appending = asyncio.create_task(shard.compare_and_append([(0, rows)], 0, 1))
        await written.wait()
        assert len(blobs_at(place)) == 1
        await theirs.hold("h", 0)
        for _ in range(2):
            await theirs.compact(full=True)
        go_on.set()
        await appending
        assert weights(await theirs.snapshot(0)) == {1: 1, 2: 1, 3: 1}
        await theirs.compact(full=True)
        assert weights(await theirs.snapshot(0)) == {1: 1, 2: 1, 3: 1}
        assert len(blobs_at(place)) == 1


@only_here
async def test_a_sweep_spares_what_was_begun_after_its_compaction(
    place: Place, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, theirs = await store.create_shard("s", SCHEMA), await other.open_shard("s")
    has_compacted, is_written = threading.Event(), threading.Event()
    names = FileBlobs.names

    def late(blobs: FileBlobs, owner: str) -> list[str]:
        has_compacted.set()
        assert is_written.wait(30)
        return names(blobs, owner)

    monkeypatch.setattr(FileBlobs, "names", late)
    change = shard._access.change
    compacting = asyncio.create_task(theirs.compact())
    assert await asyncio.to_thread(has_compacted.wait, 30)
    await shard.refresh()

    async def stopped(decisions: Sequence[Decision]) -> None:
        is_written.set()
        await compacting
        await change(decisions)

    monkeypatch.setattr(shard._access, "change", stopped)
    await shard.compare_and_append([(0, zset((1, 1), (2, 1), (3, 1), padding=_BLOB))], 0, 1)
    assert weights(await theirs.snapshot(0)) == {1: 1, 2: 1, 3: 1}


@only_here  # an object that is written is not there to be swept
async def test_an_append_whose_blob_is_swept_while_it_is_written_writes_it_again(
    place: Place, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await store.create_shard("s", SCHEMA)
    fsync = os.fsync
    swept: list[Path] = []

    def sweeping(descriptor: int) -> None:
        fsync(descriptor)
        for path in folder.rglob("*.part"):
            if not swept:
                path.unlink()
                swept.append(path)

    monkeypatch.setattr(os, "fsync", sweeping)
    await shard.compare_and_append([(0, zset((1, 1), (2, 1), (3, 1), padding=_BLOB))], 0, 1)
    assert len(swept) == len(blobs_at(place)) == 1
    assert weights(await shard.snapshot(0)) == {1: 1, 2: 1, 3: 1}


async def test_an_append_that_was_cancelled_has_happened_or_not(store: Store, place: Place) -> None:
    shard = await store.create_shard("s", SCHEMA)
    for time in range(30):
        rows = zset((time, 1), (100, 1), (101, 1), padding=_BLOB * (time % 2))
        appending = asyncio.create_task(
            shard.compare_and_append([(time, rows)], time, time + 1, append_id=b"%d" % time)
        )
        await asyncio.sleep(0.0003 * (time % 7))
        appending.cancel()
        with suppress(asyncio.CancelledError):
            await appending
        await shard.compare_and_append([(time, rows)], time, time + 1, append_id=b"%d" % time)
    assert weights(await shard.snapshot(29)) == {100: 30, 101: 30} | dict.fromkeys(range(30), 1)
    await shard.compact(full=True)
    await shard.compact(full=True)
    assert len(blobs_at(place)) == 1


# -- what is damaged


async def _with_a_blob(store: Store, place: Place) -> tuple[Shard, str, Blobs]:
    shard = await store.create_shard("s", SCHEMA)
    await shard.compare_and_append([(0, zset((1, 1), (2, 1), (3, 1), padding=_BLOB))], 0, 5)
    await shard.hold("h", 4)
    (name,) = blobs_at(place)
    return shard, name, opened_blobs(place)


async def test_a_damaged_blob_is_named_with_both_checksums(store: Store, place: Place) -> None:
    shard, name, blobs = await _with_a_blob(store, place)
    content = blobs.get("shard/s", name).to_pybytes()
    for damaged in (content[:-1], content + b"x", b"", content[:1000] + b"?" + content[1001:]):
        blobs.put("shard/s", name, [damaged])
        for read in (lambda: shard.snapshot(4), lambda: shard.compact(full=True)):
            with pytest.raises(BlobDamaged) as raised:
                await read()
            assert (raised.value.owner, raised.value.blob) == ("shard s", name)
            assert f"its checksum is {raised.value.found:016x}" in str(raised.value)
            assert f"written with {raised.value.expected:016x}; restore its file" in str(raised.value)
    blobs.put("shard/s", name, [content])
    assert weights(await shard.snapshot(4)) == {1: 1, 2: 1, 3: 1}


async def test_a_missing_blob_is_named(store: Store, place: Place) -> None:
    shard, name, blobs = await _with_a_blob(store, place)
    content = blobs.get("shard/s", name).to_pybytes()
    blobs.delete("shard/s", [name])
    for read in (lambda: shard.snapshot(4), lambda: shard.compact(full=True)):
        with pytest.raises(BlobMissing, match=f"blob {name} of shard s, .* is missing") as raised:
            await asyncio.wait_for(read(), 60)
        assert (raised.value.owner, raised.value.blob) == ("shard s", name)
    blobs.put("shard/s", name, [content])
    assert weights(await shard.snapshot(4)) == {1: 1, 2: 1, 3: 1}


async def test_a_log_that_begins_in_its_middle_is_damaged(store: Store, other: Store) -> None:
    shard = await store.create_shard("s", SCHEMA)
    await shard.compare_and_append([], 0, 1)
    shard._access._ordering.truncate("shard/s", 2)
    with pytest.raises(Damaged, match="begins with entry 2, which is not a complete state"):
        await other.open_shard("s")


@only_here
async def test_an_entry_that_is_damaged_stops_who_reads_it(store: Store, other: Store, place: Place) -> None:
    shard = await store.create_shard("s", SCHEMA)
    await shard.compare_and_append([(0, zset((1, 1)))], 0, 1)
    shard._access._ordering._connection.execute("update entries set checksum = 0")  # type: ignore[attr-defined]
    with pytest.raises(EntryDamaged, match=r"of shard/s in .* is damaged"):
        await other.open_shard("s")
