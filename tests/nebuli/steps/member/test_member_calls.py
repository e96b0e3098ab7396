"""A member, told call by call: what the source documents' workers do, on the member that runs in production."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nebuli.dataflow import SteppedCircuit
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.member import Member
from nebuli.steps.member.member_store import LOG
from nebuli.steps.member.saved_state import SavedState
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.member_machine import Pause, Paused, Run, Stop, Stopped
from nebuli.store import Store
from tests.support.told_members import Members, Told, numbers, pushed_query, until

pytestmark = [pytest.mark.processes, pytest.mark.long]

FRESH = say.Checkpoint(0, 0)


@asynccontextmanager
async def opened(
    folder: Path, members: int = 1, at: say.Checkpoint = FRESH, epoch: int = 1
) -> AsyncIterator[tuple[Members, Told]]:
    """Members that have opened a version."""
    async with Members(pushed_query(members), folder) as circuit, circuit.told() as told:
        addresses = [each.address for each in await told.greet(epoch)]
        await told.open(epoch, at, addresses)
        for number, member in enumerate(circuit.members):
            if at.step < member.log.last:
                await told.hear(say.Replay, number)
            assert await told.hear(say.Opened, number) == say.Opened(epoch, at.step)
        yield circuit, told


async def stepped_to(told: Told, first: int, last: int, epoch: int = 1) -> None:
    for step in range(first, last):
        await told.step(epoch, step)


async def test_its_checkpoints_are_the_versions_of_its_database(tmp_path: Path) -> None:
    """FT-PR-1, DBSP-WK-1: over five checkpoints, none but that of no steps at first, then one or two."""
    async with opened(tmp_path) as (circuit, told):
        assert await circuit.steps() == [{0: 0}]
        for round_ in range(5):
            await stepped_to(told, 2 * round_, 2 * round_ + 2)
            await told.checkpoint(1, round_ + 1, 2 * round_ + 2)
            expected = {round_: 2 * round_, round_ + 1: 2 * round_ + 2}
            assert await circuit.steps() == [expected]
        (joined,) = await greeted_again(told, 2)
        assert joined.checkpoints == (say.Checkpoint(4, 8), say.Checkpoint(5, 10))
        async with Store.at(circuit.store(0)) as store:
            assert await store.state_store(LOG).versions() == range(4, 6)


async def greeted_again(told: Told, epoch: int) -> list[say.Joined]:
    told.tell(say.Greet(epoch))
    await told.hear_all(say.Refused)  # to whoever told it something in the epoch before
    return await told.hear_all(say.Joined)


async def test_it_opens_a_version_and_goes_on_at_its_step(tmp_path: Path) -> None:
    """FT-PR-2, FT-PR-3, FT-PR-4, DBSP-WK-2: opened at 40, three calls run 40, 41 and 42; fresh, it begins at 0."""
    async with opened(tmp_path) as (_, told):
        await stepped_to(told, 0, 40)
        await told.checkpoint(1, 1, 40)
        await stepped_to(told, 40, 45)
        await told.checkpoint(1, 2, 45)
    async with opened(tmp_path, at=say.Checkpoint(1, 40), epoch=2) as (circuit, told):
        assert await circuit.steps() == [{1: 40}], "the other one is gone"
        for step in (40, 41, 42):
            told.tell(say.Step(2, step, replayed=True))
            assert await told.hear(say.Stepped) == say.Stepped(2, step)


async def test_a_version_that_is_not_there_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    """FT-PR-2"""
    async with Members(pushed_query(1), tmp_path) as circuit, circuit.told() as told:
        (joined,) = await told.greet(1)
        await told.open(1, say.Checkpoint(7, 70), [joined.address])
        aborted = await told.hear(say.Aborted)
        assert aborted.lasting
        assert "has no version 7, only 0" in aborted.why
        assert await circuit.steps() == [{0: 0}]


async def test_a_process_whose_log_another_one_has_taken_follows_nobody_any_more(tmp_path: Path) -> None:
    """It stood still, say, while its member was started again: awake, it would read the log on where that one is."""
    async with Members(pushed_query(1), tmp_path) as circuit, circuit.told() as told:
        (joined,) = await told.greet(1)
        await told.open(1, joined.checkpoints[0], [joined.address])
        await told.hear(say.Opened)
        old = circuit.members[0]
        async with Store.at(circuit.store(0)) as store:
            log = await InputLog.open(store, LOG, old.inputs)
            async with log:
                await log.fix(0)
        told.tell(say.Step(1, 0, replayed=False))
        aborted = await told.hear(say.Aborted)
        assert not aborted.lasting
        assert "another member appends" in aborted.why
        told.tell(say.Greet(2))
        assert "has ended" in await told.lost(0)


async def test_a_process_that_is_behind_the_checkpoint_of_another_one_gives_way(tmp_path: Path) -> None:
    """It has the log as it was when it entered it: what is missing there is not lost."""
    async with Members(pushed_query(1), tmp_path) as circuit, circuit.told() as told:
        await told.greet(1)
        old = circuit.members[0]
        async with Store.at(circuit.store(0)) as store, await InputLog.open(store, LOG, old.inputs) as log:
            await log.fix(0)
            state = SavedState(store.state_store(LOG))
            await state.open(0)
            await state.write(SteppedCircuit(pushed_query(1).plan, 0).save(), 1)
            await state.commit()
            state.close()
        told.tell(say.Greet(3))
        await told.hear(say.Refused)  # to whoever told it something in the epoch before
        aborted = await told.hear(say.Aborted)
        assert not aborted.lasting
        assert "another member appends" in aborted.why
        told.tell(say.Greet(4))
        assert "has ended" in await told.lost(0)


async def test_each_step_is_read_run_and_written_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBSP-WK-3, DBSP-SY-2: a member that runs reads the step that it is told, and no other."""
    trace: list[tuple[str, int | None]] = []
    fix, step, write = InputLog.fix, SteppedCircuit.step, OutputLog.write

    async def fixing(self: Any, at: int, *given: Any) -> Any:
        trace.append(("read", at))
        return await fix(self, at, *given)

    def stepping(self: Any, *given: Any, **more: Any) -> Any:
        trace.append(("circuit", None))
        return (yield from step(self, *given, **more))

    async def writing(self: Any, at: int, outputs: Any) -> None:
        await write(self, at, outputs)
        trace.append(("written", at))

    monkeypatch.setattr(InputLog, "fix", fixing)
    monkeypatch.setattr(SteppedCircuit, "step", stepping)
    monkeypatch.setattr(OutputLog, "write", writing)
    async with opened(tmp_path) as (circuit, told):
        for at in range(3):
            await circuit.push_numbers(0, [at])
            assert await told.hear(say.Received) == say.Received(1, at, 1)
            await told.step(1, at)
        assert circuit.members[0].state == Run()
    assert trace == [each for at in range(3) for each in (("read", at), ("circuit", None), ("written", at))]


