"""Coordinators and members that die and hear late, each run drawn from a seed; and what holds all the time.

`World.check` is called after every event: at least one checkpoint is at all members, one version or two at each, of the
same steps everywhere; no log begins above what a version needs. `World` itself raises Violation where a member enters a
step that was not issued to all, where a step comes out different than before, where inputs are said to have ended and
something of them is not out, where steps are said to be made by all that are not, or fewer than were said to be before,
and where it goes on for ever after the last fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nebuli.steps.protocol import events, lockstep, member_machine, messages
from nebuli.steps.protocol.errors import CoordinationError
from nebuli.steps.protocol.lockstep import Lockstep
from nebuli.steps.protocol.lockstep_parts import Arrivals, Dismissal, MadeSteps, TwoPhases
from nebuli.steps.protocol.member_machine import MemberMachine
from tests.support.lockstep_world import Violation, World
from tests.support.seeds import drawn_seed
from tests.support.sizes import seeds

pytestmark = pytest.mark.long


def test_whatever_dies_all_go_on_from_the_same_checkpoint_and_each_row_is_in_one_step() -> None:
    met: Counter[str] = Counter()
    with drawn_seed() as first:
        for seed in seeds(range(first, first + 400)):
            world = World(seed)
            try:
                world.run()
            except BaseException as error:
                error.add_note(f"in World({seed})")
                raise
            met += world.met
    assert {"killed", "coordinators ended", "fenced", "epochs ended", "late"} <= {*met}
    assert {"checkpoints", "checkpoints failed", "inputs ended"} <= {*met}
    assert {"lost while stopping", "faults while dismissing"} <= {*met}
    assert {"drained", "drained while paused"} <= {*met}
    assert min(met["behind"], met["caught up"]) > 0


def _trim_to_the_newer_version(self: Any) -> None:
    self._tell_all(messages.Trim(self.epoch, self._kept[-1].step))


def _commit_when_one_is_prepared(self: Any, member: int) -> bool:
    self._prepared = set(range(self.members))
    return True


def _highest_of_the_first_member(joined: Any) -> Any:
    return max(joined[0].checkpoints)


def _follow_whoever_speaks(self: Any, message: Any) -> None:
    if isinstance(message, messages.Greet):
        self.epoch = message.epoch
        self._begin_epoch()
        self._do(member_machine.do.LookAround(self.epoch))
    else:
        self._told_to(message)


def _leave_without_a_word(self: Any, message: Any) -> None:
    before = self._say
    self._say = lambda said: None if isinstance(said, messages.Refused) else before(said)
    _told(self, message)


def _issue_when_one_has_stepped(self: Any, member: int, message: Any) -> None:
    _heard_of_work(self, member, message)
    if isinstance(message, messages.Stepped):
        self._stepping = set()


def _hear_old_epochs(self: Any, member: int, message: Any) -> None:
    if isinstance(message, messages.Refused):
        _heard(self, member, message)
    elif self.phase is not lockstep.Phase.CLAIMING:
        epoch, self.epoch = self.epoch, message.epoch
        try:
            _heard(self, member, message)
        finally:
            self.epoch = epoch


def _take_any_attempt(self: Any, member: int, attempt: int) -> None:
    _prepared(self, member, self._round.attempt if self._round else attempt)


def _forget_the_end(self: Any, step: int) -> bool:
    return False


def _end_with_the_first_step_that_says_so(self: Any) -> None:
    if self._ending and not self._concluded:
        self._concluded = True
        self._orders.append(events.InputsEnded(self.next_step))


def _look_for_the_end_in_the_last_step_only(
    self: Any, member: int, logged: range, ended: tuple[int, ...]
) -> None:
    _replay(self, member, logged, tuple(step for step in ended if step == logged[-1]))


def _leave_when_it_has_stopped(self: Any, happened: Any) -> None:
    _came_of_it(self, happened)
    if isinstance(happened, member_machine.do.HasClosed):
        self._do(member_machine.do.Leave())


def _dismiss_before_it_is_recorded(self: Any, member: int, step: int, message: Any) -> None:
    _is_stopped(self, member, step, message)
    if not self._stopping:
        self._dismiss(step)


def _forget_that_all_have_stopped(self: Any, epoch: int) -> None:
    self._over = None
    _claimed(self, epoch)


def _count_what_is_issued(self: Any, *, replayed: bool, ended: bool) -> None:
    _issue(self, replayed=replayed, ended=ended)
    self.made.reached(self.next_step)


def _count_all_that_is_logged(self: Any, joined: Any, common: Any) -> None:
    _found(self, joined, common)
    self.reached(max(said.last for said in joined.values()))


def _know_the_checkpoint_only(self: Any, joined: Any, common: Any) -> None:
    _found(self, {0: joined[0]}, common)
    self._before = common.step


def _go_back(self: Any, step: int) -> None:
    self.complete = step


def _stop_with_what_was_stepped(self: Any) -> None:
    self._stop()


def _stop_as_soon_as_it_is_told_while_paused(self: Any, drain: bool) -> None:
    _shut_down(self, drain and not self.paused)


def _wait_for_all_to_hear(self: Any, now: float) -> bool:
    return len(self._left) == self.members


_came_of_it = MemberMachine._came_of_it
_is_stopped = Lockstep._is_stopped
_claimed = Lockstep._claimed
_told = MemberMachine._told
_heard = Lockstep._heard
_shut_down = Lockstep._shut_down
_heard_of_work = Lockstep._heard_of_work
_prepared = Lockstep._prepared
_replay = Arrivals.replay
_issue = Lockstep._issue
_found = MadeSteps.found


@pytest.mark.parametrize(
    ("where", "name", "without"),
    [
        (Lockstep, "_trim", _trim_to_the_newer_version),
        (TwoPhases, "prepared", _commit_when_one_is_prepared),
        (lockstep, "common_checkpoint", _highest_of_the_first_member),
        (MemberMachine, "_told", _follow_whoever_speaks),
        (MemberMachine, "_told", _leave_without_a_word),
        (Lockstep, "_heard_of_work", _issue_when_one_has_stepped),
        (Lockstep, "_heard", _hear_old_epochs),
        (Lockstep, "_prepared", _take_any_attempt),
        (Arrivals, "ends", _forget_the_end),
        (Arrivals, "replay", _look_for_the_end_in_the_last_step_only),
        (Lockstep, "_conclude", _end_with_the_first_step_that_says_so),
        (MemberMachine, "_came_of_it", _leave_when_it_has_stopped),
        (Lockstep, "_is_stopped", _dismiss_before_it_is_recorded),
        (Lockstep, "_claimed", _forget_that_all_have_stopped),
        (Lockstep, "_drain_or_stop", _stop_with_what_was_stepped),
        (Lockstep, "_shut_down", _stop_as_soon_as_it_is_told_while_paused),
        (Dismissal, "over", _wait_for_all_to_hear),
        (Lockstep, "_issue", _count_what_is_issued),
        (MadeSteps, "found", _count_all_that_is_logged),
        (MadeSteps, "found", _know_the_checkpoint_only),
        (MadeSteps, "reached", _go_back),
    ],
)
def test_without_a_safeguard_something_goes_wrong(
    where: Any, name: str, without: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, without)
    for seed in range(400):
        try:
            World(seed).run()
        except (Violation, CoordinationError, KeyError, AssertionError):
            return
    pytest.fail("nothing went wrong in 400 runs")
