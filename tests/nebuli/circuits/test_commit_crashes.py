"""A member's process that is killed in the middle of its commit, when the others have committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from nebuli.circuits import Circuit
from nebuli.steps.member.member_store import LOG
from nebuli.store import Store
from tests.nebuli.circuits.conftest import HANDLES, Rows, Serve, batch, read_until, totals
from tests.nebuli.circuits.test_rolling_upgrade import changed_processes, checkpointed
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.story, pytest.mark.long]

MEMBERS = 3
KILLED = """
import os, signal, time
from pathlib import Path
from nebuli.store.states.state_store import StateStore

here, commit = Path({here!r}), StateStore._commit

def commit_or_die(store, *given):
    if store._ordering._folder.name == "member-1" and (here / "armed").exists():
        (here / "armed").unlink()
        while not (here / "now").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(store, *given)

StateStore._commit = commit_or_die
"""


async def versions(state: Path) -> list[range]:
    """Those of each member's state that can be opened."""
    found = []
    for member in range(MEMBERS):
        async with Store.at(state / f"member-{member}") as store:
            found.append(await store.state_store(LOG).versions())
    return found


async def test_a_member_that_dies_in_its_commit_takes_back_those_that_have_committed(
    serve: Serve, tmp_path: Path
) -> None:
    """DBSP-CO-5: all open the version that all have, and make the next one from it, once more; each row counts once."""
    pushed: Rows = Counter()

    async def push(circuit: Circuit, sequence: int) -> None:
        for handle in HANDLES:
            row = (f"shop-{sequence}", sequence)
            await circuit.push(handle, batch(row), producer="p", sequence=sequence)
            pushed[row] += 1

    with changed_processes(tmp_path, KILLED.format(here=str(tmp_path))):
        async with serve(members=MEMBERS) as here, Circuit(here.address) as circuit:
            await push(circuit, 0)
            await read_until(circuit, "rows", pushed)
            await checkpointed(circuit)
            last = (await versions(tmp_path / "state"))[0][-1]
            assert [each[-1] for each in await versions(tmp_path / "state")] == [last] * MEMBERS
            await push(circuit, 1)
            await read_until(circuit, "rows", pushed)
            epoch = (await circuit.status()).epoch
            (tmp_path / "armed").touch()
            saving = asyncio.create_task(circuit.checkpoint())

            async def others_have_committed() -> bool:
                newest = [each[-1] for each in await versions(tmp_path / "state")]
                return newest == [last + 1, last, last + 1]

            await until_async(others_have_committed, "all but one have committed")
            (tmp_path / "now").touch()
            step = await saving  # it is made once all run again
            status = await circuit.status()
            assert (status.epoch, max(status.checkpoints)) == (epoch + 1, step)
            assert await versions(tmp_path / "state") == [range(last, last + 2)] * MEMBERS
            await push(circuit, 2)
            await read_until(circuit, "rows", pushed)
            await read_until(circuit, "totals", totals(pushed))
            await circuit.shut_down()
