"""A scaling at workers where its note cannot be written: nobody is taken away who may be a member."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from nebuli.members.calls.call_routes import CallRoutes
from nebuli.members.errors import NotScaled
from nebuli.rpc.following_members import MemberPlace, Succession
from nebuli.storage.notes import Notes
from nebuli.worker.placed import placed_scaling
from nebuli.worker.placed.member_notes import MemberNotes, Whose
from nebuli.worker.placed.member_workers import MemberWorkers
from nebuli.worker.placed.placed_members import PlacedMembers
from nebuli.worker.placed.placed_scaling import PlacedScaling
from placement.stepped import MemberFragment, Takeover
from tests.support.told_members import pushed_query

OLD, NEW = (MemberPlace(node="n:1", grpc="n:2", id=each) for each in ("old", "new"))


class FailingNotes(Notes):
    """The write of this number is an error, though what is written is there."""

    def __init__(self, place: Path, failing: int) -> None:
        super().__init__(place)
        self._left = failing

    def write(self, name: str, data: bytes) -> None:
        """It is there, whatever is said."""
        super().write(name, data)
        self._left -= 1
        if self._left == 0:
            raise OSError("the disk is gone")


class Workers:
    """Begin whatever they are told to."""

    def __init__(self) -> None:
        self.forgotten: list[MemberPlace] = []

    async def begin(self, _: object) -> dict[MemberPlace, int]:
        """At once."""
        return {NEW: 1}

    async def watch(self, *_: object) -> None:
        """Nothing happens to them."""

    async def forget(self, place: MemberPlace) -> None:
        """As they are told."""
        self.forgotten.append(place)


class Before:
    """Members that there are."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.taken_back = False

    async def take_back(self) -> None:
        """They go on."""
        self.taken_back = True


async def at_once(*_: object) -> int:
    return 1


async def scaled(notes: MemberNotes, workers: Workers, before: Before) -> None:
    """Ask for other members, and let whoever is to be taken away be."""

    async def none_made(_: Whose) -> PlacedMembers:
        raise AssertionError("it does not come to that")

    scaling = PlacedScaling(notes, cast("MemberWorkers", workers), CallRoutes(), none_made)
    member = MemberFragment(
        id="q/new",
        node=NEW.node,
        circuit="q.1",
        plan=pushed_query(1).plan,
        member=0,
        feeds=(),
        takeover=Takeover(transfer="t", before=1),
    )
    try:
        await scaling.succeed(
            cast("PlacedMembers", before), Succession(members=(member,), places=(NEW,), before=(OLD,))
        )
    finally:
        if scaling._clearing is not None:
            await scaling._clearing


@pytest.fixture(autouse=True)
def given_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("saved", "given_ahead", "handed_over"):
        monkeypatch.setattr(placed_scaling, name, at_once)


def noted(folder: Path, failing: int) -> MemberNotes:
    plan: Any = pushed_query(1).plan
    return MemberNotes(FailingNotes(folder, failing), Whose(circuit="q", plan=plan, addresses=(OLD.node,)))


async def test_where_it_is_not_known_whose_it_is_nobody_is_taken_away(tmp_path: Path) -> None:
    """The next process reads the note, and takes the others away."""
    workers, before = Workers(), Before()
    with pytest.raises(OSError, match="the disk is gone"):
        await scaled(noted(tmp_path, 2), workers, before)
    assert workers.forgotten == []
    assert not before.taken_back
    said = Whose.model_validate_json(Notes(tmp_path).read("members.json") or b"")
    assert (said.places, said.leaving) == ((NEW,), (OLD,))


async def test_where_it_cannot_be_noted_that_others_are_to_follow_all_goes_on(tmp_path: Path) -> None:
    """Nothing has been begun, so that there is nothing to put right."""
    workers, before = Workers(), Before()
    with pytest.raises(NotScaled, match="the disk is gone"):
        await scaled(noted(tmp_path, 1), workers, before)
    assert not before.over.is_set()
