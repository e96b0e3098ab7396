"""What a member answers to pushes in pieces, where its log fails, or is asked the same twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.member.calls.staged_pushes import StagedPushes
from nebuli.store.errors import StoreFull
from tests.support.stores import SCHEMA, HeldPuts, Here, Plan, store_at, store_with, weights, zset


class Member:
    """As much of one as is needed: a log, and how many rows it was told of."""

    def __init__(self, log: InputLog) -> None:
        self.log = log
        self.rows = 0
        self.waiting_rows = 0

    def arrived(self, rows: int) -> None:
        self.rows += rows


def stage(*numbers: int, sequence: int = 0) -> ask.Stage:
    return ask.Stage("a", "p", sequence, bytes(zset(*((n, 1) for n in numbers)).serialize()))


def push(*pieces: str, sequence: int = 0) -> ask.PushStaged:
    return ask.PushStaged("a", "p", sequence, 10.0, pieces)


async def no_wait(handle: str, within_s: float) -> None:
    """There is room."""


async def test_asked_twice_at_once_it_is_logged_once(tmp_path: Path) -> None:
    async with store_at(Here(tmp_path)) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
        pushes = StagedPushes(Member(log), no_wait)  # type: ignore[arg-type]
        pieces = [await piece(pushes, stage(number)) for number in (1, 2)]
        answers = await asyncio.gather(*(pushes.answered(push(*pieces)) for _ in range(3)))
        assert answers == [ask.Logged(0)] * 3
        assert weights((await log.fix(0)).values()) == {1: 1, 2: 1}
        assert await pushes.answered(push(*pieces)) == ask.Logged(1)
        assert await pushes.answered(stage(3)) == ask.Passed(1)
        assert await pushes.answered(push("no piece", sequence=1)) == ask.Lost("no piece")


async def test_who_waited_for_room_while_another_call_logged_it_finds_it_logged(tmp_path: Path) -> None:
    """And no piece is left, of attempts that lost neither."""
    async with store_at(Here(tmp_path)) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
        there_is_room = asyncio.Event()

        async def room(handle: str, within_s: float) -> None:
            await there_is_room.wait()

        member = Member(log)
        waiting, pushes = StagedPushes(member, room), StagedPushes(member, no_wait)  # type: ignore[arg-type]
        won, _ = await piece(pushes, stage(1)), await piece(pushes, stage(2))
        first = asyncio.create_task(waiting.answered(push(won)))
        await asyncio.sleep(0)
        assert await pushes.answered(push(won)) == ask.Logged(0)
        there_is_room.set()
        assert await first == ask.Logged(0)
        assert weights((await log.fix(0)).values()) == {1: 1}
        await log.staging.swept()
        assert log.staging.bytes == 0


async def test_what_is_staged_while_its_number_is_pushed_is_told_so_and_is_not_kept(tmp_path: Path) -> None:
    """An attempt that lost is still bringing its rows when the driver commits those of the one that won."""
    puts = HeldPuts()
    async with (
        store_with(Here(tmp_path), puts) as store,
        await InputLog.open(store, "m", {"a": SCHEMA}) as log,
    ):
        pushes = StagedPushes(Member(log), no_wait)  # type: ignore[arg-type]
        won = await piece(pushes, stage(1))
        puts.held = True
        losing = asyncio.create_task(pushes.answered(stage(1)))
        await asyncio.to_thread(puts.begun.wait, 30)
        puts.held = False
        assert await pushes.answered(push(won)) == ask.Logged(0)
        puts.go_on.set()
        assert await losing == ask.Passed(1)
        await log.staging.swept()
        assert (await store.blob_folder("m/staged").names(), log.staging.bytes) == ([], 0)


async def test_a_piece_that_somebody_deletes_on_its_way_is_lost(tmp_path: Path) -> None:
    plan = Plan()
    async with store_at(Here(tmp_path), plan) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
        pushes = StagedPushes(Member(log), no_wait)  # type: ignore[arg-type]
        plan.before, plan.at = lambda _: FileNotFoundError("no .part"), len(plan.calls)
        assert isinstance(await pushes.answered(stage(1)), ask.Lost)
        assert plan.calls[plan.at] == "put"
        await log.staging.swept()
        assert log.staging.bytes == 0


async def test_nobody_is_told_that_it_is_pushed_while_that_may_fail_yet(tmp_path: Path) -> None:
    """A driver was killed in its commit, and the next one's tasks stage the batch again: all of it, or none."""
    plan = Plan()
    async with store_at(Here(tmp_path), plan) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
        pushes = StagedPushes(Member(log), no_wait)  # type: ignore[arg-type]
        plan.before, plan.at = lambda _: StoreFull("the store", "the disk is full"), len(plan.calls)
        name = ask.log_name("a", "p")
        pushing = asyncio.create_task(log.push_later("a", zset((1, 1), (2, 1)), producer=name, number=0))
        await asyncio.sleep(0)
        assert log.next_sequence(name) == 1
        assert "no space is left" in could_not(await pushes.answered(stage(1)))
        with pytest.raises(StoreFull):
            await pushing
        pieces = [await piece(pushes, stage(number)) for number in (1, 2)]
        assert await pushes.answered(push(*pieces)) == ask.Logged(0)
        assert weights((await log.fix(0)).values()) == {1: 1, 2: 1}


