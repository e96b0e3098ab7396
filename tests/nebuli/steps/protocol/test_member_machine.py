"""A member's side: what it does when it is told, and what it refuses."""

from __future__ import annotations

import pytest

from nebuli.steps.protocol import member_actions as do
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import ProtocolViolated
from nebuli.steps.protocol.member_machine import MemberMachine, Pause, Paused, Run, Stop, Stopped

ADDRESSES = ("a:1", "b:1")


def new() -> MemberMachine:
    return MemberMachine(2, "process", "f", "a:1")


def told(member: MemberMachine, *messages: say.FromCoordinator) -> list[do.Task]:
    return [task for message in messages for task in member.handle(do.Told(message))]


def open_at(step: int = 0, last: int | None = None, waiting: int = 0) -> tuple[MemberMachine, list[do.Task]]:
    member = new()
    told(member, say.Greet(3))
    found = say.Checkpoint(4, step)
    member.handle(do.Found(3, (found,), 0, step if last is None else last))
    told(member, say.Open(3, found, ADDRESSES))
    return member, member.handle(do.HasOpened(3, waiting))


def test_it_says_what_it_has_and_opens_what_it_is_told() -> None:
    member = new()
    assert told(member, say.Greet(3)) == [do.LookAround(3)]
    kept = (say.Checkpoint(4, 40), say.Checkpoint(5, 50))
    assert member.handle(do.Found(3, kept, 7, 60, ended=(20, 50))) == [
        do.Say(say.Joined(3, 2, "process", "f", "a:1", kept, 7, 60))
    ]
    assert told(member, say.Open(3, kept[0], ADDRESSES)) == [do.OpenState(3, kept[0], ADDRESSES)]
    assert member.state == Stopped()
    assert member.handle(do.HasOpened(3, waiting=8)) == [
        do.Say(say.Replay(3, 40, 60, ended=(50,))),
        do.Say(say.Opened(3, 40)),
        do.Say(say.Received(3, 60, 8)),
    ]
    assert member.state == Run()


def test_a_smaller_epoch_is_refused_with_the_one_it_follows() -> None:
    member, _ = open_at()
    for message in (say.Greet(2), say.Step(2, 0, replayed=False), say.Commit(2, 1)):
        assert told(member, message) == [do.Say(say.Refused(3))]
    assert member.state == Run()


def test_a_greater_epoch_is_followed_at_once_and_the_older_coordinator_is_told() -> None:
    member, _ = open_at()
    told(member, say.Step(3, 0, replayed=False))
    assert told(member, say.Greet(5)) == [do.Say(say.Refused(5)), do.LookAround(5)]
    assert member.state == Stopped()
    assert member.handle(do.HasStepped(3)) == []


def test_what_was_meant_for_a_process_before_it_is_dropped() -> None:
    assert told(new(), say.Step(3, 0, replayed=False), say.Open(3, say.Checkpoint(0, 0), ADDRESSES)) == []
    member, _ = open_at()
    assert told(member, say.Step(4, 0, replayed=False)) == []


def test_it_runs_what_is_issued_in_order_and_says_so() -> None:
    member, _ = open_at(40)
    for step in (40, 41, 42):
        assert told(member, say.Step(3, step, replayed=False)) == [do.RunStep(3, step, replayed=False)]
        assert member.handle(do.HasStepped(3)) == [do.Say(say.Stepped(3, step))]


@pytest.mark.parametrize("step", [39, 41])
def test_another_step_than_the_next_is_a_mistake(step: int) -> None:
    member, _ = open_at(40)
    with pytest.raises(ProtocolViolated, match=f"step={step}.*before step 40"):
        told(member, say.Step(3, step, replayed=False))


@pytest.mark.parametrize("step", [0, 1])
def test_a_second_step_before_the_first_is_done_is_a_mistake(step: int) -> None:
    member, _ = open_at()
    told(member, say.Step(3, 0, replayed=False))
    with pytest.raises(ProtocolViolated):
        told(member, say.Step(3, step, replayed=False))


