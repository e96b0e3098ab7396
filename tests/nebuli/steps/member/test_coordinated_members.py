"""Coordinators and members together, over sockets, with stores: what people ask of them, and what dies."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nebuli.steps.coordinator.coordinator import Coordinator
from nebuli.steps.member.calls.call_inbox import CallInbox
from nebuli.steps.member.member import Member
from nebuli.steps.member.member_store import LOG
from nebuli.steps.member.saved_state import SavedState
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import CheckpointNotMade, Fenced, NoCommonCheckpoint
from nebuli.steps.protocol.lockstep import Lockstep, Phase
from nebuli.steps.protocol.member_machine import Paused, Run, Stopped
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.store import Store
from nebuli.store.errors import Unclear
from tests.support.told_members import QUIET, Members, numbers, pushed_query, until, until_out, until_running

pytestmark = [pytest.mark.processes, pytest.mark.long]


# -- what people ask for


async def test_paused_it_makes_no_step_and_keeps_what_comes_and_start_goes_on(tmp_path: Path) -> None:
    """FT-API-1: pause, start and shutdown, each of them twice."""
    async with (
        Members(pushed_query(2, spread="a"), tmp_path) as circuit,
        circuit.coordinated() as coordinator,
    ):
        await until_running(coordinator)
        await circuit.push_numbers(0, range(100))
        await until_out(circuit, Counter(range(100)))
        for _ in range(2):
            coordinator.pause()
        await until(lambda: all(isinstance(each.state, Paused) for each in circuit.members), "all are paused")
        step = coordinator.next_step
        await circuit.push_numbers(1, range(100, 200))
        await circuit.push_numbers(0, range(200, 300))
        assert [each.log.waiting_rows() for each in circuit.members] == [100, 100]
        assert (coordinator.paused, coordinator.next_step) == (True, step)
        assert [each.log.last for each in circuit.members] == [step] * 2
        for _ in range(2):
            coordinator.start()
        await until_out(circuit, Counter(range(300)))
        assert {each.state for each in circuit.members} == {Run()}
        for _ in range(2):
            coordinator.shut_down()
        step = await asyncio.wait_for(running(coordinator), 30)
        assert {each.state for each in circuit.members} == {Stopped()}
        assert [max(found.values()) for found in await circuit.steps()] == [step] * 2


def running(coordinator: Coordinator) -> asyncio.Task[int]:
    found: asyncio.Task[int] = coordinator.running  # type: ignore[attr-defined]
    return found


async def test_checkpoints_that_are_asked_for_are_at_all_members_and_each_is_the_next_version(
    tmp_path: Path,
) -> None:
    """FT-API-2, DBSP-CO-3: five of them, all of which are made, are versions 1 to 5, also while it is paused."""
    async with (
        Members(pushed_query(3, spread="a"), tmp_path) as circuit,
        circuit.coordinated() as coordinator,
    ):
        await until_running(coordinator)
        for round_ in range(5):
            await circuit.push_numbers(round_ % 3, range(100 * round_, 100 * round_ + 100))
            await until_out(circuit, Counter(range(100 * round_ + 100)))
            if round_ == 3:
                coordinator.pause()
            step = await coordinator.checkpoint()
            assert coordinator.checkpoints[-1] == say.Checkpoint(round_ + 1, step)
            assert {round_ + 1: step}.items() <= (await circuit.steps())[0].items()
            assert [len(found) for found in await circuit.steps()] == [2] * 3
            assert len({tuple(found.items()) for found in await circuit.steps()}) == 1
            coordinator.start()


async def test_who_asks_for_a_checkpoint_of_a_circuit_that_ends_is_told_that_there_is_none(
    tmp_path: Path,
) -> None:
    """Nobody waits for ever: neither who has asked before the coordinator was left, nor who asks afterwards."""
    async with asyncio.timeout(30), Members(pushed_query(2), tmp_path) as circuit:
        async with circuit.coordinated() as coordinator:
            await until_running(coordinator)
            await circuit.end(1)
            asked = asyncio.create_task(coordinator.checkpoint())
            await until(lambda: coordinator.phase is not Phase.RUNNING, "the lost member is noticed")
        for late in (asked, coordinator.checkpoint()):
            with pytest.raises(CheckpointNotMade, match="the query does not run here"):
                await late


async def test_a_checkpoint_is_refused_while_a_member_is_away_and_says_which_and_for_how_long(
    tmp_path: Path,
) -> None:
    """Nobody waits for it for ever; one that is away for long already is not waited for."""
    async with (
        asyncio.timeout(30),
        Members(pushed_query(2), tmp_path) as circuit,
        circuit.coordinated() as coordinator,
    ):
        await until_running(coordinator)
        at = re.escape(f"member 1 (at {coordinator.lines[1].address}) has been away for ")
        await circuit.end(1)
        await until(lambda: coordinator.phase is not Phase.RUNNING, "the lost member is noticed")
        for patience_s in (0.5, 0.5, 0.0):
            with pytest.raises(CheckpointNotMade, match=at + r"\d+ s; check that it runs"):
                await coordinator.checkpoint(patience_s)


async def test_a_checkpoint_is_refused_while_members_cannot_open_what_they_have_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a disk fails: all is tried again, and again, and whoever asks hears after what."""

    async def fails(self: SavedState, version: int) -> None:
        raise Unclear("reading the disk", "Input/output error")

    monkeypatch.setattr(SavedState, "open", fails)
    async with (
        asyncio.timeout(30),
        Members(pushed_query(2), tmp_path) as circuit,
        circuit.coordinated() as coordinator,
    ):
        await until(lambda: coordinator.epoch > 2, "it was tried again")
        why = (
            r"again after an error: member [01] has given up the step: reading the disk failed.* "
            r"Input/output error"
        )
        with pytest.raises(CheckpointNotMade, match=f"members are still opening their state {why}"):
            await coordinator.checkpoint(0.2)


