"""Instances of a source, each in a process of its own, which are killed; and who follows what they write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random

from nebuli.ingestion.source_client import Sources
from tests.nebuli.store.collections.rows import Accumulated
from tests.support.starter import Forked, start_program
from tests.support.waiting import until_async

_INSTANCE = """
import asyncio
import sys
from nebuli.ingestion.recipe import timed_messages
from nebuli.ingestion.source_client import Sources

timed_messages._HELD_S = 0.3  # so that sources let go of messages between kills

async def main(store, source, name):
    async with Sources(store) as sources:
        await sources.ingest(source, instance=name)

asyncio.run(main(*sys.argv[1:]))
"""


class InstanceProcesses:
    """Up to three at once, each under a name that it has again when it comes again."""

    def __init__(self, store: Path, source: str) -> None:
        self._store, self._source = store, source
        self._running: dict[str, Forked] = {}

    def have(self, count: int) -> None:
        """Start as many as there are to be, at least."""
        self.check()
        for name in ("1", "2", "3")[:count]:
            if name not in self._running:
                self._running[name] = start_program(_INSTANCE, self._store, self._source, name)

    def check(self) -> None:
        """None has ended by itself."""
        ended = {name: each.returncode for name, each in self._running.items() if each.poll() is not None}
        assert not ended, "instances have ended, with these codes"

    def kill(self, random: Random) -> None:
        """Some of them, or all, by SIGKILL."""
        self.check()
        self._kill(random.sample(sorted(self._running), random.randint(1, len(self._running))))

    def kill_all(self) -> None:
        self._kill(list(self._running))

    def _kill(self, names: Iterable[str]) -> None:
        killed = [self._running.pop(name) for name in names]
        for each in killed:
            each.kill()
        for each in killed:
            each.wait(60)
            each.stdout.close()

    def __bool__(self) -> bool:
        return bool(self._running)


@asynccontextmanager
async def instance_processes(store: Path, source: str) -> AsyncIterator[InstanceProcesses]:
    """None at first; they do not outlive the context."""
    processes = InstanceProcesses(store, source)
    try:
        yield processes
    finally:
        processes.kill_all()


@asynccontextmanager
async def followed(sources: Sources, source: str) -> AsyncIterator[Accumulated]:
    """What a reader has that follows it from its beginning on, and sees that its frontier never goes back."""
    follower = Accumulated()

    async def follow() -> None:
        async with aclosing(sources.collections.subscribe(source, 0, snapshot=True)) as spans:
            async for span in spans:
                follower.take(span)

    async def watch() -> None:
        before = 0
        while True:
            upper = (await sources.collections.describe(source)).upper
            assert upper >= before, "the frontier has gone back"
            before = upper
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(follow()), asyncio.create_task(watch())]
    try:
        yield follower
        for each in tasks:
            if each.done():
                each.result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def more_is_followed(follower: Accumulated, times: int = 1) -> None:
    """Wait until changes at more times have come to a reader."""
    wanted = len(follower.changes) + times

    async def has_come() -> bool:
        return len(follower.changes) >= wanted

    await until_async(has_come, f"changes at {times} more times are ingested, after {wanted - times}")


@asynccontextmanager
async def in_background(work: asyncio.Task[None]) -> AsyncIterator[None]:
    """Something that is done meanwhile, and ends then; what it raises is raised."""
    try:
        yield
        async with asyncio.timeout(60):
            await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
