"""`MemberSinks`: the sinks of a member at a worker, which it gives up where others may take its place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.members.delivering import Delivery

from .step_runner import cancelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.members.member import Member
    from topology import SinkConnector

__all__ = ["MemberSinks"]


class MemberSinks:
    """Delivers to the ``targets``, by output, what a member's log has.

    What was given up is taken up again when the member is told to go on, or a new epoch begins: whoever had asked for
    it may be gone, and others may have taken over or not. Nobody greets a member that others have followed.
    """

    def __init__(self, member: Member, targets: Mapping[str, SinkConnector]) -> None:
        self._member = member
        self._targets = targets if member.outputs is not None else {}
        self._deliveries: list[Delivery] = []
        self._turn = asyncio.Lock()
        self._given_up = False
        self._reopening: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def rows(self) -> int:
        """How many rows they have given out."""
        return sum(each.rows for each in self._deliveries)

    async def begin(self) -> None:
        """Follow the log, once they may be opened. Raises StorageError."""
        log = self._member.outputs
        if log is None:
            return
        made = []
        for output, target in self._targets.items():
            delivery = Delivery(output, target)
            await delivery.begin(log, log.schemas[output])
            made.append(delivery)
        self._deliveries = made
        self._changed.set()

    def open_now(self) -> None:
        """All members go on from the same checkpoint."""
        if self._given_up:
            self._reopening = asyncio.create_task(self.take_back())
            self._changed.set()
            return
        for delivery in self._deliveries:
            delivery.open_now()

    def keep_soon(self) -> None:
        """Have them keep what was written by now, for good."""
        for delivery in self._deliveries:
            delivery.keep_soon()

    async def failed(self) -> None:
        """Wait for what goes wrong, for ever if nothing does: raises OutputError, StorageError."""
        while True:
            self._changed.clear()
            waits = [self._changed.wait(), *(each.failed() for each in self._deliveries)]
            if self._reopening is not None:
                waits.append(_failure(self._reopening))
            tasks = [asyncio.ensure_future(each) for each in waits]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
            finally:
                await cancelled(tasks)

    async def finish(self, step: int) -> None:
        """Publish all that is below a step. Raises OutputError, StorageError."""
        async with self._turn:
            for delivery in self._deliveries:
                await delivery.finish(step)

    async def leave(self, step: int) -> None:
        """Have them keep all that is below a step, as far as they can within a moment."""
        async with self._turn:
            for delivery in self._deliveries:
                await delivery.leave(step)

    async def abort(self) -> None:
        """The member ends: publish nothing that was not."""
        if self._reopening is not None:
            await cancelled([self._reopening])
        for delivery in self._deliveries:
            await delivery.abort("its member has ended")

    async def give_up(self, step: int) -> None:
        """Others may write to them from now on, behind what they have had."""
        async with self._turn:
            self._given_up = True
            for delivery in self._deliveries:
                await delivery.leave(step)
                await delivery.abort("its query goes on with other members")

    async def take_back(self) -> None:
        """Nobody else does. Raises StorageError."""
        async with self._turn:
            if not self._given_up:
                return
            await self.begin()
            for delivery in self._deliveries:
                delivery.open_now()
            self._given_up = False


async def _failure(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    await asyncio.Event().wait()
