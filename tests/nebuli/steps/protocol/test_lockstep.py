"""The coordinator, event by event: what it tells members, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol import lockstep_parts
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import (
    Fenced,
    LogIncomplete,
    MemberFailed,
    MembersDiffer,
    NoCommonCheckpoint,
    ProtocolViolated,
)
from nebuli.steps.protocol.lockstep import Lockstep, Phase
from nebuli.steps.protocol.triggers import TriggerSettings

FRESH = (say.Checkpoint(0, 0),)
QUIET = TriggerSettings(checkpoint_s=None)


class Driven:
    """A coordinator, and answers in its members' names. ``told`` is what the last event had it tell, and to whom."""

    def __init__(self, members: int = 2, settings: TriggerSettings = QUIET, **keys: bool) -> None:
        self.members = members
        self.lockstep = Lockstep(members, settings, **keys)
        self.now = 0.0
        self.orders: list[ev.Order] = []
        for event in (ev.EpochClaimed(1), *map(ev.Connected, range(members))):
            self.happen(event)

    def happen(self, event: ev.Event) -> list[ev.Order]:
        self.orders = self.lockstep.handle(event, self.now)
        return self.orders

    def hear(self, member: int, message: say.FromMember) -> list[ev.Order]:
        return self.happen(ev.Heard(member, message))

    def hear_all(self, message: say.FromMember) -> list[ev.Order]:
        for member in range(self.members):
            self.hear(member, message)
        return self.orders

    @property
    def told(self) -> list[say.FromCoordinator]:
        """What all are told, once each."""
        found = [order.message for order in self.orders if isinstance(order, ev.Tell)]
        first = [order.message for order in self.orders if isinstance(order, ev.Tell) and order.member == 0]
        assert len(found) == self.members * len(first)
        return first

    def join(self, versions: Sequence[tuple[say.Checkpoint, ...]], **fields: Any) -> Driven:
        for member, kept in enumerate(versions):
            self.hear(member, joined(self, kept, name=f"process {member}", **fields))
        return self

    def opened(self, at: int = 0) -> Driven:
        self.hear_all(say.Opened(self.lockstep.epoch, at))
        return self


def joined(
    driven: Driven, kept: tuple[say.Checkpoint, ...], name: str = "process", **fields: Any
) -> say.Joined:
    known = {"fingerprint": "f", "address": f"{name}:1", "first": 0, "last": kept[-1].step} | fields
    return say.Joined(
        epoch=driven.lockstep.epoch, members=driven.members, incarnation=name, checkpoints=kept, **known
    )


def running(settings: TriggerSettings = QUIET, members: int = 2, **keys: bool) -> Driven:
    return Driven(members, settings, **keys).join([FRESH] * members).opened()


def kept(*versions: tuple[int, int]) -> tuple[say.Checkpoint, ...]:
    return tuple(say.Checkpoint(*version) for version in versions)


# -- joining and opening


def test_members_are_greeted_in_whatever_order_they_and_the_epoch_come() -> None:
    lockstep = Lockstep(2, QUIET)
    assert lockstep.handle(ev.Connected(1), 0.0) == []
    assert lockstep.handle(ev.EpochClaimed(7), 0.0) == [ev.Tell(1, say.Greet(7))]
    assert lockstep.handle(ev.Connected(0), 0.0) == [ev.Tell(0, say.Greet(7))]


def test_all_open_the_highest_version_that_all_have() -> None:
    """DBSP-CO-1"""
    driven = Driven(3).join([kept((4, 40), (5, 50)), kept((5, 50)), kept((5, 50), (6, 60))], last=60)
    assert driven.told == [say.Open(1, say.Checkpoint(5, 50), ("process 0:1", "process 1:1", "process 2:1"))]


def test_of_two_that_all_have_it_is_the_newer_one() -> None:
    driven = Driven(2).join([kept((5, 50), (6, 60))] * 2)
    assert driven.told[0].checkpoint == say.Checkpoint(6, 60)  # type: ignore[union-attr]


def test_a_checkpoint_that_one_has_not_committed_is_taken_back_everywhere() -> None:
    driven = Driven(2).join([kept((5, 50), (6, 60)), kept((5, 50))], last=60)
    assert driven.told[0].checkpoint == say.Checkpoint(5, 50)  # type: ignore[union-attr]


