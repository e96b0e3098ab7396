"""Shards that several processes have open: they race, they wait for each other, they are killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from nebuli.store import Store
from tests.support.seeds import drawn_seed
from tests.support.starter import Forked, start_program
from tests.support.stores import (
    SCHEMA,
    UNSTEADY,
    Here,
    Place,
    blobs_at,
    by_time,
    files,
    listened,
    place_of,
    store_at,
    weights,
    zset,
)
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

_WRITERS = 8
_APPENDS = 1000
_APPENDS_OVER_KILLS = 300
"""One is killed about every 20 of them."""
_UNSTEADY_ONE_IN = 5
"""As many of the appends go to servers, whose answers take longer, and are lost."""

_RACING = """
import asyncio
import json
import os
import sys
from nebuli.store import Store
from nebuli.store.errors import UpperMismatch
from tests.support.stores import zset

async def race(folder, me, until, said):
    async with Store.at(folder) as store:
        shard = await store.open_shard("s")
        while (at := shard.upper) < until:
            padding = 40000 if at % 10 == 0 else 0
            rows = zset((me, 1), (at, 1), (-1, 1), padding=padding)
            try:
                await shard.compare_and_append([(at, rows)], at, at + 1)
            except UpperMismatch as error:
                assert error.expected == at < error.found, (at, error.found)
            else:
                os.write(said, b"%d\\n" % at)

folder, me, until, said = sys.argv[1:]
said = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
asyncio.run(race(folder, int(me), int(until), said))
"""


@pytest.fixture(params=["here", UNSTEADY])
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request)


def appends(place: Place, number: int) -> int:
    return number if isinstance(place, Here) else number // _UNSTEADY_ONE_IN


def written(place: Place) -> str:
    """A place as a process is given it."""
    return str(place.folder if isinstance(place, Here) else place.url)  # type: ignore[attr-defined]  # it is away


def started(program: str, *arguments: object) -> Forked:
    process = start_program(program, *arguments)
    process.stdout.close()
    return process


def said(path: Path) -> list[int]:
    """What a process said to have won; a line that it was killed in is none."""
    whole = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""
    return [int(line) for line in whole.splitlines()]


async def winners(place: Place, appends: int) -> list[int]:
    """Of each time, who is in the shard with it."""
    async with store_at(place) as store:
        shard = await store.open_shard("s")
        found = by_time(await listened(shard, 0, appends))
    won = []
    for at in range(appends):
        assert found[at].pop(-1) == 1
        rows = Counter(found[at])
        rows[at] -= 1  # a writer's number may be the time's
        (winner,) = (number for number, weight in rows.items() if weight)
        won.append(winner)
    assert sorted(found) == list(range(appends))
    return won


async def test_of_eight_processes_one_wins_each_time(place: Place, tmp_path: Path) -> None:
    """ST-SH-4: 1000 times; the others are told the upper that is there then."""
    async with store_at(place) as store:
        await store.create_shard("s", SCHEMA)
    numbers = range(2000, 2000 + _WRITERS)
    until = appends(place, _APPENDS)
    processes = [started(_RACING, written(place), me, until, tmp_path / f"{me}") for me in numbers]
    assert [process.wait(200) for process in processes] == [0] * _WRITERS
    won = await winners(place, until)
    for me in numbers:
        assert said(tmp_path / f"{me}") == [at for at, winner in enumerate(won) if winner == me]


async def test_of_what_killed_processes_said_nothing_is_lost(place: Place, tmp_path: Path) -> None:
    """One of three is killed again and again, and another takes its place."""
    async with store_at(place) as store:
        shard = await store.create_shard("s", SCHEMA)
        with drawn_seed() as seed:
            random = Random(seed)
            numbers = iter(range(2000, 100_000))
            racing: dict[int, Forked] = {}
            kills = 0
            until = appends(place, _APPENDS_OVER_KILLS)
            while shard.upper < until:
                while len(racing) < 3:
                    me = next(numbers)
                    racing[me] = started(_RACING, written(place), me, until, tmp_path / f"{me}")
                upto = min(shard.upper + random.randint(1, 40), until)

                async def has_grown(upto: int = upto) -> bool:
                    await shard.refresh()
                    return shard.upper >= upto

                await until_async(has_grown, f"{upto} appends")
                for me in [me for me, process in racing.items() if process.poll() is not None]:
                    assert racing.pop(me).returncode == 0
                if racing and shard.upper < until:
                    process = racing.pop(random.choice(list(racing)))
                    process.kill()
                    process.wait()
                    kills += 1
            for process in racing.values():
                assert process.wait(60) == 0
            assert kills
            won = await winners(place, until)
            for me in range(2000, next(numbers)):
                mine = [at for at, winner in enumerate(won) if winner == me]
                assert said(tmp_path / f"{me}") in (mine, mine[:-1])  # killed before it could say so
            await shard.hold("h", until - 1)
            await shard.compact(full=True)
            await shard.compact(full=True)
            assert len(blobs_at(place)) <= 1
            kept = weights(await shard.snapshot(until - 1))
            assert sum(kept.values()) == 3 * until


_ECHOING = """
import asyncio
import sys
from nebuli.store import Store
import nebuli.store.shards.access
nebuli.store.shards.access._FALLBACK_S = 1000.0