async def test_checkpoints_come_by_themselves_as_often_as_is_said(tmp_path: Path) -> None:
    """DBSP-CO-4: started, and after the interval each is asked for its state, again and again, without input."""
    made: list[ev.Order] = []
    observe = lambda order: made.append(order) if isinstance(order, ev.CheckpointMade) else None  # noqa: E731 - short
    settings = TriggerSettings(checkpoint_s=0.2)
    began = asyncio.get_running_loop().time()
    async with (
        Members(pushed_query(2), tmp_path) as circuit,
        circuit.coordinated(settings, observe=observe) as coordinator,
    ):
        await until(lambda: len(made) >= 5, "five checkpoints")
        assert asyncio.get_running_loop().time() - began >= 4 * 0.2
        assert coordinator.next_step == 0
    assert TriggerSettings().checkpoint_s == 60.0


@pytest.mark.parametrize("late", [0, 1])
async def test_all_stop_at_one_step_though_input_comes_to_one_member_only(tmp_path: Path, late: int) -> None:
    """DBSP-SY-7: with what the document's protocol hangs on."""
    async with (
        Members(pushed_query(2, spread="a"), tmp_path) as circuit,
        circuit.coordinated() as coordinator,
    ):
        await until_running(coordinator)
        for number in range(30):
            await circuit.push_numbers(late, [number])
        coordinator.shut_down()
        step = await asyncio.wait_for(running(coordinator), 30)
        assert [max(found.values()) for found in await circuit.steps()] == [step] * 2
        assert [each.log.last for each in circuit.members] == [step] * 2