def test_the_first_checkpoint_too_may_be_at_one_only() -> None:
    driven = Driven(2).join([kept((0, 0), (1, 60)), kept((0, 0))], last=60)
    assert driven.told[0].checkpoint == say.Checkpoint(0, 0)  # type: ignore[union-attr]


def test_no_common_version_is_fatal_and_nobody_is_told_anything() -> None:
    driven = Driven()
    with pytest.raises(
        NoCommonCheckpoint, match="member 0 has version 3 at step 30; member 1 has version 5"
    ) as raised:
        driven.join([kept((3, 30)), kept((5, 50))])
    assert raised.value.steps == {0: {3: 30}, 1: {5: 50}}
    with pytest.raises(NoCommonCheckpoint):
        driven.happen(ev.Lost(0, "gone"))


def test_a_version_with_another_step_is_another_one() -> None:
    with pytest.raises(NoCommonCheckpoint):
        Driven().join([kept((3, 30)), kept((3, 31))])


@pytest.mark.parametrize(("first", "last"), [(31, 40), (0, 29)])
def test_a_log_that_does_not_go_on_at_the_checkpoint_is_fatal(first: int, last: int) -> None:
    with pytest.raises(
        LogIncomplete,
        match=f"from the checkpoint at step 30, because its input log has only steps {first} up to {last}",
    ):
        Driven().join([kept((3, 30))] * 2, first=first, last=last)


def test_members_of_another_circuit_or_list_are_refused() -> None:
    driven = Driven()
    driven.hear(0, joined(driven, FRESH))
    with pytest.raises(MembersDiffer, match=r"fingerprint .member 0: f, member 1: g"):
        driven.hear(1, joined(driven, FRESH, fingerprint="g"))
    driven = Driven(1)
    with pytest.raises(MembersDiffer, match=r"which is 1 for the coordinator .member 0: 3"):
        driven.hear(0, say.Joined(1, 3, "i", "f", "a", FRESH, 0, 0))


# -- steps


def test_a_step_is_issued_to_all_and_the_next_when_all_have_done_it() -> None:
    driven = running()
    driven.hear(0, say.Received(1, 0, 1))
    assert driven.told == [say.Step(1, 0, replayed=False)]
    driven.hear(0, say.Received(1, 1, 1))
    driven.hear(0, say.Stepped(1, 0))
    assert driven.told == []
    driven.hear(1, say.Stepped(1, 0))
    assert driven.told == [say.Step(1, 1, replayed=False)]


def test_what_is_reported_more_than_once_for_a_step_is_added() -> None:
    """FT-PR-6"""
    driven = running(TriggerSettings(rows=7, checkpoint_s=None))
    driven.hear(0, say.Received(1, 0, 3))
    assert driven.told == []
    driven.hear(0, say.Received(1, 0, 4))
    assert driven.told == [say.Step(1, 0, replayed=False)]


def test_rows_for_a_step_that_was_issued_belong_to_the_next_one() -> None:
    """FT-PR-6"""
    driven = running()
    driven.hear(0, say.Received(1, 0, 1))
    driven.hear(1, say.Received(1, 0, 1))
    driven.hear_all(say.Stepped(1, 0))
    assert driven.told == [say.Step(1, 1, replayed=False)]
    driven.hear_all(say.Stepped(1, 1))
    assert driven.told == []


def test_logged_steps_of_any_member_are_issued_without_waiting() -> None:
    driven = Driven(2, TriggerSettings(rows=9, checkpoint_s=None)).join([FRESH] * 2, last=3)
    driven.hear(0, say.Replay(1, 0, 2, ended=()))
    driven.hear(1, say.Replay(1, 0, 1, ended=()))
    driven.opened()
    driven.hear(1, say.Received(1, 1, 9))
    for step in (0, 1):
        assert driven.lockstep.next_step == step + 1
        driven.hear_all(say.Stepped(1, step))
    assert driven.told == [say.Step(1, 2, replayed=False)], "rows that came meanwhile wait for the end"
    driven.hear_all(say.Stepped(1, 2))
    assert driven.told == []


# -- the end of all inputs


def ending(driven: Driven) -> list[ev.Order]:
    """What is said of the end of all inputs."""
    return [order for order in driven.orders if isinstance(order, ev.InputsEnded)]


