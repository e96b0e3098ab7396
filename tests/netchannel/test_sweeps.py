"""A short session, cut and changed at every byte of both of its connections, in both directions.

Each byte has its turn on one of the two loops: they take every other one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TypeVar

import pytest

import netchannel
from netchannel import ReceiverServer, SenderServer, Timing
from tests.support.chaos import DOWN, UP, CutAfter, Flip, Proxy, Wire
from tests.support.sizes import some

CONTROL, DATA = 0, 1
"""Connections of a session, by the order in which they are dialed."""
TIMING = Timing(backoff_s=0.001, backoff_limit_s=0.01)
MESSAGES = [(b"first", b"a note"), (b"", b""), (b"third" * 9, b"")]
AT_ONCE = 25

T = TypeVar("T")
MakeWire = Callable[[int], Wire]


def name(connection: int, direction: str, place: int) -> str:
    """A channel's id, always as long."""
    return f"{connection} {direction:4} {place:4}"


async def session(receiver: ReceiverServer, channel: str, proxy: Proxy) -> None:
    """Three messages and the end, each behind the acknowledgement of the one before; all of it exact."""
    inbox = receiver.register_channel(channel, codec="bytes")
    async with SenderServer(timing=TIMING) as sender, asyncio.timeout(60):
        outbox = sender.register_channel(channel, to=proxy.address, codec="bytes")
        for body, note in MESSAGES:
            await outbox.send(body, note)
            await outbox.flush()
        report = await outbox.close()
        assert report == netchannel.CloseReport(acknowledged=len(MESSAGES))
        got = [await inbox.recv_message() for _ in MESSAGES]
        assert [(m.sequence, bytes(m.batch), m.note) for m in got] == [
            (number, body, note) for number, (body, note) in enumerate(MESSAGES)
        ]
        with pytest.raises(netchannel.EndOfChannel):
            await inbox.recv()
        assert (inbox.statistics().state, outbox.statistics().state) == ("ended", "ended")


async def through(receiver: ReceiverServer, channel: str, make_wire: MakeWire) -> list[Wire]:
    """A session through a proxy of such wires."""
    async with Proxy(receiver.address, make_wire) as proxy:
        await session(receiver, channel, proxy)
        return proxy.wires


async def recorded(receiver: ReceiverServer) -> list[tuple[int, str, int]]:
    """Every place of an undisturbed session: connection, direction, byte."""
    wires = await through(receiver, name(0, UP, -1), lambda _: Wire())
    assert len(wires) == 2
    return [
        (connection, direction, place)
        for connection, wire in enumerate(wires)
        for direction in (UP, DOWN)
        for place in range(wire.passed[direction])
    ]


def of_this_loop(places: Sequence[T]) -> Sequence[T]:
    """Every other one; the rest has its turn on the other loop."""
    return some(places[isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop) :: 2])


async def in_groups(work: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Some at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: Coroutine[None, None, T]) -> T:
        async with room:
            return await each

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(each)) for each in work]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "hung up"])
async def test_a_cut_at_any_byte_leaves_the_sequence_exact_and_both_sides_finish(resets: bool) -> None:
    """CH-SEQ-2, CH-END-4: control and data, both directions, behind every byte from none to the last but one."""
    async with ReceiverServer(timing=TIMING) as receiver:

        async def cut(connection: int, direction: str, place: int) -> int:
            def make_wire(number: int) -> Wire:
                return CutAfter(direction, place, resets=resets) if number == connection else Wire()

            wires = await through(receiver, name(connection, direction, place), make_wire)
            return sum(wire.is_cut for wire in wires)

        places = await recorded(receiver)
        assert len(places) > 1000
        turns = of_this_loop(places)
        assert await in_groups(cut(*place) for place in turns) == [1] * len(turns)


async def test_a_changed_bit_at_any_byte_is_found_and_the_sequence_exact() -> None:
    """CH-BAD-1: control and data, both directions: the changed connection is given up, and nothing waits for ever."""
    bits = random.Random(3)
    async with ReceiverServer(timing=TIMING) as receiver:

        async def flip(connection: int, direction: str, place: int) -> bool:
            flip = Flip(direction, place, bits.randrange(8))
            await through(
                receiver,
                name(connection, direction, place),
                lambda number: flip if number == connection else Wire(),
            )
            return flip.flipped

        places = await recorded(receiver)
        assert all(await in_groups(flip(*place) for place in of_this_loop(places)))