async def test_no_member_enters_a_step_before_it_was_issued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-TR-0: three hosts, 60 rounds of input to one of them, drawn."""
    trace: list[tuple[str, int]] = []
    issue, step = Lockstep._issue, Member._step

    def issuing(self: Any, **given: bool) -> None:
        trace.append(("issued", self.next_step))
        issue(self, **given)

    async def stepping(self: Any, at: int, **given: bool) -> None:
        trace.append(("entered", at))
        await step(self, at, **given)
        trace.append(("left", at))

    monkeypatch.setattr(Lockstep, "_issue", issuing)
    monkeypatch.setattr(Member, "_step", stepping)
    random = Random(7)
    query = pushed_query(3, spread="a")
    async with Members(query, tmp_path, hosts=3) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        for number in range(60):
            await circuit.push_numbers(random.randrange(3), [number])
        await until_out(circuit, Counter(range(60)))
        steps = coordinator.next_step
        left = lambda: sum(found == "left" and at < steps for found, at in trace)  # noqa: E731 - short
        await until(lambda: left() == 3 * steps, "the end of the last step at each member")
    for at in range(steps):
        mine = [index for index, (_, found) in enumerate(trace) if found == at]
        assert [trace[index][0] for index in mine[:1]] == ["issued"]
        assert Counter(trace[index][0] for index in mine) == {"issued": 1, "entered": 3, "left": 3}
        if at:
            before = [index for index, each in enumerate(trace) if each == ("left", at - 1)]
            assert max(before) < mine[0] or len(before) < 3, "no step while another one goes on"


async def test_a_member_that_alone_has_enough_starts_the_step(tmp_path: Path) -> None:
    """FT-TR-8, as far as FT-TR-0 lets it: at its word alone, which waits for no other member and no timer."""
    settings = TriggerSettings(rows=10, delay_s=600.0, checkpoint_s=None)
    async with (
        Members(pushed_query(2, spread="a"), tmp_path) as circuit,
        circuit.coordinated(settings) as coordinator,
    ):
        await until_running(coordinator)
        await circuit.push_numbers(1, range(10))
        await until_out(circuit, Counter(range(10)))
        assert coordinator.next_step == 1
        await circuit.push_numbers(0, range(10, 15))
        await circuit.push_numbers(1, range(15, 19))
        await asyncio.sleep(0.2)
        assert coordinator.next_step == 1, "neither has enough, nor have both"
        await circuit.push_numbers(0, [19])
        await until_out(circuit, Counter(range(20)))
        assert coordinator.next_step == 2


# -- what dies


async def test_a_second_coordinator_fences_the_first(tmp_path: Path) -> None:
    """FT-CO-1: of two, that whoever began later has the members, and the other one says who took them."""
    async with Members(pushed_query(2), tmp_path) as circuit, circuit.coordinated() as first:
        await until_running(first)
        await circuit.push_numbers(0, range(10))
        await until_out(circuit, Counter(range(10)))
        async with circuit.coordinated() as second:
            with pytest.raises(Fenced, match=r"another coordinator .* epoch 2; this one .* epoch 1,"):
                await asyncio.wait_for(running(first), 30)
            await until_running(second, 2)
            await circuit.push_numbers(0, range(10, 20))
            await until_out(circuit, Counter(range(20)))
            assert not running(second).done()


async def test_a_wait_for_its_members_ends_with_a_coordinator(tmp_path: Path) -> None:
    """Else members that give what they have to others would wait for it forever."""
    async with Members(pushed_query(2), tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        await coordinator.rest()
        waiting = asyncio.gather(coordinator.out_of_step(), coordinator.disturbed())
        await asyncio.sleep(0)
        assert not waiting.done()
        running(coordinator).cancel()
        await asyncio.wait_for(waiting, 30)


async def test_whoever_says_what_is_no_message_is_left_and_nobody_else(tmp_path: Path) -> None:
    """The epoch goes on: the coordinator that is followed has another session."""
    async with Members(pushed_query(2), tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        async with circuit.told() as stranger:
            for line in stranger.lines:
                assert line._told is not None
                line._told.put_nowait(b"\xff\x00 no message")
            for member in range(circuit.count):
                await stranger.lost(member)
        await circuit.push_numbers(0, range(10))
        await until_out(circuit, Counter(range(10)))
        assert coordinator.epoch == 1


async def test_where_a_member_answers_no_more_it_has_another_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is asked of it, like pushes, would wait as long as its coordinator is connected."""
    over, sessions = asyncio.Event(), []

    async def serve(inbox: CallInbox, session: str, answers_to: str) -> None:
        sessions.append(session)
        await (over.wait() if len(sessions) == 1 else asyncio.Event().wait())

    monkeypatch.setattr(CallInbox, "serve", serve)
    monkeypatch.setattr("nebuli.steps.member.coordinator_connections._GRACE_S", 0.01)
    async with Members(pushed_query(1), tmp_path) as circuit, circuit.told() as told:
        over.set()
        await told.lost(0)
        await told.connected(0)
        assert len(set(sessions)) == 2


