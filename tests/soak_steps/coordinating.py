"""``python -m tests.soak_steps.coordinating FOLDER MEMBERS SOURCES ROWS RATE``: a run, to its end.

What the coordinator says to members goes through proxies. Commands come on standard input, one on a line: ``swallow N``
and ``cut N`` do it to the connections to member N. What happens is said on standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from nebuli.connectors.provider import import_built_in
from nebuli.steps.coordinator.member_connection import MemberConnection
from nebuli.steps.errors import MembersFailed
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol.errors import CoordinationError
from nebuli.steps.protocol.lockstep import Phase
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.store import StorageError
from tests.soak_steps.query import Sizes, query
from tests.support.chaos import Proxy

SETTINGS = TriggerSettings(checkpoint_s=0.1)


class Proxied:
    """The way to one member."""

    def __init__(self, line: MemberConnection) -> None:
        self._reach = line.reach
        self._proxies: list[Proxy] = []
        self._starting: set[asyncio.Task[None]] = set()
        line.reach = self._begin  # type: ignore[method-assign]

    def _begin(self, address: str) -> None:
        task = asyncio.get_running_loop().create_task(self._start(address))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, address: str) -> None:
        proxy = Proxy(address)
        await proxy.__aenter__()
        self._proxies.append(proxy)
        self._reach(proxy.address)

    def do(self, what: str) -> None:
        """To all connections that there are."""
        for wire in (wire for proxy in self._proxies for wire in proxy.wires if not wire.is_cut):
            if what == "swallow":
                wire.swallows = True
            else:
                wire.cut()


def _say(order: ev.Order) -> None:
    match order:
        case ev.ClaimEpoch(after, why):
            print("epoch over", after, why, flush=True)  # noqa: T201 - for whoever started it
        case ev.CheckpointMade(step):
            print("checkpoint", step, flush=True)  # noqa: T201 - as above
        case ev.CheckpointFailed(step, why):
            print("no checkpoint", step, why, flush=True)  # noqa: T201 - as above
        case ev.InputsEnded(step):
            print("ended", step, flush=True)  # noqa: T201 - as above
        case _:
            pass


async def _count_steps(local: LocalRun) -> None:
    told = -1
    while True:
        if local.coordinator.phase is Phase.RUNNING and local.coordinator.next_step != told:
            told = local.coordinator.next_step
            print("step", told, flush=True)  # noqa: T201 - as above
        await asyncio.sleep(0.01)


async def run(folder: Path, members: int, sizes: Sizes) -> None:
    hosts = [f"127.100.{host + 1}.1" for host in range(members)]
    local = LocalRun(query(sizes, members), folder / "state", folder, SETTINGS, observe=_say, hosts=hosts)
    async with local:
        ways = [Proxied(line) for line in local.coordinator.lines]
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )

        async def obey() -> None:
            while line := await reader.readline():
                what, member = line.decode().split()
                ways[int(member)].do(what)

        tasks = [asyncio.create_task(obey()), asyncio.create_task(_count_steps(local))]
        try:
            await local.until_ended()
        finally:
            for task in tasks:
                task.cancel()


def main() -> int:
    folder, *numbers = sys.argv[1:]
    members, *sizes = map(int, numbers)
    os.chdir(folder)
    import_built_in()
    try:
        uvloop.run(run(Path(folder), members, Sizes(*sizes)))
    except (CoordinationError, MembersFailed, StorageError, OSError) as error:
        sys.stderr.write(f"Error: {type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
