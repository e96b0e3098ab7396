"""`PlacedMembers`: the members of a circuit at workers, as long as it has these."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.coordinator.coordinator import Coordinator
from nebuli.coordinator.lines.line import Line
from nebuli.members.calls.call_line import CallLine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nebuli.coordinator.lockstep import Lockstep
    from nebuli.storage.logs.epoch_log import EpochLog
    from nebuli.worker.placed.member_notes import Whose
    from netchannel import ReceiverServer, SenderServer

__all__ = ["PlacedMembers"]

_TAKE_BACK_S = 3.0
"""How long members are waited for that are to go on: whoever has lost its session goes on without that."""


class PlacedMembers:
    """The ways to them, and the coordinator that they have. It answers to ``node``, and claims ``epochs``."""

    def __init__(
        self, whose: Whose, sender: SenderServer, receiver: ReceiverServer, node: str, epochs: EpochLog
    ) -> None:
        self.whose = whose
        self.calls = [
            CallLine(whose.circuit, member, sender, receiver) for member in range(len(whose.addresses))
        ]
        self.over = asyncio.Event()
        """Set once others have taken their place."""
        self.left = asyncio.Event()
        """Set while nobody coordinates them."""
        self.coordinator: Coordinator
        self._sender = sender
        self._receiver = receiver
        self._node = node
        self._epochs = epochs
        self._was_paused = False
        self._telling: set[asyncio.Task[None]] = set()

    def coordinate(self, lockstep: Lockstep, record_end: Callable[[int], Awaitable[None]]) -> None:
        """Have another coordinator, which is to be run."""
        lines = [
            Line(
                self.whose.circuit,
                member,
                at,
                self._sender,
                self._receiver,
                answer_to=self._node,
                beside=self.calls[member],
            )
            for member, at in enumerate(self.whose.addresses)
        ]
        self.coordinator = Coordinator(lockstep, self._epochs, lines, record_end=record_end)

    async def close(self) -> None:
        """Ask them nothing any more."""
        for telling in self._telling:
            telling.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        await asyncio.gather(*(each.__aexit__(None, None, None) for each in self.calls))

    async def rest(self) -> int:
        """Have them come to rest between two steps; the next step."""
        self._was_paused = self.coordinator.paused
        return await self.coordinator.rest()

    async def take_back(self) -> None:
        """What they have given to others is theirs alone."""
        telling = [asyncio.create_task(each.take_back()) for each in self.calls]
        for each in telling:
            self._telling.add(each)
            each.add_done_callback(self._telling.discard)
        await asyncio.wait(telling, timeout=_TAKE_BACK_S)

    async def go_on(self) -> None:
        """Others do not take their place, whatever these have given."""
        await self.take_back()
        if not self._was_paused:
            self.coordinator.start()
