"""The coordinator of a query in steps, as a fragment, with the service that programs call."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.coordinator.coordinator import Coordinator
from nebuli.coordinator.errors import CheckpointNotMade
from nebuli.coordinator.lines.line import Line
from nebuli.coordinator.lockstep import Lockstep
from nebuli.coordinator.triggers import SPACING_S, TriggerSettings
from nebuli.dataflow import SteppedCircuit
from nebuli.members.calls.call_line import CallLine
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.storage import Store
from nebuli.storage.logs.epoch_log import EpochLog

from .coordinator_record import CoordinatorRecord
from .step_runner import WITHOUT_CHECKPOINT, StepRunner, cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from nebuli.storage import Span
    from nebuli.storage.logs.remap import Offsets
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped import CoordinatorFragment, SteppedPlan

__all__ = ["CoordinatorRunner"]

_log = logging.getLogger(__name__)
_AGAIN_S = 0.2


class CoordinatorRunner(StepRunner):
    """The coordinator, to the end of all inputs, or until a program shuts it down.

    It is a `nebuli.circuits.running_circuit.Running`, and serves what programs call at ``socket``, to its worker.
    """

    def __init__(
        self,
        id_: str,
        fragment: CoordinatorFragment,
        folder: Path,
        sender: SenderServer,
        receiver: ReceiverServer,
        *,
        socket: Path,
    ) -> None:
        super().__init__(id_, fragment, folder, sender, receiver)
        self._order = fragment
        self._socket = socket
        self._shapes = SteppedCircuit(fragment.plan, 0).outputs
        self._coordinator: Coordinator | None = None
        self._record: CoordinatorRecord
        self._ending = asyncio.Event()
        self._over: int | None = None
        self._complete = False
        """Whether all is to have its end when the members have stopped: nobody has only asked for a stop."""
        self.calls = [
            CallLine(fragment.circuit, member, sender, receiver) for member in range(len(fragment.addresses))
        ]

    @property
    def status(self) -> FragmentStatus:
        """How it is now."""
        coordinator = self._coordinator
        if coordinator is None or self._status.state.is_final:
            return self._status
        phase = f"epoch {coordinator.epoch}, step {coordinator.next_step:,}, {coordinator.phase.value}"
        checkpoint = max((each.step for each in coordinator.checkpoints), default=self._record.known.over)
        return replace(self._status, phase=phase, checkpoint=checkpoint)

    async def checkpoint(self) -> int:
        """Have a checkpoint made: the step behind it. Raises CheckpointNotMade."""
        if self._coordinator is None:
            raise CheckpointNotMade(None, "the coordinator has only begun")
        return await self._coordinator.checkpoint()

    # -- as a `Running`

    @property
    def plan(self) -> SteppedPlan:
        """The query's."""
        return self._order.plan

    @property
    def external(self) -> Sequence[str]:
        """The inputs that are pushed into."""
        return self._order.external

    @property
    def coordinator(self) -> Coordinator:
        """That of this life."""
        assert self._coordinator is not None, "it is there before anybody is served"
        return self._coordinator

    def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        """An output from a step on, as its member has it: waits while that is away."""
        return self.calls[self.plan.homes[output]].follow(output, first, self._shapes[output])

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
        await self._record.change(paused=True)
        self.coordinator.pause()

    async def start(self) -> None:
        """Steps go on."""
        await self._record.change(paused=False)
        self.coordinator.start()

    async def shut_down(self) -> None:
        """Begin to end, as soon as all members are there, whatever dies meanwhile."""
        await self._record.change(ending=True)
        self._ending.set()

    # -- its lives

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        from nebuli.circuits.served_run import (
            served_to_worker,  # not in processes that serve nobody: it is large
        )

        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(Store.at(self._folder))
            epochs = await EpochLog.open(store, self._order.circuit)
            self._record = CoordinatorRecord.at(self._folder)
            if self._record.known.ending:
                self._ending.set()
            for calls in self.calls:
                await stack.enter_async_context(calls)
            self._coordinator = self._new_coordinator(epochs)
            await stack.enter_async_context(served_to_worker(self, self._socket))
            while True:
                step = await self._one_life(self._coordinator)
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
                self._coordinator = self._new_coordinator(epochs)

    def _new_coordinator(self, epochs: EpochLog) -> Coordinator:
        order = self._order
        lines = [
            Line(
                order.circuit,
                member,
                at,
                self._sender,
                self._receiver,
                answer_to=order.node,
                beside=self.calls[member],
            )
            for member, at in enumerate(order.addresses)
        ]
        settings = TriggerSettings(checkpoint_s=order.checkpoint_s, spacing_s=SPACING_S)
        known = self._record.known
        lockstep = Lockstep(len(order.addresses), settings, paused=known.paused, over=known.over)
        return Coordinator(lockstep, epochs, lines, record_end=self._record_end)

    async def _record_end(self, step: int) -> None:
        await self._record.change(over=step, complete=self._complete)

    async def _one_life(self, coordinator: Coordinator) -> int | None:
        """Coordinate until it is shut down: at which step."""
        running = asyncio.create_task(coordinator.run())
        ends = [
            asyncio.create_task(each)
            for each in (coordinator.inputs_ended(), self._asked_to_end(coordinator))
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([running, *ends, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                for each in ends:
                    if each.done():
                        each.result()  # where sinks could not be told, it is no end
                self._complete = any(each.done() for each in ends)
                coordinator.shut_down()
            return await running
        finally:
            await cancelled([running, *ends, stopping])

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
