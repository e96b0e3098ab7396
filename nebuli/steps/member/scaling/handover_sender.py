"""`HandoverSender`: a member gives all that it has to those that follow it, the last of it between two steps."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from nebuli.steps.member.scaling.transfer import Transfer
from nebuli.steps.protocol.member_machine import Paused

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from nebuli.steps.member.member import Member
    from nebuli.steps.member.scaling.layout import Layout


class NotBetweenSteps(Exception):
    """The member may be in a step, or begin one."""


class HandoverSender:
    """Nothing is logged from `give` on until `take_back`: what is given is all there is."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._held = AsyncExitStack()
        self._transfer: Transfer | None = None
        self._working: asyncio.Task[None] | None = None

    async def give_ahead(self, layout: Layout, addresses: Sequence[str]) -> None:
        """Give most of it to the members of a layout, each at its address, while steps continue.

        They have that durably when this returns, and `give` gives the rest. Raises NotBetweenSteps if it is cancelled
        meanwhile; StorageError, NetChannelError.
        """
        await self._do((await self._to(layout, addresses)).give_ahead())

    async def give(self, layout: Layout, addresses: Sequence[str]) -> int:
        """Give to each member of a layout what is to be its own, and was not given; the step that comes next.

        All have it durably when this returns. Raises NotBetweenSteps, also if it is cancelled meanwhile;
        StorageError, NetChannelError.
        """
        member = self._member
        self.check_between_steps()
        transfer = await self._to(layout, addresses)
        if not transfer.is_of_this_epoch:
            raise NotBetweenSteps(f"member {member.number} has begun a new epoch during the handover")
        await self._held.enter_async_context(member.log.held())
        await self._do(transfer.give_rest())
        self._transfer = None
        return member.step

    def check_between_steps(self) -> None:
        """Raises NotBetweenSteps where the member may be in a step, or has some to repeat."""
        member = self._member
        if not isinstance(member.state, Paused):
            raise NotBetweenSteps(f"member {member.number} is not paused")
        if member.step != member.log.last:
            raise NotBetweenSteps(
                f"member {member.number} is at step {member.step}, and must repeat the steps up to "
                f"{member.log.last} first"
            )

    async def take_back(self) -> None:
        """Continue, as if nothing had been given; harmless if nothing was."""
        working, self._working = self._working, None
        transfer, self._transfer = self._transfer, None
        held, self._held = self._held, AsyncExitStack()
        if working is not None:
            working.cancel()
            await asyncio.wait([working])
        await held.aclose()  # pushes do not wait until all successors are notified
        if transfer is not None:
            await transfer.abort()

    async def _to(self, layout: Layout, addresses: Sequence[str]) -> Transfer:
        """The transfer that has begun, or, instead of any other, a new one."""
        if self._transfer is None or self._transfer.layout.transfer != layout.transfer:
            await self.take_back()
            self._transfer = Transfer(self._member, layout, addresses)
        return self._transfer

    async def _do(self, work: Coroutine[Any, Any, None]) -> None:
        working = self._working = asyncio.create_task(work)
        try:
            await asyncio.wait([working])
            if working.cancelled():
                raise NotBetweenSteps(f"member {self._member.number} was asked to continue")
            working.result()
        except BaseException:
            await self.take_back()
            raise
        self._working = None
