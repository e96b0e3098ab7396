"""Members that a newer version of nebuli starts again, one after the other, and which save their state otherwise."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from nebuli.circuits import Circuit
from nebuli.circuits.errors import CheckpointNotMade
from nebuli.dataflow.steps.saved_runs import CIRCUIT, MANIFEST
from nebuli.forking.own_template import adopted, start_template
from nebuli.steps.member.member_store import LOG
from nebuli.steps.protocol.errors import MemberFailed
from nebuli.store import Store
from tests.nebuli.circuits.conftest import Serve, Served, totals
from tests.nebuli.circuits.test_scaling import OFTEN, rows_of_sink
from tests.nebuli.circuits.traffic import traffic_on
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

MEMBERS = 3
NEWER = """
from nebuli.dataflow.steps import saved_runs
saved_runs.FORMAT, saved_runs.READS = 2, frozenset({1, 2})
"""


def newer_version(folder: Path) -> AbstractContextManager[None]:
    """Have processes begin with the newer version, whose state has format 2, as at a worker that has been upgraded."""
    return changed_processes(folder, NEWER)


@contextmanager
def changed_processes(folder: Path, program: str) -> Iterator[None]:
    """Have processes begin with a program, which changes nebuli for them.

    Those that there are stay as they are. All that begin meanwhile have to end before it is left.
    """
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(program, "utf-8")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        template = start_template()
    with template, adopted(template):
        yield


async def formats(state: Path) -> list[int]:
    """Those of the newest version of each member's state."""
    found = []
    for member in range(MEMBERS):
        async with Store.at(state / f"member-{member}") as store:
            states = store.state_store(LOG)
            async with await states.open((await states.versions())[-1]) as database:
                manifest = await database.get(CIRCUIT, MANIFEST)
                assert manifest is not None
                found.append(json.loads(bytes(manifest))["format"])
    return found


async def checkpointed(circuit: Circuit) -> None:
    """Have all save what they know, once they are there: on a machine that is busy their start takes its time."""

    async def made() -> bool:
        with suppress(CheckpointNotMade):
            await circuit.checkpoint()
            return True
        return False

    await until_async(made, "a checkpoint")


async def restart(here: Served, circuit: Circuit, member: int) -> None:
    """Kill a member, and wait until all have saved their state with the process that takes its place."""
    before = (await circuit.status()).epoch
    here.kill(member)

    async def again() -> bool:
        return (await circuit.status()).epoch > before

    await until_async(again, "another epoch")
    await checkpointed(circuit)


async def test_members_are_upgraded_one_by_one_while_producers_push(serve: Serve, tmp_path: Path) -> None:
    """DBSP-REQ-4: what the older version has saved is read, and saved anew as the newer one does, all beside others."""
    with ExitStack() as newer:
        async with serve(members=MEMBERS, settings=OFTEN) as here, Circuit(here.address) as circuit:
            async with traffic_on(circuit, seed=3) as traffic:
                await checkpointed(circuit)
                newer.enter_context(newer_version(tmp_path))
                for member in range(MEMBERS):
                    await restart(here, circuit, member)
            await circuit.shut_down()
    assert rows_of_sink(Path("totals.csv")) == totals(traffic.pushed)
    assert await formats(Path("state")) == [2] * MEMBERS


async def test_an_older_version_does_not_go_on_with_what_a_newer_one_has_saved(
    serve: Serve, tmp_path: Path
) -> None:
    """DBSP-REQ-4: an unknown format is a clear error, and the state stays for who can read it."""
    with newer_version(tmp_path):
        async with serve(members=MEMBERS, settings=OFTEN) as here, Circuit(here.address) as circuit:
            await checkpointed(circuit)
            await circuit.shut_down()
    with pytest.raises(ExceptionGroup) as failed:
        async with serve(members=MEMBERS, settings=OFTEN):
            await asyncio.Event().wait()
    (error,) = failed.value.exceptions
    assert isinstance(error, MemberFailed)
    assert "the saved state has format 2, and this version of nebuli reads 1: another version" in str(error)
    assert await formats(Path("state")) == [2] * MEMBERS
