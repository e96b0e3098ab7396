"""The same applications over real connections, on the running loop: their luck is drawn by a seed, all else is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from netchannel import Timing
from tests.simulator.oracle import Violation
from tests.simulator.plans import Shared, draw_plan
from tests.support.chaos import ChaosProxy

from .programs import Program, ReceivingProgram, SendingProgram
from .receiving import Receiving
from .sending import Sending

MESSAGES = 100
PATIENCE_S = 60.0
TIMING = Timing(backoff_s=0.005, backoff_limit_s=0.05, leave_s=1.0)


async def run(seed: int, address: str, directory: Path) -> None:
    """Send and receive at ``address`` through a proxy that cuts, and leave the servers now and then.

    Raises Violation, with the seed in its message, also if it is not through within a minute.
    """
    try:
        await _run(Random(seed), seed, address, directory)
    except (Violation, TimeoutError) as error:
        raise Violation(f"seed {seed}: {error!r}") from error


async def _run(random: Random, seed: int, address: str, directory: Path) -> None:
    shared = [
        Shared(draw_plan(random, f"c{n}", MESSAGES, patience_s=5.0), directory=directory) for n in range(2)
    ]
    receiving = [Receiving(each, random, lambda what: None, random) for each in shared]
    async with (
        ChaosProxy(address, seed=seed, mean_bytes=20_000, max_resets=12) as proxy,
        asyncio.timeout(PATIENCE_S),
    ):
        sending = [Sending(each, proxy.address, random) for each in shared]
        sender = SendingProgram(sending, TIMING)
        receiver = ReceivingProgram(
            receiving, TIMING, address, lambda: all(each.done for each in sending) and _heard(receiving)
        )
        to_receive = asyncio.create_task(receiver.run())
        disturbing = asyncio.create_task(_disturb(random, [sender, receiver], sending, receiving))
        try:
            await sender.run()
            while not to_receive.done():
                if _heard(receiving):
                    receiver.leave()
                await asyncio.wait([to_receive], timeout=0.01)
            await to_receive
        finally:
            for task in (disturbing, to_receive):
                task.cancel()
            await asyncio.wait([disturbing, to_receive])


def _heard(receiving: list[Receiving]) -> bool:
    return all(each.heard_all() for each in receiving)


async def _disturb(
    random: Random, programs: list[Program], sending: list[Sending], receiving: list[Receiving]
) -> None:
    """A few times within the first seconds."""
    for _ in range(4):
        await asyncio.sleep(random.random() * 0.5)
        match random.choice(["leave", "leave", "detach sender", "detach receiver", "fail"]):
            case "leave":
                random.choice(programs).leave()
            case "detach sender":
                one = random.choice(sending)
                one.wishes.append(one.detach)
            case "fail":
                one = random.choice(sending)
                one.wishes.append(one.fail)
            case _:
                other = random.choice(receiving)
                other.wishes.append(other.detach)
