"""Core NATS: a subject of a server between the two, with nats-py.

The server confirms nothing and drops what a subscriber does not take in time. So the subscriber tells the publisher how
far it is, and the publisher goes no further ahead than a window: what one writes who wants to lose nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats
import nats.aio.client
import nats.aio.msg

from benchmarks.measuring import pace, watch
from benchmarks.trips import Echoes, Trips
from benchmarks.work import END, Result, Work

WINDOW_BYTES, WINDOW_MESSAGES = 16 << 20, 1 << 15
TELLS = 8
"""How often per window the subscriber says how far it is."""


def _window(work: Work) -> int:
    return max(TELLS, min(WINDOW_MESSAGES, WINDOW_BYTES // work.size))


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Subscribe until the end's message."""
    client = await nats.connect(work.options["broker"])
    watching = watch(work)
    look = watching.look()
    done = asyncio.get_running_loop().create_future()
    each, count = _window(work) // TELLS, 0

    async def take(message: nats.aio.msg.Msg) -> None:
        nonlocal count
        if len(message.data) == 1:
            done.set_result(None)
            return
        try:
            look(message.data)
        except Exception as error:  # noqa: BLE001 - the client would log it and go on: whoever waits is to hear of it
            done.set_exception(error)
        count += 1
        if count % each == 0:
            await client.publish("taken", count.to_bytes(8, "little"))

    await client.subscribe("b", cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    ready(work.options["broker"])
    await done
    result: Result = watching.result()
    await client.close()
    return result


async def send(work: Work, address: str) -> Result:
    """Publish, not too far ahead."""
    client = await nats.connect(address)
    window, taken, count = _window(work), 0, 0
    moved = asyncio.Event()

    async def on_taken(message: nats.aio.msg.Msg) -> None:
        nonlocal taken
        taken = int.from_bytes(message.data, "little")
        moved.set()

    await client.subscribe("taken", cb=on_taken)
    await client.flush()
    pacing = pace(work)
    async for messages in pacing:
        for message in messages:
            while count - taken >= window:
                moved.clear()
                await moved.wait()
            await client.publish("b", message)
            count += 1
    await client.publish("b", END)
    await client.flush()
    result: Result = pacing.result()
    await client.close()
    return result


async def echo(work: Work, ready: Callable[[str], None]) -> Result:
    """Send back what comes, under another subject."""
    client = await nats.connect(work.options["broker"])
    echoes, done = Echoes(work), asyncio.Event()

    async def answer(message: nats.aio.msg.Msg) -> None:
        if message.data == END:
            done.set()
            return
        await client.publish("back", message.data)
        echoes.count += 1

    await client.subscribe("there", cb=answer)
    await client.flush()
    ready(work.options["broker"])
    await done.wait()
    await client.close()
    return echoes.result()


async def ask(work: Work, address: str) -> Result:
    """One message there and back, and then the next."""
    client = await nats.connect(address)
    trips, done = Trips(work), asyncio.get_running_loop().create_future()

    async def take(message: nats.aio.msg.Msg) -> None:
        try:
            question = trips.turn(message.data)
        except Exception as error:  # noqa: BLE001 - as above
            done.set_exception(error)
            return
        if question is None:
            done.set_result(None)
        else:
            await client.publish("there", question)

    await client.subscribe("back", cb=take)
    await client.flush()
    await client.publish("there", trips.begin())
    await done
    await client.publish("there", END)
    await client.flush()
    await client.close()
    return trips.result()
