"""One fragment at its worker: the process that runs it, and what is known of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nebuli.connectors.network import HAS_ALL
from nebuli.connectors.policies import drop_files
from nebuli.dataflow.errors import DataflowError
from nebuli.exactness import goes_on, state_of
from nebuli.forking.spawner import SpawnFailed
from nebuli.free.fragment_thread import log_end
from nebuli.free.neighbour_notices import close_inputs, fail_output
from nebuli.node.fragment.conversation import (
    Add,
    AddEnd,
    CheckpointEnd,
    MakeCheckpoint,
    Order,
    Report,
    Stop,
    Succeed,
    SuccessionEnd,
    packed,
    received,
)
from nebuli.processes import lines, signal_name
from nebuli.rpc.ids import query_of
from nebuli.rpc.log_lines import LogLine
from nebuli.rpc.member_places import NotSucceeded
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.steps.protocol.errors import CheckpointNotMade, NothingToSave
from nebuli.store.names import file_name
from nebuli.store.store_url import StorePlace, StoreUrl
from placement.plan import Fragment, NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import netchannel
    from nebuli.connectors.sinks.sink_locks import SinkLock
    from nebuli.forking.spawner import Spawned, Spawner
    from nebuli.node.data_port import Ports
    from nebuli.rpc.member_places import Succession
    from nebuli.rpc.trust import Trust
    from placement.plan import Addition
    from placement.stepped_plan import AnyFragment

__all__ = ["Host", "HostedFragment", "NotAdded"]

_log = logging.getLogger(__name__)

_GRACE_S = 3.0
"""How long a fragment that is asked to stop may take; then its process is ended."""
_AT_REST = {
    FragmentState.REGISTERED: ("was not started", "; 'nebuli start {0}' {1}"),
    FragmentState.FINISHED: ("has finished", ", with all that was read"),
    FragmentState.STOPPED: ("was stopped", "; 'nebuli start {0}' {1}"),
    FragmentState.FAILED: (
        "has failed",
        "; 'nebuli status {0}' shows why, and 'nebuli start {0}' {1}",
    ),
}
"""Why there is nothing to save of a query that does not run, and what may be done then."""
_LIVES = 3
_LIVES_S = 60.0
"""An exact fragment continues in a new process, but one that dies so often in that time has failed."""
_TOLD_LINES, _TOLD_S = 5, 2.0
"""Lines that an error has of the end of a dead process' log, and how old they may be then, in seconds."""


class NotAdded(Exception):
    """The query has not got more operators here; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Host:
    """The common part of the fragments of a worker."""

    spawner: Spawner
    receiver: netchannel.ReceiverServer
    sender: netchannel.SenderServer
    ports: Ports
    node: str
    trust: Trust
    sockets: Path
    """The folder for sockets that only this worker and the processes of its fragments use."""
    max_state_bytes: int
    memory_bytes: int | None = None
    state: StorePlace | None = None
    serves_http: bool = False
    """True if circuits are called over HTTP, too."""

    def place(self, id_: str) -> StorePlace | None:
        """Where a fragment of a query in steps keeps what it has; None if nothing is kept here."""
        if isinstance(self.state, StoreUrl):
            return self.state / id_
        return None if self.state is None else self.state / "steps" / file_name(id_)

    def socket(self, id_: str) -> Path:
        """Where the coordinator of a query in steps is called. Its name is short, as paths of sockets are."""
        return self.sockets / f"circuit-{_short(id_)}"

    def http_socket(self, id_: str) -> Path:
        """The same over HTTP."""
        return self.sockets / f"http-{_short(id_)}"


def _short(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a process has ended; ``killed``: by a signal, which is nothing that the fragment has computed.

    ``in_order``: it has notified the fragment's reader of the end, if that had come.
    """

    text: str
    killed: bool = False
    in_order: bool = False