async def test_a_coordinator_that_is_gone_leaves_the_members_their_state_for_the_next(tmp_path: Path) -> None:
    """FT-PR-9: gone in a step and in the middle of a checkpoint; the next one reads what all have, and goes on."""
    random = Random(3)
    pushed = 0
    async with Members(pushed_query(2, spread="a"), tmp_path) as circuit:
        processes = [*circuit.members]
        for life in range(6):
            async with circuit.coordinated(TriggerSettings(checkpoint_s=0.05)) as coordinator:
                await until_running(coordinator, life + 1)
                for _ in range(random.randrange(1, 12)):
                    await circuit.push_numbers(random.randrange(2), range(pushed, pushed + 10))
                    pushed += 10
                with suppress(TimeoutError):
                    await asyncio.wait_for(coordinator.checkpoint(), random.choice([0.0, 0.01, 0.2]))
        async with circuit.coordinated() as coordinator:
            await until_running(coordinator, 7)
            await until_out(circuit, Counter(range(pushed)))
        assert circuit.members == processes


@pytest.mark.parametrize("committed", [[0], [1], [0, 1]])
async def test_a_member_that_dies_in_a_commit_takes_the_others_back(
    tmp_path: Path, committed: list[int]
) -> None:
    """DBSP-CO-5: one has committed and the other has not; recovery opens what both have, and forgets the rest."""
    query = pushed_query(2, spread="a")
    async with Members(query, tmp_path) as circuit, circuit.told() as told:
        addresses = [each.address for each in await told.greet(1)]
        await told.open(1, say.Checkpoint(0, 0), addresses)
        await told.hear_all(say.Opened)
        for member in range(2):
            await circuit.push_numbers(member, range(50 * member, 50 * member + 50))
            await told.hear(say.Received, member)
        await told.step(1, 0)
        told.tell(say.Prepare(1, 1, 1))
        await told.hear_all(say.Prepared)
        for member in committed:
            told.tell(say.Commit(1, 1), member)
            await told.hear(say.Committed, member)
    async with Members(query, tmp_path) as circuit:
        for member, found in enumerate(await circuit.steps()):
            assert found == ({0: 0, 1: 1} if member in committed else {0: 0})
        async with circuit.coordinated() as coordinator:
            await until_running(coordinator)
            opened = {1: 1} if len(committed) == 2 else {0: 0}
            assert await circuit.steps() == [opened] * 2
            await until(lambda: coordinator.next_step >= 1, "the step is there, or run again")
            await circuit.push_numbers(1, range(100, 110))
            await until_out(circuit, Counter(range(110)))


async def test_without_a_common_version_it_ends_and_touches_nothing(tmp_path: Path) -> None:
    """DBSP-CO-2: one has version 3 alone, the other one 5."""
    query = pushed_query(2)
    async with Members(query, tmp_path):
        pass
    for member, version in ((0, 3), (1, 5)):
        async with Store.at(tmp_path / f"member-{member}") as store:
            states = store.state_store(LOG)
            for number in range(version):
                database = await states.open(number)
                database.set_step(10 * number + 10)
                await database.commit()
            (await states.open(version)).close()
            for name in ("remap", "addresses"):  # checkpoints are of steps in the log
                shard = await store.open_shard(f"{LOG}/{name}")
                await shard.compare_and_append([], 0, 10 * version)
    async with Members(query, tmp_path) as circuit:
        before = await circuit.steps()
        assert before == [{3: 30}, {5: 50}]
        async with circuit.coordinated() as coordinator:
            with pytest.raises(
                NoCommonCheckpoint, match="member 0 has version 3 at step 30; member 1 has version 5"
            ):
                await asyncio.wait_for(running(coordinator), 30)
        assert await circuit.steps() == before