def test_when_the_inputs_of_all_have_ended_there_is_a_step_that_says_so_and_no_other() -> None:
    driven = running()
    driven.hear(0, say.Ended(1))
    assert driven.told == [], "the inputs of one have"
    driven.hear(1, say.Ended(1))
    assert driven.told == [say.Step(1, 0, replayed=False, ended=True)]
    driven.hear(0, say.Stepped(1, 0))
    assert ending(driven) == []
    driven.hear(1, say.Stepped(1, 0))
    assert (driven.told, ending(driven)) == ([], [ev.InputsEnded(1)])


def test_rows_that_wait_are_taken_before_the_end_and_at_once() -> None:
    driven = running(TriggerSettings(rows=9, delay_s=10.0, checkpoint_s=None))
    driven.hear(1, say.Received(1, 0, 5))
    driven.hear(0, say.Ended(1))
    assert driven.told == []
    driven.hear(1, say.Ended(1))
    assert driven.told == [say.Step(1, 0, replayed=False, ended=False)]
    driven.hear_all(say.Stepped(1, 0))
    assert driven.told == [say.Step(1, 1, replayed=False, ended=True)]


def test_after_the_end_time_does_not_begin_again() -> None:
    """Neither by the clock, nor with rows that come all the same: the end that is said then has them."""
    driven = running(TriggerSettings(tick_s=1.0, checkpoint_s=None))
    driven.hear_all(say.Ended(1))
    driven.hear_all(say.Stepped(1, 0))
    driven.now = 1.0
    driven.happen(ev.TimePassed())
    assert driven.told == [say.Step(1, 1, replayed=False, ended=True)]
    driven.hear(0, say.Received(1, 2, 1))
    driven.hear_all(say.Stepped(1, 1))
    assert ending(driven) == [], "rows wait"
    assert driven.told == [say.Step(1, 2, replayed=False, ended=True)]
    driven.hear_all(say.Stepped(1, 2))
    assert ending(driven) == [ev.InputsEnded(3)]


@pytest.mark.parametrize("other", [(0, 1, ()), None])
def test_a_replayed_step_ends_time_where_one_member_has_that_in_its_log_and_steps_after_it_do_not(
    other: tuple[int, int, tuple[int, ...]] | None,
) -> None:
    """Others may not have come to that step, or have no log at all."""
    driven = Driven(2).join([FRESH] * 2, last=3)
    driven.hear(0, say.Replay(1, 0, 3, ended=(1,)))
    if other is not None:
        driven.hear(1, say.Replay(1, *other))
    driven.opened()
    for step, ended in ((0, False), (1, True), (2, False)):
        assert driven.told[-1] == say.Step(1, step, replayed=True, ended=ended)
        assert ending(driven) == []
        driven.hear_all(say.Stepped(1, step))
    assert ending(driven) == [], "inputs are read again, and may have more"
    driven.hear_all(say.Ended(1))
    assert driven.told == [say.Step(1, 3, replayed=False, ended=True)], "the last step was none"
    driven.hear_all(say.Stepped(1, 3))
    assert ending(driven) == [ev.InputsEnded(4)]


def test_an_end_below_the_checkpoint_is_in_its_state() -> None:
    driven = Driven(2).join([kept((1, 5))] * 2, last=7)
    driven.hear(0, say.Replay(1, 5, 7, ended=()))
    driven.opened(at=5)
    assert driven.told[-1] == say.Step(1, 5, replayed=True, ended=False)


@pytest.mark.parametrize("closes", [True, False])
def test_event_time_ends_only_in_a_run_that_closes_it(closes: bool) -> None:
    driven = running(closes=closes)
    driven.hear_all(say.Ended(1))
    assert driven.told == [say.Step(1, 0, replayed=False, ended=closes)]
    driven.hear_all(say.Stepped(1, 0))
    assert ending(driven) == [ev.InputsEnded(1)]


