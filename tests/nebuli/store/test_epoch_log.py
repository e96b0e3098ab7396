"""Epochs of a circuit: each is claimed once, whoever races, and whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from nebuli.steps.logs.epoch_log import EpochLog
from nebuli.store import Store
from nebuli.store.errors import EpochTaken, StoreFailed, Unclear
from tests.support.sizes import some
from tests.support.starter import Forked, start_program
from tests.support.stores import Place, Plan, store_at


@pytest.fixture
async def epochs(store: Store) -> EpochLog:
    return await EpochLog.open(store, "flights")


@pytest.fixture
async def theirs(other: Store) -> EpochLog:
    return await EpochLog.open(other, "flights")


async def test_none_is_claimed_at_first(epochs: EpochLog) -> None:
    assert await epochs.last() == 0
    assert await epochs.claim(0) == 1
    assert await epochs.last() == 1


async def test_a_claim_follows_all_that_others_made(epochs: EpochLog, theirs: EpochLog) -> None:
    assert await epochs.claim(0) == 1
    assert await theirs.last() == 1
    assert await theirs.claim(0) == 2
    assert await epochs.last() == 2
    assert await theirs.claim(2) == 3
    assert await epochs.claim(3) == 4


async def test_who_has_an_older_one_is_told_which_there_is(epochs: EpochLog, theirs: EpochLog) -> None:
    assert await epochs.claim(0) == 1
    assert [await theirs.claim(0) for _ in range(3)] == [2, 3, 4]
    with pytest.raises(EpochTaken, match=r"claimed epoch 4 of circuit flights, .* epoch 1:") as raised:
        await epochs.claim(1)
    assert (raised.value.circuit, raised.value.own, raised.value.found) == ("flights", 1, 4)
    assert await theirs.last() == 4  # nothing was claimed


async def test_a_claim_is_greater_than_the_own_one_also_where_the_store_has_less(epochs: EpochLog) -> None:
    assert await epochs.claim(7) == 8
    assert await epochs.last() == 8


async def test_circuits_have_epochs_of_their_own(epochs: EpochLog, store: Store) -> None:
    assert await epochs.claim(0) == 1
    assert await (await EpochLog.open(store, "weather")).claim(0) == 1


@pytest.mark.parametrize("after", [0, 1])
async def test_of_two_that_have_looked_one_claims_it(
    epochs: EpochLog, theirs: EpochLog, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await epochs.claim(0) == 1
    looked = theirs.last

    async def look_and_be_second() -> int:
        found = await looked()
        assert await epochs.claim(after) == found + 1
        return found

    with monkeypatch.context() as patch:
        patch.setattr(theirs, "last", look_and_be_second)
        with pytest.raises(EpochTaken) as raised:
            await theirs.claim(after)
    assert (raised.value.own, raised.value.found) == (after, 2)
    assert await theirs.claim(0) == 3


async def test_claims_of_one_process_at_the_same_time_differ(epochs: EpochLog) -> None:
    assert sorted(await asyncio.gather(*(epochs.claim(0) for _ in range(10)))) == list(range(1, 11))


async def test_a_claim_that_was_cancelled_is_made_once(epochs: EpochLog) -> None:
    cancelled = 0
    for own in range(20):
        claiming = asyncio.create_task(epochs.claim(own))
        for _ in range(1000):
            if epochs._begun is None and not claiming.done():
                await asyncio.sleep(0)
        claiming.cancel()  # in the middle of its append
        await asyncio.wait([claiming])
        cancelled += claiming.cancelled()
        if claiming.cancelled():
            assert await epochs.claim(own) == own + 1
        assert await epochs.last() == own + 1
    assert cancelled


async def test_what_was_claimed_long_ago_takes_no_room(
    epochs: EpochLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nebuli.store.shards.access.ENTRIES", 8)
    monkeypatch.setattr("nebuli.store.shards.shard_state.RECENT", 4)
    own = 0
    for _ in range(64):
        own = await epochs.claim(own)
    shard = await store.open_shard("flights/epochs")
    await shard.compact()
    ordering = store._ordering
    entries = await store.access.work.in_order(ordering.scan, "shard/flights/epochs", 0)
    assert len(entries) == 1
    assert len(entries[0].data) < 1000
    assert await (await EpochLog.open(store, "flights")).claim(own) == 65


# -- what fails

_CALLS = range(20)


def failing(name: str) -> BaseException:
    return Unclear("writing", "the disk") if name == "append" else StoreFailed("the store", name, "the disk")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(_CALLS))
async def test_a_claim_that_fails_at_any_call_is_made_once(place: Place, at: int, when: str) -> None:
    async with store_at(place) as store:
        await EpochLog.open(store, "flights")
    plan = Plan(at, **{when: failing})  # type: ignore[arg-type]
    claimed: list[int] = []
    async with store_at(place, plan) as store:
        epochs = None
        while len(claimed) < 3:
            try:
                epochs = epochs or await EpochLog.open(store, "flights")
                claimed.append(await epochs.claim(claimed[-1] if claimed else 0))
            except (Unclear, StoreFailed):
                continue
    assert claimed == [1, 2, 3]


async def test_three_claims_make_fewer_calls_than_are_tried(place: Place) -> None:
    plan = Plan()
    async with store_at(place, plan) as store:
        epochs = await EpochLog.open(store, "flights")
        assert [await epochs.claim(n) for n in range(3)] == [1, 2, 3]
    assert len(plan.calls) < len(_CALLS)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_claim_that_is_unclear_for_long_can_be_repeated(
    place: Place, theirs: EpochLog, more: int
) -> None:
    """It has happened, and the ordering says nothing any more; ``more`` are claimed meanwhile by another one."""
    plan = Plan()
    async with store_at(place, plan) as store:
        epochs = await EpochLog.open(store, "flights")
        around = plan.around

        def broken(name: str, call: Callable[..., object], *arguments: object) -> object:
            if name == "append" and plan.calls.count("append") == appends:
                around(name, call, *arguments)
            elif "append" not in plan.calls[before:]:
                return around(name, call, *arguments)
            raise Unclear(name, "the disk")

        before, appends = len(plan.calls), plan.calls.count("append")
        plan.around = broken  # type: ignore[method-assign]
        with pytest.raises(Unclear):
            await epochs.claim(0)
        plan.around = around  # type: ignore[method-assign]
        for n in range(more):
            assert await theirs.claim(1) == 2 + n
        assert await epochs.claim(0) == (3 if more else 1)
        assert await theirs.last() == (3 if more else 1)


# -- processes

_RACING = """
import asyncio
import os
import sys
from nebuli.store import Store
from nebuli.store.errors import EpochTaken
from nebuli.steps.logs.epoch_log import EpochLog

async def race(folder, until, said):
    async with Store.at(folder) as store:
        epochs = await EpochLog.open(store, "flights")
        while (seen := await epochs.last()) < until:
            try:
                own = await epochs.claim(seen)
            except EpochTaken as error:
                assert error.own == seen < error.found
            else:
                assert own == seen + 1 or not seen
                os.write(said, b"%d\\n" % own)

said = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
asyncio.run(race(sys.argv[1], int(sys.argv[2]), said))
"""


def started(*arguments: object) -> Forked:
    process = start_program(_RACING, *arguments)
    process.stdout.close()
    return process


@pytest.mark.processes
@pytest.mark.long
async def test_of_several_processes_one_claims_each_number(folder: Path, tmp_path: Path) -> None:
    processes = [started(folder, 100, tmp_path / f"{n}") for n in range(4)]
    assert [process.wait(100) for process in processes] == [0] * 4
    claimed = [int(line) for n in range(4) for line in (tmp_path / f"{n}").read_text("utf-8").split()]
    assert sorted(claimed) == list(range(1, max(claimed) + 1))
    assert max(claimed) in range(100, 104)