@pytest.mark.parametrize("lengths", [(5, 2), (0, 4), (3, 3)])
async def test_all_steps_that_anybody_has_in_its_log_are_run_again(
    tmp_path: Path, lengths: tuple[int, int]
) -> None:
    """FT-PR-7: a member that has no log for a step runs it empty, and its own rows come behind that."""
    query = pushed_query(2, spread="a")
    expected = [Counter[int]() for _ in range(max(lengths))]
    async with Members(query, tmp_path) as circuit:
        for member, length in enumerate(lengths):
            for step in range(length):
                mine = range(100 * member + 10 * step, 100 * member + 10 * step + 10)
                await circuit.push_numbers(member, mine)
                await circuit.members[member].log.fix(step)
                expected[step] += Counter(mine)
            await circuit.push_numbers(member, [1000 + member])
    steps = max(lengths)
    async with (
        Members(query, tmp_path) as circuit,
        circuit.coordinated(TriggerSettings(rows=9)) as coordinator,
    ):
        await until(lambda: coordinator.next_step == steps, "all are run again, though too few rows wait")
        await until_out(circuit, sum(expected, Counter[int]()))
        assert [numbers(each) for each in await circuit.output()] == expected
        assert [each.log.last for each in circuit.members] == [steps] * 2
        await circuit.push_numbers(0, range(2000, 2010))
        await until_out(circuit, sum(expected, Counter([1000, 1001, *range(2000, 2010)])))


# -- rounds, as Feldera's tests have them


@pytest.mark.parametrize(
    "rounds",
    [
        [(2500, True)] * 5,
        [(2500, False)] * 5,
        [(2500, True), (2500, False), (2500, False), (2500, True), (2500, False)],
        [(0, True), (2500, True), (0, True), (2500, False), (0, False)],
    ],
    ids=["with checkpoints", "without", "with some", "at once"],
)
@pytest.mark.parametrize("paused", [False, True])
async def test_after_each_round_all_goes_on_exactly_from_the_checkpoint(
    tmp_path: Path, rounds: Sequence[tuple[int, bool]], paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of so many records, which end with a checkpoint or without; then everything dies.

    What is run again is what came behind the checkpoint, to the last step, and the output has every record once.
    """
    ran: list[int] = []
    step = Member._step

    async def stepping(self: Any, at: int, **given: bool) -> None:
        if self.number == 0:
            ran.append(at)
        await step(self, at, **given)

    monkeypatch.setattr(Member, "_step", stepping)
    query = pushed_query(2, spread="a")
    pushed = checkpoint = last = 0
    for records, saves in rounds:
        ran.clear()
        async with (
            Members(query, tmp_path) as circuit,
            circuit.coordinated(QUIET, paused=paused) as coordinator,
        ):
            await until_running(coordinator)
            coordinator.start()
            await until(lambda to=last: coordinator.next_step >= to, "what was logged is run again")
            for at in range(0, records, 250):
                await circuit.push_numbers(at // 250 % 2, range(pushed + at, pushed + at + 250))
            pushed += records
            await until_out(circuit, Counter(range(pushed)))
            if paused:
                coordinator.pause()
            if saves:
                checkpoint_next = await coordinator.checkpoint()
            if not saves:
                checkpoint_next = checkpoint
            await until(lambda: circuit.members[0].log.last == coordinator.next_step, "nothing goes on")
            assert ran[: last - checkpoint] == [*range(checkpoint, last)]
            assert ran == [*range(checkpoint, coordinator.next_step)]
            checkpoint, last = checkpoint_next, coordinator.next_step
