"""Other members at workers, also where their note cannot be written: none are taken away that may be the members."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from nebuli.node.placed.member_notes import MemberNotes, Whose
from nebuli.node.placed.member_workers import MemberWorkers
from nebuli.node.placed.placed_roster import PlacedRoster
from nebuli.rpc.member_places import MemberPlace, Succession
from nebuli.steps.coordinator import circuit_run
from nebuli.steps.coordinator.circuit_run import CircuitRun
from nebuli.steps.coordinator.generation import Generation
from nebuli.steps.coordinator.run_record import RunRecord
from nebuli.steps.errors import NotScaled
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.store import Store
from nebuli.store.notes import Notes
from netchannel import ReceiverServer, SenderServer
from placement.stepped_plan import MemberFragment, Takeover
from tests.support.told_members import pushed_query

OLD, NEW = (MemberPlace(node="127.0.0.1:1", grpc="n:2", id=each) for each in ("old", "new"))


STEP = 7
"""The first of those that follow."""


class FailingNotes(Notes):
    """The write of this number is an error, though what is written is there; 0: none is."""

    def __init__(self, place: Path, failing: int) -> None:
        super().__init__(place)
        self._left = failing

    def write(self, name: str, data: bytes) -> None:
        """It is there, whatever is raised."""
        super().write(name, data)
        self._left -= 1
        if self._left == 0:
            raise OSError("the disk is gone")


class Workers:
    """Forget what they are asked to."""

    def __init__(self) -> None:
        self.forgotten: list[MemberPlace] = []
        self.has_forgotten = asyncio.Event()

    async def forget(self, place: MemberPlace) -> None:
        self.forgotten.append(place)
        self.has_forgotten.set()

    async def end(self, _: tuple[MemberPlace, ...]) -> None:
        pass


async def given_at_once(*_: object) -> tuple[list[str], int]:
    return [NEW.node], 1


async def handed_over_at_once(*_: object) -> int:
    return STEP


async def scaled(folder: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Ask for other members, whose first step it returns; none are taken away if that fails."""
    monkeypatch.setattr(circuit_run, "given_ahead", given_at_once)
    monkeypatch.setattr(circuit_run, "handed_over", handed_over_at_once)
    taken_back = False

    async def take_back(_: Generation) -> None:
        nonlocal taken_back
        taken_back = True

    monkeypatch.setattr(Generation, "take_back", take_back)
    plan: Any = pushed_query(1).plan
    notes = MemberNotes(FailingNotes(folder, failing), Whose(circuit="q", plan=plan, addresses=(OLD.node,)))
    member = MemberFragment(
        id="q/new",
        node=NEW.node,
        circuit="q.1",
        plan=plan,
        member=0,
        feeds=(),
        takeover=Takeover(transfer="t", before=1),
    )
    workers = Workers()
    async with (
        ReceiverServer("127.0.0.1:0") as receiver,
        SenderServer() as sender,
        Store.at(folder / "coordinator") as store,
    ):
        roster = PlacedRoster(
            "q",
            notes,
            cast(MemberWorkers, workers),
            epochs=store,
            node=receiver.address,
            sender=sender,
            receiver=receiver,
        )
        run: CircuitRun[Succession] = CircuitRun(RunRecord(), TriggerSettings(), plan, (), closes=False)
        await run.begin(roster)
        running = asyncio.create_task(run.run())
        try:
            return await run.succeed(Succession(members=(member,), places=(NEW,), before=(OLD,)))
        finally:
            if failing:
                await asyncio.sleep(0.05)  # none is to be taken away
            else:
                await asyncio.wait_for(workers.has_forgotten.wait(), 60)
            running.cancel()
            broken = (await asyncio.gather(running, return_exceptions=True))[0]
            await run.close("it is over")
            if failing == 2:
                assert isinstance(broken, OSError)
            assert workers.forgotten == ([] if failing else [OLD])
            assert not (taken_back and failing != 1)


async def test_a_scaling_returns_the_step_at_which_members_have_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as it is done: the members that follow may not have joined yet."""
    assert await scaled(tmp_path, 0, monkeypatch) == STEP


async def test_where_it_is_not_known_which_members_the_circuit_has_none_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with the error; the next process reads the note, and takes the others away."""
    with pytest.raises(NotScaled, match="it is not known which members have the state: the disk is gone"):
        await scaled(tmp_path, 2, monkeypatch)
    noted = Whose.model_validate_json(Notes(tmp_path).read("members.json") or b"")
    assert (noted.places, noted.leaving) == ((NEW,), (OLD,))


async def test_where_it_cannot_be_noted_that_others_are_to_follow_the_members_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has been begun, so that there is nothing to put right."""
    with pytest.raises(NotScaled, match="the new members cannot be recorded: the disk is gone"):
        await scaled(tmp_path, 1, monkeypatch)
