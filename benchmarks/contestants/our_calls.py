"""netchannel's calls, as its users make them: a service that answers at once, and who calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import netchannel
from benchmarks.trips import DEADLINE_S, Echoes, Throng, Trips
from benchmarks.work import Result, Work


async def echo(work: Work, ready: Callable[[str], None]) -> Result:
    """Answer with what comes, until that is told to be all."""
    echoes, done = Echoes(work), asyncio.Event()

    def answer(body: bytes) -> bytes:
        echoes.count += 1
        return body

    def end(body: bytes) -> bytes:
        done.set()
        return body

    async with (
        netchannel.ReceiverServer() as receiver,
        receiver.register_service("echo", answer),
        receiver.register_service("end", end),
    ):
        ready(receiver.address)
        await done.wait()
        await asyncio.sleep(0.1)  # the answer to that goes out
    return echoes.result()


async def ask(work: Work, address: str) -> Result:
    """One call, and then the next."""
    trips = Trips(work)
    async with netchannel.Caller(address) as caller:
        await caller.call("echo", b"", deadline_s=DEADLINE_S)  # it is connected, as all others are
        message: bytes | None = trips.begin()
        while message is not None:
            message = trips.turn(await caller.call("echo", message, deadline_s=DEADLINE_S))
        await caller.call("end", b"", deadline_s=DEADLINE_S)
    trips.count += 1  # the first
    return trips.result()


async def ask_at_once(work: Work, address: str) -> Result:
    """Many calls at a time."""
    throng = Throng(work)
    async with netchannel.Caller(address) as caller:
        await throng.run(partial(caller.call, "echo", deadline_s=DEADLINE_S))
        await caller.call("end", b"", deadline_s=DEADLINE_S)
    return throng.result()
