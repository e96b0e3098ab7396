"""A database whose process is killed, again and again (DBSP-DB-2, 7, 8, 11)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from nebuli.store import Store
from nebuli.store.errors import Locked
from tests.support.seeds import drawn_seed
from tests.support.starter import Forked, start_program
from tests.support.stores import files

pytestmark = [pytest.mark.processes, pytest.mark.long]

_KILLS = 60
_KEYS = 6

_COMMITTING = """
import asyncio
import os
import sys
from nebuli.store import Store

async def commit(folder):
    async with Store.at(folder) as store:
        states = store.state_store("s")
        while True:
            versions = await states.versions()
            version = versions[-1]
            database = await states.open(version)
            database.set_step(version + 1)
            for key in range(6):
                long = b"%d " % (version + 1) * (4000 if key % 2 else 1)
                await database.put("t", b"%d" % key, long)
            print("committing", version + 1, flush=True)
            await database.commit()
            print("committed", version + 1, flush=True)

asyncio.run(commit(sys.argv[1]))
"""


def started(folder: Path, program: str = _COMMITTING) -> Forked:
    return start_program(program, folder)


async def check(folder: Path, random: Random) -> tuple[range, int]:
    """The versions, and one that was opened and found whole."""
    async with Store.at(folder) as store:
        states = store.state_store("s")
        versions = await states.versions()
        assert len(versions) in (1, 2)
        opened = random.choice(versions)
        async with await states.open(opened) as database:
            assert await states.versions() == range(opened, opened + 1)
            assert database.get_step() == opened
            for key in range(_KEYS if opened else 0):
                found = await database.get("t", b"%d" % key)
                assert found is not None
                assert set(found.to_pybytes().split()) == {b"%d" % opened}
            assert len(files(folder)) == (_KEYS // 2 if opened else 0)
        return versions, opened


async def test_a_killed_commit_is_whole_or_not_there(folder: Path) -> None:
    """DBSP-DB-2, DBSP-DB-7, DBSP-DB-8: 60 kills, at random, of which many are within a commit."""
    with drawn_seed() as seed:
        random = Random(seed)
        version = 0
        within_commits = 0
        for _ in range(_KILLS):
            process = started(folder)
            said = [process.stdout.readline() for _ in range(random.randrange(1, 8))]
            # A commit takes about half a millisecond, and what is between two of them some.
            pause = random.choice([0, random.uniform(0, 0.001), random.uniform(0, 0.01)])
            if pause:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(pause)
            process.kill()
            process.wait()
            said += process.stdout.readlines()
            process.stdout.close()
            whole = [line.split() for line in said if line.endswith(b"\n")]
            committed = max([version, *(int(each[1]) for each in whole if each[0] == b"committed")])
            committing = max([version, *(int(each[1]) for each in whole)])
            within_commits += committing > committed
            versions, version = await check(folder, random)
            assert versions[-1] in (committed, committing, committing + 1)
            assert versions[-1] <= committed + 1
        assert within_commits >= _KILLS // 10


async def test_a_database_is_locked_until_its_process_has_ended(folder: Path) -> None:
    """DBSP-DB-11."""
    holding = _COMMITTING.replace("await database.commit()", "await asyncio.sleep(1000)")
    process = started(folder, holding)
    process.stdout.readline()
    async with Store.at(folder) as store:
        with pytest.raises(Locked, match=f"by process {process.pid}:"):
            await store.state_store("s").open(0)
        process.kill()
        process.wait()
        process.stdout.close()
        async with await store.state_store("s").open(0) as database:
            assert await database.get("t", b"0") is None
