"""Worker processes of this machine, one per node, which end with the process that started them."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.control.errors import NodeUnreachable
from nebuli.durable_files import write_privately
from nebuli.forking.forked_command import ForkedCommand
from nebuli.forking.spawner import SpawnFailed
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.processes import lines, signal_name
from nebuli.rpc.conventions import READY_PREFIX
from nebuli.rpc.trust import Trust
from nebuli.rpc.worker_client import WorkerClient, WorkerUnreachable
from topology import Access, SecretPlace

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Mapping
    from types import TracebackType
    from typing import Any, Self

    from nebuli.forking.spawner import Spawned
    from topology import Node, Topology

__all__ = ["LocalWorker", "LocalWorkers", "WorkerDied", "WorkerNotStarted"]

_START_S = 30.0
_STARTS = 3
_STOP_S = 3.5
_DEATH_S = 2.0
_FAILURE_HELD_S = 2.0
_READY_TOOK_TOO_LONG = f"it was not ready after {_START_S:.0f} s"


class WorkerNotStarted(Exception):
    """A worker process ended before it was ready; the message is its own."""

    def __init__(self, node: str, message: str, exit_code: int) -> None:
        super().__init__(f"worker {node}: {message}")
        self.node = node
        self.exit_code = exit_code


class WorkerDied(Exception):
    """A worker process ended while it was needed."""

    def __init__(self, node: str, exit_code: int) -> None:
        how = f"killed by {signal_name(-exit_code)}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(
            f"worker {node} died ({how}); run the query again: `nebuli run --on-loss wait` starts a dead worker again, "
            f"and `--stepped` keeps the query's state"
        )
        self.node = node


class LocalWorker:
    """One worker process that is ready, and a client to it."""

    def __init__(self, node: str, process: Spawned, client: WorkerClient) -> None:
        self.node = node
        self.client = client
        self._process = process

    @property
    def is_dead(self) -> bool:
        """True if the process has ended."""
        return self._process.ended.done()

    def kill(self) -> None:
        """End the process at once, as an accident would."""
        self._process.kill()

    async def died(self) -> WorkerDied:
        """Wait for the process to end, and return how it did."""
        return WorkerDied(self.node, await asyncio.shield(self._process.ended))


class LocalWorkers:
    """Starts a worker for each node, or at first for those that are ``used``, from this process' template.

    Leaving the context ends them all, within four seconds. Their state lasts as long as this lives.
    Relative paths of sources and sinks start at ``directory``. The stderr of workers goes to this process's, prefixed
    by the node; their standard output is this process's. ``topology`` is the file with the credentials that they show
    to each other, and ``access`` by node what this process shows to them. ``max_state_bytes`` is theirs.

    Where that names no secret, they share one that is made for them: their ports are open to every user of this
    machine, and a client that connects can read and write files as this one.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        directory: Path,
        used: Collection[str] | None = None,
        *,
        topology: Path | None = None,
        access: Mapping[str, Access] | None = None,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
    ) -> None:
        self._nodes = tuple(nodes)
        self._used = {node.address for node in self._nodes} if used is None else set(used)
        self._directory = directory.absolute()
        self._max_state_bytes = max_state_bytes
        self._topology = topology
        self._access = access or {}
        self._commands: list[ForkedCommand] = []
        self._relays: list[asyncio.Task[None]] = []
        self._clients = AsyncExitStack()
        self._workers: dict[str, LocalWorker] = {}
        self._held: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        self._cause: str | None = None  # the end of the error that ends the query, which its owner prints
        self.trusts: dict[str, Trust] = {}
        """The credentials shown to them, by node."""
        self._state = tempfile.TemporaryDirectory(  # which no other user can enter
            prefix="nebuli-run-",
            ignore_cleanup_errors=True,  # a process that is killed may still write
        )
        self._secret = Path(self._state.name) / "secret"

    @classmethod
    def of(
        cls,
        topology: Topology,
        file: Path,
        used: Collection[str],
        *,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
    ) -> Self:
        """The workers of a topology that was read from ``file``, whose directory is theirs."""
        access = {node.address: topology.access_to(node).below(file.parent) for node in topology.nodes}
        return cls(
            topology.nodes,
            file.parent,
            used,
            topology=file if file.exists() else None,  # it may have come by standard input
            access=access,
            max_state_bytes=max_state_bytes,
        )

    def client(self, node: str) -> WorkerClient:
        """How to ask the worker of a node; a `Fleet` has it."""
        return self._workers[node].client

    async def prepare(self, nodes: Iterable[str]) -> None:
        """Start the workers of these nodes that have died, or never were; they know what their predecessors ran.

        One that is killed before it is ready is started again. Raises WorkerNotStarted.
        """
        for left in reversed(range(_STARTS)):
            known = {address for address, worker in self._workers.items() if not worker.is_dead}
            try:
                await self._start_all(set(nodes) - known)
            except WorkerNotStarted as error:
                if error.exit_code >= 0 or not left:
                    raise
                sys.stderr.write(f"{error}; starting it again\n")
            else:
                return

    @property
    def workers(self) -> Mapping[str, LocalWorker]:
        """The workers by their node's address."""
        return self._workers

    @property
    def clients(self) -> Mapping[str, WorkerClient]:
        """How to ask them."""
        return {node: worker.client for node, worker in self._workers.items()}

    async def __aenter__(self) -> Self:
        try:
            write_privately(self._secret, secrets.token_urlsafe())
            await self._start_all(self._used)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cause = str(error).partition(" failed: ")[2]
        self._pass_on_held()
        await self._stop()

    async def guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` as long as all workers live; ``WorkerDied`` names the first that does not."""
        task = asyncio.create_task(work)
        deaths = [asyncio.create_task(worker.died()) for worker in self._workers.values()]
        try:
            await asyncio.wait([task, *deaths], return_when=asyncio.FIRST_COMPLETED)
            if task.done() and isinstance(task.exception(), (WorkerUnreachable, NodeUnreachable)):
                # It may be dead, which explains more; the system reports that a moment later.
                await asyncio.wait(deaths, timeout=_DEATH_S, return_when=asyncio.FIRST_COMPLETED)
            dead = next((death for death in deaths if death.done()), None)
            if dead is not None:
                raise dead.result()
            task.result()
        finally:
            for each in (task, *deaths):
                each.cancel()
            await asyncio.gather(task, *deaths, return_exceptions=True)

    async def _start_all(self, addresses: Collection[str]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for node in self._nodes:
                    if node.address in addresses:
                        group.create_task(self._start(node))
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None

    async def _start(self, node: Node) -> None:
        access = self._access.get(node.address, Access())
        own: tuple[str, ...] = ()
        if access.secret is None:
            access = access.model_copy(update={"secret": SecretPlace(file=str(self._secret))})
            own = ("--secret-file", str(self._secret))
        arguments = _arguments(node, Path(self._state.name), self._topology)
        try:
            arguments += ["--max-state-bytes", str(self._max_state_bytes), *own]
            command = await ForkedCommand.start(arguments, self._directory)
        except OSError as error:
            text = f"it could not be started ({error}): run the command again"
            raise WorkerNotStarted(node.address, text, 1) from error
        self._commands.append(command)
        process, stderr = command.process, command.stderr
        try:
            async with asyncio.timeout(_START_S):
                grpc = await _ready(node, process, stderr)
        except TimeoutError:
            raise WorkerNotStarted(node.address, _READY_TOOK_TOO_LONG, 1) from None
        except asyncio.CancelledError:  # another one has not started, and this may be started again with it
            process.kill()
            raise
        trust = self.trusts[node.address] = Trust.of(access)
        client = await self._clients.enter_async_context(WorkerClient(node.address, grpc, trust))
        self._relays.append(asyncio.create_task(self._relay(node.address, stderr)))
        self._workers[node.address] = LocalWorker(node.address, process, client)

    async def _stop(self) -> None:
        try:
            await self._clients.aclose()
            for command in self._commands:
                command.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._ended()
            except TimeoutError:
                self._kill()
                await self._ended()
        finally:  # also after a cancel, which does not wait for the processes
            self._kill()
            for command in self._commands:
                command.close()
            self._state.cleanup()

    def _kill(self) -> None:
        for command in self._commands:
            command.process.kill()

    async def _ended(self) -> None:
        """Wait for all processes, and until their last output is passed on."""
        ends = (asyncio.shield(command.process.ended) for command in self._commands)
        await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.gather(*(asyncio.shield(relay) for relay in self._relays))

    async def _relay(self, node: str, stderr: asyncio.StreamReader) -> None:
        """Pass lines on. The failure of a fragment waits: if it ends the query, the query's error has its cause."""
        async for text in lines(stderr):
            if f" at {node} failed: " not in text:
                sys.stderr.write(f"{node}: {text}\n")
                continue
            later = asyncio.get_running_loop().call_later(_FAILURE_HELD_S, self._pass_on_held)
            self._held[text] = (node, later)
            if self._cause is not None:
                self._pass_on_held()

    def _pass_on_held(self) -> None:
        for text, (node, later) in self._held.items():
            later.cancel()
            if not self._cause or self._cause not in text:
                sys.stderr.write(f"{node}: {text}\n")
        self._held.clear()


def _arguments(node: Node, state: Path, topology: Path | None) -> list[str]:
    command = ["worker", "--ends-with-stdin"]
    command += ["--data", node.listen or node.address, "--advertise", node.address]
    command += ["--state", str(state / node.address.replace(":", "_"))]
    if topology is not None:
        command += ["--topology", str(topology), "--node", node.address]
    return [*command, "--grpc", node.grpc or "127.0.0.1:0"]


async def _ready(node: Node, process: Spawned, stderr: asyncio.StreamReader) -> str:
    """Wait for the line that reports that the worker can be called; returns its address."""
    fields = {"--data": "listen" if node.listen else "address", "--grpc": "grpc"}
    said = []
    async for text in lines(stderr):
        if text.startswith(READY_PREFIX):
            return text.rpartition("grpc=")[2]
        message = text.removeprefix("Error: ")
        option, _, rest = message.partition(" ")  # of a command that the user has not written
        said.append(f"the node's {fields[option]} {rest}" if option in fields else message)
    try:
        exit_code = await asyncio.shield(process.ended)
    except SpawnFailed as error:
        raise WorkerNotStarted(node.address, str(error), 1) from error
    how = (
        f"it was killed by {signal_name(-exit_code)}"
        if exit_code < 0
        else f"it ended with exit code {exit_code}"
    )
    raise WorkerNotStarted(node.address, "\n".join(said) or f"{how} before it was ready", exit_code)
