"""`Generation`: the members of a query, as long as there are so many of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nebuli.coordinator.coordinator import Coordinator
from nebuli.coordinator.events import CheckpointMade, EpochRuns
from nebuli.coordinator.lines.line import Line
from nebuli.coordinator.lockstep import Lockstep
from nebuli.dataflow import SteppedCircuit
from nebuli.members.calls.call_line import CallLine
from nebuli.members.delivering import Delivery
from nebuli.members.member_order import MemberOrder
from nebuli.members.opening import LOG, own_output_log
from nebuli.storage import Store
from nebuli.storage.logs.remap import Remap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nebuli.coordinator.events import Order
    from nebuli.coordinator.triggers import TriggerSettings
    from nebuli.members.homes import Home
    from nebuli.members.scaling.layout import Takeover
    from nebuli.members.stepped_query import SteppedQuery
    from nebuli.storage.logs.epoch_log import EpochLog
    from nebuli.storage.logs.output_log import OutputLog
    from nebuli.storage.store_url import StorePlace
    from netchannel import ReceiverServer, SenderServer
    from placement.plan import Late


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is the same for all generations of a run, see `nebuli.members.local.local_run.LocalRun`."""

    home: Home
    settings: TriggerSettings
    observe: Callable[[Order], None]
    hosts: Sequence[str]
    max_state_bytes: int
    late: Late
    keep_output_bytes: int | None
    keep_contents_bytes: int | None
    sender: SenderServer
    receiver: ReceiverServer
    secret: str
    alone: asyncio.Lock
    """Held by whoever changes what runs, or ends it."""