async def test_the_five_states_and_what_is_said_in_them(tmp_path: Path) -> None:
    """DBSP-SY-1, DBSP-SY-3, DBSP-SY-5, DBSP-SY-6, DBSP-WK-4, DBSP-WK-5: one of two is in a step without the other."""
    async with opened(tmp_path, 2) as (circuit, told):
        first, second = circuit.members
        assert first.state == Run()
        told.tell(say.Step(1, 0, replayed=False), 0)
        told.tell(say.AskPause(1, 1))
        assert await told.hear(say.IsPaused, 1) == say.IsPaused(1, 1, 0)
        await until(lambda: first.state == Pause(), "the first one is to pause")
        assert second.state == Paused(0)
        assert told.silent(0), "it waits in its step for the other one"
        told.tell(say.AskStart(1), 1)
        told.tell(say.Step(1, 0, replayed=False), 1)
        assert await told.hear(say.Stepped, 0) == say.Stepped(1, 0)
        assert await told.hear(say.IsPaused, 0) == say.IsPaused(1, 1, 1), (
            "and then it is where it was asked to be"
        )
        await told.hear(say.Stepped, 1)
        told.tell(say.AskPause(1, 2), 1)
        assert await told.hear(say.IsPaused, 1) == say.IsPaused(1, 2, 1)
        assert [each.state for each in circuit.members] == [Paused(1)] * 2
        told.tell(say.AskStop(1, 2), 0)
        await until(lambda: first.state == Stop(2), "it goes on to 2")
        assert told.silent(0), "it is not stopped before it is there"
        told.tell(say.AskStop(1, 2), 1)
        told.tell(say.Step(1, 1, replayed=False))
        await told.hear_all(say.Stepped)
        assert await told.hear_all(say.IsStopped) == [say.IsStopped(1, 2)] * 2
        assert [each.state for each in circuit.members] == [Stopped()] * 2
        assert await circuit.steps() == [{0: 0, 1: 2}] * 2, "a version more, at the steps that are done"


