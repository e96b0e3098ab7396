"""The note of whose a circuit is: one write after the other, whatever becomes of who has asked for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

from nebuli.node.placed.member_notes import MemberNotes, Whose
from nebuli.rpc.member_places import MemberPlace, Succession
from nebuli.store.notes import Notes
from placement.stepped_plan import MemberFragment
from tests.support.told_members import pushed_query
from tests.support.waiting import until_async


class SlowNotes(Notes):
    """Writes that take until they are let."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.begun = 0
        self.let = threading.Event()

    def write(self, name: str, data: bytes) -> None:
        """One at a time, or the name aside is gone when the second one is to have it."""
        self.begun += 1
        assert self.let.wait(60)
        super().write(name, data)


async def test_a_write_waits_for_one_that_was_given_up_in_the_middle(tmp_path: Path) -> None:
    first, then = (
        Whose(circuit="c", plan=pushed_query(members).plan, addresses=("n:1",) * members)
        for members in (1, 2)
    )
    slow = SlowNotes(tmp_path)
    notes = MemberNotes(slow, first)
    given_up = asyncio.create_task(notes.write(first))

    async def begun() -> bool:
        return slow.begun == 1

    await until_async(begun, "the first write is in the middle")
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    following = asyncio.create_task(notes.write(then))
    done, _ = await asyncio.wait([following], timeout=0.1)
    assert not done
    assert slow.begun == 1
    slow.let.set()
    await following
    assert Whose.model_validate_json(slow.read("members.json") or b"") == notes.whose == then


def test_who_has_taken_over_is_not_leaving(tmp_path: Path) -> None:
    """Though they were noted as who is not to be there, as long as they were only to follow."""
    plan = pushed_query(1).plan
    old, new, other = (MemberPlace(node="n:1", grpc="n:2", id=each) for each in ("old", "new", "other"))
    member = MemberFragment(id="q/new", node="n:1", circuit="q.1", plan=plan, member=0, feeds=())
    begun = Whose(circuit="q", plan=plan, addresses=("n:1",), leaving=(other, new))
    after = begun.followed_by(Succession(members=(member,), places=(new,), before=(old,)))
    assert (after.places, after.leaving) == ((new,), (other, old))
