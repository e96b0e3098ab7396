"""A story on workers: a query in steps on three of them, whose processes a seed has things happen to.

When all inputs have come to their end, files grow, and the query is started again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from subprocess import DEVNULL, Popen

import psutil

from nebuli.control.deployment import Active, end, register, statuses_of
from nebuli.control.step_placement import step_fragments
from nebuli.rpc.status import FragmentState, FragmentStatus
from nebuli.rpc.worker_client import WorkerClient, WorkerRefused, WorkerUnreachable
from tests.soak_steps.audit import Violation
from tests.soak_steps.fleet_query import NODES, FleetQuery
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

FLEET_FAULTS = (
    "process killed",
    "worker killed",
    "template killed",
    "all workers killed",
    "process stopped",
    "worker stopped",
    "disk full",
    "query stopped",
    "killed while stopping",
    "checkpoint asked for",
    "garbage sent",
)
"""What can happen. Process: a fragment's; template: the process that a worker and its fragments' are forked from."""
_ROOT = Path(__file__).parents[2]
_CHECKPOINT_S = 0.3
_END_S = 120.0
"""Within so many seconds after what happened last all has come to its end."""
_STOP_S = 60.0
_DISK_FULL = ("no space is left", "its outcome is not known", "disk I/O error", "File too large")
_KILLED_OFTEN = "times within"


class FleetStory:
    """From a seed: ``faults`` things that happen, in a folder of its own."""

    def __init__(self, seed: int, folder: Path, *, faults: int = 8) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.tally: Counter[str] = Counter()
        self.said: list[str] = []
        self.members = self.random.choice([4, 5, 6])
        self._faults = faults
        addresses = free_addresses(2 * NODES)
        self._nodes, self._grpc = addresses[:NODES], addresses[NODES:]
        self._query = FleetQuery(folder, self._nodes, self._grpc, self.random.choice(["changes", "final"]))
        fragments = step_fragments(
            self._query.query,
            self._query.topology,
            self.members,
            "soak",
            _CHECKPOINT_S,
            keep_output_bytes=self.random.choice([0, 1 << 30]),
            closes=True,
        )
        self._active = Active("soak", (), fragments)
        self._workers: dict[int, Popen[bytes]] = {}
        self._clients: dict[str, WorkerClient] = {}
        self._began = time.monotonic()

    async def run(self) -> None:
        """Raises Violation."""
        try:
            async with AsyncExitStack() as stack:
                for number, (node, grpc) in enumerate(zip(self._nodes, self._grpc, strict=True)):
                    self._clients[node] = await stack.enter_async_context(WorkerClient(node, grpc))
                    self._begin(number)
                await self._until_ready()
                await register(self._active, self)
                for faults in (self._faults, self._faults // 2):
                    await self._start()
                    await self._to_its_end(faults)
                    self._query.check()
                    self.tally["late rows"] += self._query.late().total()
                    self._query.grow()
        finally:
            self._end()
        for number in range(NODES):
            if "Traceback" in (log := self._log(number).read_text("utf-8")):
                raise Violation(f"worker {number} complains: {log[-2000:]}")

    def client(self, node: str) -> WorkerClient:
        """How to ask the worker of a node."""
        return self._clients[node]

    async def prepare(self, nodes: Iterable[str]) -> None:
        """They are started again by what has killed them."""

    # -- workers

    def _log(self, number: int) -> Path:
        return self.folder / f"worker-{number}.txt"

    def _begin(self, number: int) -> None:
        state = self.folder / f"state-{number}"
        with self._log(number).open("ab") as log:
            self._workers[number] = Popen(
                [
                    *(sys.executable, "-m", "nebuli", "worker", "--topology", str(self._query.file)),
                    *("--node", self._nodes[number], "--state", str(state)),
                ],
                cwd=_ROOT,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _until_ready(self) -> None:
        async def ready() -> bool:
            for number, process in self._workers.items():
                if process.poll() is not None:
                    log = self._log(number).read_text("utf-8")
                    raise Violation(f"worker {number} has ended with {process.returncode}: {log[-2000:]}")
            with suppress(WorkerUnreachable):
                for client in self._clients.values():
                    await client.statuses()
                return True
            return False

        await until_async(ready, "all workers are ready")

    def _children(self, number: int) -> Sequence[psutil.Process]:
        """The worker, and the processes of its fragments; nothing while it begins."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._workers[number].pid).children()
            return sorted(children, key=lambda child: (child.create_time(), child.pid))
        return ()

    def _end(self) -> None:
        for number, each in self._workers.items():
            for child in self._children(number):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            each.kill()
            each.wait()

    # -- the query

    async def _start(self) -> None:
        """Of what was started before the rest; a worker may be away."""
        for place in reversed(self._active.places):

            async def started(id_: str = place.id, node: str = place.node) -> bool:
                try:
                    await self._clients[node].start(id_)
                except WorkerUnreachable:
                    return False
                except WorkerRefused as error:  # also where its last process has not ended yet
                    return "is running already" in str(error)
                return True

            await until_async(started, f"{place.fragment} is started")
        self._say("started")

    async def _stop(self) -> None:
        async def stopped() -> bool:
            found = await end(self._active.places, self, 1.0)
            return all(isinstance(each, FragmentStatus) and each.state.is_final for each in found.values())

        await until_async(stopped, "all is stopped", _STOP_S)
        self._say(f"stopped: {[each.error for each in await self._statuses()]}")

    async def _statuses(self) -> list[FragmentStatus]:
        found = await statuses_of(self._active.places, self)
        return [each for each in found if isinstance(each, FragmentStatus)]

    async def _to_its_end(self, faults: int) -> None:
        until = time.monotonic() + _END_S
        next_at = time.monotonic() + self.random.uniform(0, 1)
        while True:
            found = await self._statuses()
            if len(found) == self.members + 1 and all(each.state is FragmentState.FINISHED for each in found):
                self._say("finished")
                return
            over = len(found) == self.members + 1 and all(each.state.is_final for each in found)
            if over or any(each.state is FragmentState.FAILED for each in found):
                await self._begin_again(found)
            if faults and time.monotonic() >= next_at:
                faults -= 1
                await self._happen()
                next_at = time.monotonic() + self.random.choice([0, 0, 0.2, 0.5, 1, 2])
                until = time.monotonic() + _END_S
            if time.monotonic() > until:
                raise Violation(f"it does not come to its end: {found}")
            await asyncio.sleep(0.05)

    async def _begin_again(self, found: Iterable[FragmentStatus]) -> None:
        """What was killed too often, or had no room, is to be started by people."""
        expected = (_KILLED_OFTEN, *(_DISK_FULL if self.tally["disk full"] else ()))
        for each in found:
            if each.state is FragmentState.FAILED:
                if not any(text in each.error for text in expected):
                    raise Violation(f"{each.fragment} has failed: {each.error}")
                self.tally["failed and started again"] += 1
        self._say(f"begins again: {[each.error for each in found]}")
        await self._stop()
        await self._start()

    # -- what happens

    async def _happen(self) -> None:
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "process killed": self._kill_process,
            "worker killed": self._kill_worker,
            "template killed": lambda: self._kill(self.random.randrange(NODES)),
            "all workers killed": lambda: self._kill(*range(NODES)),
            "process stopped": self._pause_process,
            "worker stopped": self._pause_worker,
            "disk full": self._fill_disk,
            "query stopped": self._stop_and_start,
            "killed while stopping": self._kill_while_stopping,
            "checkpoint asked for": self._checkpoint,
            "garbage sent": self._send_garbage,
        }
        name = self.random.choice(FLEET_FAULTS)
        self.tally[name] += 1
        self._say(name)
        await ways[name]()

    def _some_process(self) -> int | None:
        pids = [child.pid for number in range(NODES) for child in self._children(number)[1:]]
        return self.random.choice(pids) if pids else None

    async def _kill_process(self) -> None:
        pid = self._some_process()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _kill_worker(self) -> None:
        number = self.random.randrange(NODES)
        if children := self._children(number):
            with suppress(psutil.NoSuchProcess):
                children[0].kill()
            await self._bring_back(number)

    async def _kill(self, *numbers: int) -> None:
        for number in numbers:
            self._workers[number].kill()
        await self._bring_back(*numbers)

    async def _bring_back(self, *numbers: int) -> None:
        """After a while; what happens next may happen while they begin."""
        for number in numbers:
            await asyncio.to_thread(self._workers[number].wait)
        await asyncio.sleep(self.random.choice([0, 0, 0.5, 3]))
        for number in numbers:
            self._begin(number)
        if self.random.random() < 0.7:
            await self._until_ready()
        else:
            await asyncio.sleep(self.random.uniform(0, 3))

    async def _pause_process(self) -> None:
        pid = self._some_process()
        if pid is not None:
            await self._pause([pid])

    async def _pause_worker(self) -> None:
        """With all that it runs."""
        number = self.random.randrange(NODES)
        await self._pause([self._workers[number].pid, *(child.pid for child in self._children(number))])

    async def _pause(self, pids: Iterable[int]) -> None:
        """Also for longer than it takes to be given up."""
        for what, wait_s in ((signal.SIGSTOP, self.random.choice([0.1, 1, 5, 12])), (signal.SIGCONT, 0)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, what)
            await asyncio.sleep(wait_s)

    async def _fill_disk(self) -> None:
        """Files of one process grow no more, for a while."""
        pid = self._some_process()
        if pid is None:
            return
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            await asyncio.sleep(self.random.choice([0.05, 0.3, 1]))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    async def _stop_and_start(self) -> None:
        await self._stop()
        await self._start()

    async def _kill_while_stopping(self) -> None:
        await self._kill_process()
        await asyncio.sleep(self.random.choice([0, 0.1, 0.5]))
        stopping = asyncio.create_task(self._stop())
        await asyncio.sleep(self.random.choice([0, 0.05, 0.3, 1, 2.5]))
        await self._kill_process()
        await stopping
        await self._start()

    async def _checkpoint(self) -> None:
        """That is answered, with whatever."""
        coordinator = self._active.places[-1]
        async with asyncio.timeout(_STOP_S):
            with suppress(WorkerRefused, WorkerUnreachable):
                await self._clients[coordinator.node].checkpoint(coordinator.id)

    async def _send_garbage(self) -> None:
        for address in (self.random.choice(self._nodes), self.random.choice(self._grpc)):
            host, _, port = address.rpartition(":")
            with suppress(OSError), socket.create_connection((host, int(port)), 1) as connection:
                connection.sendall(self.random.randbytes(self.random.choice([1, 7, 64, 5000])))

    def _say(self, text: str) -> None:
        self.said.append(f"{time.monotonic() - self._began:.3f} {text}")


async def tell_of_fleet(seed: int, folder: Path, *, faults: int = 8) -> FleetStory:
    """The whole story. Raises Violation, with what was said last."""
    story = FleetStory(seed, folder, faults=faults)
    began = time.monotonic()
    try:
        await story.run()
    except BaseException as error:
        error.add_note(f"in story {seed} on workers, with {story.members} members, {dict(story.tally)}")
        error.add_note("\n".join(story.said[-40:]))
        raise
    story.tally["seconds"] = round(time.monotonic() - began)
    return story
