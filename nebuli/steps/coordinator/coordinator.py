"""`Coordinator`: does what `Lockstep` orders, over lines to the members, with a log of epochs and the clock."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol.errors import CheckpointNotMade, CoordinationError
from nebuli.steps.protocol.lockstep import Phase
from nebuli.store.errors import EpochTaken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any

    from nebuli.steps.coordinator.member_connection import MemberConnection
    from nebuli.steps.logs.epoch_log import EpochLog
    from nebuli.steps.protocol.lockstep import Lockstep
    from nebuli.steps.protocol.messages import Checkpoint

_log = logging.getLogger("nebuli.steps.coordinator")
PATIENCE_S = 10.0
"""How long a checkpoint that is asked for waits for members to be in step: a killed process is there again by then."""
_PAUSES_S = (0.0, 0.0, 0.05, 0.2, 1.0)
"""Before the next epoch, after so many in which nothing was done: what is in the way may need time to go."""


_NOT_IN_STEP = (Phase.CLAIMING, Phase.JOINING, Phase.OPENING)


async def _nowhere(step: int) -> None:
    """No coordinator follows this one: members end with its process."""


class Coordinator:
    """Keeps members in lockstep while it `run`s.

    ``observe`` is called with all instructions except messages to members.

    ``record_end`` makes it durable that all have stopped, for another process that is to continue where this one ends.
    A call before or after that is an error of the caller. All on one event loop.
    """

    def __init__(
        self,
        lockstep: Lockstep,
        epochs: EpochLog,
        lines: Sequence[MemberConnection],
        observe: Callable[[ev.Order], None] = lambda order: None,
        record_end: Callable[[int], Awaitable[None]] = _nowhere,
    ) -> None:
        if len(lines) != lockstep.members:
            raise ValueError(f"{len(lines)} lines for {lockstep.members} members: expected one for each")
        self.lines = tuple(lines)
        self._lockstep = lockstep
        self._epochs = epochs
        self._observe = observe
        self._record_end = record_end
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[int | None] | None = None
        self._requests: dict[int, asyncio.Future[int]] = {}
        self._request = 0
        self._away: dict[int, float] = {}
        """Members without a connection, and since when."""
        self._quiet, self._astir, self._caught_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._out_of_step = asyncio.Event()
        self._inputs_ended = asyncio.Event()
        self._done = 0
        self._fruitless = 0
        """How many epochs have ended since a step was done that had not been done before."""
        self._ended_by = ""
        """Why the last of these has."""

    # -- what is known

    @property
    def phase(self) -> Phase:
        """How far the epoch has come."""
        return self._lockstep.phase

    @property
    def epoch(self) -> int:
        """The epoch that it has, or had last."""
        return self._lockstep.epoch

    @property
    def next_step(self) -> int:
        """The step that is issued next."""
        return self._lockstep.next_step

    @property
    def rows(self) -> int:
        """Number of rows that steps were issued with, without those of replayed steps."""
        return self._lockstep.timings.rows

    @property
    def done(self) -> int:
        """Number of steps done, over all epochs: replayed steps count once."""
        return self._done

    @property
    def complete(self) -> int:
        """All members have made all steps below it, and what came of them is durable. It only rises."""
        return self._lockstep.made.complete

    @property
    def complete_is_known(self) -> bool:
        """True if `complete` includes all steps that earlier coordinators have recorded."""
        return self._lockstep.made.known

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Those that all members have."""
        return self._lockstep.checkpoints

    def timings(self) -> dict[str, float | None]:
        """How long steps and checkpoints of this process took, in seconds, and how long rows and a checkpoint are due.

        ``checkpoint_age`` is None before the first checkpoint.
        """
        now, of = asyncio.get_running_loop().time(), self._lockstep.timings
        return {
            "steps": of.steps,
            "step_seconds": of.step_seconds,
            "checkpoints": of.checkpoints,
            "checkpoint_seconds": of.checkpoint_seconds,
            "failed_checkpoints": of.failed_checkpoints,
            "checkpoint_age_seconds": None if of.checkpoint_at is None else now - of.checkpoint_at,
            "input_lag_seconds": self._lockstep.input_lag(now),
        }

    @property
    def paused(self) -> bool:
        """True if no steps are to be made."""
        return self._lockstep.paused

    @property
    def ending(self) -> bool:
        """True if it is ending, or has ended."""
        return self._lockstep.shutting_down

    # -- its life

    async def run(self) -> int | None:
        """Coordinate until `shut_down`: the next step of all members, which have a version at it, or None.

        Raises CoordinationError if the circuit cannot continue; StorageError if no epoch can be claimed.
        """
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._away = dict.fromkeys(range(len(self.lines)), loop.time())
        self._spawn(self._claim(0))
        for line in self.lines:
            self._spawn(line.run(self._happen))
        try:
            return await self._over
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refuse([*self._requests], self._not_running())
        # Those who have members rest, or give what they have, wait no more.
        self._out_of_step.set()
        self._astir.set()

    def _not_running(self) -> CheckpointNotMade:
        return CheckpointNotMade(self._lockstep.next_step, "the query does not run here")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    # -- what people ask for

    def pause(self) -> None:
        """No steps until `start`; rows are logged all the same. Again: nothing."""
        self._happen(ev.PauseAsked())

    def start(self) -> None:
        """Continue with steps. Again: nothing."""
        self._happen(ev.StartAsked())

    async def rest(self) -> int:
        """Pause once no step is left to be repeated, and wait until no member is in one: the next step."""
        while True:
            await self._caught_up.wait()
            self._happen(ev.PauseAsked())
            await self._quiet.wait()
            if self._lockstep.caught_up:
                return self._lockstep.next_step
            self._happen(ev.StartAsked())  # an epoch has begun meanwhile

    async def disturbed(self) -> None:
        """Wait until members that rest do not any more."""
        await self._astir.wait()

    async def caught_up(self) -> None:
        """Wait until members are in step, and none is left that is to be repeated."""
        await self._caught_up.wait()

    async def out_of_step(self) -> None:
        """Wait until members are not all in one epoch, as where one is lost."""
        await self._out_of_step.wait()

    async def checkpoint(self, patience_s: float | None = PATIENCE_S) -> int:
        """Make a checkpoint of all steps so far; returns the next step.

        Raises CheckpointNotMade: one could not be written, or members are not in step for so long (None: it waits for
        them), or this does not `run`, or ends meanwhile.
        """
        if self._over is None or self._over.done():
            raise self._not_running()
        loop = asyncio.get_running_loop()
        if patience_s is not None and any(loop.time() - since >= patience_s for since in self._away.values()):
            raise self._not_in_step()
        self._request += 1
        number = self._request
        made: asyncio.Future[int] = loop.create_future()
        self._requests[number] = made
        try:
            self._happen(ev.CheckpointAsked(number))
            while not made.done():  # to write a large state takes as long as it takes
                await asyncio.wait([made], timeout=patience_s)
                if not made.done() and self.phase in _NOT_IN_STEP:
                    raise self._not_in_step()
            return made.result()
        finally:
            self._requests.pop(number, None)
            made.cancel()

    def _not_in_step(self) -> CheckpointNotMade:
        now = asyncio.get_running_loop().time()
        away = " and ".join(
            f"member {member} (at {self.lines[member].address}) has been away for {now - since:.0f} s"
            for member, since in sorted(self._away.items())
        )
        if away:
            return CheckpointNotMade(None, f"{away}; check that it runs")
        again = f" again after an error: {self._ended_by}" if self._fruitless else ""
        return CheckpointNotMade(None, f"members are still opening their state{again}")

    def shut_down(self, *, drain: bool = False) -> None:
        """End, with a checkpoint if all members are there; `run` returns then. Again: nothing.

        ``drain``: steps take all rows that members have logged by now, also where it is paused.
        """
        self._happen(ev.ShutdownAsked(drain))

    async def inputs_ended(self) -> int:
        """Wait until all inputs have ended and all that comes of them is in the outputs, below this step."""
        await self._inputs_ended.wait()
        return self._lockstep.next_step

    # -- what happens

    def _happen(self, event: ev.Event) -> None:
        if self._over is None or self._over.done():
            return
        loop = asyncio.get_running_loop()
        match event:
            case ev.Connected(member):
                self._away.pop(member, None)
            case ev.Lost(member):
                self._away.setdefault(member, loop.time())
        try:
            orders = self._lockstep.handle(event, loop.time())
        except CoordinationError as error:
            self._fail(error)
            return
        if (step := self._lockstep.next_step) > self._done + 1:  # the one before it was issued, and is done
            self._done = step - 1
            self._fruitless = 0
        for order in orders:
            self._do(order)
        quiet = self._lockstep.quiet
        for event_, is_so in (
            (self._quiet, quiet),
            (self._astir, not quiet),
            (self._caught_up, self._lockstep.caught_up),
            (self._out_of_step, self.phase in _NOT_IN_STEP),
        ):
            (event_.set if is_so else event_.clear)()
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._lockstep.deadline()
        if at is not None:
            self._timer = loop.call_at(at, self._happen, ev.TimePassed())

    def _do(self, order: ev.Order) -> None:
        match order:
            case ev.Tell(member, message):
                self.lines[member].tell(message)
                return
            case ev.ClaimEpoch(after, why):
                _log.warning("%s; all members return to the last checkpoint (epoch %d has ended)", why, after)
                self._spawn(self._claim(after, _PAUSES_S[min(self._fruitless, len(_PAUSES_S) - 1)]))
                self._fruitless += 1
                self._ended_by = why
            case ev.CheckpointMade(step, requests):
                self._answer(requests, step)
            case ev.CheckpointFailed(step, why, requests):
                _log.warning("no checkpoint at step %d: %s", step, why)
                self._refuse(requests, CheckpointNotMade(step, why))
            case ev.InputsEnded():
                self._inputs_ended.set()
            case ev.RecordEnd(step):
                self._spawn(self._keep_end(step))
            case ev.Finished(step):
                if self._over is not None and not self._over.done():
                    self._over.set_result(step)
        self._observe(order)

    async def _claim(self, after: int, pause_s: float = 0.0) -> None:
        await asyncio.sleep(pause_s)
        try:
            epoch = await self._epochs.claim(after)
        except EpochTaken as error:
            self._happen(ev.EpochTaken(error.found))
        else:
            self._happen(ev.EpochClaimed(epoch))

    async def _keep_end(self, step: int) -> None:
        await self._record_end(step)
        self._happen(ev.EndRecorded())

    def _answer(self, requests: Sequence[int], step: int) -> None:
        for number in requests:
            made = self._requests.get(number)
            if made is not None and not made.done():
                made.set_result(step)

    def _refuse(self, requests: Sequence[int], error: CheckpointNotMade) -> None:
        for number in requests:
            made = self._requests.get(number)
            if made is not None and not made.done():
                made.set_exception(error)