@pytest.mark.parametrize("stop", [3, 4, 5])
async def test_stop_before_at_and_behind_its_step(tmp_path: Path, stop: int) -> None:
    """DBSP-SY-4: below the step it runs on, at it it leaves, behind it that is a mistake, and fatal."""
    async with Members(pushed_query(1), tmp_path) as circuit, circuit.told() as told:
        (joined,) = await told.greet(1)
        await told.open(1, FRESH, [joined.address])
        await told.hear(say.Opened)
        await stepped_to(told, 0, 4)
        member = circuit.members[0]
        told.tell(say.AskStop(1, stop))
        if stop == 5:
            await until(lambda: member.state == Stop(5), "it goes on")
            told.tell(say.Step(1, 4, replayed=False))  # nothing has come: an empty one, and it is logged
            assert await told.hear(say.Stepped) == say.Stepped(1, 4)
            assert await told.hear(say.IsStopped) == say.IsStopped(1, 5)
            assert member.log.last == 5
        elif stop == 4:
            assert await told.hear(say.IsStopped) == say.IsStopped(1, 4)
        else:
            await until(lambda: not told.silent(), "its line ends")
            assert await circuit.steps() == [{0: 0}]


async def test_what_arrives_while_a_step_goes_on_is_reported_for_the_next(tmp_path: Path) -> None:
    """DBSP-IN-2, FT-PR-6: in two pieces, which count together; a new process finds all of it in its log."""
    async with opened(tmp_path, 2) as (circuit, told):
        told.tell(say.Step(1, 0, replayed=False), 0)
        first = circuit.members[0]
        await until(lambda: first.log.last == 1, "its input is fixed")
        for pushed in (range(3), range(3, 7)):
            await circuit.push_numbers(0, pushed)
        assert await told.hear(say.Received) == say.Received(1, 1, 3)
        assert await told.hear(say.Received) == say.Received(1, 1, 4)
    async with opened(tmp_path, 2, epoch=2) as (circuit, told):
        assert await told.hear(say.Received) == say.Received(2, 1, 7)
        told.tell(say.Step(2, 0, replayed=True))
        await told.hear_all(say.Stepped)
        await told.step(2, 1)
        assert [numbers(each) for each in await circuit.output()] == [Counter(), Counter(range(7))]


async def test_a_member_that_dies_in_a_step_has_the_others_give_it_up(tmp_path: Path) -> None:
    """FT-PR-10: blocked in the exchange, it says that it aborts; all reopen and run the step again, once."""
    async with opened(tmp_path, 2) as (circuit, told):
        await told.step(1, 0)
        await circuit.push_numbers(0, range(20))
        await told.hear(say.Received)
        told.tell(say.Step(1, 1, replayed=False), 0)
        await until(lambda: circuit.members[0].log.last == 2, "the first is in the step")
        await asyncio.wait_for(circuit.end(1), 30)
        aborted = await told.hear(say.Aborted)
        assert not aborted.lasting
        assert "member 1" in aborted.why
    async with opened(tmp_path, 2, epoch=2) as (circuit, told):
        for step in (0, 1):
            told.tell(say.Step(2, step, replayed=True))
            assert await told.hear_all(say.Stepped) == [say.Stepped(2, step)] * 2
        assert [numbers(each) for each in await circuit.output()] == [Counter(), Counter(range(20))]
        assert {type(each) for each in circuit.members} == {Member}
