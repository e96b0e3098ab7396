"""A receiver that keeps a stream, on a machine that loses its power; and a sender and a consumer, on others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from netchannel import ChannelReader, Position, SenderChannel, SenderServer
from tests.support.ports import free_addresses

from .actors import TIMING, content, told_by
from .machine import Machine
from .stories import Life, Story, check_end, disk_errors, undecided


async def retain_stories(power: Machine, seeds: Iterable[str], lies: tuple[str, ...] = ()) -> None:
    """One after the other. Raises AssertionError where one does not go as promised."""
    async with SenderServer(timing=TIMING) as sender:
        for seed in seeds:
            print(seed)  # noqa: T201 - shown where it fails
            with undecided(lies):
                await _Retaining(Story(power, seed, lies), sender).run()


class _Retaining:
    """What `flush` has returned of is kept, and so is what a consumer has acknowledged."""

    def __init__(self, story: Story, sender: SenderServer) -> None:
        self._story = story
        self._address = free_addresses(1)[0]
        self._outbox: SenderChannel = sender.register_channel("c", self._address, codec="bytes")
        self._flushed = self._acknowledged = 0

    async def run(self) -> None:
        producing = asyncio.create_task(self._produce())
        try:
            for number, life in enumerate(self._story.lives()):
                await self._live(number, life, producing)
        finally:
            producing.cancel()
            self._story.power.cut()
            await self._outbox.close(grace=0)

    async def _live(self, number: int, life: Life, producing: asyncio.Task[None]) -> None:
        power = self._story.power
        process = power.start(
            "retain", *life, directory=str(power.place / "kept"), address=self._address, channel="c"
        )
        consuming = asyncio.create_task(self._consume(f"life {number}", life, self._flushed))
        ending = asyncio.create_task(self._story.ended(process))
        try:
            await asyncio.wait([producing, consuming, ending], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                power.cut()  # the last has shown all, or the disk has failed
            check_end(process, await ending, life, last=-9)
            assert consuming.done() or not life.is_last, process.said()
        finally:
            ending.cancel()
            consuming.cancel()
        with suppress(asyncio.CancelledError), disk_errors(life.fault):
            await consuming
        if producing.done():
            producing.result()

    async def _produce(self) -> None:
        outbox, random = self._outbox, self._story.messages
        while True:
            many = random.randint(1, 6)
            await outbox.send_many([content(outbox.position + number, 0) for number in range(many)])
            upto = outbox.position
            await outbox.flush()
            self._flushed = upto

    async def _consume(self, holder: str, life: Life, kept: int) -> None:
        """Read on and acknowledge: for ever, or a little more than was there in the life before."""
        async with ChannelReader(self._address, "c", codec="bytes", timing=TIMING) as reader:
            position = await reader.hold("me", holder=holder)
            assert position >= self._acknowledged, (
                f"{self._acknowledged} were acknowledged, {position} are remembered"
            )
            heads = await reader.heads()
            assert heads.head >= kept, f"{kept} were flushed, {heads.head} are there"
            while not life.is_last or position < kept + 20:
                heads = await reader.heads(beyond=position)
                async for body in reader.read(Position(self._outbox.stream, position), heads.head):
                    assert told_by(bytes(body)) == (position, 0)
                    position += 1
                await reader.ack("me", position)
                self._acknowledged = position
