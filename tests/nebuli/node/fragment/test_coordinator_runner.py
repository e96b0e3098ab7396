"""The coordinator of a query in steps as a fragment: what its next process knows of what it was asked for, and did."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nebuli.node.placed.member_workers import MemberWorkers
from nebuli.rpc.member_places import MemberPlace, Succession
from nebuli.rpc.status import FragmentState
from nebuli.steps.coordinator.circuit_run import CircuitRun
from nebuli.steps.coordinator.generation import Generation
from nebuli.steps.coordinator.run_record import Known, RunRecord
from nebuli.steps.errors import NotScaled
from nebuli.steps.member.run_notes import forget_run
from nebuli.steps.protocol import lockstep_parts
from nebuli.steps.protocol.messages import Dismiss
from nebuli.store import StorageError
from placement.stepped_plan import MemberFragment, Takeover
from tests.support.coordinator_fragments import circuit_of, running, until_final, until_running
from tests.support.told_members import Members, pushed_query, until


async def test_a_pause_holds_in_the_next_process_and_not_in_a_new_start(tmp_path: Path) -> None:
    async with asyncio.timeout(60), Members(pushed_query(2), tmp_path) as members:
        async with running(members, is_new=True) as runner:
            await until_running(runner)
            await circuit_of(runner).pause()
        for expected in (True, True):
            async with running(members) as runner:
                await until_running(runner)
                assert circuit_of(runner).coordinator.paused is expected
        async with running(members) as runner:
            await until_running(runner)
            await circuit_of(runner).start()
        async with running(members) as runner:
            await until_running(runner)
            assert not circuit_of(runner).coordinator.paused
            await circuit_of(runner).pause()
        async with running(members, is_new=True) as runner:
            await until_running(runner)
            assert not circuit_of(runner).coordinator.paused


async def test_an_end_that_was_begun_is_come_to_by_the_next_process(tmp_path: Path) -> None:
    async with asyncio.timeout(60), Members(pushed_query(2), tmp_path) as members:
        async with running(members, is_new=True, away=1) as runner:
            await until(lambda: runner.circuit, "it is there")
            await circuit_of(runner).shut_down()
            assert not runner.status.state.is_final
        async with running(members) as runner:
            assert await until_final(runner) is FragmentState.FINISHED
        assert all(each.dismissed.is_set() for each in members.members)


async def test_a_process_that_dies_between_dismissing_the_first_and_the_last_is_followed_by_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has ended, and is not started again: nothing waits for it to come to another epoch."""
    monkeypatch.setattr(lockstep_parts, "AWAY_S", 1.0)
    async with asyncio.timeout(60), Members(pushed_query(2), tmp_path) as members:
        deaf, told = members.members[1], members.members[1]._following.handle

        def hear_no_dismissal(happened: object) -> list[object]:
            return [] if isinstance(getattr(happened, "message", None), Dismiss) else [*told(happened)]  # type: ignore[arg-type]

        monkeypatch.setattr(deaf._following, "handle", hear_no_dismissal)
        async with running(members, is_new=True) as runner:
            await until_running(runner)
            await circuit_of(runner).shut_down()
            await until(members.members[0].dismissed.is_set, "the first is dismissed")
            assert not deaf.dismissed.is_set()
            assert deaf.closed.is_set()
        await members.end(0)
        monkeypatch.setattr(deaf._following, "handle", told)
        async with running(members, away=0) as runner:
            assert await until_final(runner) is FragmentState.FINISHED
        assert deaf.dismissed.is_set()
        await members.end(1)
        steps = await members.steps()
        assert max(steps[0].values()) == max(steps[1].values())


def succession(members: Members) -> Succession:
    """To one that is nowhere."""
    query = pushed_query(1)
    places = [MemberPlace(node="127.100.254.1:1", grpc="127.100.254.1:2", id=each) for each in ("old", "new")]
    takeover = Takeover(transfer="t", before=members.count)
    new = MemberFragment(
        id="q/new", node=places[1].node, circuit="q.1", plan=query.plan, member=0, feeds=(), takeover=takeover
    )
    return Succession(members=(new,), places=(places[1],), before=(places[0],))


async def test_a_stop_gives_up_a_scaling_and_a_checkpoint_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has asked for it is told so."""
    begun = asyncio.Event()

    async def begin(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(MemberWorkers, "begin", begin)
    async with (
        asyncio.timeout(60),
        Members(pushed_query(2), tmp_path) as members,
        running(members, is_new=True) as runner,
    ):
        await until_running(runner)
        asking = asyncio.create_task(runner.succeed(succession(members)))
        await begun.wait()
        runner.stop()
        with pytest.raises(NotScaled, match="is ending"):
            await asking
        assert await until_final(runner) is FragmentState.STOPPED
        assert runner.status.error == ""


async def test_a_stop_does_not_wait_for_a_scaling_that_waits_until_nobody_coordinates_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is decided it goes to its end; here that fails."""
    deciding = asyncio.Event()
    stopped = asyncio.Event()

    async def succeed(self: CircuitRun[Succession], _: object, before: Generation) -> None:
        self._is_decided = True
        deciding.set()
        await stopped.wait()
        before.over.set()
        await before.left.wait()
        raise StorageError("there are none")

    monkeypatch.setattr(CircuitRun, "_succeed", succeed)
    async with (
        asyncio.timeout(60),
        Members(pushed_query(2), tmp_path) as members,
        running(members, is_new=True) as runner,
    ):
        await until_running(runner)
        asking = asyncio.create_task(runner.succeed(succession(members)))
        await deciding.wait()
        runner.stop()
        await until(lambda: circuit_of(runner)._alone._waiters, "it waits for the scaling")
        stopped.set()
        with pytest.raises(NotScaled, match="there are none"):
            await asking
        assert await until_final(runner) is FragmentState.FAILED


def test_what_cannot_be_read_of_it_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "coordinator.json").write_text('{"paused": "perhaps"}', "utf-8")
    with pytest.raises(StorageError, match=r"coordinator\.json cannot be read .* start it again"):
        RunRecord.at(tmp_path)
    forget_run(tmp_path)
    assert RunRecord.at(tmp_path).known == Known()