async def echo(folder, count):
    async with Store.at(folder) as store:
        asked, answered = await store.open_shard("asked"), await store.open_shard("answered")
        async for span in asked.listen(0):
            for at, rows in span.updates:
                await answered.compare_and_append([(at, rows)], at, at + 1)
            if span.upper == count:
                return

asyncio.run(echo(sys.argv[1], int(sys.argv[2])))
"""


async def test_who_waits_is_woken_by_another_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of both looks by itself."""
    monkeypatch.setattr("nebuli.store.shards.access._FALLBACK_S", 1000.0)
    count = 100
    async with Store.at(folder) as store:
        asked = await store.create_shard("asked", SCHEMA)
        answered = await store.create_shard("answered", SCHEMA)
        process = started(_ECHOING, folder, count)
        heard = answered.listen(0)
        for at in range(count):
            await asked.compare_and_append([(at, zset((at, 1)))], at, at + 1)
            span = await asyncio.wait_for(anext(heard), 60)
            assert (span.upper, weights([span.updates[0][1]])) == (at + 1, {at: 1})
        assert process.wait(60) == 0
        await heard.aclose()


async def test_a_process_that_is_killed_before_the_bell_is_noticed_all_the_same(folder: Path) -> None:
    silent = """
import asyncio
import os
import signal
import sys
from nebuli.store import Store
from nebuli.store.ordering.sqlite import SqliteOrdering
from tests.support.stores import zset

SqliteOrdering._ring = lambda self: os.kill(os.getpid(), signal.SIGKILL)

async def append(folder):
    async with Store.at(folder) as store:
        await (await store.open_shard("s")).compare_and_append([(0, zset((1, 1)))], 0, 1)

asyncio.run(append(sys.argv[1]))
"""
    async with Store.at(folder) as store:
        shard = await store.create_shard("s", SCHEMA)
        snapshot = asyncio.create_task(shard.snapshot(0))
        process = started(silent, folder)
        assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL
        assert weights(await snapshot) == {1: 1}


_COMPACTING = """
import asyncio
import os
import sys
from nebuli.store import Store
from tests.support.stores import zset

async def run(folder, said):
    async with Store.at(folder) as store:
        shard = await store.open_shard("s")
        while True:
            at = shard.upper
            await shard.compare_and_append([(at, zset((at, 1), (-1, 1), (-2, 1), padding=30000))], at, at + 1)
            os.write(said, b"%d\\n" % at)
            await shard.hold("h", at)
            await shard.compact(full=at % 3 == 0)

asyncio.run(run(sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)))
"""


async def test_a_compaction_that_is_killed_loses_nothing_and_leaves_nothing_for_long(
    folder: Path, tmp_path: Path
) -> None:
    async with Store.at(folder) as store:
        shard = await store.create_shard("s", SCHEMA)
        with drawn_seed() as seed:
            random = Random(seed)
            for life in range(15):
                file = tmp_path / f"{life}"
                process = started(_COMPACTING, folder, file)

                async def has_begun(file: Path = file) -> bool:
                    return len(said(file)) > 0

                await until_async(has_begun, "an append")
                await asyncio.sleep(random.uniform(0, 0.1))
                process.kill()
                process.wait()
                await shard.refresh()
                assert shard.upper - said(file)[-1] in (1, 2)
                expected = {-1: shard.upper, -2: shard.upper} | dict.fromkeys(range(shard.upper), 1)
                assert weights(await shard.snapshot(shard.upper - 1)) == expected
                assert await shard.compact(full=True)
                used = {part.blob for part in shard._tracked.state.parts if part.blob}
                assert used == set(files(folder)), "the next compaction has left something"