@pytest.mark.parametrize("closes", [True, False])
def test_a_run_whose_inputs_do_not_end_closes_event_time_when_it_is_shut_down(closes: bool) -> None:
    """With the rows that wait, once; or these alone."""
    driven = running(TriggerSettings(rows=9, checkpoint_s=None), closes=closes)
    driven.hear(0, say.Received(1, 0, 3))
    driven.happen(ev.ShutdownAsked(drain=True))
    driven.hear_all(say.IsPaused(1, 1, 0))
    assert say.Step(1, 0, replayed=False, ended=closes) in driven.told
    driven.hear_all(say.Stepped(1, 0))
    driven.hear_all(say.IsPaused(1, 2, 1))
    assert driven.told[-1] == say.AskStop(1, 1, complete=True)


def test_an_epoch_knows_nothing_of_ends_in_the_one_before() -> None:
    driven = running()
    driven.hear_all(say.Ended(1))
    driven.hear_all(say.Stepped(1, 0))
    driven.happen(ev.Lost(1, "killed"))
    for event in (ev.EpochClaimed(2), ev.Connected(1)):
        driven.happen(event)
    driven.join([FRESH] * 2, last=1)
    driven.hear(0, say.Replay(2, 0, 1, ended=(0,)))
    driven.opened()
    driven.hear_all(say.Stepped(2, 0))
    assert ending(driven) == []
    driven.hear_all(say.Ended(2))
    assert ending(driven) == [ev.InputsEnded(1)]


def test_rows_and_replay_for_the_same_step_are_a_mistake() -> None:
    """FT-PR-8"""
    driven = Driven(2).join([FRESH] * 2, last=3)
    driven.hear(0, say.Replay(1, 0, 3, ended=()))
    driven.opened()
    with pytest.raises(ProtocolViolated, match="member 0 reports 1 rows for step 2, which it replays"):
        driven.hear(0, say.Received(1, 2, 1))


@pytest.mark.parametrize(
    "message",
    [
        say.Stepped(1, 0),
        say.Opened(1, 0),
        say.Replay(1, 0, 3, ended=()),
        say.Committed(1, 1),
        say.IsStopped(1, 0),
        say.Joined(1, 2, "process 0", "f", "a", FRESH, 0, 0),
    ],
)
def test_what_was_not_asked_for_is_a_mistake_that_names_the_member(message: say.FromMember) -> None:
    with pytest.raises(ProtocolViolated, match="member 0 sent "):
        running().hear(0, message)


@pytest.mark.parametrize("message", [say.Received(1, 0, 1), say.Replay(1, 1, 3, ended=()), say.Opened(1, 1)])
def test_before_a_member_is_open_it_says_where_its_log_begins_and_no_rows(message: say.FromMember) -> None:
    """FT-PR-8: so it cannot report rows first, and replay the same step then."""
    driven = Driven().join([FRESH] * 2, last=3)
    with pytest.raises(ProtocolViolated, match="member 0 sent "):
        driven.hear(0, message)


# -- checkpoints


def test_a_checkpoint_has_two_phases_beside_the_steps() -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(7))
    assert driven.told == [say.Prepare(1, 1, 0)]
    driven.hear(0, say.Received(1, 0, 1))
    assert driven.told == [say.Step(1, 0, replayed=False)]
    driven.hear_all(say.Stepped(1, 0))
    driven.hear(0, say.Prepared(1, 1))
    assert driven.told == []
    driven.hear(1, say.Prepared(1, 1))
    assert driven.told == [say.Commit(1, 1)]
    driven.hear(1, say.Committed(1, 1))
    assert driven.told == []
    assert driven.hear(0, say.Committed(1, 1))[-1] == ev.CheckpointMade(0, (7,))
    assert driven.told == [say.Trim(1, 0)]
    assert driven.lockstep.checkpoints == kept((0, 0), (1, 0))


def make_checkpoint(driven: Driven, attempt: int) -> None:
    driven.happen(ev.CheckpointAsked(attempt))
    driven.hear_all(say.Prepared(1, attempt))
    driven.hear_all(say.Committed(1, attempt))


def step(driven: Driven) -> None:
    at = driven.lockstep.next_step
    driven.hear(0, say.Received(1, at, 1))
    driven.hear_all(say.Stepped(1, at))


