"""`LocalMembers`: the members of a circuit as processes of this machine, started again when they die."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING

from nebuli.forking.forked_command import ForkedCommand
from nebuli.forking.spawner import SpawnFailed
from nebuli.processes import lines, signal_name
from nebuli.steps.coordinator.member_homes import ENDED_ABOVE, TakingAt
from nebuli.steps.errors import MembersEnd
from nebuli.steps.member.member_run import Said

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from nebuli.steps.coordinator.member_connection import MemberConnection
    from nebuli.steps.coordinator.member_homes import Members
    from nebuli.steps.member.member_order import MemberOrder
    from netchannel import ReceiverServer

_log = logging.getLogger("nebuli.steps.member")
RESTARTS = 5
"""How often a member may end in ``WITHIN_S`` while nothing gets done."""
WITHIN_S = 60.0
_STOP_S = 3.5
_SAID_LINES = 5
_ENDED = "its process has ended"


class ThisMachine:
    """The home of members that are processes of this machine. ``directory`` is where paths of sources start."""

    host = "127.0.0.1"

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()

    def members(
        self,
        orders: Sequence[MemberOrder],
        lines_: Sequence[MemberConnection],
        _receiver: ReceiverServer,
        done: Callable[[], int],
    ) -> Members:
        """A process for each order; its messages go to its standard error."""
        return LocalMembers(orders, lines_, self._directory, done)


class LocalMembers:
    """Starts a process for each order, and notifies its lines where it listens, whenever a new one does.

    One that was dismissed is not started again.

    Leaving the context ends them all, within four seconds; they end, too, when this process does. Their standard error
    goes to this process's. ``directory`` is where paths of sources start. ``done`` returns how much all have done
    together: a member that dies is started again as long as that grows.
    """

    def __init__(
        self,
        orders: Sequence[MemberOrder],
        lines_: Sequence[MemberConnection],
        directory: Path,
        done: Callable[[], int],
    ) -> None:
        self._orders = tuple(orders)
        self._done = done
        self._lines = tuple(lines_)
        self._directory = directory.absolute()
        self._processes: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._taking = TakingAt(len(self._orders))
        self.ended = asyncio.Event()
        """Set once the process of a member has ended, though it is started again."""

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep(order)) for order in self._orders]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def process(self, member: int) -> int | None:
        """The process id of a member, while it has one."""
        return self._processes.get(member)

    @property
    def why_ended(self) -> str:
        """Where the reason is."""
        return ENDED_ABOVE

    async def taking(self) -> list[str]:
        """The addresses at which all listen for what they take over, once they do."""
        return await self._taking.all()

    async def failed(self) -> None:
        """Wait until a member cannot be kept: raises MembersEnd, with its last error message."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _keep(self, order: MemberOrder) -> None:
        """Start it, and start it again."""
        ends: deque[float] = deque(maxlen=RESTARTS)
        loop = asyncio.get_running_loop()
        line = self._lines[order.member]
        done = self._done()
        said: deque[str] = deque(maxlen=_SAID_LINES)
        while True:
            before, said = frozenset(said), deque(maxlen=_SAID_LINES)
            code = await self._run(order, line, said, before)
            how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
            line.address = None
            self.ended.set()
            line.drop(f"{_ENDED} ({how})")
            if code == 0:  # it was dismissed
                return
            if (now := self._done()) > done:
                done = now
                ends.clear()
            ends.append(loop.time())
            if len(ends) == RESTARTS and ends[-1] - ends[0] < WITHIN_S:
                raise MembersEnd(order.member, RESTARTS, WITHIN_S, how, list(said))
            _log.warning("member %d: %s (%s); it is started again", order.member, _ENDED, how)

    async def _run(
        self, order: MemberOrder, line: MemberConnection, said: deque[str], before: Collection[str]
    ) -> int:
        """One process, from its start to its end; its exit code, which is negative for a signal.

        An error that the process before it has printed, too, is not printed again.
        """
        arguments = ["member", str(order.member), order.circuit]
        command = await ForkedCommand.start(arguments, self._directory)
        try:
            await asyncio.wait(
                [command.process.pid, command.process.ended], return_when=asyncio.FIRST_COMPLETED
            )
            if command.process.pid.done():
                self._processes[order.member] = command.process.pid.result()
            await command.tell(order.model_dump_json(by_alias=True))
            async for text in lines(command.stderr):
                if text.startswith(Said.READY):
                    line.reach(text.removeprefix(Said.READY))
                elif text.startswith(Said.TAKING):
                    self._taking.hear(order.member, text.removeprefix(Said.TAKING))
                else:
                    error = text.removeprefix("Error: ")
                    said.append(error)
                    if error == text or error not in before:
                        sys.stderr.write(f"member {order.member}: {text}\n")
            return await asyncio.shield(command.process.ended)
        except SpawnFailed as error:
            said.append(str(error))
            return 1
        finally:
            self._processes.pop(order.member, None)
            await _end(command)


async def _end(command: ForkedCommand) -> None:
    process = command.process
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await asyncio.wait([process.ended])
    except TimeoutError:
        process.kill()
        await asyncio.wait([process.ended])
    finally:  # also after a second cancel: the process ends with its standard input
        command.close()