async def test_what_is_too_much_or_no_rows_of_the_input_is_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(Here(tmp_path)) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
        member = Member(log)
        pushes = StagedPushes(member, no_wait)  # type: ignore[arg-type]
        wrong = await piece(pushes, ask.Stage("a", "p", 0, b"no Arrow"))
        assert "cannot be read" in could_not(await pushes.answered(push(wrong)))
        monkeypatch.setattr("nebuli.steps.member.calls.staged_pushes.MOST_BYTES", 10)
        large = await piece(pushes, stage(1))
        assert await pushes.answered(push(large)) == ask.TooLarge(len(stage(1).rows), 10)
        assert member.rows == 0

        async def full(handle: str, within_s: float) -> ask.Full:
            return ask.Full(7)

        monkeypatch.undo()
        assert await StagedPushes(member, full).answered(push(large)) == ask.Full(7)  # type: ignore[arg-type]
        assert await pushes.answered(push(large)) == ask.Logged(0)
        assert member.rows == 1


async def test_one_push_is_read_at_a_time(tmp_path: Path) -> None:
    """Two of 1 GiB would be 2 GiB in memory."""
    gets = Gets()
    async with (
        store_with(Here(tmp_path), gets) as store,
        await InputLog.open(store, "m", {"a": SCHEMA, "b": SCHEMA}) as log,
    ):
        pushes = StagedPushes(Member(log), no_wait)  # type: ignore[arg-type]
        names = {
            handle: [await piece(pushes, replace(stage(number), handle=handle)) for number in range(6)]
            for handle in "ab"
        }
        asked = [replace(push(*pieces), handle=handle) for handle, pieces in names.items()]
        assert [type(each) for each in await asyncio.gather(*map(pushes.answered, asked))] == [ask.Logged] * 2
        assert ({*gets.names[:6]}, {*gets.names[6:]}) == ({*names["a"]}, {*names["b"]})
        assert weights((await log.fix(0)).values()) == dict.fromkeys(range(6), 2)


class Gets:
    """Remembers which blobs are read, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if name == "get":
            self.names.append(arguments[1])
        return call(*arguments)


async def test_who_waits_for_room_holds_up_its_own_input_alone(tmp_path: Path) -> None:
    async with (
        store_at(Here(tmp_path)) as store,
        await InputLog.open(store, "m", {"a": SCHEMA, "b": SCHEMA}) as log,
    ):
        there_is_room, waits = asyncio.Event(), asyncio.Event()

        async def room(handle: str, within_s: float) -> None:
            if handle == "a":
                waits.set()
                await there_is_room.wait()

        pushes = StagedPushes(Member(log), room)  # type: ignore[arg-type]
        first = asyncio.create_task(pushes.answered(push(await piece(pushes, stage(1)))))
        await waits.wait()
        behind = await piece(pushes, replace(stage(2), producer="q"))
        assert await pushes.answered(replace(push(behind), producer="q", within_s=0.01)) == ask.Full(0)
        other = await piece(pushes, replace(stage(3), handle="b"))
        assert await pushes.answered(replace(push(other), handle="b")) == ask.Logged(0)
        there_is_room.set()
        assert await first == ask.Logged(0)
        assert await pushes.answered(replace(push(behind), producer="q")) == ask.Logged(0)


async def piece(pushes: StagedPushes, asked: ask.Stage) -> str:
    answer = await pushes.answered(asked)
    assert isinstance(answer, ask.Staged)
    return answer.piece


def could_not(answer: Any) -> str:
    assert isinstance(answer, ask.CouldNot)
    return answer.why
