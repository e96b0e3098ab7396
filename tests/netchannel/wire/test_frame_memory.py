"""Memory that frames are put together in."""

from __future__ import annotations

from netchannel.wire.frame_memory import KEPT, FrameMemory
from netchannel.wire.frames import GATHERED, pack

BODIES = [bytes([number]) * 1000 for number in range(GATHERED // 1000 + 1)]


def framed(memory: FrameMemory | None, first: int) -> memoryview | bytes:
    (frame,) = pack(BODIES, {}, first, 0, memory)
    assert isinstance(frame, memoryview | bytes)
    return frame


def test_a_frame_is_the_same_wherever_it_is_put_together() -> None:
    for bodies in (BODIES, [b"odd", *BODIES], [bytes(7)] * 4000, [b""] * 9000):
        for notes in ({}, {1: b"note"}):
            (there,), (here,) = (pack(bodies, notes, 5, 6, memory) for memory in (FrameMemory(), None))
            assert bytes(there) == here


def test_memory_that_a_view_refers_to_is_not_written_to() -> None:
    memory = FrameMemory()
    views = []
    for number in range(100):
        views.append(framed(memory, number)[40:])
        if number % 3 == 0:
            del views[number // 6]
    expected = bytes(views[0])
    for number in range(100):
        framed(memory, number)
    assert all(bytes(view) == expected for view in views)


def test_memory_is_used_again_though_as_much_as_is_kept_is_held_for_long() -> None:
    memory = FrameMemory()
    held = [framed(memory, number) for number in range(2 * KEPT)]
    for number in range(50 * KEPT):
        framed(memory, number)  # until all that is held is forgotten
    assert all(len(memory.take().getbuffer()) > 0 for _ in range(10)), "it was written to before"
    assert len(held) == 2 * KEPT
