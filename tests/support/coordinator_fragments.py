"""Coordinators of queries in steps as fragments, in this process, with the members of `told_members`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from nebuli.node.fragment.coordinator_runner import CoordinatorRunner
from nebuli.rpc.member_places import Succession
from nebuli.rpc.status import FragmentState
from nebuli.steps.coordinator.circuit_run import CircuitRun
from nebuli.steps.member.run_notes import forget_run
from nebuli.steps.protocol.lockstep import Phase
from nebuli.store import Store
from netchannel import ReceiverServer, SenderServer
from placement.stepped_plan import CoordinatorPlacement
from tests.support.told_members import Members, until


@contextlib.asynccontextmanager
async def running(
    members: Members, *, is_new: bool = False, away: int | None = None
) -> AsyncIterator[CoordinatorRunner]:
    """As a process of the fragment; left as by a kill. Does not reach the member that is ``away``.

    ``is_new``: the fragment was started; else it goes on.
    """
    async with (
        ReceiverServer("127.100.255.1:0", secret=members.secret) as receiver,
        SenderServer(secret=members.secret) as sender,
    ):
        fragment = CoordinatorPlacement(
            id="q/coordinator",
            node=receiver.address,
            circuit=members.query.circuit,
            plan=members.query.plan,
            external=members.query.external,
            addresses=tuple(
                "127.100.254.1:1" if each.number == away else each.receiver.address
                for each in members.members
            ),
            checkpoint_s=3600.0,
        )
        folder = members.folder / "coordinator"
        Store.make(folder)
        if is_new:
            forget_run(folder)
        runner = CoordinatorRunner("1", fragment, folder, sender, receiver, socket=members.folder / "socket")
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until_running(runner: CoordinatorRunner) -> None:
    await until(lambda: runner.circuit, "it is there")
    await until(lambda: circuit_of(runner).coordinator.phase is Phase.RUNNING, "it runs")


def circuit_of(runner: CoordinatorRunner) -> CircuitRun[Succession]:
    assert runner.circuit is not None
    return runner.circuit


async def until_final(runner: CoordinatorRunner) -> FragmentState:
    await until(lambda: runner.status.state.is_final, "it ends")
    return runner.status.state
