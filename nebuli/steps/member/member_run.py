"""`MemberRun`: a member from where it is open until it may end, wherever its process runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.steps.member.calls.call_inbox import CallInbox
from nebuli.steps.member.coordinator_connections import CoordinatorConnections
from nebuli.steps.member.departure import ALONE_S, until_dismissed
from nebuli.steps.member.inputs.feeds import feed_all

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import TracebackType
    from typing import Any, Self

    from nebuli.steps.member.member import Member
    from placement.stepped_plan import Feed

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
