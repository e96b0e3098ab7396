"""`Deliveries`: delivers outputs from the logs of members to sinks, in the process that is where the sinks are.

Workers' members deliver at their nodes; a command that has its members on this machine or in Spark delivers itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.steps.member.delivering import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.steps.logs.output_log import OutputLog
    from topology import SinkConnector


FOLLOWED = "its query continues with other members"
"""Why sinks are left without their results."""


class Deliveries:
    """Delivers to the ``targets``, by output, what ``logs`` have of these outputs.

    What was given up is taken back when members continue, or a new epoch begins: the process that asked for it may be
    gone, and other members may have taken over or not. No coordinator greets members that others have followed.
    """

    def __init__(self, logs: Mapping[str, OutputLog], targets: Mapping[str, SinkConnector]) -> None:
        self._logs = logs
        self._targets = targets
        self._deliveries: list[Delivery] = []
        self._turn = asyncio.Lock()
        self._given_up = False
        self._reopening: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def rows(self) -> int:
        """Number of rows that they have given out."""
        return sum(each.rows for each in self._deliveries)

    async def begin(self) -> None:
        """Follow the logs, once the sinks may be opened. Raises StorageError."""
        made = []
        for output, target in self._targets.items():
            delivery, log = Delivery(output, target), self._logs[output]
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

    async def abort(self, reason: str) -> None:
        """End without publishing what was not; sinks keep what they can, for ``reason``."""
        if self._reopening is not None:
            await cancelled([self._reopening])
        for delivery in self._deliveries:
            await delivery.abort(reason)

    async def give_up(self, step: int) -> None:
        """Let others write to them from now on, after what they have had."""
        async with self._turn:
            self._given_up = True
            for delivery in self._deliveries:
                await delivery.leave(step)
                await delivery.abort(FOLLOWED)

    async def take_back(self) -> None:
        """Deliver again, as no others do. Raises StorageError."""
        async with self._turn:
            if not self._given_up:
                return
            for delivery in self._deliveries:  # not all, if giving up was interrupted
                await delivery.abort(FOLLOWED)
            await self.begin()
            for delivery in self._deliveries:
                delivery.open_now()
            self._given_up = False


async def _failure(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    await asyncio.Event().wait()
