"""`SparkMembers`: the members of a circuit as the tasks of one barrier stage, kept as long as things get done."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import deque
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.processes import lines, send_signal, signal_name, tell
from nebuli.steps.coordinator.member_homes import ENDED_ABOVE, TakingAt
from nebuli.steps.errors import SparkRefuses, StageEnds, TooFewSlots
from nebuli.steps.member.member_run import Said
from nebuli.steps.spark import task_words
from nebuli.steps.spark.masters import has_executors, is_on_this_machine
from nebuli.steps.spark.stage_messages import Attempt, Happened, Report, Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType
    from typing import Self

    from nebuli.steps.coordinator.member_connection import MemberConnection
    from nebuli.steps.member.member_order import MemberOrder
    from nebuli.steps.spark.task_words import TaskWord
    from netchannel import ReceiverServer

_log = logging.getLogger("nebuli.steps.member")
SLOTS_S = 45.0
"""How long the executors of a cluster may take to register, at first. Later they are waited for: a machine may be away
for an hour in a year."""
ATTEMPTS = 4
"""How often a stage, or a driver, may end within ``WITHIN_S`` while nothing gets done: as Spark has it of others."""
WITHIN_S = 600.0
"""Without pushes there is no progress: a stage that ends once in a month is restarted all the same."""
_STOP_S = 15.0
"""A driver that is asked to end does so within 11 s."""
_SAID_LINES = 5


class SparkMembers:
    """Starts a driver, which has Spark run the stage, and notifies the lines where its tasks listen.

    Spark ends a stage with all its tasks when one fails. It is begun again, in the same session or, if its driver has
    ended, in another one, as long as ``done`` grows. Leaving the context ends all of it; it ends, too, when this
    process does.
    """

    def __init__(
        self,
        master: str,
        orders: Sequence[MemberOrder],
        lines_: Sequence[MemberConnection],
        receiver: ReceiverServer,
        sources: Path,
        *,
        done: Callable[[], int],
    ) -> None:
        self._master = master
        self._orders = tuple(orders)
        self._lines = tuple(lines_)
        self._receiver = receiver
        self._sources = sources
        self._done = done
        self._done_at_first = 0
        self._had_session = False
        """True if Spark has run anything of this: then a session that is not available now is retried."""
        self._slots_s = SLOTS_S if has_executors(master) else 0.0
        self._processes: dict[int, int] = {}
        self._taking = TakingAt(len(self._orders))
        self._said: deque[str] = deque(maxlen=_SAID_LINES)
        self._keeping: asyncio.Task[None]
        self.ended = asyncio.Event()
        """Set once a member has ended, though it is begun again."""

    async def __aenter__(self) -> Self:
        self._done_at_first = self._done()
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)

    def process(self, member: int) -> int | None:
        """The process id of a member's Python worker, while it has one on this machine."""
        return self._processes.get(member) if is_on_this_machine(self._master) else None

    @property
    def why_ended(self) -> str:
        """Where the reason is."""
        return ENDED_ABOVE

    async def taking(self) -> list[str]:
        """The addresses at which all listen for what they take over, once they do."""
        return await self._taking.all()

    async def failed(self) -> None:
        """Wait until they cannot be kept. Raises StageEnds, TooFewSlots, SparkRefuses."""
        await asyncio.shield(self._keeping)

    # -- drivers

    async def _keep(self) -> None:
        """Have a driver, and another when that has ended, until all members were dismissed."""
        ends = _Ends(self._done)
        while True:
            why = await self._drive()
            self._drop(why or "it was dismissed")
            if why is None:
                return
            if ends.are_too_many():
                raise StageEnds("driver", ATTEMPTS, WITHIN_S, why, self._said)
            _log.warning("the Spark driver of the members has ended (%s); it is started again", why)

    async def _drive(self) -> str | None:
        """One driver, from its start to its end: why it has ended, None if all members were dismissed."""
        with tempfile.TemporaryDirectory(prefix="nebuli-spark-", ignore_cleanup_errors=True) as folder:
            stage = Stage(
                driver=secrets.token_hex(8),
                master=self._master,
                orders=self._orders,
                coordinator=self._receiver.address,
                sources=self._sources,
                directory=Path(folder),
            )
            async with self._process(stage) as process:
                speaking = [
                    asyncio.create_task(self._hear_all(stage, order.member)) for order in self._orders
                ]
                following = asyncio.create_task(self._follow(process))
                try:  # no task group, which would have its error in a group of errors
                    await asyncio.wait([following, *speaking], return_when=asyncio.FIRST_COMPLETED)
                    for each in speaking:
                        if each.done():
                            each.result()
                    return await following
                finally:
                    for task in (following, *speaking):
                        task.cancel()
                    await asyncio.gather(following, *speaking, return_exceptions=True)

    @asynccontextmanager
    async def _process(self, stage: Stage) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "nebuli.steps.spark.stage_driver"),
            cwd=stage.directory,
            stdin=PIPE,  # its end shows the driver that this process is gone
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # it ends its own group, with Java in it
        )
        reading = asyncio.create_task(self._keep_words(process))
        try:
            await tell(process, stage.model_dump_json(by_alias=True))
            yield process
        finally:
            await _end(process)
            reading.cancel()
            shutil.rmtree(stage.directory, ignore_errors=True)

    async def _keep_words(self, process: Process) -> None:
        assert process.stderr is not None
        async for text in lines(process.stderr):
            self._said.append(text)
            _log.info("spark: %s", text)

    async def _follow(self, process: Process) -> str | None:
        """Have the stage run, and run again, as long as things get done."""
        assert process.stdout is not None
        ends = _Ends(self._done)
        await self._begin(process)
        async for text in lines(process.stdout):
            report = Report.model_validate_json(text)
            self._had_session = self._had_session or report.happened is not Happened.REFUSED
            match report.happened:
                case Happened.WAITS:
                    _log.warning("waiting for slots of Spark: %s of %d", report.text, len(self._orders))
                case Happened.ENDED:
                    return None
                case Happened.FAILED:
                    self._drop(report.text)
                    if ends.are_too_many():
                        raise StageEnds("stage", ATTEMPTS, WITHIN_S, report.text)
                    _log.warning("Spark has ended the members' stage (%s): it is started again", report.text)
                    await self._begin(process)
                case Happened.SHORT:
                    raise TooFewSlots(self._master, int(report.text), len(self._orders), self._slots_s)
                case Happened.REFUSED if not self._had_session:
                    raise SparkRefuses(self._master, report.text)
                case Happened.GONE | Happened.REFUSED:
                    return report.text
        code = await process.wait()
        return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"

    async def _begin(self, process: Process) -> None:
        slots_s = self._slots_s if self._done() == self._done_at_first else None
        await tell(process, Attempt(slots_s=slots_s).model_dump_json())

    # -- tasks

    async def _hear_all(self, stage: Stage, member: int) -> None:
        channel_id = task_words.channel(stage.circuit, stage.driver, member)
        await task_words.hear(self._receiver, channel_id, lambda word: self._hear(member, word))

    def _hear(self, member: int, word: TaskWord) -> None:
        """Handle a report of a member's newest task."""
        self._had_session = True
        line = self._lines[member]
        if member in self._processes and self._processes[member] != word.process:
            self.ended.set()
        match word.said:
            case Said.READY:
                self._processes[member] = word.process
                line.reach(word.address)
            case Said.TAKING:
                self._processes[member] = word.process
                self._taking.hear(member, word.address)
            case None:
                self._processes.pop(member, None)
                self.ended.set()
                line.drop(f"its task has ended: {word.why}")
                _log.warning("member %d: %s", member, word.why)

    def _drop(self, why: str) -> None:
        """All tasks have ended."""
        self._processes.clear()
        self.ended.set()
        for line in self._lines:
            line.address = None
            line.drop(f"its task of Spark has ended: {why}")


class _Ends:
    """How often something has ended since anything was done."""

    def __init__(self, done: Callable[[], int]) -> None:
        self._done = done
        self._before = done()
        self._times: deque[float] = deque(maxlen=ATTEMPTS)

    def are_too_many(self) -> bool:
        """It has ended once more: whether to give it up."""
        if (now := self._done()) > self._before:
            self._before = now
            self._times.clear()
        self._times.append(asyncio.get_running_loop().time())
        return len(self._times) == ATTEMPTS and self._times[-1] - self._times[0] < WITHIN_S


async def _end(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        send_signal(process, signal.SIGKILL)
        await process.wait()
