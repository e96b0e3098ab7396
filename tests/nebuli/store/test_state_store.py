"""Databases of two versions, as the source document has them (rows DBSP-DB)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.store import StateStore, StorageError, Store
from nebuli.store.blobs.blob_files import FileBlobs
from nebuli.store.errors import (
    BlobDamaged,
    BlobMissing,
    DatabaseClosed,
    Locked,
    StoreClosed,
    StoreFailed,
    Unclear,
    VersionUnavailable,
)
from nebuli.store.ordering.sqlite import SqliteOrdering
from nebuli.store.states.state_store import INLINE_BYTES, Database
from tests.support.sizes import some
from tests.support.stores import Killed, Place, Plan, blobs_at, only_here, opened_blobs, store_at

_KEY = "state/member 0"
_LONG = b"\0\xff" * INLINE_BYTES
"""Too long for an entry."""


@pytest.fixture
async def states(store: Store) -> AsyncIterator[StateStore]:
    made = store.state_store("member 0")
    yield made
    assert len(await made.versions()) in (1, 2)


async def value(database: Database, table: str, key: bytes) -> bytes | None:
    found = await database.get(table, key)
    return None if found is None else found.to_pybytes()


async def commit(states: StateStore, version: int, **values: bytes) -> None:
    """Open it, put some into the table ``t``, and commit."""
    database = await states.open(version)
    for key, content in values.items():
        await database.put("t", key.encode(), content)
    await database.commit()


async def test_a_new_database_has_version_0_which_is_empty(states: StateStore) -> None:
    """DBSP-DB-1; and DBSP-DB-10: its step is 0."""
    assert await states.versions() == range(1)
    async with await states.open(0) as database:
        assert await database.get("t", b"k") is None
        assert (database.keys("t"), database.get_step(), database.version) == ([], 0, 0)
    assert await states.versions() == range(1)


async def test_opening_a_version_discards_the_other(states: StateStore, place: Place) -> None:
    """DBSP-DB-3."""
    await commit(states, 0, a=b"old", b=_LONG + b"0")
    await commit(states, 1, a=b"new", b=_LONG + b"1")
    assert await states.versions() == range(1, 3)
    async with await states.open(1) as database:
        assert await states.versions() == range(1, 2)
        assert await value(database, "t", b"a") == b"old"
        assert await value(database, "t", b"b") == _LONG + b"0"
        assert len(blobs_at(place)) == 1
    with pytest.raises(VersionUnavailable):
        await states.open(2)
    await commit(states, 1, a=b"newer")
    async with await states.open(2) as database:
        assert await states.versions() == range(2, 3)
        assert await value(database, "t", b"a") == b"newer"
        assert await value(database, "t", b"b") == _LONG + b"0"


async def test_a_version_that_is_not_there_is_an_error_that_discards_nothing(states: StateStore) -> None:
    """DBSP-DB-4."""
    for version in range(3):
        await commit(states, version, a=b"%d" % version)
    assert await states.versions() == range(2, 4)
    for asked in (7, 1, 4, -1):
        with pytest.raises(VersionUnavailable, match=f"has no version {asked}, only 2 and 3") as raised:
            await states.open(asked)
        assert (raised.value.asked, raised.value.versions) == (asked, range(2, 4))
    assert await states.versions() == range(2, 4)
    async with await states.open(3) as database:
        assert await value(database, "t", b"a") == b"2"


async def test_a_commit_makes_the_next_version_and_closes(states: StateStore) -> None:
    """DBSP-DB-5."""
    await commit(states, 0, a=b"0")
    database = await states.open(1)
    await database.put("t", b"a", b"1")
    await database.commit()
    assert await states.versions() == range(1, 3)
    with pytest.raises(DatabaseClosed):
        await database.get("t", b"a")
    with pytest.raises(DatabaseClosed):
        await database.put("t", b"a", b"2")
    for call in (database.get_step, lambda: database.set_step(1), lambda: database.keys("t")):
        with pytest.raises(DatabaseClosed):
            call()
    with pytest.raises(DatabaseClosed):
        await database.commit()
    async with await states.open(2) as database:
        assert await value(database, "t", b"a") == b"1"


@pytest.mark.parametrize("place", ["failing"], indirect=True)
async def test_commits_whose_answers_are_lost_happen_once(states: StateStore) -> None:
    for version in range(20):
        await commit(states, version, a=b"%d" % version)
    async with await states.open(20) as database:
        assert await value(database, "t", b"a") == b"19"


async def test_either_version_can_be_opened_after_a_commit(states: StateStore) -> None:
    """DBSP-DB-5."""
    await commit(states, 0, a=b"0")
    await commit(states, 1, a=b"1")
    async with await states.open(1) as database:
        assert await value(database, "t", b"a") == b"0"


async def test_closing_without_a_commit_keeps_what_was_opened(states: StateStore, place: Place) -> None:
    """DBSP-DB-6."""
    await commit(states, 0, a=b"0", b=_LONG)
    database = await states.open(1)
    await database.put("t", b"a", b"1")
    await database.put("t", b"b", _LONG + b"1")
    await database.delete("t", b"a")
    database.set_step(9)
    database.close()
    assert await states.versions() == range(1, 2)
    async with await states.open(1) as database:
        assert await value(database, "t", b"a") == b"0"
        assert await value(database, "t", b"b") == _LONG
        assert database.get_step() == 0
        assert len(blobs_at(place)) == 1  # what was put is not left behind


async def test_what_is_put_is_read_at_once_by_table_and_key(states: StateStore) -> None:
    """DBSP-DB-9."""
    keys = [b"", b"\0", b"a\0b", b"\xff\xfe", b"k" * 1000]
    async with await states.open(0) as database:
        for table in ("t", "u", "größe/1"):
            for key in keys:
                await database.put(table, key, table.encode() + key)
        for table in ("t", "u", "größe/1"):
            assert database.keys(table) == sorted(keys)
            for key in keys:
                assert await value(database, table, key) == table.encode() + key
        await database.put("t", b"\0", b"")
        await database.put("u", b"\0", _LONG)
        assert await value(database, "t", b"\0") == b""
        assert await value(database, "u", b"\0") == _LONG
        await database.commit()
    async with await states.open(1) as database:
        assert await value(database, "t", b"\0") == b""
        assert await value(database, "u", b"\0") == _LONG
        assert await value(database, "größe/1", b"a\0b") == "größe/1".encode() + b"a\0b"


async def test_what_is_deleted_is_gone_from_the_next_version_on(states: StateStore) -> None:
    """DBSP-DB-9."""
    await commit(states, 0, a=b"0", b=_LONG, c=b"c")
    database = await states.open(1)
    for key in (b"a", b"b", b"nothing"):
        await database.delete("t", key)
    assert (database.keys("t"), await database.get("t", b"b")) == ([b"c"], None)
    await database.put("t", b"a", b"again")
    await database.put("t", b"d", b"new")
    await database.delete("t", b"d")
    await database.commit()
    async with await states.open(2) as database:
        assert database.keys("t") == [b"a", b"c"]
        assert await value(database, "t", b"a") == b"again"


async def test_the_step_is_of_its_version(states: StateStore) -> None:
    """DBSP-DB-10."""
    for version, step in enumerate((5, (1 << 64) - 1)):
        database = await states.open(version)
        database.set_step(step)
        assert database.get_step() == step
        await database.commit()
    async with await states.open(1) as database:
        assert database.get_step() == 5
    await commit(states, 1)
    async with await states.open(2) as database:
        assert database.get_step() == 5


async def test_each_version_says_its_step(states: StateStore, other: Store) -> None:
    assert await states.steps() == {0: 0}
    for version, step in enumerate((90, 120, 150)):
        database = await states.open(version)
        database.set_step(step)
        await database.commit()
    assert await states.steps() == {2: 120, 3: 150}
    async with await states.open(2) as database:
        database.set_step(130)
        assert await states.steps() == {
            2: 120
        }  # what is set is of the next version, and the other one is gone
        assert await other.state_store("member 0").steps() == {2: 120}
        await database.commit()
    assert await other.state_store("member 0").steps() == {2: 120, 3: 130}


def contents(tables: dict[str, dict[bytes, pa.Buffer]]) -> dict[str, dict[bytes, bytes]]:
    return {
        table: {key: value.to_pybytes() for key, value in values.items()} for table, values in tables.items()
    }


async def test_all_tables_are_read_at_once(states: StateStore) -> None:
    expected = {
        table: {b"%d" % n: (_LONG if n % 3 else b"") + b"%d" % n for n in range(20)} for table in ("a", "b/1")
    }
    async with await states.open(0) as database:
        assert await database.tables() == {}
        for table, values in expected.items():
            for key, content in values.items():
                await database.put(table, key, content)
        assert contents(await database.tables()) == expected
        await database.commit()
    async with await states.open(1) as database:
        found = await database.tables()
        assert contents(found) == expected
        assert [list(each) for each in found.values()] == [sorted(each) for each in expected.values()]
        await database.put("a", b"1", b"new")
        await database.put("c", b"", _LONG)
        await database.delete("a", b"2")
        for key in expected["b/1"]:
            await database.delete("b/1", key)
        changed = {**expected["a"], b"1": b"new"}
        del changed[b"2"]
        assert contents(await database.tables()) == {"a": changed, "c": {b"": _LONG}}
        await database.commit()
    with pytest.raises(DatabaseClosed):
        await database.tables()
    async with await states.open(2) as database:
        assert contents(await database.tables()) == {"a": changed, "c": {b"": _LONG}}


@only_here
async def test_blobs_of_tables_are_read_side_by_side_a_few_at_once(place: Place, folder: Path) -> None:
    async with store_at(place) as store:
        await commit(store.state_store("s"), 0, **{f"{n}": _LONG for n in range(40)})
    reading = most = 0
    meeting = threading.Barrier(2)  # one alone would wait for ever

    class Slow(FileBlobs):
        def get(self, folder: str, name: str) -> pa.Buffer:
            nonlocal reading, most
            with guard:
                reading += 1
                most = max(most, reading)
            meeting.wait(30)
            found = super().get(folder, name)
            with guard:
                reading -= 1
            return found

    guard = threading.Lock()
    slow = Store(SqliteOrdering(folder), Slow(folder / "blobs"))
    async with slow as store, await store.state_store("s").open(1) as database:
        assert len((await database.tables())["t"]) == 40
    assert 2 <= most <= 4


async def test_a_blob_of_the_tables_that_is_damaged_is_named_and_nothing_goes_on(
    states: StateStore, place: Place
) -> None:
    await commit(states, 0, **{f"{n}": _LONG for n in range(20)})
    name = blobs_at(place)[3]
    opened_blobs(place).delete(_KEY, [name])
    async with await states.open(1) as database:
        with pytest.raises(BlobMissing, match=name):
            await database.tables()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_second_opener_is_refused(states: StateStore, store: Store, other: Store) -> None:
    """DBSP-DB-11."""
    database = await states.open(0)
    await database.put("t", b"a", _LONG)
    for each in (store, other):
        with pytest.raises(Locked, match=f"state/member 0 is open already, by process {os.getpid()}"):
            await each.state_store("member 0").open(0)
    async with await other.state_store("member 1").open(0):
        pass
    assert await value(database, "t", b"a") == _LONG  # nothing of it was touched
    await database.commit()
    async with await other.state_store("member 0").open(1) as theirs:
        assert await value(theirs, "t", b"a") == _LONG


@only_here
async def test_the_disk_does_not_fill(place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DBSP-DB-12: 1 000 commits of the same keys; SQLite's own log begins anew after 400 kB instead of 8 MB."""
    monkeypatch.setattr("nebuli.store.ordering.sqlite._PAGES", 100)
    async with store_at(place) as store:
        used = await _used_by_commits(store.state_store("s"), place, folder)
    assert max(used[500:]) <= max(used[:500]) * 1.1


