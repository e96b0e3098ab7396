"""`Generation`: the members of a circuit, as long as it has these."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.steps.coordinator.call_connection import CallConnection
from nebuli.steps.coordinator.coordinator import Coordinator
from nebuli.steps.coordinator.member_connection import MemberConnection
from nebuli.steps.protocol.events import CheckpointMade, EpochRuns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from nebuli.steps.coordinator.member_homes import Members
    from nebuli.steps.logs.epoch_log import EpochLog
    from nebuli.steps.member.delivery import Deliveries
    from nebuli.steps.member.scaling.layout import Layout
    from nebuli.steps.protocol.events import Order
    from nebuli.steps.protocol.lockstep import Lockstep
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped_plan import SteppedPlan

_TAKE_BACK_S = 3.0
"""How long members are waited for that are to continue: one that has lost its session continues without that."""


class Generation:
    """The ways to members, the coordinator that they have, and the sinks that are in this process, if any are.

    Members listen at ``addresses``; None: given by their home. They answer to ``answer_to``, if others reach this
    process elsewhere than its ``receiver`` listens. ``members`` makes them, from their lines and from the number of
    steps that are done. ``sinks`` opens those of this process, from the members' stores. ``layout`` assigns the state
    to members, if others had it before.
    """

    def __init__(
        self,
        circuit: str,
        plan: SteppedPlan,
        epochs: EpochLog,
        *,
        sender: SenderServer,
        receiver: ReceiverServer,
        members: Callable[[Sequence[MemberConnection], Callable[[], int]], Members],
        addresses: Sequence[str] | None = None,
        answer_to: str | None = None,
        sinks: Callable[[], AbstractAsyncContextManager[Deliveries]] | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.circuit = circuit
        self.plan = plan
        self.layout = layout
        self.coordinator: Coordinator
        self.calls = [CallConnection(circuit, member, sender, receiver) for member in range(plan.members)]
        self._lines = [
            MemberConnection(
                circuit,
                member,
                None if addresses is None else addresses[member],
                sender,
                receiver,
                answer_to=answer_to,
                observer=self.calls[member],
            )
            for member in range(plan.members)
        ]
        self._epochs = epochs
        self._coordinates = False
        self.members = members(self._lines, lambda: self.coordinator.done if self._coordinates else 0)
        self._open_sinks = sinks
        self._sinks: Deliveries | None = None
        self._stack = AsyncExitStack()
        self.over = asyncio.Event()
        """Set once others have taken their place."""
        self.left = asyncio.Event()
        """Set while no coordinator has them."""
        self.broken = asyncio.Event()
        """Set once an error that ends the query has happened: a change of members gives up."""
        self._was_paused = False
        self._telling: set[asyncio.Task[None]] = set()

    # -- its life

    async def start(self) -> None:
        """Begin the members, and have them kept."""
        await self._stack.enter_async_context(self.members)

    async def open(self) -> None:
        """Open the sinks of this process. Raises StorageError."""
        if self._open_sinks is not None:
            self._sinks = await self._stack.enter_async_context(self._open_sinks())

    def coordinate(
        self,
        lockstep: Lockstep,
        observe: Callable[[Order], None],
        record_end: Callable[[int], Awaitable[None]],
    ) -> None:
        """Have a coordinator, or another one, which is to be run."""

        def hear(order: Order) -> None:
            if self._sinks is not None:
                match order:
                    case EpochRuns():
                        self._sinks.open_now()
                    case CheckpointMade():
                        self._sinks.keep_soon()
            observe(order)

        self.coordinator = Coordinator(lockstep, self._epochs, self._lines, hear, record_end)
        self._coordinates = True

    def failures(self) -> list[Coroutine[Any, Any, None]]:
        """Waits for what ends the query: each raises it, or returns once nothing can fail any more."""
        return [self.members.failed(), *(() if self._sinks is None else (self._sinks.failed(),))]

    async def finish(self, step: int) -> None:
        """Publish all that is below a step, once nothing follows. Raises OutputError, StorageError."""
        if self._sinks is not None:
            await self._sinks.finish(step)

    async def leave(self, step: int) -> None:
        """Have sinks keep all that is below a step, as far as they can within a moment."""
        if self._sinks is not None:
            await self._sinks.leave(step)

    async def close(self, reason: str) -> None:
        """End what is in this process; sinks publish nothing that they have not published, for ``reason``."""
        if self._sinks is not None:
            await self._sinks.abort(reason)
        await cancelled([*self._telling])
        for each in self.calls:
            await each.aclose()
        await self._stack.aclose()

    # -- giving way

    async def rest(self) -> int:
        """Have members come to rest between two steps, and sinks give up what they write; the next step."""
        self._was_paused = self.coordinator.paused
        step = await self.coordinator.rest()
        if self._sinks is not None:
            await self._sinks.give_up(step)
        return step

    async def take_back(self) -> None:
        """Have members keep what they have given to others."""
        telling = [asyncio.create_task(each.take_back()) for each in self.calls]
        for each in telling:
            self._telling.add(each)
            each.add_done_callback(self._telling.discard)
        await asyncio.wait(telling, timeout=_TAKE_BACK_S)

    async def resume(self) -> None:
        """Continue, regardless of the state that these have given: others do not take their place.

        Raises StorageError.
        """
        await self.take_back()
        if self._sinks is not None:
            await self._sinks.take_back()
        if not self._was_paused:
            self.coordinator.start()
