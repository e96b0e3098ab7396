"""`MemberRun`: a member from where it is open until it may end, wherever its process runs."""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.steps.errors import Forsaken
from netchannel import ReceiverServer, SenderServer
from placement.plan import Late

from .calls.call_inbox import CallInbox
from .coordinator_connections import CoordinatorConnections
from .departure import ALONE_S, until_dismissed, until_heard
from .inputs.feeds import feed_all
from .member_store import opened_member
from .scaling.handover_receiver import take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from types import TracebackType
    from typing import Any, Self

    from placement.stepped_plan import Feed

    from .member import Member
    from .member_order import MemberOrder


_STOP_S = 2.5
"""How long a member that is to end waits for the coordinator to stop it, with a checkpoint, and to dismiss it."""


class MemberRun:
    """Answers coordinators of the ``circuit`` and reads ``feeds``, as long as the context is.

    ``external``: some inputs are pushed into. ``follows``: other members read ``feeds`` before this one. ``stopping``
    is set when the member is to end. ``alone_s``: see `until_dismissed`.
    """

    def __init__(
        self,
        member: Member,
        circuit: str,
        feeds: Sequence[Feed],
        *,
        external: bool,
        follows: bool,
        stopping: asyncio.Event | None = None,
        alone_s: float = ALONE_S,
    ) -> None:
        self.inbox = CallInbox(member, circuit)
        self.lines = CoordinatorConnections(
            circuit, member.number, member.sender, member.receiver, member.told, serve=self.inbox.serve
        )
        self._member = member
        self._feeds = feeds
        self._external = external
        self._follows = follows
        self._stopping = stopping or asyncio.Event()
        self._alone_s = alone_s
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(each) for each in (self._member.run(self.lines), self._feed())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await cancelled(self._tasks)

    async def over(self, beside: Sequence[Coroutine[Any, Any, None]] = ()) -> bool:
        """Wait until the member is dismissed, or was to end and some time has passed; whether it is dismissed.

        ``beside`` is done meanwhile, and until the context is left. Raises what goes wrong in it, and
        CoordinationError, StorageError, NetChannelError.
        """
        dismissed = asyncio.create_task(until_dismissed(self._member, self.lines, self._alone_s))
        stop = asyncio.create_task(self._stopping.wait())
        pending: set[asyncio.Task[Any]] = {*self._tasks, *map(asyncio.create_task, beside), dismissed, stop}
        self._tasks = [*pending]
        while not (dismissed.done() or stop.done()):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # that of a feeding which has come to its end, too
        if not dismissed.done():
            await asyncio.wait([dismissed], timeout=_STOP_S)
        return dismissed.done()

    async def _feed(self) -> None:
        if self._follows:
            await (
                self._member.greeted.wait()
            )  # until then those before it may continue, and read the same sources
        await feed_all(self._member, self._feeds, external=self._external)


class Said(StrEnum):
    """A member's reports to its starter, followed by the address at which it listens."""

    READY = "member ready at "
    """It can be greeted."""
    TAKING = "member takes over at "
    """It can be given what it takes over from others, before that."""


@contextlib.asynccontextmanager
async def opened(
    order: MemberOrder, tell: Callable[[Said, str], None] = lambda said, address: None
) -> AsyncIterator[Member]:
    """The member, with its store and its servers open."""
    async with contextlib.AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(ReceiverServer(order.listen, secret=order.secret))
        sender = await stack.enter_async_context(SenderServer(secret=order.secret))
        if order.takeover is not None:
            await take(order, order.takeover, receiver, lambda: tell(Said.TAKING, receiver.address))
        opening = opened_member(
            order.circuit,
            order.plan,
            order.member,
            order.store,
            order.feeds,
            sender=sender,
            receiver=receiver,
            max_state_bytes=order.max_state_bytes,
            fails_late=order.late is Late.FAIL,
            keep_output_bytes=order.keep_output_bytes,
            keep_contents_bytes=order.keep_contents_bytes,
            left_out=order.left_out,
            awaits_growth=order.awaits_growth,
        )
        yield await stack.enter_async_context(opening)


async def serve(
    order: MemberOrder, tell: Callable[[Said, str], None], *, forsaken_s: float | None = None
) -> None:
    """Be a member until it is dismissed, or cancelled.

    With ``forsaken_s``, raises Forsaken once no coordinator has been connected for so long.
    """
    async with opened(order, tell) as member:
        follows = order.takeover is not None
        run = MemberRun(member, order.circuit, order.feeds, external=order.external, follows=follows)
        async with run:
            tell(Said.READY, member.receiver.address)
            beside = () if forsaken_s is None else (_hold_on(run.lines, order.member, forsaken_s),)
            await run.over(beside)
            await until_heard(run.lines)


async def _hold_on(lines: CoordinatorConnections, member: int, forsaken_s: float) -> None:
    await lines.deserted(forsaken_s)
    raise Forsaken(member, forsaken_s)