async def _used_by_commits(states: StateStore, place: Place, folder: Path) -> list[int]:
    used = []
    for version in range(1000):
        await commit(
            states, version, **{f"{n}": os.urandom(INLINE_BYTES + 1) for n in range(2)}, small=b"%d" % version
        )
        assert len(blobs_at(place)) <= 4
        used.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    return used


@only_here
async def test_a_commit_writes_only_what_is_new(states: StateStore, place: Place, folder: Path) -> None:
    await commit(states, 0, **{f"{n}": _LONG + bytes([n]) for n in range(20)})
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "blobs").rglob("*-*")}
    await commit(states, 1, new=_LONG)
    after = {path.name: path.stat().st_mtime_ns for path in (folder / "blobs").rglob("*-*")}
    assert len(after) == len(before) + 1
    assert after.items() >= before.items()
    async with await states.open(2) as database:
        assert len(database.keys("t")) == 21
        assert await value(database, "t", b"7") == _LONG + b"\7"


async def test_a_damaged_value_is_named_with_both_checksums(states: StateStore, place: Place) -> None:
    await commit(states, 0, a=_LONG)
    (name,) = blobs_at(place)
    blobs = opened_blobs(place)
    content = blobs.get(_KEY, name).to_pybytes()
    async with await states.open(1) as database:
        for damaged in (content[:-1], b"?" + content[1:]):
            blobs.put(_KEY, name, [damaged])
            with pytest.raises(BlobDamaged, match=f"blob {name} of database member 0 is damaged") as raised:
                await database.get("t", b"a")
            assert raised.value.expected != raised.value.found
        blobs.delete(_KEY, [name])
        with pytest.raises(BlobMissing, match=f"blob {name} of database member 0, .* is missing"):
            await database.get("t", b"a")
        blobs.put(_KEY, name, [content])
        assert await value(database, "t", b"a") == _LONG


