"""A state folder of a circuit in this process, one file of which is damaged, and the circuit that begins with it."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from nebuli.connectors.errors import FragmentError
from nebuli.steps.errors import MembersFailed
from nebuli.steps.local.kept_state import KeptState
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.delivery import Deliveries
from nebuli.steps.member.member_store import LOG
from nebuli.steps.protocol.errors import CoordinationError
from nebuli.steps.stepped_query import SteppedQuery
from nebuli.store import Store
from nebuli.store.errors import StorageError
from nebuli.store.ordering.sqlite import FILE
from tests.support.told_members import Members, pushed_query, until, until_running
from topology import SinkConnector

STATE = "state"
FOLDERS = ("killed", "ended")
_ROWS = [50, 3, 12_000, 40, 7, 1, 9_000, 20]
"""Rows of each push: some are kept in entries, some in blobs."""
_CHECKPOINTS = {12_000, 1}
"""A checkpoint follows these."""
_AFTER = 30
_BLOCK = 4096
_OFTEN = 6
"""An ordering's database and its write-ahead log are damaged so many times as often as a file of another kind."""
_WITHIN_S = 30.0
_REFUSALS = (StorageError, CoordinationError, MembersFailed, FragmentError)


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage to a ``file`` of a folder."""

    file: Path
    what: str

    def __str__(self) -> str:
        return f"{self.what} of {self.file}"


def damaged(folder: Path, random: Random) -> Damage:
    """Damage one file of a folder: a bit is flipped, a block zeroed, or it is cut or deleted."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    (file,) = random.choices(files, [_OFTEN if each.name.startswith(FILE) else 1 for each in files])
    content = bytearray(file.read_bytes())
    kind = random.choices(["bit", "block", "cut", "gone"], [5, 3, 3, 1])[0]
    at = random.randrange(len(content)) if content else 0
    what = f"byte {at} of {len(content)}: {kind}"
    if kind == "gone" or not content:
        file.unlink()
        what = "gone"
    elif kind == "bit":
        content[at] ^= 1 << random.randrange(8)
        file.write_bytes(content)
    elif kind == "block":
        at -= at % _BLOCK
        content[at : at + _BLOCK] = bytes(len(content[at : at + _BLOCK]))
        file.write_bytes(content)
    else:
        file.write_bytes(content[:at])
    return Damage(file.relative_to(folder), what)


def targets_in(folder: Path, query: SteppedQuery) -> dict[str, SinkConnector]:
    """All rows into a file that grows, and sums into one that is written as a whole."""
    modes = {"rows": "append", "sums": "final"}
    return {
        output: target.model_copy(update={"path": folder / f"{output}.csv", "mode": modes[output]})
        for output, target in query.targets.items()
    }


class Kept:
    """What a circuit leaves when it is killed, and when it ends.

    Each of both is put back to one ``place``, as sinks name files there.
    """

    def __init__(self, folder: Path) -> None:
        self.place = folder / "place"
        self._folders = {kind: folder / kind for kind in FOLDERS}
        self.pushed = 0

    @classmethod
    async def made(cls, folder: Path) -> Self:
        """What one circuit left in a folder."""
        kept = cls(folder)
        kept.place.mkdir()
        async with _Running(kept.place) as run:
            for count in _ROWS:
                await run.push(range(kept.pushed, kept.pushed + count))
                kept.pushed += count
                await run.stepped()
                if count in _CHECKPOINTS:
                    await run.checkpoint()
            run.coordinator.pause()
            await run.coordinator.rest()
            shutil.copytree(kept.place, kept._folders["killed"])
            run.coordinator.start()
            await run.end()
        shutil.copytree(kept.place, kept._folders["ended"])
        return kept

    def put_back(self, kind: str) -> None:
        """Have the place as it was."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self._folders[kind], self.place)


async def outcome(kept: Kept, kind: str, damage: Random | None) -> tuple[Damage | None, str]:
    """Continue with what was kept, and damaged: `right`, or what it was refused with.

    Raises AssertionError where the result is a wrong one.
    """
    kept.put_back(kind)
    did = None if damage is None else damaged(kept.place / STATE, damage)
    return did, await continued(kept, did)


async def continued(kept: Kept, did: Damage | None = None) -> str:
    """Continue at the place, whatever there is: the same."""
    folder = kept.place
    try:
        async with asyncio.timeout(_WITHIN_S), _Running(folder) as run:
            assert run.next_sequence() == len(_ROWS), f"{did}: the producer is to continue elsewhere"
            await run.push(range(kept.pushed, kept.pushed + _AFTER))
            await run.stepped()
            await run.end()
    except _REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    everything = range(kept.pushed + _AFTER)
    assert sorted(map(int, _column(folder / "rows.csv", 0))) == list(everything), f"{did}: rows"
    sums: Counter[int] = Counter()
    for number in everything:
        sums[number % 10] += number
    found = dict(
        zip(map(int, _column(folder / "sums.csv", 0)), map(int, _column(folder / "sums.csv", 2)), strict=True)
    )
    assert found == sums, f"{did}: sums"
    return "right"


def _column(file: Path, index: int) -> list[str]:
    return [line.split(",")[index] for line in file.read_text("utf-8").splitlines()[1:]]


class _Running:
    """A circuit in this process, with sinks, at a folder that says whose it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._logs: dict[str, OutputLog] = {}

    async def __aenter__(self) -> _Running:
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _begin(self) -> None:
        query = pushed_query(2, spread="a")
        state = KeptState(self._folder / STATE)
        self._stack.enter_context(state.lock())
        await state.claim(query)
        for place in state.members(0, query.plan.members):
            await asyncio.to_thread(Store.make, place)
        self.members = Members(query, self._folder / STATE)
        self._stack.push_async_exit(self.members)
        await self.members.__aenter__()
        self._sinks = await self._delivering(query)
        self.coordinator = await self._stack.enter_async_context(self.members.coordinated())
        await self._unless_failed(until_running(self.coordinator))
        self._sinks.open_now()

    async def _delivering(self, query: SteppedQuery) -> Deliveries:
        for output in query.targets:
            store = await self._stack.enter_async_context(
                Store.at(self.members.store(query.plan.homes[output]))
            )
            self._logs[output] = await OutputLog.open(store, LOG, self.members.own_outputs(output))
        sinks = Deliveries(self._logs, targets_in(self._folder, query))
        await sinks.begin()
        self._stack.push_async_callback(sinks.abort, "it is over")
        return sinks

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def next_sequence(self) -> int:
        return self.members.members[0].log.next_sequence("p")

    async def push(self, pushed: range) -> None:
        await self._unless_failed(self.members.push_numbers(0, pushed))

    async def stepped(self) -> None:
        """Wait until steps have all that was pushed."""
        await self._unless_failed(self._in_step())

    async def _in_step(self) -> None:
        await until(lambda: not any(each.waiting_rows for each in self.members.members), "all is in steps")
        await self.coordinator.caught_up()

    async def checkpoint(self) -> None:
        await self._unless_failed(self.coordinator.checkpoint())
        self._sinks.keep_soon()
        await asyncio.sleep(0.05)

    async def end(self) -> None:
        self.coordinator.shut_down(drain=True)
        step = await self.coordinator.running
        await self._sinks.finish(step)

    async def _unless_failed(self, work: Coroutine[Any, Any, object]) -> None:
        tasks = [
            asyncio.ensure_future(work),
            asyncio.ensure_future(self._sinks.failed()),
            asyncio.shield(self.coordinator.running),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