def test_steps_and_checkpoints_are_timed_until_the_last_member_has_them() -> None:
    driven = running()
    driven.now = 10.0
    driven.hear(0, say.Received(1, 0, 1))  # which begins the step
    assert driven.lockstep.input_lag(12.0) == 0.0, "the rows are in a step"
    driven.now = 10.5
    driven.hear(0, say.Stepped(1, 0))
    assert driven.lockstep.timings.steps == 0
    driven.now = 12.0
    driven.hear(0, say.Received(1, 1, 1))
    assert driven.lockstep.input_lag(12.75) == 0.75, "the step before is not over"
    driven.hear(1, say.Stepped(1, 0))
    timings = driven.lockstep.timings
    assert (timings.steps, timings.step_seconds) == (1, 2.0)
    driven.hear_all(say.Stepped(1, 1))
    driven.now = 20.0
    driven.happen(ev.CheckpointAsked(1))
    driven.now = 20.25
    driven.hear_all(say.Prepared(1, 1))
    assert (timings.checkpoints, timings.checkpoint_at) == (0, None)
    driven.hear_all(say.Committed(1, 1))
    assert (timings.checkpoints, timings.checkpoint_seconds, timings.checkpoint_at) == (1, 0.25, 20.25)
    driven.happen(ev.CheckpointAsked(2))
    driven.hear(0, say.NotPrepared(1, 2, "no room"))
    assert (timings.failed_checkpoints, timings.checkpoints) == (1, 1)


def test_each_checkpoint_is_the_next_version_and_input_goes_below_the_older_one() -> None:
    driven = running()
    for version in range(1, 6):
        step(driven)
        make_checkpoint(driven, version)
        assert [each.version for each in driven.lockstep.checkpoints] == [version - 1, version]
        assert driven.told == [say.Trim(1, version - 1)]


def test_a_checkpoint_that_fails_at_one_is_given_up_at_all() -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(7))
    driven.hear(0, say.Prepared(1, 1))
    orders = driven.hear(1, say.NotPrepared(1, 1, "no space"))
    assert driven.told == [say.GiveUp(1, 1)]
    assert orders[-1] == ev.CheckpointFailed(0, "member 1 could not write it: no space", (7,))
    assert driven.lockstep.checkpoints == FRESH


def test_what_is_prepared_for_an_attempt_that_was_given_up_does_not_count_for_the_next() -> None:
    """At the same step: only the attempt tells them apart."""
    driven = running()
    driven.happen(ev.CheckpointAsked(7))
    driven.hear(1, say.NotPrepared(1, 1, "no space"))
    driven.happen(ev.CheckpointAsked(8))
    assert driven.told == [say.Prepare(1, 2, 0)]
    driven.hear(1, say.Prepared(1, 2))
    driven.hear(0, say.Prepared(1, 1))
    assert driven.told == []
    driven.hear(0, say.Prepared(1, 2))
    assert driven.told == [say.Commit(1, 2)]


def test_a_checkpoint_that_is_asked_for_meanwhile_begins_when_the_first_has_ended() -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(7))
    driven.happen(ev.CheckpointAsked(8))
    assert driven.told == []
    driven.hear_all(say.Prepared(1, 1))
    orders = driven.hear_all(say.Committed(1, 1))
    assert ev.CheckpointMade(0, (7,)) in orders
    assert driven.told == [say.Trim(1, 0), say.Prepare(1, 2, 0)]


def test_steps_that_never_pause_do_not_put_a_checkpoint_off() -> None:
    driven = running(TriggerSettings(checkpoint_s=10.0))
    driven.hear(0, say.Received(1, 0, 1))
    driven.hear(0, say.Received(1, 1, 1))
    driven.now = 10.0
    driven.hear_all(say.Stepped(1, 0))
    assert driven.told == [say.Prepare(1, 1, 1), say.Step(1, 1, replayed=False)]


def test_a_checkpoint_of_an_epoch_that_ends_is_made_in_the_next() -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(7))
    driven.happen(ev.Lost(1, "gone"))
    driven.happen(ev.Connected(1))
    driven.happen(ev.EpochClaimed(2))
    driven.join([FRESH] * 2).opened()
    assert driven.told == [say.Trim(2, 0), say.Prepare(2, 1, 0)]


def test_time_goes_on_for_checkpoints_over_a_recovery() -> None:
    """Else a circuit that loses members all the time would never make one."""
    driven = running(TriggerSettings(checkpoint_s=10.0))
    driven.now = 8.0
    driven.happen(ev.Lost(1, "gone"))
    driven.happen(ev.Connected(1))
    driven.happen(ev.EpochClaimed(2))
    driven.join([FRESH] * 2).opened()
    assert driven.lockstep.deadline() == 10.0


