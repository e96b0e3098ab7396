"""The coordinator of a query in steps, as a fragment, with the service that programs call."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nebuli.connectors.errors import ViewInUse
from nebuli.coordinator.errors import CheckpointNotMade
from nebuli.coordinator.lockstep import Lockstep
from nebuli.coordinator.triggers import SPACING_S, TriggerSettings
from nebuli.dataflow import SteppedCircuit
from nebuli.members.calls.call_routes import CallRoutes
from nebuli.members.errors import NotScaled
from nebuli.rpc.ids import query_of
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.rpc.trust import NO_TRUST
from nebuli.storage import StorageError, Store
from nebuli.storage.logs.epoch_log import EpochLog
from nebuli.views.view_calls import service_of
from nebuli.worker.placed.member_notes import MemberNotes
from nebuli.worker.placed.member_workers import MemberWorkers
from nebuli.worker.placed.placed_members import PlacedMembers
from nebuli.worker.placed.placed_scaling import PlacedScaling
from netchannel import ChannelInUse

from .coordinator_record import CoordinatorRecord
from .step_runner import WITHOUT_CHECKPOINT, StepRunner, cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from nebuli.circuits.views.view_lookups import ViewLookups
    from nebuli.coordinator.coordinator import Coordinator
    from nebuli.rpc.following_members import Succession
    from nebuli.rpc.trust import Trust
    from nebuli.storage import Span
    from nebuli.storage.logs.remap import Offsets
    from nebuli.storage.store_url import StorePlace
    from nebuli.worker.placed.member_notes import Whose
    from netchannel import ReceiverServer, SenderServer, Service
    from placement.stepped import CoordinatorFragment, SteppedPlan

__all__ = ["CoordinatorRunner"]

_log = logging.getLogger(__name__)
_AGAIN_S = 0.2
_ENDING = "the query is ending"
_UNKNOWN = "it is not known whose it is"


class CoordinatorRunner(StepRunner):
    """The coordinator, to the end of all inputs, or until a program shuts it down.

    It is a `nebuli.circuits.running_circuit.Running`, and serves what programs call at ``socket``, to its worker,
    and at ``http_socket`` over HTTP. It shows ``trust`` to other workers.
    """

    def __init__(
        self,
        id_: str,
        fragment: CoordinatorFragment,
        place: StorePlace,
        sender: SenderServer,
        receiver: ReceiverServer,
        *,
        socket: Path,
        http_socket: Path | None = None,
        trust: Trust = NO_TRUST,
    ) -> None:
        super().__init__(id_, fragment, place, sender, receiver)
        self._order = fragment
        self._socket = socket
        self._http_socket = http_socket
        self._shapes = SteppedCircuit(fragment.plan, 0).outputs
        self._trust = trust
        self._now: PlacedMembers | None = None
        self._store: Store
        self._record: CoordinatorRecord
        self._notes: MemberNotes
        self._scaling: PlacedScaling
        self._alone = asyncio.Lock()
        """Held by whoever changes what runs, or ends it."""
        self._scalings: set[asyncio.Task[int]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Why it cannot go on, if it cannot."""
        self._ending = asyncio.Event()
        self._over: int | None = None
        self._lookups: ViewLookups | None = None
        """Who answers for its views, if it has some."""
        self._complete = False
        """Whether all is to have its end when the members have stopped: nobody has only asked for a stop."""
        self.calls = CallRoutes()

    @property
    def status(self) -> FragmentStatus:
        """How it is now."""
        if self._now is None or self._status.state.is_final:
            return self._status
        coordinator = self._now.coordinator
        phase = f"epoch {coordinator.epoch}, step {coordinator.next_step:,}, {coordinator.phase.value}"
        checkpoint = max((each.step for each in coordinator.checkpoints), default=self._record.known.over)
        circuit = self._notes.whose.circuit if self._notes.whose.places else ""
        views = () if self._lookups is None else self._lookups.statuses
        return replace(self._status, phase=phase, checkpoint=checkpoint, circuit=circuit, views=views)

    def stop(self) -> None:
        """As of any fragment. Others do not follow its members unless that is decided: there is little time."""
        super().stop()
        if self._now is not None and not self._scaling.is_decided:
            for each in self._scalings:
                each.cancel()

    async def checkpoint(self) -> int:
        """Have a checkpoint made: the step behind it. Raises CheckpointNotMade."""
        if self._now is None:
            raise CheckpointNotMade(None, "the coordinator has only begun")
        return await self._now.coordinator.checkpoint()

    # -- as a `Running`

    @property
    def plan(self) -> SteppedPlan:
        """The query's, over the members that there are now."""
        return self._members.whose.plan

    @property
    def external(self) -> Sequence[str]:
        """The inputs that are pushed into."""
        return self._order.external

    @property
    def coordinator(self) -> Coordinator:
        """That of this life."""
        return self._members.coordinator

    @property
    def _members(self) -> PlacedMembers:
        assert self._now is not None, "they are there before anybody is served"
        return self._now

    async def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """An output from a step on, as its member has it: waits while that is away, and goes on with other members."""
        at = first
        while True:
            members = self._members
            line = members.calls[members.whose.plan.homes[output]]
            spans = line.follow(output, at, self._shapes[output])
            while (span := await _next(spans, members)) is not None:
                yield span
                at = span.upper
            async with self._alone:  # until the others are there
                pass

    async def offsets(self, member: int, step: int) -> Offsets:
        """What counts for a step at a member: waits while that is away. Raises StepOutOfRange, StorageError."""
        return await self.calls[member].offsets(step)

    def process(self, member: int) -> int | None:
        """Nothing: its worker knows."""
        return None

    @property
    def over(self) -> int | None:
        """The step that nothing follows, once all has come to its end."""
        return self._over

    async def pause(self) -> None:
        """No steps until `start`, whatever dies meanwhile."""
        async with self._alone:
            await self._record.change(paused=True)
            self.coordinator.pause()

    async def start(self) -> None:
        """Steps go on."""
        async with self._alone:
            await self._record.change(paused=False)
            self.coordinator.start()

    async def scale(self, members: int) -> int:
        """Not without a place for each: whoever has the topology says which. Raises NotScaled."""
        raise NotScaled(
            members,
            f"its members are at workers, and who has the topology says at which: give 'nebuli scale "
            f"{query_of(self._status.id)} --members {members}' where it was registered",
        )

    async def shut_down(self) -> None:
        """Begin to end, as soon as all members are there, whatever dies meanwhile."""
        async with self._alone:
            await self._record.change(ending=True)
            self._ending.set()

    async def succeed(self, succession: Succession) -> int:
        """Go on with other members; the step that is their first. After a cancel it goes to its end all the same.

        Once they have taken over it is so already. Raises NotScaled: all goes on as it was.
        """
        scaling = asyncio.create_task(self._succeed(succession))
        self._scalings.add(scaling)
        scaling.add_done_callback(self._scalings.discard)
        await asyncio.wait([scaling])
        if scaling.cancelled():
            raise NotScaled(len(succession.members), _ENDING)
        return scaling.result()

    async def _succeed(self, succession: Succession) -> int:
        number = len(succession.members)
        if self._now is None:
            raise NotScaled(number, "the coordinator has only begun")
        async with self._alone:
            if self._broken.done():
                raise NotScaled(number, _UNKNOWN)
            before = self._members
            if (before.whose.circuit, before.whose.places) == (succession.circuit, succession.places):
                return before.coordinator.next_step
            if before.whose.places not in ((), succession.before):
                raise NotScaled(number, "it has other members by now than whoever asks knows of")
            if self._ending.is_set() or self._stopping.is_set() or before.coordinator.ending:
                raise NotScaled(number, _ENDING)
            try:
                self._now = await self._scaling.succeed(before, succession)
            except (StorageError, OSError) as error:
                if not self._broken.done():
                    self._broken.set_exception(error)
                raise NotScaled(number, f"{_UNKNOWN}: {error}") from error
            return self._now.coordinator.next_step

    # -- its lives

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        from nebuli.circuits.served_run import (
            served_to_worker,  # not in processes that serve nobody: it is large
        )

        async with AsyncExitStack() as stack:
            self._store = await stack.enter_async_context(Store.at(self._place))
            self._record = CoordinatorRecord.at(self._place)
            self._notes = MemberNotes.at(self._place, self._order)
            if self._record.known.ending:
                self._ending.set()
            self._now = await self._made(self._notes.whose)
            self.calls.lead(self._now.calls)
            self._scaling = PlacedScaling(self._notes, MemberWorkers(self._trust), self.calls, self._made)
            stack.push_async_callback(self._leave)
            self._scaling.begin()
            await self._serve_views(stack)
            await stack.enter_async_context(served_to_worker(self, self._socket))
            if self._http_socket is not None:
                from nebuli.http.http_server import served_over_http_to_worker

                await stack.enter_async_context(served_over_http_to_worker(self, self._http_socket))
            while True:
                members = self._members
                step = await self._one_life(members)
                if members.over.is_set():
                    async with self._alone:  # until the others are there
                        if self._broken.done():
                            self._broken.result()
                    continue
                if self._record.known.complete:
                    self._over = step
                    return FragmentState.FINISHED, Cause.NONE, ""
                if step is not None or self._stopping.is_set():
                    return (
                        FragmentState.STOPPED,
                        Cause.REQUEST,
                        "" if step is not None else WITHOUT_CHECKPOINT,
                    )
                _log.warning(
                    "a member was lost while all were to end: the others wait for it, and all end together"
                )
                members.coordinate(self._lockstep(members.whose), self._record_end)

    async def _serve_views(self, stack: AsyncExitStack) -> None:
        """Answer for the query's views at the node, if it has some. Raises ViewInUse."""
        if not any(self.plan.views):
            return
        from nebuli.circuits.views.view_lookups import ViewLookups  # as above

        lookups = self._lookups = ViewLookups(self, self._status.id)
        stack.push_async_callback(lookups.close)
        services = {}
        for name in lookups.names:
            try:
                service = self._receiver.register_service(service_of(name), partial(lookups.answer, name))
            except ChannelInUse as error:
                raise ViewInUse(name, error) from error
            services[name] = await stack.enter_async_context(service)
        stack.push_async_callback(cancelled, [asyncio.create_task(self._watch_services(services))])

    async def _watch_services(self, services: Mapping[str, Service]) -> None:
        """Go on no more if another process of the node turns out to have a view of the same name."""
        while not self._broken.done():
            for name, service in services.items():
                if service.error is not None and not self._broken.done():
                    self._broken.set_exception(ViewInUse(name, service.error))
            await asyncio.sleep(_AGAIN_S)

    async def _leave(self) -> None:
        await cancelled([*self._scalings])
        await self._scaling.close()
        if self._now is not None:
            await self._now.close()

    async def _made(self, whose: Whose) -> PlacedMembers:
        """Members, with a coordinator that does not run yet."""
        epochs = await EpochLog.open(self._store, whose.circuit)
        made = PlacedMembers(whose, self._sender, self._receiver, self._order.node, epochs)
        made.coordinate(self._lockstep(whose), self._record_end)
        return made

    def _lockstep(self, whose: Whose) -> Lockstep:
        settings = TriggerSettings(checkpoint_s=self._order.checkpoint_s, spacing_s=SPACING_S)
        known = self._record.known
        return Lockstep(len(whose.addresses), settings, paused=known.paused, over=known.over)

    async def _record_end(self, step: int) -> None:
        await self._record.change(over=step, complete=self._complete)

    async def _one_life(self, members: PlacedMembers) -> int | None:
        """Coordinate until it is shut down: at which step; or until others have taken over."""
        coordinator = members.coordinator
        members.left.clear()
        running = asyncio.create_task(coordinator.run())
        ends = [asyncio.create_task(self._asked_to_end(coordinator))]
        if self._lookups is None:  # views are read on, whatever has ended
            ends.append(asyncio.create_task(_ended(coordinator)))
        others = [asyncio.create_task(each.wait()) for each in (self._stopping, members.over)]
        try:
            waiting: list[asyncio.Future[Any]] = [running, *ends, *others, self._broken]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if members.over.is_set():
                return None  # whoever waits for that has the lock
            async with self._alone_with(members) as is_alone:
                if not is_alone:
                    return None
                if self._broken.done():
                    self._broken.result()
                if not running.done():
                    for each in ends:
                        if each.done():
                            each.result()  # where sinks could not be told, it is no end
                    self._complete = any(each.done() for each in ends)
                    coordinator.shut_down()
            return await running
        finally:
            await cancelled([running, *ends, *others])
            members.left.set()

    @asynccontextmanager
    async def _alone_with(self, members: PlacedMembers) -> AsyncIterator[bool]:
        """The lock, or False once others have taken over: who has it then waits until nobody coordinates these."""
        alone = asyncio.create_task(self._alone.acquire())
        over = asyncio.create_task(members.over.wait())
        try:
            await asyncio.wait([alone, over], return_when=asyncio.FIRST_COMPLETED)
            yield not members.over.is_set()
        finally:
            await cancelled([alone, over])
            if not alone.cancelled():
                self._alone.release()

    async def _asked_to_end(self, coordinator: Coordinator) -> None:
        """Wait until a program shuts the circuit down, and all members are there and know that sinks have results."""
        await self._ending.wait()
        while True:
            try:
                await coordinator.checkpoint(patience_s=None)
            except CheckpointNotMade as error:
                _log.warning("the query was told to end, and waits until all its members can: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        await asyncio.gather(*(each.publish() for each in self.calls))


async def _ended(coordinator: Coordinator) -> None:
    await coordinator.inputs_ended()


async def _next(spans: AsyncIterator[Span], members: PlacedMembers) -> Span | None:
    """What comes next, as long as the circuit is theirs; then None."""
    coming = asyncio.ensure_future(anext(spans))
    over = asyncio.create_task(members.over.wait())
    waiting: list[asyncio.Future[Any]] = [coming, over]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    except StorageError:
        if members.over.is_set():
            return None
        raise
    finally:
        coming.cancel()
        over.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