class Generation:
    """Members at their home, their coordinator, and what is read of their stores, which are at ``places``.

    `start` begins the members, `open` reads the stores that are there then, and `coordinate` has steps made.
    """

    def __init__(
        self,
        query: SteppedQuery,
        places: Sequence[StorePlace],
        epochs: EpochLog,
        surroundings: Surroundings,
        takeover: Takeover | None = None,
    ) -> None:
        self._alone = surroundings.alone
        self.query = query
        self.outputs: dict[str, OutputLog] = {}
        self.remaps: list[Remap] = []
        self._places = places
        self._epochs = epochs
        self._around = surroundings
        self._takeover = takeover
        self._deliveries: dict[str, Delivery] = {}
        self._stack = AsyncExitStack()
        circuit, plan = query.circuit, query.plan
        sender, receiver = surroundings.sender, surroundings.receiver
        self.calls = [CallLine(circuit, member, sender, receiver) for member in range(plan.members)]
        self._lines = [
            Line(circuit, member, None, sender, receiver, beside=calls)
            for member, calls in enumerate(self.calls)
        ]
        orders = [self._order(member) for member in range(plan.members)]
        self.members = surroundings.home.members(orders, self._lines, receiver, self._done)
        self.coordinator: Coordinator
        self._coordinating: asyncio.Task[int | None] | None = None
        self.changed = asyncio.Event()
        """Set where others have taken its place, or have not, and what guards it is to look again."""
        self.was_paused = False
        """Whether it was paused before it came to rest."""

    def _order(self, member: int) -> MemberOrder:
        around = self._around
        return MemberOrder(
            circuit=self.query.circuit,
            member=member,
            plan=self.query.plan,
            feeds=self.query.feeds[member],
            external=bool(self.query.external),
            store=self._places[member],
            listen=f"{around.hosts[member % len(around.hosts)]}:0",
            secret=around.secret,
            max_state_bytes=around.max_state_bytes,
            late=around.late,
            keep_output_bytes=around.keep_output_bytes,
            keep_contents_bytes=around.keep_contents_bytes,
            takeover=self._takeover,
        )

    def _hear(self, order: Order) -> None:
        for delivery in self._deliveries.values():
            match order:
                case EpochRuns():
                    delivery.open_now()
                case CheckpointMade():
                    delivery.keep_soon()
        self._around.observe(order)

    # -- its life

    async def start(self) -> None:
        """Begin the members, and have them kept."""
        await self._stack.enter_async_context(self.members)
        for calls in self.calls:
            await self._stack.enter_async_context(calls)

    async def open(self) -> None:
        """Open what members write, which is made if it is not there. Raises StorageError."""
        schemas = SteppedCircuit(self.query.plan, 0).outputs
        for member, place in enumerate(self._places):
            store = await self._stack.enter_async_context(Store.at(place))
            self.remaps.append(await Remap.open(store, LOG, {}))
            log = await own_output_log(store, self.query.plan, member, schemas)
            if log is not None:
                self.outputs |= dict.fromkeys(log.schemas.keys() & schemas.keys(), log)
        await self._begin_deliveries(schemas)

    async def _begin_deliveries(self, schemas: Any) -> None:
        for key, log in self.outputs.items():
            delivery = self._deliveries[key] = Delivery(key, self.query.targets[key])
            await delivery.begin(log, schemas[key])

    def coordinate(self, *, paused: bool = False) -> None:
        """Have steps made; ``paused``: not before somebody starts them."""
        lockstep = Lockstep(self.query.plan.members, self._around.settings, paused=paused)
        self.coordinator = Coordinator(lockstep, self._epochs, self._lines, self._hear)
        self._coordinating = asyncio.create_task(self.coordinator.run())

    def _done(self) -> int:
        return self.coordinator.done if self._coordinating is not None else 0

    async def close(self, reason: str) -> None:
        """End all of it; sinks publish nothing that they have not published, but keep what they can, for ``reason``."""
        for delivery in self._deliveries.values():
            await delivery.abort(reason)
        if self._coordinating is not None:
            self._coordinating.cancel()
            await asyncio.gather(self._coordinating, return_exceptions=True)
        await self._stack.aclose()

    # -- its end

    async def finished(self) -> int | None:
        """Wait until all inputs have ended, and publish the outputs; the step that all members have a version at."""
        assert self._coordinating is not None
        step = await self.coordinator.inputs_ended()
        async with self._alone:
            await self._publish(step)
            self.coordinator.shut_down()
        return await asyncio.shield(self._coordinating)

    async def stopped(self) -> int | None:
        """The same once the coordinator was shut down; None, and nothing published, if not all members were there."""
        assert self._coordinating is not None
        step = await asyncio.shield(self._coordinating)
        if step is not None:
            async with self._alone:
                await self._publish(step)
        return step

    async def _publish(self, step: int) -> None:
        for delivery in self._deliveries.values():
            await delivery.finish(step)

    async def guarded(self, work: Awaitable[Any]) -> Any:
        """Do ``work`` as long as nothing that it needs has failed; None once this has `changed`."""
        assert self._coordinating is not None
        guards = [self.members.failed(), *(each.failed() for each in self._deliveries.values())]
        task = asyncio.ensure_future(work)
        watching = [asyncio.create_task(each) for each in guards]
        changed = asyncio.create_task(self.changed.wait())
        try:
            await asyncio.wait(
                [task, changed, *watching, self._coordinating], return_when=asyncio.FIRST_COMPLETED
            )
            if changed.done():
                return None
            for each in (self._coordinating, *watching):
                if each.done():
                    each.result()
            return await task
        finally:
            for each in (task, changed, *watching):
                each.cancel()
            await asyncio.gather(task, changed, *watching, return_exceptions=True)

    # -- giving way

    async def rest(self) -> int:
        """Have no steps made, and sinks keep what they have had, as far as they can in a moment; the next step."""
        self.was_paused = self.coordinator.paused
        step = await self.coordinator.rest()
        for delivery in self._deliveries.values():
            await delivery.leave(step)
            await delivery.abort("its query goes on with other members")
        return step

    async def take_back(self) -> None:
        """What its members have given to others is theirs alone. Raises StorageError."""
        await asyncio.gather(*(calls.take_back() for calls in self.calls))

    async def go_on(self) -> None:
        """Others do not take its place, whatever it has given. Raises StorageError."""
        await self.take_back()
        for delivery in self._deliveries.values():  # where it did not come to rest, they still write
            await delivery.abort("its query goes on as it was")
        await self._begin_deliveries(SteppedCircuit(self.query.plan, 0).outputs)
        for delivery in self._deliveries.values():
            delivery.open_now()
        if not self.was_paused:
            self.coordinator.start()
        self.changed.set()
