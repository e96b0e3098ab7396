"""A member of a query in steps, as a fragment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.durable_files import write_durably
from nebuli.members.calls.call_inbox import CallInbox
from nebuli.members.coordinator_lines import CoordinatorLines
from nebuli.members.delivering import Delivery
from nebuli.members.inputs.feeding import feed_all
from nebuli.members.inputs.matching_files import NewFiles, look_anew_before_first_step, own_feeds
from nebuli.members.leaving import ALONE_S, GONE_S, HEARD_S, until_dismissed, until_heard
from nebuli.members.opening import opened_member
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus

from .run_notes import DISMISSED, PUBLISHED
from .step_runner import WITHOUT_CHECKPOINT, StepRunner, cancelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from nebuli.members.member import Member
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped import MemberFragment

__all__ = ["MemberRunner"]

_STOP_S = 2.5
"""How long a member that is to end waits for the coordinator to stop it, with a checkpoint, and to dismiss it."""
_HEARD_S = 0.3
"""How long such a member waits until the coordinator has heard of it: the worker ends its process soon."""


class MemberRunner(StepRunner):
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
        self._inbox: CallInbox | None = None
        self._deliveries: list[Delivery] = []
        self._published: int | None = None
        """Below which step its sinks have had their results, here or in a process before, though not for the last time
        where the circuit has gone on since."""
        self._delivered = False
        self._new_files: NewFiles
        self._was_dismissed = False  # in a process before

    @property
    def status(self) -> FragmentStatus:
        """How it is now."""
        member = self._member
        if member is None or self._status.state.is_final:
            return self._status
        rows_in = member.log.rows + sum(each.rows_read for each in member.readings)
        rows_out = sum(each.rows for each in self._deliveries)
        phase = f"step {member.step:,}"
        return replace(self._status, rows_in=rows_in, rows_out=rows_out, late=member.late, phase=phase)

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        order = self._order
        await look_anew_before_first_step(self._folder)
        feeds = await asyncio.to_thread(own_feeds, order.feeds, self._folder, Path.cwd())
        self._new_files = NewFiles(order.feeds, self._folder, Path.cwd())
        async with AsyncExitStack() as stack:
            self._member = member = await stack.enter_async_context(
                opened_member(
                    order.circuit,
                    order.plan,
                    order.member,
                    self._folder,
                    feeds,
                    sender=self._sender,
                    receiver=self._receiver,
                    max_state_bytes=self._max_state_bytes,
                    address=order.node,
                    keep_output_bytes=order.keep_output_bytes,
                )
            )
            await self._look_back(member)
            await self._begin_deliveries(stack, member)
            member.on_opening = self._open_sinks
            member.on_checkpoint = self._look_after_checkpoint
            self._inbox = CallInbox(member, order.circuit)
            lines = CoordinatorLines(
                order.circuit,
                order.member,
                self._sender,
                self._receiver,
                member.told,
                serve=self._inbox.serve,
            )
            working = [
                asyncio.create_task(member.run(lines)),
                asyncio.create_task(feed_all(member, feeds, external=bool(order.external))),
                *(asyncio.create_task(each.failed()) for each in self._deliveries),
            ]
            ends: list[asyncio.Task[Any]] = [
                asyncio.create_task(
                    until_dismissed(member, lines, GONE_S if self._was_dismissed else ALONE_S)
                ),
                asyncio.create_task(self._stopping.wait()),
            ]
            stack.push_async_callback(cancelled, [*working, *ends])
            await self._until_over(working, ends)
            if ends[0].done() and not self._delivered:  # a process before has, and the sinks were opened anew
                await self._deliver(member.log.last)
            await until_heard(lines, _HEARD_S if self._stopping.is_set() else HEARD_S)
            self._status = replace(self.status, phase="")
        return self._ending(member)

    async def _look_back(self, member: Member) -> None:
        """Whether a process before this one has stopped, and nothing but its dismissal is left."""
        file = self._folder / PUBLISHED
        if file.exists():
            self._published = int(file.read_text())
            if self._is_complete(member) and await member.is_saved():
                member.closed.set()
        self._was_dismissed = (self._folder / DISMISSED).exists()
        if self._was_dismissed:
            member.closed.set()
        member.on_dismissal = self._note_dismissal

    def _note_dismissal(self) -> None:
        """At once, as the coordinator ends when it hears of it."""
        with suppress(OSError):  # then the next process waits for longer
            write_durably(self._folder / DISMISSED, "")

    async def _begin_deliveries(self, stack: AsyncExitStack, member: Member) -> None:
        if member.outputs is None:
            return
        for output, target in self._order.targets.items():
            delivery = Delivery(output, target)
            stack.push_async_callback(delivery.abort, "its member has ended")
            await delivery.begin(member.outputs, member.outputs.schemas[output])
            self._deliveries.append(delivery)
        member.before_close = self._deliver

    def _open_sinks(self) -> None:
        for delivery in self._deliveries:
            delivery.open_now()

    def _look_after_checkpoint(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._new_files.look)
        for delivery in self._deliveries:
            delivery.keep_soon()

    async def _deliver(self, step: int) -> None:
        """Publish, if nothing follows; before the last version is made, as nobody would come back for it."""
        if self._member is not None and self._is_complete(self._member):
            for delivery in self._deliveries:
                await delivery.finish(step)
            await asyncio.to_thread(write_durably, self._folder / PUBLISHED, str(step))
            self._published, self._delivered = step, True
        else:
            for delivery in self._deliveries:
                await delivery.leave(step)

    def _is_complete(self, member: Member) -> bool:
        """Whether nothing follows: all inputs have ended, or a program has said so."""
        asked = self._inbox is not None and self._inbox.publishes
        return member.has_ended or asked or self._published == member.log.last

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
        if member.closed.is_set() or member.dismissed.is_set():
            if self._is_complete(member):
                return FragmentState.FINISHED, Cause.NONE, ""
            return FragmentState.STOPPED, Cause.REQUEST, ""
        return FragmentState.STOPPED, Cause.REQUEST, WITHOUT_CHECKPOINT
