"""`CircuitRun`: a circuit from its first members to its end, with its coordinator in this process.

Members live on this machine, at workers, or in Spark: a `Roster` knows which they are, and starts their processes. All
else is the same: lives of the coordinator, pause and start, other members in the place of those that there are, and the
end.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nebuli.cancellation import cancelled
from nebuli.dataflow import SteppedCircuit
from nebuli.steps.coordinator.call_connection import CallRoutes
from nebuli.steps.coordinator.succession import GivenUp, given_ahead, handed_over
from nebuli.steps.errors import NotScaled
from nebuli.steps.member.delivery import FOLLOWED
from nebuli.steps.protocol.lockstep import Lockstep, Phase
from nebuli.steps.protocol.lockstep_parts import MadeSteps
from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from nebuli.steps.coordinator.coordinator import Coordinator
    from nebuli.steps.coordinator.generation import Generation
    from nebuli.steps.coordinator.roster import Roster
    from nebuli.steps.coordinator.run_record import RunRecord
    from nebuli.steps.logs.remap import Offsets
    from nebuli.steps.protocol.events import Order
    from nebuli.steps.protocol.triggers import TriggerSettings
    from nebuli.store import Span
    from placement.stepped_plan import SteppedPlan

_log = logging.getLogger("nebuli.steps.member")
_PUSH_S = 10.0
"""How long pushes that are on their way are waited for: by members that are to follow, and by the end."""
_LOOK_S = 0.05
_ENDING = "the query is ending"
_UNKNOWN = "it is not known which members have the state"
_Wanted = TypeVar("_Wanted")


class CircuitRun(Generic[_Wanted]):
    """A circuit that runs as long as `run` does, with the members that `begin` finds.

    ``record`` knows what was asked for, and how far it came. ``observe`` is called with each order of the coordinator.
    ``closes``: event time ends at the end of all inputs, or of the run.
    """

    def __init__(
        self,
        record: RunRecord,
        settings: TriggerSettings,
        plan: SteppedPlan,
        external: Sequence[str],
        observe: Callable[[Order], None] = lambda order: None,
        *,
        closes: bool,
    ) -> None:
        self.external = external
        """The inputs that are pushed into."""
        self.calls = CallRoutes()
        """The ways into the members' input logs."""
        self.on_failure: list[Callable[[str], None]] = []
        """Callbacks of the code that answers callers: they get the reason if rows prevent it from continuing."""
        self.record = record
        self.ends_with_inputs = asyncio.Event()
        """Set if it ends when all its inputs have ended."""
        self.over: int | None = None
        """The step that nothing follows in any output, once the circuit has come to its end."""
        self._roster: Roster[_Wanted]
        self._settings = settings
        self._observe = observe
        self._closes = closes
        self._shapes = SteppedCircuit(plan, 0).outputs
        self._made = MadeSteps()
        """The steps that all members have made, whichever they are."""
        self._now: Generation | None = None
        self._alone = asyncio.Lock()
        """Held while what runs is changed, or ended."""
        self._scalings: set[asyncio.Task[int]] = set()
        self._is_decided = False
        """True once others may be recorded as the members.

        From then on only the note decides which members have the circuit.
        """
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Why it cannot continue, if it cannot."""
        self._ending, self._stopping = asyncio.Event(), asyncio.Event()
        self._complete = False
        """True if the members' stop is the end, and not one by request."""

    # -- what is known

    @property
    def has_begun(self) -> bool:
        """True if it has members."""
        return self._now is not None

    @property
    def generation(self) -> Generation:
        """The members that there are now."""
        assert self._now is not None, "it has begun"
        return self._now

    @property
    def plan(self) -> SteppedPlan:
        """The query's, over the members that there are now."""
        return self.generation.plan

    @property
    def coordinator(self) -> Coordinator:
        """That of the members that there are now."""
        return self.generation.coordinator

    def process(self, member: int) -> int | None:
        """The process id of a member, while it has one that is known here."""
        return self.generation.members.process(member)

    async def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """An output from a step on: waits while its member is away, and continues with other members.

        Raises SinceMismatch, StorageError.
        """
        at = first
        while True:
            generation = self.generation
            line = generation.calls[generation.plan.homes[output]]
            spans = line.follow(output, at, self._shapes[output])
            while (span := await _next(spans, generation)) is not None:
                yield span
                at = span.upper
            async with self._alone:  # until the others are there
                pass

    async def offsets(self, member: int, step: int) -> Offsets:
        """Return what counts for a step at a member: waits while that is away. Raises StepOutOfRange, StorageError."""
        return await self.calls[member].offsets(step)

    # -- what is asked for

    async def pause(self) -> None:
        """Make no steps until `start`, even if processes die meanwhile; nothing once it is ending. Raises OSError."""
        async with self._alone:
            if not self._ending.is_set():
                await self.record.change(paused=True)
                self.coordinator.pause()

    async def start(self) -> None:
        """Make steps again. Raises OSError."""
        async with self._alone:
            await self.record.change(paused=False)
            self.coordinator.start()

    async def shut_down(self) -> None:
        """Begin to end, with all rows pushed by now, once all members are there, even if processes die meanwhile.

        Pushes are refused from now on. Raises OSError.
        """
        async with self._alone:
            await self.record.change(ending=True)
            self._end()

    def _end(self) -> None:
        self.calls.close()
        self._ending.set()

    def stop(self) -> None:
        """Have it end as it is, with a checkpoint if possible. Members are not others unless that is decided."""
        self._stopping.set()
        if not self._is_decided:
            for each in self._scalings:
                each.cancel()

    async def scale(self, members: int) -> int:
        """Continue with so many members, as `succeed`."""
        return await self.succeed(self._roster.wanted(members))

    async def succeed(self, wanted: _Wanted) -> int:
        """Continue with other members; their first step. After a cancel it comes to its end all the same.

        Pushes wait meanwhile, and are logged after it. Raises NotScaled: all continues as it was, or, where it is not
        known whose the circuit is, `run` raises why.
        """
        scaling = asyncio.create_task(self._scale(wanted))
        self._scalings.add(scaling)
        scaling.add_done_callback(self._scalings.discard)
        await asyncio.wait([scaling])
        if scaling.cancelled():
            raise NotScaled(self._roster.number(wanted), _ENDING)
        return scaling.result()

    # -- its lives

    async def begin(self, roster: Roster[_Wanted]) -> None:
        """Have the members that the circuit has, and a coordinator for them. Raises StorageError, OutputError."""
        self._roster = roster
        if self.record.known.ending:
            self._end()
        generation = await self._roster.first()
        self._now = generation
        self._coordinate(generation)
        await generation.open()
        await generation.start()
        self.calls.lead(generation.calls)
        await self._roster.tidy()

    async def close(self, reason: str) -> None:
        """End what is in this process."""
        await cancelled([*self._scalings])
        if self._now is not None:
            await self._roster.close()
            await self._now.close(reason)

    def break_off(self, error: Exception) -> None:
        """Have `run` raise this."""
        if not self._broken.done():
            self._broken.set_exception(error)

    async def run(self) -> int | None:
        """Have steps made to the end: the step that all members have a version at; None if not all were there.

        If it was the end, and not a stop, sinks have their results then, and `over` is set. Raises CoordinationError,
        MembersFailed, OutputError, StorageError, OSError.
        """
        while True:
            generation = self.generation
            step = await self._one_life(generation)
            if generation.over.is_set():
                async with self._alone:  # until the others are there
                    self._check_broken()
                continue
            if step is not None and self.record.known.complete:
                await generation.finish(step)
                self.over = step
                return step
            if step is not None or self._stopping.is_set():
                if step is not None:
                    await generation.leave(step)
                return step
            _log.warning(
                "a member was lost while all members were ending: the other members wait until it "
                "runs again, and then all end together"
            )
            self._coordinate(generation)

    def _check_broken(self) -> None:
        if self._broken.done():
            self._broken.result()

    def _coordinate(self, generation: Generation) -> None:
        known = self.record.known
        lockstep = Lockstep(
            generation.plan.members,
            self._settings,
            paused=known.paused,
            over=known.over,
            closes=self._closes or known.closes,
            made=self._made,
        )
        generation.coordinate(lockstep, self._observe, self._record_end)

    async def _record_end(self, step: int) -> None:
        await self.record.change(over=step, complete=self._complete)

    async def _one_life(self, generation: Generation) -> int | None:
        """Coordinate until it is shut down: at which step; or until others have taken over."""
        coordinator = generation.coordinator
        generation.left.clear()
        running = asyncio.create_task(coordinator.run())
        asked = asyncio.create_task(self._asked_to_end(generation))
        ended = asyncio.create_task(self._inputs_end(coordinator))
        others = [asyncio.create_task(each.wait()) for each in (self._stopping, generation.over)]
        failing = [asyncio.create_task(_raising(each)) for each in generation.failures()]

        def note(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and task.exception() is not None:
                generation.broken.set()  # a succession that has the lock gives up

        for each in (running, *failing):
            each.add_done_callback(note)
        try:
            fatal: list[asyncio.Future[Any]] = [running, *failing, self._broken]
            await asyncio.wait([*fatal, asked, ended, *others], return_when=asyncio.FIRST_COMPLETED)
            if generation.over.is_set():
                return None  # the succession, which has the lock, waits for that
            async with self._alone_with(generation) as is_alone:
                if not is_alone:
                    return None
                _check(failing)
                self._check_broken()
                if not running.done():
                    if asked.done() and asked.result() != coordinator.epoch:
                        return None  # a member that was notified of the end is another process by now
                    self._complete = asked.done() or ended.done()
                    coordinator.shut_down(drain=self._complete)
            await asyncio.wait(fatal, return_when=asyncio.FIRST_COMPLETED)
            _check(failing)
            self._check_broken()
            return await running
        finally:
            await cancelled([running, asked, ended, *others, *failing])
            generation.left.set()

    @asynccontextmanager
    async def _alone_with(self, generation: Generation) -> AsyncIterator[bool]:
        """The lock, or False once others have taken over: its holder then waits until nothing coordinates these."""
        alone = asyncio.create_task(self._alone.acquire())
        over = asyncio.create_task(generation.over.wait())
        try:
            await asyncio.wait([alone, over], return_when=asyncio.FIRST_COMPLETED)
            yield not generation.over.is_set()
        finally:
            await cancelled([alone, over])
            if not alone.cancelled():
                self._alone.release()

    async def _inputs_end(self, coordinator: Coordinator) -> None:
        await self.ends_with_inputs.wait()
        await coordinator.inputs_ended()

    async def _asked_to_end(self, generation: Generation) -> int:
        """Wait until a program shuts the circuit down, and all members know that sinks have results: in which epoch."""
        await self._ending.wait()
        await self.calls.emptied(_PUSH_S)
        coordinator = generation.coordinator
        while True:
            while coordinator.phase is not Phase.RUNNING:  # noqa: ASYNC110 - it is lost, and reached again
                await asyncio.sleep(_LOOK_S)
            epoch = coordinator.epoch
            await asyncio.gather(*(each.publish() for each in generation.calls))
            if (coordinator.phase, coordinator.epoch) == (Phase.RUNNING, epoch):
                return epoch

    # -- other members

    async def _scale(self, wanted: _Wanted) -> int:
        number = self._roster.number(wanted)
        if self._now is None:
            raise NotScaled(number, "the coordinator is still starting")
        async with self._alone:
            if self._broken.done():
                raise NotScaled(number, _UNKNOWN)
            before = self.generation
            if self._roster.has(wanted, before):
                return before.coordinator.next_step
            if self._ending.is_set() or self._stopping.is_set() or before.coordinator.ending:
                raise NotScaled(number, _ENDING)
            try:
                step = await self._succeed(wanted, before)
            except NotScaled:
                await self._roster.tidy()
                raise
            except Exception as error:
                self.break_off(error)
                raise NotScaled(number, f"{_UNKNOWN}: {error}") from error
            await self._roster.tidy()
            return step

    async def _succeed(self, wanted: _Wanted, before: Generation) -> int:
        """Have others take the place of members; their first step.

        Raises NotScaled: those before continue. StorageError, OSError: only the note then decides which members have
        the circuit.
        """
        after = await self._roster.candidates(wanted, before)
        self._is_decided = False
        try:
            addresses, epoch = await given_ahead(before, after)
            async with self.calls.held(_PUSH_S):
                step = await self._hand_over(before, after, addresses, epoch)
                self._is_decided = True
                await self._roster.become(after)  # from here on, even if processes die
                before.over.set()
                await before.left.wait()  # no coordinator greets them any more, and has them open their sinks
                await asyncio.gather(self._leave(before), after.open())
                self._coordinate(after)
                self.calls.lead(after.calls)
                self._now = after
                self._is_decided = False
                return step
        except (GivenUp, TimeoutError, asyncio.CancelledError) as error:
            if self._is_decided:  # the note's place may be too slow
                raise
            await after.close("its members do not take over")
            await before.take_back()
            if isinstance(error, asyncio.CancelledError):
                raise
            waited = f"a push has waited {_PUSH_S:g} s for room: start the circuit if it is paused"
            raise NotScaled(after.plan.members, str(error) or waited) from error
        except BaseException:
            await after.close("its members do not take over")
            raise

    async def _leave(self, before: Generation) -> None:
        await self._roster.release(before)
        await before.close(FOLLOWED)

    async def _hand_over(
        self, before: Generation, after: Generation, addresses: Sequence[str], epoch: int
    ) -> int:
        """Move what there is from members to those that follow them; the next step.

        Raises GivenUp: those before continue.
        """
        try:
            return await handed_over(before, after, addresses, epoch)
        except (GivenUp, StorageError) as error:
            await before.resume()
            raise GivenUp(str(error)) from error
        except asyncio.CancelledError:
            await before.resume()
            raise


AnyRun = CircuitRun[Any]
"""A run, wherever its members live."""


def _check(tasks: Sequence[asyncio.Task[None]]) -> None:
    for each in tasks:
        if each.done():
            each.result()


async def _raising(failure: Any) -> None:
    """Wait for what is raised; forever if nothing is."""
    await failure
    await asyncio.Event().wait()


async def _next(spans: AsyncIterator[Span], generation: Generation) -> Span | None:
    """Return the next event, as long as the circuit is theirs; then None."""
    coming = asyncio.ensure_future(anext(spans))
    over = asyncio.create_task(generation.over.wait())
    waiting: list[asyncio.Future[Any]] = [coming, over]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    except StorageError:
        if generation.over.is_set():
            return None
        raise
    finally:
        await cancelled(waiting)
