"""Several channels to one process, beside another one, whose consumer takes nothing.

At half load, messages are due at half the rate of the contestant that is followed, on one channel after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import netchannel
from benchmarks.measuring import pace, watch
from benchmarks.work import Result, Work

FULL_AFTER_S = 0.2
"""A channel that has taken no message for so long is full."""


def _load(work: Work) -> Work:
    """Half of what was followed, or as much as goes through."""
    followed = work.options.get("followed")
    return work if followed is None else replace(work, rate=followed["messages_per_s"] / 2)


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Consume all but one."""
    work = _load(work)
    watching = watch(work)
    count = work.options["channels"]

    async def consume(inbox: netchannel.ReceiverChannel, number: int) -> None:
        look = watching.look() if work.rate is None else watching.look(number, count)
        async for message in inbox:
            look(message)

    async with netchannel.ReceiverServer() as receiver:
        stalled = receiver.register_channel("stalled", codec="bytes")
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(consume(receiver.register_channel(f"c{number}", codec="bytes"), number))
            ready(receiver.address)
        await stalled.close()
    return watching.result()  # type: ignore[no-any-return]


async def send(work: Work, address: str) -> Result:
    """Produce on all; a producer of its own waits at the stalled channel."""
    work = _load(work)
    pacing = pace(work)
    async with netchannel.SenderServer() as sender:
        outboxes = [
            sender.register_channel(f"c{number}", to=address, codec="bytes")
            for number in range(work.options["channels"])
        ]
        await asyncio.gather(*(outbox.attached() for outbox in outboxes))
        async with _stalled(sender, work, address) if work.options["stalled"] else contextlib.nullcontext():
            if work.rate is None:
                await asyncio.gather(*(_produce(outbox, pacing) for outbox in outboxes))
            else:
                await _produce_in_turn(outboxes, pacing)
            await asyncio.gather(*(outbox.close() for outbox in outboxes))
    return pacing.result()  # type: ignore[no-any-return]


async def _produce(outbox: netchannel.SenderChannel, pacing: Any) -> None:
    async for messages in pacing:
        for message in messages:
            await outbox.send(message)


async def _produce_in_turn(outboxes: list[netchannel.SenderChannel], pacing: Any) -> None:
    in_turn = itertools.cycle(outboxes)
    async for messages in pacing:
        for message in messages:
            await next(in_turn).send(message)


@contextlib.asynccontextmanager
async def _stalled(sender: netchannel.SenderServer, work: Work, address: str) -> AsyncIterator[None]:
    """A channel that is full, with a producer that waits, until its consumer closes it."""
    outbox = sender.register_channel("stalled", to=address, codec="bytes")
    message = bytes(work.size)

    async def produce() -> None:
        while True:
            await outbox.send(message)

    producing = asyncio.create_task(produce())
    taken = -1
    while outbox.position > taken:
        taken = outbox.position
        await asyncio.sleep(FULL_AFTER_S)  # full is what takes nothing for a time
    yield
    with contextlib.suppress(netchannel.ChannelClosedByPeer):
        await producing