def test_rows_are_reported_for_the_step_that_they_can_be_in() -> None:
    """Not for one that goes on, whose input may be fixed, nor for one that is in the log."""
    member, _ = open_at(0, last=2)
    assert member.handle(do.HasArrived(5)) == [do.Say(say.Received(3, 2, 5))]
    for step in (0, 1):
        told(member, say.Step(3, step, replayed=True))
        member.handle(do.HasStepped(3))
    assert member.handle(do.HasArrived(5)) == [do.Say(say.Received(3, 2, 5))]
    told(member, say.Step(3, 2, replayed=False))
    assert member.handle(do.HasArrived(5)) == [do.Say(say.Received(3, 3, 5))]
    assert new().handle(do.HasArrived(5)) == []


def test_its_inputs_have_ended_in_every_epoch_once_they_have() -> None:
    member, _ = open_at()
    assert member.handle(do.HasEnded()) == [do.Say(say.Ended(3))]
    assert told(member, say.Step(3, 0, replayed=False, ended=True)) == [
        do.RunStep(3, 0, replayed=False, ended=True)
    ]
    told(member, say.Greet(4))
    member.handle(do.Found(4, (say.Checkpoint(4, 0),), 0, 1, ended=(0,)))
    told(member, say.Open(4, say.Checkpoint(4, 0), ADDRESSES))
    assert member.handle(do.HasOpened(4, 0)) == [
        do.Say(say.Replay(4, 0, 1, ended=(0,))),
        do.Say(say.Opened(4, 0)),
        do.Say(say.Ended(4)),
    ]


def test_an_end_before_it_is_open_is_said_when_it_is_behind_the_rows() -> None:
    member = new()
    assert member.handle(do.HasEnded()) == []
    told(member, say.Greet(3))
    assert member.handle(do.HasEnded()) == []
    member.handle(do.Found(3, (say.Checkpoint(0, 0),), 0, 0))
    told(member, say.Open(3, say.Checkpoint(0, 0), ADDRESSES))
    assert member.handle(do.HasOpened(3, 8)) == [
        do.Say(say.Opened(3, 0)),
        do.Say(say.Received(3, 0, 8)),
        do.Say(say.Ended(3)),
    ]


def test_a_checkpoint_is_written_committed_or_dropped() -> None:
    member, _ = open_at(7)
    assert told(member, say.Prepare(3, 1, 7)) == [do.WriteState(3, 1, 7)]
    told(member, say.Step(3, 7, replayed=False))
    assert member.handle(do.CouldNotWrite(3, 1, "full")) == [do.Say(say.NotPrepared(3, 1, "full"))]
    assert told(member, say.GiveUp(3, 1)) == [do.DropState(3, 1)]
    member.handle(do.HasStepped(3))
    assert told(member, say.Prepare(3, 2, 8)) == [do.WriteState(3, 2, 8)]
    for late in (do.HasWritten(3, 1), do.CouldNotWrite(3, 1, "full")):
        assert member.handle(late) == [], "what came of the first attempt is nothing any more"
    assert member.handle(do.HasWritten(3, 2)) == [do.Say(say.Prepared(3, 2))]
    assert told(member, say.Commit(3, 2)) == [do.CommitState(3, 2)]
    assert member.handle(do.HasCommitted(3, 2)) == [do.Say(say.Committed(3, 2))]
    assert told(member, say.Trim(3, 7)) == [do.TrimLog(3, 7)]


@pytest.mark.parametrize(
    "messages",
    [
        [say.Prepare(3, 1, 0), say.Prepare(3, 2, 0)],
        [say.Prepare(3, 1, 0), say.Commit(3, 1)],
        [say.Commit(3, 1)],
        [say.GiveUp(3, 1)],
        [say.Prepare(3, 1, 5)],
        [say.Step(3, 0, replayed=False), say.Prepare(3, 1, 0)],
        [say.Prepare(3, 1, 0), say.AskStop(3, 0)],
        [say.AskStart(3)],
        [say.AskPause(3, 1), say.Step(3, 0, replayed=False)],
        [say.AskStop(3, 1), say.AskStop(3, 1)],
        [say.Greet(3)],
        [say.Open(3, say.Checkpoint(4, 0), ADDRESSES)],
    ],
)
def test_what_does_not_follow_from_before_is_a_mistake(messages: list[say.FromCoordinator]) -> None:
    member, _ = open_at()
    with pytest.raises(ProtocolViolated, match="the coordinator sent "):
        told(member, *messages)