@pytest.mark.parametrize(
    "said",
    [
        [say.Committed(1, 1)],
        [say.Prepared(1, 1), say.Prepared(1, 1)],
        [say.Prepared(1, 1), say.NotPrepared(1, 1, "no space")],
    ],
)
def test_a_member_says_once_that_it_is_prepared_and_commits_when_it_is_told_to(
    said: list[say.FromMember],
) -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(1))
    for message in said[:-1]:
        driven.hear(0, message)
    with pytest.raises(ProtocolViolated, match=r"member 0 .* attempt 1"):
        driven.hear(0, said[-1])


@pytest.mark.parametrize("attempts", [[2], [1, 1]])
def test_a_member_commits_what_it_was_told_to_once(attempts: list[int]) -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(1))
    driven.hear_all(say.Prepared(1, 1))
    for attempt in attempts[:-1]:
        driven.hear(0, say.Committed(1, attempt))
    with pytest.raises(ProtocolViolated, match="member 0 "):
        driven.hear(0, say.Committed(1, attempts[-1]))


# -- epochs


@pytest.mark.parametrize("phase", ["joining", "opening", "running"])
def test_a_member_that_is_lost_ends_the_epoch_whenever_that_is(phase: str) -> None:
    driven = {"joining": Driven, "opening": lambda: Driven().join([FRESH] * 2), "running": running}[phase]()
    assert driven.lockstep.phase.value == phase
    assert driven.happen(ev.Lost(1, "killed")) == [ev.ClaimEpoch(1, "member 1 was lost: killed")]
    assert driven.happen(ev.Lost(0, "killed")) == []
    driven.hear(0, say.Stepped(1, 0))
    driven.happen(ev.Connected(0))
    assert driven.happen(ev.EpochClaimed(2)) == [ev.Tell(0, say.Greet(2))]
    assert driven.happen(ev.Connected(1)) == [ev.Tell(1, say.Greet(2))]


def test_a_member_that_aborts_ends_the_epoch_and_one_that_will_again_is_fatal() -> None:
    assert running().hear(0, say.Aborted(1, "peer 1 is gone", lasting=False)) == [
        ev.ClaimEpoch(1, "member 0 has given up the step: peer 1 is gone")
    ]
    with pytest.raises(
        MemberFailed, match=r"^overflow \(at member 0\)\. When that is fixed, start the query again"
    ):
        running().hear(0, say.Aborted(1, "overflow", lasting=True))
    with pytest.raises(MemberFailed, match="not a valid int64") as caught:
        running().hear(0, say.Aborted(1, "'x' is not a valid int64", lasting=True, of_input=True))
    assert caught.value.of_input


def test_what_members_count_as_dropped_is_told_to_whoever_watches() -> None:
    assert running().hear(1, say.Late(1, "hours", 3)) == [ev.RowsLate(1, "hours", 3)]
    assert running().hear(1, say.WithoutTime(1, "hours", "at", 3)) == [
        ev.RowsWithoutTime(1, "hours", "at", 3)
    ]


def test_another_process_in_a_members_place_ends_the_epoch() -> None:
    driven = running()
    assert driven.hear(0, joined(driven, FRESH, name="another"))[0] == ev.ClaimEpoch(
        1, "member 0 was lost: process another took its place"
    )
    assert running().happen(ev.Connected(0))[0] == ev.ClaimEpoch(
        1, "member 0 was lost: another process took its place"
    )


def test_an_epoch_that_does_not_rise_is_not_taken() -> None:
    driven = running()
    driven.happen(ev.Lost(1, "killed"))
    with pytest.raises(ValueError, match="epoch 1 was claimed, claiming epoch 1"):
        driven.happen(ev.EpochClaimed(1))


@pytest.mark.parametrize(
    "event",
    [ev.EpochTaken(9), ev.Heard(0, say.Refused(9)), ev.Heard(0, say.Received(9, 0, 1))],
)
def test_a_coordinator_that_hears_of_a_greater_epoch_says_nothing_more(event: ev.Event) -> None:
    driven = running()
    with pytest.raises(Fenced, match=r"with epoch 9; .* epoch 1,"):
        driven.happen(event)
    with pytest.raises(Fenced):
        driven.hear(0, say.Received(1, 0, 1))


