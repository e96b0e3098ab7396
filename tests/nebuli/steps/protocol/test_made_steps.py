"""How many steps a coordinator says that all members have made: never fewer than before, and none too many."""

from __future__ import annotations

import asyncio
from typing import Any

from nebuli.steps.coordinator.coordinator import Coordinator
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.lockstep import Lockstep
from nebuli.steps.protocol.triggers import TriggerSettings
from tests.support.waiting import until_async

MEMBERS = 2
SETTINGS = TriggerSettings(checkpoint_s=None)


class Told:
    """A line to a member in whose name a test answers."""

    address = "nowhere"

    def __init__(self) -> None:
        self.told: list[say.FromCoordinator] = []

    def tell(self, message: say.FromCoordinator) -> None:
        self.told.append(message)

    async def run(self, happen: Any) -> None:
        self.happen = happen
        await asyncio.Event().wait()


class Epochs:
    """Numbers that nobody else takes."""

    async def claim(self, after: int) -> int:
        return after + 1


class Driven:
    """A coordinator that runs, and members that say what a test wants."""

    def __init__(self, *, over: int | None = None) -> None:
        self.lines = [Told() for _ in range(MEMBERS)]
        lockstep = Lockstep(MEMBERS, SETTINGS, over=over)
        self.coordinator = Coordinator(lockstep, Epochs(), self.lines)  # type: ignore[arg-type]  # they are stand-ins

    async def __aenter__(self) -> Driven:
        self._running = asyncio.create_task(self.coordinator.run())
        await until_async(lambda: _so(self.coordinator.epoch == 1), "an epoch is claimed")
        for member in range(MEMBERS):
            self.happen(member, ev.Connected(member))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    @property
    def complete(self) -> tuple[int, bool]:
        return self.coordinator.complete, self.coordinator.complete_is_known

    def happen(self, member: int, event: ev.Event) -> None:
        self.lines[member].happen(event)

    def all_say(self, kind: Any, *fields: Any) -> None:
        for member in range(MEMBERS):
            self.happen(member, ev.Heard(member, kind(self.coordinator.epoch, *fields)))

    def join(self, checkpoint: int, *lasts: int) -> None:
        """Members have a checkpoint at this step, and logs up to these."""
        versions = (say.Checkpoint(3, checkpoint),)
        for member, last in enumerate(lasts):
            epoch, name = self.coordinator.epoch, f"{member} in {self.coordinator.epoch}"
            said = say.Joined(epoch, MEMBERS, name, "f", "a:1", versions, checkpoint, last)
            self.happen(member, ev.Heard(member, said))

    def open(self, checkpoint: int, *lasts: int) -> None:
        epoch = self.coordinator.epoch
        for member, last in enumerate(lasts):
            if last > checkpoint:
                self.happen(member, ev.Heard(member, say.Replay(epoch, checkpoint, last, ())))
        self.all_say(say.Opened, checkpoint)

    async def lose(self, member: int) -> None:
        epoch = self.coordinator.epoch
        self.happen(member, ev.Lost(member, "killed"))
        await until_async(lambda: _so(self.coordinator.epoch == epoch + 1), "an epoch is claimed")
        self.happen(member, ev.Connected(member))


async def _so(what: bool) -> bool:
    return what


async def test_a_coordinator_that_begins_says_that_more_steps_may_have_been_made() -> None:
    """It has a checkpoint at step 100, and steps below 120 were made, as the one before has said."""
    async with Driven() as driven:
        assert driven.complete == (0, False)
        driven.join(100, 120, 120)
        assert driven.complete == (119, False), "the last one may be made by one member only"
        driven.open(100, 120, 120)
        for step in range(100, 119):
            driven.all_say(say.Stepped, step)
            assert driven.complete == (119, False)
        driven.all_say(say.Stepped, 119)
        assert driven.complete == (120, True)


async def test_where_nothing_is_behind_the_checkpoint_all_is_known() -> None:
    """As of members that have taken the place of others, or all of which have stopped."""
    async with Driven() as driven:
        driven.join(120, 120, 120)
        assert driven.complete == (120, True)


async def test_steps_that_were_made_stay_so_once_a_killed_member_is_there_again() -> None:
    """120 steps are done, and nothing comes in."""
    async with Driven() as driven:
        driven.join(119, 119, 119)
        driven.open(119, 119, 119)
        driven.happen(0, ev.Heard(0, say.Received(1, 119, 1 << 20)))
        driven.all_say(say.Stepped, 119)
        assert driven.complete == (120, True)
        await driven.lose(1)
        assert driven.complete == (120, True)
        driven.join(119, 120, 120)
        assert driven.complete == (120, True)
        driven.open(119, 120, 120)
        assert driven.complete == (120, True)
        driven.all_say(say.Stepped, 119)
        assert driven.complete == (120, True)


async def test_a_step_that_one_member_has_not_made_is_not_made() -> None:
    """It was issued, and a member lost that was in it."""
    async with Driven() as driven:
        driven.join(119, 119, 119)
        driven.open(119, 119, 119)
        driven.happen(0, ev.Heard(0, say.Received(1, 119, 1 << 20)))
        driven.happen(0, ev.Heard(0, say.Stepped(1, 119)))
        assert driven.complete == (119, True)
        await driven.lose(1)
        assert driven.complete == (119, True)
        driven.join(119, 120, 119)
        driven.open(119, 120, 119)
        assert driven.complete == (119, True)
        driven.all_say(say.Stepped, 119)
        assert driven.complete == (120, True)


async def test_more_may_have_been_made_than_where_all_have_stopped() -> None:
    """They do so before all is made again that is in their logs, if they are told to."""
    async with Driven(over=7) as driven:
        assert driven.complete == (7, False)