async def test_nothing_is_done_in_a_store_that_was_left(place: Place) -> None:
    async with store_at(place) as store:
        database = await store.state_store("s").open(0)
    with pytest.raises(StoreClosed):
        await database.put("t", b"a", _LONG)
    database.close()


# -- what fails, or ends in the middle


def failing(name: str) -> BaseException:
    return Unclear("writing", "the disk") if name == "append" else StoreFailed("the store", name, "the disk")


async def _generation(states: StateStore, version: int) -> None:
    """A version whose values all say which it is, and whose step does."""
    async with await states.open(version) as database:
        database.set_step(version + 1)
        for n in range(2):
            await database.put("t", b"long %d" % n, b"%d" % version + _LONG)
            await database.put("t", b"short %d" % n, b"%d" % version)
        await database.delete("t", b"%d" % (version - 1))
        await database.put("t", b"%d" % version, b"")
        await database.commit()


async def _check(place: Place) -> range:
    """Every version that is there is whole; the versions."""
    async with store_at(place) as store:
        states = store.state_store("s")
        versions = await states.versions()
        assert len(versions) in (1, 2)
        for version in reversed(versions) if len(versions) == 1 else [versions[-1]]:
            async with await states.open(version) as database:
                assert database.get_step() == version
                if version:
                    assert database.keys("t") == [
                        b"%d" % (version - 1),
                        b"long 0",
                        b"long 1",
                        b"short 0",
                        b"short 1",
                    ]
                    for n in range(2):
                        assert await value(database, "t", b"long %d" % n) == b"%d" % (version - 1) + _LONG
                        assert await value(database, "t", b"short %d" % n) == b"%d" % (version - 1)
                assert len(blobs_at(place)) == (2 if version else 0)
        return versions