def test_a_refusal_of_something_older_is_nothing_to_it() -> None:
    assert running().hear(0, say.Refused(1)) == []


def test_what_arrives_of_an_older_epoch_is_dropped() -> None:
    driven = running()
    driven.happen(ev.Lost(1, "killed"))
    driven.happen(ev.Connected(1))
    driven.happen(ev.EpochClaimed(2))
    driven.join([FRESH] * 2).opened()
    assert driven.hear(0, say.Received(1, 0, 1)) == []
    assert driven.hear(0, say.IsStopped(1, 5)) == []


# -- pause, start, shutdown


def test_while_paused_no_step_is_issued_and_start_goes_on_with_what_came() -> None:
    driven = running()
    driven.happen(ev.PauseAsked())
    assert driven.told == [say.AskPause(1, 1)]
    assert driven.happen(ev.PauseAsked()) == []
    assert not driven.lockstep.quiet
    driven.hear_all(say.IsPaused(1, 1, 0))
    assert driven.lockstep.quiet
    assert driven.hear(0, say.Received(1, 0, 1)) == []
    driven.happen(ev.StartAsked())
    assert driven.told == [say.AskStart(1), say.Step(1, 0, replayed=False)]
    assert driven.happen(ev.StartAsked()) == []


def test_the_answer_to_an_older_pause_is_not_one_to_the_next() -> None:
    driven = running()
    driven.happen(ev.PauseAsked())
    driven.happen(ev.StartAsked())
    driven.happen(ev.PauseAsked())
    assert driven.told == [say.AskPause(1, 2)]
    driven.hear_all(say.IsPaused(1, 1, 0))
    assert not driven.lockstep.quiet
    driven.hear_all(say.IsPaused(1, 2, 0))
    assert driven.lockstep.quiet


def test_it_stays_paused_over_a_recovery() -> None:
    driven = running(paused=True)
    assert driven.told == [say.Trim(1, 0), say.AskPause(1, 1)]
    driven.happen(ev.Lost(1, "killed"))
    driven.happen(ev.Connected(1))
    driven.happen(ev.EpochClaimed(2))
    driven.join([FRESH] * 2).opened()
    assert driven.told == [say.Trim(2, 0), say.AskPause(2, 1)]


def test_while_paused_a_checkpoint_can_be_asked_for() -> None:
    driven = running(paused=True)
    driven.happen(ev.CheckpointAsked(1))
    assert driven.told == [say.Prepare(1, 1, 0)]


@pytest.mark.parametrize("paused", [True, False])
def test_shutdown_pauses_all_and_stops_them_at_one_step_with_a_version(paused: bool) -> None:
    driven = running(paused=paused)
    if not paused:
        driven.hear(0, say.Received(1, 0, 1))
        driven.happen(ev.ShutdownAsked())
        assert driven.told == [say.AskPause(1, 1)]
        driven.hear_all(say.Stepped(1, 0))
        at = 1
    else:
        driven.happen(ev.ShutdownAsked())
        at = 0
    driven.happen(ev.CheckpointAsked(5))
    driven.hear_all(say.IsPaused(1, 1, at))
    assert driven.told == [say.AskStop(1, at)]
    assert driven.happen(ev.ShutdownAsked()) == []
    driven.hear(0, say.IsStopped(1, at))
    assert driven.happen(ev.Lost(0, "it has ended")) == []
    assert driven.hear(1, say.IsStopped(1, at)) == [ev.CheckpointMade(at, (5,)), ev.RecordEnd(at)]
    assert driven.happen(ev.ShutdownAsked()) == []


def stopped(members: int = 2) -> Driven:
    """All have stopped, which is not recorded yet."""
    driven = running(members=members)
    driven.happen(ev.ShutdownAsked())
    driven.hear_all(say.IsPaused(1, 1, 0))
    driven.hear_all(say.IsStopped(1, 0))
    return driven


