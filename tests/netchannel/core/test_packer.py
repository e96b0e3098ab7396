"""Messages that wait to be made into frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netchannel.core.sending.packer import Packer
from netchannel.wire.frame_memory import FrameMemory


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(0, 5000))
def test_as_many_are_taken_together_as_one_by_one(sizes: list[int], credit: int) -> None:
    bodies = [bytes(size) for size in sizes]
    together, each = Packer(FrameMemory()), Packer(FrameMemory())
    for packer in (together, each):
        packer.grant(credit)
    count = together.take_some(bodies)
    taken = 0
    while taken < len(bodies) and each.take(bodies[taken]):
        taken += 1
    assert (count, together.bodies, together.credit, together.size) == (
        taken,
        each.bodies,
        each.credit,
        each.size,
    )
