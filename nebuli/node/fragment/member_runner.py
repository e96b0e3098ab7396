"""A member of a query in steps, as a fragment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.node.fragment.step_runner import WITHOUT_CHECKPOINT, StepRunner
from nebuli.node.placed.member_workers import TAKES_OVER
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.steps.errors import TakeoverLost
from nebuli.steps.member.delivery import Deliveries
from nebuli.steps.member.departure import ALONE_S, GONE_S, HEARD_S, until_heard
from nebuli.steps.member.inputs.matching_files import NewFiles, look_anew_before_first_step, own_feeds
from nebuli.steps.member.member_order import MemberOrder
from nebuli.steps.member.member_run import MemberRun
from nebuli.steps.member.member_store import opened_member
from nebuli.steps.member.run_notes import DISMISSED, PUBLISHED, TAKES, LeftOutNotes
from nebuli.steps.member.scaling.handover_receiver import has_taken, take
from nebuli.store.errors import NoteDamaged
from nebuli.store.notes import Notes
from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.steps.member.calls.call_inbox import CallInbox
    from nebuli.steps.member.member import Member
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped_plan import Feed, MemberFragment, Takeover

__all__ = ["MemberRunner"]

_HEARD_S = 0.3
"""How long such a member waits until the coordinator is notified: the worker ends its process soon."""


class MemberRunner(StepRunner):
    """A member: feeds from its node's sources, and delivers to its node's sinks."""

    def __init__(
        self,
        id_: str,
        fragment: MemberFragment,
        place: StorePlace,
        sender: SenderServer,
        receiver: ReceiverServer,
        *,
        max_state_bytes: int,
    ) -> None:
        super().__init__(id_, fragment, place, sender, receiver)
        self._max_state_bytes = max_state_bytes
        self._order = fragment
        self._notes = Notes(place)
        self._member: Member | None = None
        self._inbox: CallInbox | None = None
        self._sinks: Deliveries | None = None
        self._published: int | None = None
        """The step below which its sinks have their results, here or in an earlier process, though not the last ones if
        the circuit has continued since."""
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
        rows_out = 0 if self._sinks is None else self._sinks.rows
        phase = f"step {member.step:,}"
        return replace(
            self._status,
            rows_in=rows_in,
            rows_out=rows_out,
            late=member.late,
            without_time=member.without_time,
            phase=phase,
        )

    async def _take_over(self, takeover: Takeover, feeds: Sequence[Feed]) -> None:
        """Begin with what others have, once, and read ``feeds`` on. Raises TakeoverLost, and as `take`."""
        if await has_taken(self._place):
            return
        if self._notes.read(TAKES) is not None:
            raise TakeoverLost(self._fragment.id, "was killed")
        self._notes.write(TAKES, b"takes over\n")
        order = self._order
        wanted = MemberOrder(
            circuit=order.circuit,
            member=order.member,
            plan=order.plan,
            feeds=tuple(feeds),
            external=bool(order.external),
            store=self._place,
            listen=self._receiver.address,
            secret=None,
            max_state_bytes=self._max_state_bytes,
            keep_output_bytes=order.keep_output_bytes,
            takeover=takeover,
        )
        try:
            await take(wanted, takeover, self._receiver, self._say_that_it_listens)
        except NetChannelError as error:
            raise TakeoverLost(self._fragment.id, f"failed: {error}") from error

    def _say_that_it_listens(self) -> None:
        self._status = replace(self._status, phase=TAKES_OVER)

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        order = self._order
        await look_anew_before_first_step(self._place)
        feeds = await asyncio.to_thread(own_feeds, order.feeds, self._place, Path.cwd())
        if order.takeover is not None:  # after checks of files: the earlier ones can still continue
            await self._take_over(order.takeover, feeds)
        self._new_files = NewFiles(order.feeds, self._place, Path.cwd())
        left_out = LeftOutNotes(self._place)
        async with AsyncExitStack() as stack:
            self._member = member = await stack.enter_async_context(
                opened_member(
                    order.circuit,
                    order.plan,
                    order.member,
                    self._place,
                    feeds,
                    sender=self._sender,
                    receiver=self._receiver,
                    max_state_bytes=self._max_state_bytes,
                    address=order.node,
                    keep_output_bytes=order.keep_output_bytes,
                    awaits_growth=order.awaits_growth,
                    left_out=await asyncio.to_thread(left_out.rules),
                )
            )
            await left_out.put_aside(order.plan, member)
            await self._look_back(member)
            log = member.outputs
            targets = {} if log is None else order.targets
            sinks = self._sinks = Deliveries({output: log for output in targets if log is not None}, targets)
            stack.push_async_callback(sinks.abort, "its member has ended")
            await sinks.begin()
            if order.targets:
                member.before_close = self._deliver
            member.on_opening = sinks.open_now
            member.on_checkpoint = self._look_after_checkpoint
            run = MemberRun(
                member,
                order.circuit,
                feeds,
                external=bool(order.external),
                follows=order.takeover is not None,
                stopping=self._stopping,
                alone_s=GONE_S if self._was_dismissed else ALONE_S,
            )
            self._inbox = run.inbox
            run.inbox.before_handover = sinks.give_up
            run.inbox.after_handover = sinks.take_back
            await stack.enter_async_context(run)
            is_dismissed = await run.over([sinks.failed()])
            if (
                is_dismissed and not self._delivered
            ):  # an earlier process has, and the sinks were opened again
                await self._deliver(member.log.last)
            await until_heard(run.lines, _HEARD_S if self._stopping.is_set() else HEARD_S)
            self._status = replace(self.status, phase="")
        return self._ending(member)

    async def _look_back(self, member: Member) -> None:
        """True if a process before this one has stopped, and nothing but its dismissal is left."""
        published = self._notes.read(PUBLISHED)
        if published is not None:
            try:
                self._published = int(published)
            except ValueError as error:
                raise NoteDamaged(f"{self._place}/{PUBLISHED}", error) from error
            if self._is_complete(member) and await member.is_saved():
                member.closed.set()
        self._was_dismissed = self._notes.read(DISMISSED) is not None
        if self._was_dismissed:
            member.closed.set()
        member.on_dismissal = self._note_dismissal

    def _note_dismissal(self) -> None:
        """Record it at once, as the coordinator ends when it is notified."""
        with suppress(OSError):  # then the next process waits for longer
            self._notes.write(DISMISSED, b"dismissed\n")

    def _look_after_checkpoint(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._new_files.look)
        if self._sinks is not None:
            self._sinks.keep_soon()

    async def _deliver(self, step: int) -> None:
        """Publish, if nothing follows; before the last version is made, as no process would come back for it."""
        if self._member is None or self._sinks is None:
            return
        if self._is_complete(self._member):
            await self._sinks.finish(step)
            await asyncio.to_thread(self._notes.write, PUBLISHED, b"%d" % step)
            self._published, self._delivered = step, True
        else:
            await self._sinks.leave(step)

    def _is_complete(self, member: Member) -> bool:
        """True if nothing follows: all inputs have ended, or a program has requested the end."""
        asked = self._inbox is not None and self._inbox.publishes
        return member.completes or asked or self._published == member.log.last

    def _ending(self, member: Member) -> tuple[FragmentState, Cause, str]:
        if member.failure is not None:
            return FragmentState.FAILED, Cause.INPUT, str(member.failure)
        if member.closed.is_set() or member.dismissed.is_set():
            if self._is_complete(member):
                return FragmentState.FINISHED, Cause.NONE, ""
            return FragmentState.STOPPED, Cause.REQUEST, ""
        return FragmentState.STOPPED, Cause.REQUEST, WITHOUT_CHECKPOINT
