"""A fragment of a query in steps, a member or the coordinator, on the loop of a process of its own."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.connectors.errors import FragmentError, InputError
from nebuli.coordinator.coordinator import Coordinator
from nebuli.coordinator.errors import CheckpointNotMade, CoordinationError
from nebuli.coordinator.line import Line
from nebuli.coordinator.lockstep import Lockstep
from nebuli.coordinator.triggers import TriggerSettings
from nebuli.members.coordinator_lines import CoordinatorLines
from nebuli.members.delivering import Delivery
from nebuli.members.inputs.feeding import feed_all
from nebuli.members.opening import opened_member
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.storage import StorageError, Store
from nebuli.storage.logs.epoch_log import EpochLog
from placement.stepped import CoordinatorFragment, MemberFragment

from .runner import log_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Any

    from nebuli.members.member import Member
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped import StepFragment

__all__ = ["StepRunner", "step_runner"]

_log = logging.getLogger(__name__)
_STOP_S = 2.5
"""How long a member that is to end waits for the coordinator to stop it, with a checkpoint."""
_STOPPED = "stopped"


class StepRunner(ABC):
    """Runs until its part of the query is over, or it is stopped; what it keeps is in ``folder``."""

    def __init__(
        self,
        id_: str,
        fragment: StepFragment,
        folder: Path,
        sender: SenderServer,
        receiver: ReceiverServer,
    ) -> None:
        self._fragment = fragment
        self._folder = folder
        self._sender = sender
        self._receiver = receiver
        self._status = FragmentStatus(id_, fragment.id, FragmentState.RUNNING)
        self._stopping = asyncio.Event()

    @property
    @abstractmethod
    def status(self) -> FragmentStatus:
        """How it is now."""

    def stop(self) -> None:
        """Have it end, with a checkpoint if that can be had; harmless when it has."""
        self._stopping.set()

    async def checkpoint(self) -> int:
        """Have a checkpoint made: the step behind it. Raises CheckpointNotMade."""
        raise CheckpointNotMade(0, f"{self._fragment.id} is no coordinator")

    async def run(self) -> None:
        """Run it to its end, which its status says."""
        try:
            state, cause, error = await self._run()
        except (CoordinationError, FragmentError, StorageError, OSError) as failure:
            cause = Cause.INPUT if isinstance(failure, InputError) else Cause.ITSELF
            state, error = FragmentState.FAILED, str(failure)
        log_end(self._fragment, state, error, self._status.id)
        self._status = replace(self.status, state=state, cause=cause, error=error, phase="")

    @abstractmethod
    async def _run(self) -> tuple[FragmentState, Cause, str]:
        """Run it; how it has ended."""


def step_runner(
    id_: str,
    fragment: StepFragment,
    folder: Path,
    sender: SenderServer,
    receiver: ReceiverServer,
    *,
    max_state_bytes: int,
) -> StepRunner:
    """What runs the fragment."""
    if isinstance(fragment, CoordinatorFragment):
        return _CoordinatorRunner(id_, fragment, folder, sender, receiver)
    return _MemberRunner(id_, fragment, folder, sender, receiver, max_state_bytes=max_state_bytes)


class _MemberRunner(StepRunner):
    """A member: feeds from its node's sources, and delivers to its node's sinks."""

    def __init__(
        self,
        id_: str,
        fragment: MemberFragment,
        folder: Path,
        sender: SenderServer,
        receiver: ReceiverServer,
        *,
        max_state_bytes: int,
    ) -> None:
        super().__init__(id_, fragment, folder, sender, receiver)
        self._max_state_bytes = max_state_bytes
        self._order = fragment
        self._member: Member | None = None
        self._deliveries: list[Delivery] = []

    @property
    def status(self) -> FragmentStatus:
        member = self._member
        if member is None or self._status.state.is_final:
            return self._status
        rows_in = sum(each.rows_read for each in member.readings)
        rows_in += sum(member.log.position(feed.name) for feed in self._order.feeds)
        rows_out = sum(each.rows for each in self._deliveries)
        phase = f"step {member.step:,}"
        return replace(self._status, rows_in=rows_in, rows_out=rows_out, late=member.late, phase=phase)

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        order = self._order
        async with AsyncExitStack() as stack:
            self._member = member = await stack.enter_async_context(
                opened_member(
                    order.circuit,
                    order.plan,
                    order.member,
                    self._folder,
                    order.feeds,
                    sender=self._sender,
                    receiver=self._receiver,
                    max_state_bytes=self._max_state_bytes,
                    address=order.node,
                )
            )
            await self._begin_deliveries(stack, member)
            lines = CoordinatorLines(order.circuit, order.member, self._sender, self._receiver, member.told)
            working = [
                asyncio.create_task(member.run(lines)),
                asyncio.create_task(feed_all(member, order.feeds, external=False)),
                *(asyncio.create_task(each.failed()) for each in self._deliveries),
            ]
            ends = [asyncio.create_task(each.wait()) for each in (member.closed, self._stopping)]
            stack.push_async_callback(_cancelled, [*working, *ends])
            await self._until_over(working, ends)
            self._status = replace(self.status, phase="")
        return self._ending(member)

    async def _begin_deliveries(self, stack: AsyncExitStack, member: Member) -> None:
        if member.outputs is None:
            return
        for output, target in self._order.targets.items():
            delivery = Delivery(output, target)
            stack.push_async_callback(delivery.abort, "its member has ended")
            await delivery.begin(member.outputs, member.outputs.schemas[output])
            self._deliveries.append(delivery)
        member.before_close = self._deliver

    async def _deliver(self, step: int) -> None:
        """Publish, if nothing follows; before the last version is made, as nobody would come back for it."""
        if self._member is not None and self._member.has_ended:
            for delivery in self._deliveries:
                await delivery.finish(step)

    async def _until_over(
        self, working: Sequence[asyncio.Task[None]], ends: Sequence[asyncio.Task[Any]]
    ) -> None:
        pending: Iterable[asyncio.Task[Any]] = [*working, *ends]
        while not any(each.done() for each in ends):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # that of a feeding which has come to its end, too
        if not ends[0].done():
            await asyncio.wait([ends[0]], timeout=_STOP_S)

    def _ending(self, member: Member) -> tuple[FragmentState, Cause, str]:
        if member.failure is not None:
            return FragmentState.FAILED, Cause.INPUT, str(member.failure)
        if member.closed.is_set() and member.has_ended:
            return FragmentState.FINISHED, Cause.NONE, ""
        if member.closed.is_set():
            return (
                FragmentState.STOPPED,
                Cause.REQUEST,
                f"{_STOPPED}, with a checkpoint at step {member.step:,}",
            )
        return (
            FragmentState.STOPPED,
            Cause.REQUEST,
            f"{_STOPPED} without a checkpoint: the coordinator made none",
        )


class _CoordinatorRunner(StepRunner):
    """The coordinator, to the end of all inputs."""

    def __init__(
        self,
        id_: str,
        fragment: CoordinatorFragment,
        folder: Path,
        sender: SenderServer,
        receiver: ReceiverServer,
    ) -> None:
        super().__init__(id_, fragment, folder, sender, receiver)
        self._order = fragment
        self._coordinator: Coordinator | None = None

    @property
    def status(self) -> FragmentStatus:
        coordinator = self._coordinator
        if coordinator is None or self._status.state.is_final:
            return self._status
        phase = f"epoch {coordinator.epoch}, step {coordinator.next_step:,}, {coordinator.phase.value}"
        return replace(self._status, phase=phase)

    async def checkpoint(self) -> int:
        if self._coordinator is None:
            raise CheckpointNotMade(0, "the coordinator has only begun")
        return await self._coordinator.checkpoint()

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        async with Store.in_folder(self._folder) as store:
            epochs = await EpochLog.open(store, self._order.circuit)
            while True:
                step, ended = await self._one_life(epochs)
                if self._stopping.is_set():
                    there = "without a checkpoint" if step is None else f"with a checkpoint at step {step:,}"
                    return FragmentState.STOPPED, Cause.REQUEST, f"{_STOPPED}, {there}"
                if ended and step is not None:
                    return FragmentState.FINISHED, Cause.NONE, ""
                _log.warning("a member was lost while all were to end: they are kept in step until all have")

    async def _one_life(self, epochs: EpochLog) -> tuple[int | None, bool]:
        """Coordinate until it is shut down: at which step, and whether that was since all inputs had ended."""
        order = self._order
        lines = [
            Line(order.circuit, member, at, self._sender, self._receiver, answer_to=order.node)
            for member, at in enumerate(order.addresses)
        ]
        settings = TriggerSettings(checkpoint_s=order.checkpoint_s)
        self._coordinator = coordinator = Coordinator(Lockstep(len(order.addresses), settings), epochs, lines)
        running = asyncio.create_task(coordinator.run())
        ended = asyncio.create_task(coordinator.inputs_ended())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([running, ended, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                coordinator.shut_down()
            return await running, ended.done()
        finally:
            await _cancelled([running, ended, stopping])


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raise was asked for where it counts