def test_members_are_dismissed_when_it_is_recorded_that_all_have_stopped_and_not_before() -> None:
    driven = stopped()
    assert driven.orders == [ev.CheckpointMade(0, ()), ev.RecordEnd(0)]
    driven.happen(ev.EndRecorded())
    assert driven.told == [say.Dismiss(1)]
    assert driven.lockstep.phase is Phase.DISMISSING
    assert driven.hear(0, say.Left(1)) == []
    assert driven.happen(ev.Lost(0, "it has ended")) == []
    assert driven.hear(1, say.Left(1)) == [ev.Finished(0)]


def test_a_member_that_has_stopped_is_dismissed_whenever_it_comes_back() -> None:
    driven = stopped()
    driven.happen(ev.Lost(1, "killed"))
    assert driven.happen(ev.Connected(1)) == []
    driven.happen(ev.Lost(1, "killed"))
    assert driven.happen(ev.EndRecorded()) == [ev.Tell(0, say.Dismiss(1))]
    assert driven.happen(ev.Connected(1)) == [ev.Tell(1, say.Dismiss(1))]
    driven.hear(0, say.Left(1))
    driven.happen(ev.Lost(0, "it has ended"))
    assert driven.happen(ev.Connected(0)) == []
    assert driven.hear(1, say.Left(1)) == [ev.Finished(0)]


def test_who_does_not_come_back_to_be_dismissed_is_not_waited_for_for_ever() -> None:
    driven = stopped()
    driven.now = 5.0
    driven.happen(ev.EndRecorded())
    assert driven.hear(0, say.Left(1)) == []
    assert driven.lockstep.deadline() == 5.0 + lockstep_parts.AWAY_S
    driven.now = 5.0 + lockstep_parts.AWAY_S
    assert driven.happen(ev.TimePassed()) == [ev.Finished(0)]


def test_a_coordinator_after_one_that_has_recorded_the_end_does_nothing_but_dismiss() -> None:
    """It dies between the first that it dismisses and the last: the first is gone, and comes to no epoch."""
    lockstep = Lockstep(2, QUIET, over=7)
    assert lockstep.handle(ev.Connected(1), 0.0) == []
    assert lockstep.handle(ev.ShutdownAsked(), 0.0) == []
    assert lockstep.handle(ev.EpochClaimed(3), 0.0) == [ev.Tell(1, say.Dismiss(3))]
    assert lockstep.handle(ev.Heard(1, say.Aborted(3, "a file is gone", lasting=True)), 0.0) == []
    assert lockstep.handle(ev.Heard(1, say.Left(3)), 0.0) == []
    assert lockstep.handle(ev.TimePassed(), lockstep_parts.AWAY_S) == [ev.Finished(7)]


def test_who_says_that_it_has_left_and_was_not_dismissed_is_mistaken() -> None:
    with pytest.raises(ProtocolViolated, match="member 1 sent Left"):
        running().hear(1, say.Left(1))


def test_shutdown_waits_for_a_checkpoint_that_has_begun() -> None:
    driven = running()
    driven.happen(ev.CheckpointAsked(1))
    driven.happen(ev.ShutdownAsked())
    driven.hear_all(say.IsPaused(1, 1, 0))
    assert driven.told == []
    driven.hear_all(say.Prepared(1, 1))
    driven.hear_all(say.Committed(1, 1))
    assert driven.told == [say.Trim(1, 0), say.AskStop(1, 0)]


def test_shutdown_without_all_members_waits_for_none() -> None:
    driven = Driven()
    driven.happen(ev.CheckpointAsked(1))
    assert driven.happen(ev.ShutdownAsked()) == [
        ev.CheckpointFailed(0, "the circuit was shut down without a checkpoint", (1,)),
        ev.Finished(None),
    ]
    driven = running()
    driven.happen(ev.ShutdownAsked())
    assert driven.happen(ev.Lost(1, "killed")) == [ev.Finished(None)]
    assert driven.lockstep.phase is Phase.STOPPED


# -- time


def test_its_deadline_is_when_time_alone_makes_a_difference() -> None:
    driven = running(TriggerSettings(rows=9, delay_s=0.5, checkpoint_s=10.0))
    assert driven.lockstep.deadline() == 10.0
    driven.now = 1.0
    driven.hear(0, say.Received(1, 0, 1))
    assert driven.lockstep.deadline() == 1.5
    driven.now = 1.5
    driven.happen(ev.TimePassed())
    assert driven.told == [say.Step(1, 0, replayed=False)]
    assert driven.lockstep.deadline() is None