class HostedFragment:
    """A fragment, on the worker's loop. ``keep_line`` gets what it logs, ``on_change`` each new state."""

    def __init__(
        self,
        status: FragmentStatus,
        fragment: AnyFragment,
        host: Host,
        keep_line: Callable[[LogLine], None],
        on_change: Callable[[HostedFragment], None],
    ) -> None:
        self.fragment = fragment
        self.status = status
        self.report: Report | None = None
        self.channels = [
            each.channel for each in fragment.operators if isinstance(each, NetworkSource | NetworkSink)
        ]
        self.inputs = {each.channel for each in fragment.operators if isinstance(each, NetworkSource)}
        self._host = host
        self._keep_line = keep_line
        self._on_change = on_change
        self._last_lines: deque[tuple[float, str]] = deque(maxlen=_TOLD_LINES)  # with when they came
        self._left = 0.0  # when its process sent nothing more
        self._process: Spawned | None = None
        self._control: asyncio.StreamWriter | None = None
        self._locks: Sequence[SinkLock] = ()
        self._answers: list[
            asyncio.Future[Any]
        ] = []  # of its processes, by the numbers of what they are asked
        self._stopping = False
        self._killed = ""  # why this worker has ended the process, if it has
        self._life: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None  # a reader that is not waited for
        self._grace: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        """The id that it has at its worker."""
        return self.status.id

    @property
    def locks(self) -> Sequence[SinkLock]:
        """The locks of its output files, as long as it runs."""
        return () if self._life is None or self._life.done() else self._locks

    def start(self, locks: Sequence[SinkLock] = (), *, resumed: bool = False) -> None:
        """Have a process run it; returns at once. ``resumed``: another one has begun.

        Its processes get the ``locks``, which are closed here at the end of the last.
        """
        self._locks = locks
        self._move(replace(self.status, state=FragmentState.RUNNING))
        self._life = asyncio.create_task(self._live(resumed=resumed), name=f"fragment {self.fragment.id}")

    def stop(self, *, at_once: bool = False) -> None:
        """Have it end; harmless when it has. A process that does not end in time is ended."""
        if self.status.state is FragmentState.REGISTERED:
            self._end(FragmentState.STOPPED, Cause.REQUEST, "stopped before it was started")
            self._life = asyncio.create_task(self._tell_without_waiting(), name=f"end of {self.fragment.id}")
            return
        if self._life is None or self._life.done():
            return
        if at_once:
            self._kill("stopped at once")
        elif not self._stopping:
            self._tell_to_stop()
            late = f"stopped; the fragment did not end within {_GRACE_S:.0f} s, and its process was ended"
            self._grace = asyncio.get_running_loop().call_later(_GRACE_S, self._kill, late)
        self._stopping = True

    async def checkpoint(self) -> int:
        """Have a checkpoint made by this coordinator; returns the next step.

        Raises CheckpointNotMade; NothingToSave where it does not run.
        """
        self._check_running()
        if self._control is None:
            raise CheckpointNotMade(None, f"the process of {self.fragment.id} has only just started")
        made: CheckpointEnd | None = await self._answer(self._control, MakeCheckpoint)
        if made is None:
            self._check_running()
            raise CheckpointNotMade(None, f"the process of {self.fragment.id} has ended meanwhile")
        if made.step is None or made.why:
            raise CheckpointNotMade(made.step, made.why)
        return made.step

    async def succeed(self, succession: Succession) -> int:
        """Have this coordinator continue with other members; returns their first step. Raises NotSucceeded."""
        if self._control is None or self.status.state is not FragmentState.RUNNING:
            raise NotSucceeded(f"fragment {self.fragment.id} is not running: its members are unchanged")
        end: SuccessionEnd | None = await self._answer(
            self._control, lambda number: Succeed(number, succession)
        )
        if end is None:
            raise NotSucceeded(
                f"the process of {self.fragment.id} has ended meanwhile: 'nebuli status' lists "
                f"the members of the next process"
            )
        if end.step is None:
            raise NotSucceeded(end.why)
        return end.step

    async def add(self, index: int, addition: Addition) -> None:
        """Have the part of a query that it is be given more operators, if it has not; ``index`` came before these.

        Raises DataflowError for what it cannot have; and NotAdded, by which it is not known whether its process has
        them, if that has ended meanwhile.
        """
        here = self.fragment
        if not isinstance(here, Fragment) or not here.views:
            raise NotAdded(
                f"fragment {here.id} belongs to a query without views: start the query again with a view"
            )
        if index < len(here.added) and here.added[index] == addition:
            return
        if index != len(here.added):
            raise NotAdded(
                f"fragment {here.id} has {len(here.added)} additions of views, but this command expected {index}: "
                f"another command has added a view meanwhile; try again"
            )
        if self.status.state.is_final:
            raise NotAdded(f"fragment {here.id} is {self.status.state} already")
        if self.status.state is FragmentState.RUNNING:
            await self._have_added(addition)
        self.fragment = here.model_copy(update={"added": (*here.added, addition)})

    async def _have_added(self, addition: Addition) -> None:
        if self._control is None:
            raise NotAdded(f"the process of {self.fragment.id} has only just started: try again")
        said = addition.model_dump_json(by_alias=True)
        end: AddEnd | None = await self._answer(self._control, lambda number: Add(number, said))
        if end is None:
            raise NotAdded(f"the process of {self.fragment.id} has ended meanwhile: try again")
        if end.why:
            raise DataflowError(f"fragment {self.fragment.id}: {end.why}")

    async def _answer(self, control: asyncio.StreamWriter, question: Callable[[int], object]) -> Any:
        """Return the answer of its process; None if that has ended meanwhile."""
        waiting = asyncio.get_running_loop().create_future()
        self._answers.append(waiting)
        control.write(packed(question(len(self._answers) - 1)))
        await asyncio.wait([waiting])
        return None if waiting.cancelled() else waiting.result()

    def _check_running(self) -> None:
        if self.status.state is not FragmentState.RUNNING:
            happened, then = _AT_REST[self.status.state]
            step = self.status.checkpoint
            query, begins = query_of(self.id), "begins it" if step == 0 else "continues there"
            raise NothingToSave(f"query {query} {happened}", step, then.format(query, begins))

    async def ended(self, timeout_s: float) -> bool:
        """Wait until its process is gone, and its producers know that; False if that takes longer."""
        if self._life is None:
            return True
        done, _ = await asyncio.wait([self._life], timeout=timeout_s)
        return bool(done)

    def abandon(self) -> None:
        """End its process at once, without notifying any peer: a successor of this worker continues."""
        if self._life is not None:
            self._life.cancel()
        if self._process is not None:
            self._process.kill()

    async def lose(self, what: str) -> None:
        """Fail, as its state in memory was lost with another process; its neighbours are notified."""
        self._end(FragmentState.FAILED, Cause.LOST, what)
        await self._tell_neighbours()

    def fail(self, why: str) -> None:
        """End a fragment that cannot be started, by its own fault; its neighbours are notified."""
        self._end(FragmentState.FAILED, Cause.ITSELF, why)
        self._life = asyncio.create_task(self._tell_without_waiting(), name=f"end of {self.fragment.id}")

    async def decline_inputs(self) -> None:
        """Notify present and later senders that it has ended."""
        await close_inputs(self.fragment, self._host.receiver, self._last_word)

    async def _live(self, *, resumed: bool) -> None:
        try:
            ending = await self._all_lives(resumed=resumed)
        finally:
            for lock in self._locks:
                lock.close()
        if self._grace is not None:
            self._grace.cancel()
        drop_files(self.fragment)
        if not self.status.state.is_final:
            self._conclude(ending)
            await self._tell_neighbours()
        elif ending.in_order or self.status.state is FragmentState.FINISHED:
            # It has closed its inputs itself, but this may not have got out, or be known here.
            await self.decline_inputs()
        else:
            await self._tell_without_waiting()

    async def _all_lives(self, *, resumed: bool) -> _Ending:
        """Run it in one process after the other, to the end of the last; each gets the locks."""
        deaths: deque[float] = deque(maxlen=_LIVES)
        ending = await self._one_life(resumed=resumed)
        while self._goes_on(ending, deaths):
            self._warn(f"its process {ending.text}; the fragment continues in another process")
            self._last_lines.clear()
            ending = await self._one_life(resumed=True)
        return ending

    def _goes_on(self, ending: _Ending, deaths: deque[float]) -> bool:
        """True if another process continues its work, as after the death of the whole worker."""
        if self.status.state.is_final or self._stopping or not (ending.killed and goes_on(self.fragment)):
            return False
        deaths.append(time.monotonic())
        return len(deaths) < _LIVES or deaths[-1] - deaths[0] > _LIVES_S

    async def _one_life(self, *, resumed: bool) -> _Ending:
        """Run it in a process, to the end of that."""
        try:
            self._process, control, stderr = self._spawn()
        except OSError as error:
            return _Ending(f"could not be started: {error}")
        following = asyncio.create_task(self._follow(stderr))
        try:
            await self._command(control, resumed=resumed)
            ending = _how(await self._process.ended)
        except SpawnFailed as error:
            ending = _Ending(f"is gone: {error}")
        await following
        return ending

    def _spawn(self) -> tuple[Spawned, socket.socket, int]:
        """Ask for a process that gets the locks; return it, its control connection, and its standard error."""
        ours, theirs = socket.socketpair()
        stderr_read, stderr_write = os.pipe()
        locks = (each.descriptor for each in self._locks)
        try:
            process = self._host.spawner.spawn(stderr_write, theirs.fileno(), *locks)
        except OSError:
            ours.close()
            os.close(stderr_read)
            raise
        finally:
            theirs.close()
            os.close(stderr_write)
        return process, ours, stderr_read

    async def _command(self, control: socket.socket, *, resumed: bool) -> None:
        reader, writer = await asyncio.open_connection(sock=control)
        order = Order(
            id=self.id,
            fragment=self.fragment.model_dump_json(by_alias=True),
            resumed=resumed,
            ports=self._host.ports,
            node=self._host.node,
            max_state_bytes=self._host.max_state_bytes,
            memory_bytes=self._host.memory_bytes,
            trust=self._host.trust,
            socket=self._host.socket(self.id),
            http_socket=self._host.http_socket(self.id) if self._host.serves_http else None,
            locks=tuple(each.file for each in self._locks),
            place=self._host.place(self.id),
        )
        writer.write(packed(order))
        self._control = writer
        if self._stopping:
            self._tell_to_stop()
        try:
            while (message := await received(reader)) is not None:
                match message:
                    case LogLine():
                        self._logged(message)
                    case Report():
                        self.report = message
                        self._move(message.status)
                    case CheckpointEnd(number) | SuccessionEnd(number) | AddEnd(number):
                        self._answers[number].set_result(message)
        finally:
            self._control = None
            for waiting in self._answers:
                waiting.cancel()
            self._left = time.monotonic()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _tell_to_stop(self) -> None:
        if self._control is not None:
            self._control.write(packed(Stop()))

    def _kill(self, why: str) -> None:
        self._killed = self._killed or why
        if self._process is not None:
            self._process.kill()

    def _logged(self, line: LogLine) -> None:
        self._keep_line(line)
        if line.level not in ("DEBUG", "INFO"):
            if line.level != "WARNING":
                self._last_lines.extend((time.monotonic(), text) for text in line.text.splitlines())
            _write(line.text)

    async def _follow(self, stderr: int) -> None:
        """Follow the process's own standard error: before a crash, the reason."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stderr, "rb", 0)
        )
        try:
            async for text in lines(reader):
                self._keep_line(LogLine(time.time_ns() // 1000, "ERROR", self.id, text))
                self._last_lines.append((time.monotonic(), text))
                _write(text)
        finally:
            transport.close()

    def _conclude(self, ending: _Ending) -> None:
        if self._stopping:
            self._end(
                FragmentState.STOPPED, Cause.REQUEST, self._killed or f"stopped; its process {ending.text}"
            )
            return
        told = " | ".join(text for when, text in self._last_lines if text and when > self._left - _TOLD_S)
        log = f"; the end of its log: {told}" if told else ""
        if not ending.killed:
            self._end(FragmentState.FAILED, Cause.ITSELF, f"its process {ending.text}{log}")
        elif goes_on(self.fragment):
            often = f" ({_LIVES} times within {_LIVES_S:.0f} s)"
            self._end(FragmentState.FAILED, Cause.ITSELF, f"its process {ending.text}{often}{log}")
        else:
            lost = f"; this lost {state_of(self.fragment)}"
            self._end(FragmentState.FAILED, Cause.LOST, f"its process {ending.text}{lost}{log}")

    def _warn(self, text: str) -> None:
        _log.warning(
            "fragment %s at %s: %s",
            self.fragment.id,
            self.fragment.node,
            text,
            extra={"fragment_id": self.id},
        )

    @property
    def _last_word(self) -> str:
        """Return the message to neighbours about its end."""
        if self.status.state is FragmentState.FINISHED:
            return HAS_ALL
        return f"fragment {self.fragment.id} at {self.fragment.node}: {self.status.error}"

    async def _tell_neighbours(self) -> None:
        await self.decline_inputs()
        await self._fail_output()

    async def _tell_without_waiting(self) -> None:
        """Do the same, but notify its reader while others continue: it may be gone, or not there yet."""
        await self.decline_inputs()
        self._telling = asyncio.create_task(self._fail_output(), name=f"last words of {self.fragment.id}")

    async def _fail_output(self) -> None:
        await fail_output(self.fragment, self._host.sender, self._last_word)

    def _end(self, state: FragmentState, cause: Cause, error: str) -> None:
        log_end(self.fragment, state, error, self.id)
        self._move(replace(self.status, state=state, cause=cause, error=error, pid=0))

    def _move(self, status: FragmentStatus) -> None:
        before = self.status
        if status.checkpoint is None:  # a process that has begun does not know it yet
            status = replace(status, checkpoint=before.checkpoint)
        if not status.circuit:
            status = replace(status, circuit=before.circuit)
        self.status = replace(status, pid=0) if status.state.is_final else status
        if status.state is not before.state:
            self._on_change(self)


def _write(text: str) -> None:
    with suppress(OSError):  # it is no longer read, or the disk is full: the line is kept as all are
        sys.stderr.write(f"{text}\n")


def _how(code: int) -> _Ending:
    if code >= 0:
        return _Ending(f"ended with exit code {code} before the fragment ended", in_order=code == 0)
    name = signal_name(-code)
    out_of_memory = ", possibly by a system that is out of memory" if name == "SIGKILL" else ""
    return _Ending(f"was killed by {name}{out_of_memory}", killed=True)