def test_before_it_is_open_it_does_nothing() -> None:
    member = new()
    told(member, say.Greet(3))
    with pytest.raises(ProtocolViolated):
        told(member, say.Step(3, 0, replayed=False))


def test_it_pauses_when_the_step_that_was_issued_is_done() -> None:
    member, _ = open_at()
    told(member, say.Step(3, 0, replayed=False), say.AskPause(3, 1))
    assert member.state == Pause()
    assert member.handle(do.HasStepped(3)) == [do.Say(say.Stepped(3, 0)), do.Say(say.IsPaused(3, 1, 1))]
    assert member.state == Paused(1)
    assert told(member, say.AskStart(3)) == []
    assert member.state == Run()
    assert told(member, say.AskPause(3, 2)) == [do.Say(say.IsPaused(3, 2, 1))]


@pytest.mark.parametrize("paused", [True, False])
def test_it_stops_at_the_step_and_commits_there(paused: bool) -> None:
    member, _ = open_at(4)
    if paused:
        told(member, say.AskPause(3, 1))
    assert told(member, say.AskStop(3, 4)) == [do.CloseState(3, 4)]
    assert member.state == Stop(4)
    assert member.handle(do.HasClosed(3)) == [do.Say(say.IsStopped(3, 4))]
    assert member.state == Stopped()


def test_below_the_step_it_runs_what_is_issued_until_it_is_there() -> None:
    member, _ = open_at(4)
    assert told(member, say.AskStop(3, 6)) == []
    for step in (4, 5):
        assert told(member, say.Step(3, step, replayed=False)) == [do.RunStep(3, step, replayed=False)]
        tasks = member.handle(do.HasStepped(3))
    assert tasks == [do.Say(say.Stepped(3, 5)), do.CloseState(3, 6)]
    with pytest.raises(ProtocolViolated):
        told(member, say.Step(3, 6, replayed=False))


def test_having_stopped_it_takes_part_in_another_epoch_and_ends_when_it_is_dismissed() -> None:
    member, _ = open_at(4)
    told(member, say.AskStop(3, 4))
    assert do.Leave() not in member.handle(do.HasClosed(3))
    assert told(member, say.Greet(5)) == [do.Say(say.Refused(5)), do.LookAround(5)]
    member.handle(do.Found(5, (say.Checkpoint(4, 4), say.Checkpoint(5, 4)), 0, 4))
    told(member, say.Open(5, say.Checkpoint(4, 4), ADDRESSES))
    assert member.handle(do.HasOpened(5, 0)) == [do.Say(say.Opened(5, 4))]
    told(member, say.AskStop(5, 4))
    member.handle(do.HasClosed(5))
    assert told(member, say.Dismiss(3)) == [do.Say(say.Refused(5))]
    assert told(member, say.Dismiss(5)) == [do.Leave(), do.Say(say.Left(5))]
    assert told(member, say.Dismiss(5)) == [do.Say(say.Left(5))]
    assert member.handle(do.HasFailed(5, "a file is gone")) == []


def test_a_process_in_the_place_of_one_that_has_stopped_is_dismissed_though_it_was_not_greeted() -> None:
    assert told(new(), say.Dismiss(3)) == [do.Leave(), do.Say(say.Left(3))]


@pytest.mark.parametrize("in_step", [True, False])
def test_a_stop_at_a_step_that_is_past_is_fatal(in_step: bool) -> None:
    member, _ = open_at(4)
    if in_step:
        told(member, say.Step(3, 4, replayed=False))
    with pytest.raises(ProtocolViolated):
        told(member, say.AskStop(3, 4 if in_step else 3))


def test_after_a_failure_it_says_why_and_waits_to_be_greeted() -> None:
    member, _ = open_at()
    told(member, say.Step(3, 0, replayed=False))
    assert member.handle(do.HasFailed(3, "peer 1 is gone")) == [
        do.Say(say.Aborted(3, "peer 1 is gone", lasting=False))
    ]
    assert member.state == Stopped()
    assert member.handle(do.HasStepped(3)) == []
    assert told(member, say.Prepare(3, 1, 1), say.AskPause(3, 1)) == []
    assert member.handle(do.HasArrived(1)) == []
    assert told(member, say.Greet(4)) == [do.Say(say.Refused(4)), do.LookAround(4)]
