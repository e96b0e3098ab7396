"""A receiver that consumes staged groups, on a machine that loses its power; and who commits them, on another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from contextlib import suppress

from netchannel import AttemptLost, Group, GroupClient, Sealed, SenderServer
from tests.support.ports import free_addresses

from .actors import TIMING, shown
from .machine import Machine, Process
from .stories import ANY, Story, check_end, disk_errors, undecided

_TIMES = ([1, 300, 150_000], [10, 10, 1])
"""How often the same is said in a message, and how often that is: the largest make files to be written again."""


async def stage_stories(power: Machine, seeds: Iterable[str], lies: tuple[str, ...] = ()) -> None:
    """One after the other. Raises AssertionError where one does not go as promised."""
    async with SenderServer(timing=TIMING) as sender:
        for seed in seeds:
            print(seed)  # noqa: T201 - shown where it fails
            with undecided(lies):
                await _stage(Story(power, seed, lies), sender)


async def _stage(story: Story, sender: SenderServer) -> None:
    """A group whose commit was answered is consumed, whole, once, at its place; no other is."""
    power, address = story.power, free_addresses(1)[0]
    committer = _Committer(story, sender, address)
    committing = asyncio.create_task(committer.run())
    got: dict[int, str] = {}
    try:
        for life in story.lives():
            process = power.start(
                "stage", *life, directory=str(power.place / "staged"), address=address, channel="c"
            )
            committer.restart(is_last=life.is_last)
            ending = asyncio.create_task(story.ended(process))
            stuck = asyncio.create_task(committer.stuck.wait())
            over = [] if life.is_last else [committing]
            await asyncio.wait([ending, stuck, *over], return_when=asyncio.FIRST_COMPLETED)
            stuck.cancel()
            if not ending.done():
                power.cut()  # the disk has failed, and goes on failing
            status = await ending
            if committing.done():
                committing.result()
            _note(got, process, len(committer.committed))
            check_end(process, status, life)
        assert got == dict(enumerate(committer.committed))
    finally:
        committing.cancel()
        power.cut()


def _note(got: dict[int, str], process: Process, count: int) -> None:
    for what, *words in process.said():
        if what == "got":
            sequence, body = words
            assert sequence < count, f"nobody has committed number {sequence}"
            assert got.setdefault(sequence, body) == body, f"number {sequence} is of two messages"


class _Committer:
    """Writes attempts and commits them, epoch after epoch, until it is told that the next is the last."""

    def __init__(self, story: Story, sender: SenderServer, address: str) -> None:
        self.committed: list[str] = []  # those at the end perhaps not yet
        self.stuck = asyncio.Event()  # until the receiver is another
        self._restarted = asyncio.Event()
        self._is_last = False
        self._random = story.messages
        self._sender = sender
        self._address = address

    def restart(self, *, is_last: bool) -> None:
        """There is another receiver."""
        self._is_last = is_last
        self.stuck.clear()
        self._restarted.set()

    async def run(self) -> None:
        async with GroupClient(self._address, "c", timing=TIMING) as client:
            for epoch in itertools.count():
                is_last = self._is_last
                winners = [await self._written(epoch, partition) for partition in range(2)]
                self.committed += [shown(body) for _, bodies in winners for body in bodies]
                sealed = [sealed for sealed, _ in winners]
                while not await self._commit(client, epoch, sealed, end=is_last):
                    pass
                if is_last:
                    return

    async def _written(self, epoch: int, partition: int) -> tuple[Sealed, list[bytes]]:
        """An attempt, as often as it takes."""
        random = self._random
        for attempt in itertools.count():
            bodies = [
                b"%d.%d.%d.%d " % (epoch, partition, attempt, number) * random.choices(*_TIMES)[0]
                for number in range(random.randint(0, 5))
            ]
            outbox = self._sender.register_attempt(
                "c", self._address, Group("app", epoch, partition), codec="bytes"
            )
            with suppress(AttemptLost), disk_errors(ANY):
                await outbox.send_many(bodies)
                return await outbox.seal(), bodies
        raise AssertionError

    async def _commit(self, client: GroupClient, epoch: int, sealed: list[Sealed], *, end: bool) -> bool:
        """Whether it was answered: where the journal's disk has failed, by another receiver only."""
        with disk_errors(ANY):
            await client.commit("app", epoch, sealed, end=end)
            return True
        self._restarted.clear()
        self.stuck.set()
        await self._restarted.wait()
        return False