_CALLS = range(40)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(_CALLS))
async def test_a_commit_that_is_killed_at_any_call_is_whole_or_not_there(
    place: Place, at: int, when: str
) -> None:
    """DBSP-DB-7, DBSP-DB-8."""
    plan = Plan(at, **{when: lambda _: Killed()})
    version = 0
    with suppress(Killed):
        async with store_at(place, plan) as store:
            for version in range(3):
                await _generation(store.state_store("s"), version)
    versions = await _check(place)
    assert versions[-1] in (version, version + 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(_CALLS))
async def test_a_commit_that_fails_at_any_call_can_be_done_again(place: Place, at: int, when: str) -> None:
    plan = Plan(at, **{when: failing})
    async with store_at(place, plan) as store:
        states = store.state_store("s")
        failures = 0
        while (version := (await _versions(states))[-1]) < 3:
            try:
                await _generation(states, version)
            except StorageError:
                failures += 1
        assert failures <= 1
    assert (await _check(place))[-1] == 3


async def _versions(states: StateStore) -> range:
    try:
        return await states.versions()
    except StorageError:
        return await states.versions()


async def test_three_commits_make_fewer_calls_than_are_tried(place: Place) -> None:
    plan = Plan()
    async with store_at(place, plan) as store:
        for version in range(3):
            await _generation(store.state_store("s"), version)
    assert len(plan.calls) < len(_CALLS)
    assert {*plan.calls} >= {"append", "scan", "put", "names", "delete", "truncate"}


@pytest.mark.parametrize("turns", range(8))
async def test_an_open_that_is_cancelled_leaves_it_to_the_next(store: Store, turns: int) -> None:
    """Wherever that is: what was begun goes on to its end on its thread, and is closed."""
    states = store.state_store("s")
    for _ in range(20):
        opening = asyncio.ensure_future(states.open(0))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            (await opening).close()
        await states.versions()  # as members do: they look before they open
        (await states.open(0)).close()


@pytest.mark.parametrize("turns", range(1, 5))  # not 0: then it is not called, and it is open
async def test_a_commit_that_is_cancelled_leaves_it_to_the_next(store: Store, turns: int) -> None:
    """Also where it was cancelled before its thread began with it; the next version is there or not."""
    states = store.state_store("s")
    for _ in range(20):
        opened = await states.open((await states.versions())[-1])
        asking = asyncio.ensure_future(states.versions())  # keeps its thread busy
        committing = asyncio.ensure_future(opened.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        committing.cancel()
        with suppress(asyncio.CancelledError):
            await committing
        await asking
        (await states.open((await states.versions())[-1])).close()
