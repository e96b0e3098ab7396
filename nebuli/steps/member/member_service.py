"""The life of a member from its order until it is dismissed, in any kind of process."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING

from nebuli.steps.errors import Forsaken
from nebuli.steps.member.departure import until_heard
from nebuli.steps.member.member_run import MemberRun
from nebuli.steps.member.member_store import opened_member
from nebuli.steps.member.scaling.handover_receiver import take
from netchannel import ReceiverServer, SenderServer
from placement.plan import Late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nebuli.steps.member.coordinator_connections import CoordinatorConnections
    from nebuli.steps.member.member import Member
    from nebuli.steps.member.member_order import MemberOrder


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
