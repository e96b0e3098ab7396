"""A sender with a durable buffer, on a machine that loses its power, and a receiver that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from netchannel import ReceiverChannel, ReceiverServer

from .actors import TIMING, told_by
from .machine import Machine, Process
from .stories import DEADLINE_S, Story, check_end, undecided


async def send_stories(power: Machine, seeds: Iterable[str], lies: tuple[str, ...] = ()) -> None:
    """One after the other. Raises AssertionError where one does not go as promised."""
    async with ReceiverServer(timing=TIMING) as receiver:
        for seed in seeds:
            print(seed)  # noqa: T201 - shown where it fails
            with undecided(lies):
                await _send(Story(power, seed, lies), receiver)


async def _send(story: Story, receiver: ReceiverServer) -> None:
    """What `send` has returned of is received, once, and no number is used twice."""
    inbox = receiver.register_channel(story.seed, codec="bytes")
    consuming = asyncio.create_task(_all_of(inbox))
    returned: dict[int, int] = {}  # numbers, and in which life their `send` returned
    try:
        for number, life in enumerate(story.lives()):
            process = story.power.start(
                "send", *life, directory=str(story.power.place / "buffers"), address=receiver.address,
                channel=story.seed, life=number, count=max(returned, default=0) + 20 if life.is_last else None,
            )  # fmt: skip
            try:
                status = await story.ended(process)
            finally:
                _note(returned, process, number)
            check_end(process, status, life)
        received = await asyncio.wait_for(consuming, DEADLINE_S)
    finally:
        consuming.cancel()
        await inbox.close()
    for number, body in enumerate(received):
        found, life_of_it = told_by(body)
        assert (found, life_of_it) == (number, returned.get(number, life_of_it))
    assert len(received) > max(returned)


def _note(returned: dict[int, int], process: Process, life: int) -> None:
    for what, *numbers in process.said():
        if what == "at":
            assert numbers[0] > max(returned, default=-1), (
                f"numbers go on at {numbers[0]}, {max(returned)} was sent"
            )
        elif what == "sent":
            for number in range(*numbers):
                assert returned.setdefault(number, life) == life, f"number {number} was sent twice"


async def _all_of(inbox: ReceiverChannel) -> list[bytes]:
    return [bytes(body) async for body in inbox]
