"""The time of a store's collections, in milliseconds: a shard without rows, whose upper no time has reached yet."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import NotYet, UpperMismatch
from nebuli.store.shards.access import NewPart
from nebuli.store.shards.shard_state import Create

if TYPE_CHECKING:
    from collections.abc import Callable

    from nebuli.store.shards.access import ShardAccess
    from nebuli.store.shards.ledger import ShardTracker

SHARD = "collections/clock"
TICK_S = 1.0
"""While there are readers, and no writers, time advances this often."""

_BEHIND_MS = 1000
"""A clock that lags by no more is waited for."""


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Clock:
    """Each insert moves it, and with it all collections of the store; so does each waiting client, at each tick.

    It never goes back, whatever the clocks of machines do: if one has gone back, it advances by a millisecond each
    time.
    """

    def __init__(
        self, access: ShardAccess, now: Callable[[], int] = now_ms, *, tick_s: float = TICK_S
    ) -> None:
        self._access = access
        self.now = now
        """Milliseconds since 1970, as this machine has them."""
        self._tick_s = tick_s
        self._shard: ShardTracker | None = None

    @staticmethod
    def create() -> Create:
        """The change that makes it, where it is not there."""
        return Create(SHARD, weighted(pa.schema([])), keeps_contents=False)

    async def open(self) -> None:
        """Open it after its `create`."""
        self._shard = await self._access.track(SHARD)

    @property
    def shard(self) -> ShardTracker:
        """Its shard."""
        assert self._shard is not None, "it is opened first"
        return self._shard

    @property
    def upper(self) -> int:
        """All that is written at lower times is there, as far as is known here."""
        return self.shard.state.upper

    def next_time(self) -> int:
        """The time at which something can be written now."""
        return max(self.now(), self.upper)

    def reached(self) -> int:
        """Return the time that it can be moved to now: after a clock was set back, it advances by a millisecond."""
        return self.upper if self._is_behind else self.now()

    def moved(self, upper: int, at: int) -> NewPart:
        """The change by which nothing more can be written up to ``at``, and at it is what goes with this.

        It is made if the clock's upper is still ``upper``.
        """
        return NewPart(self.shard, [], upper, at + 1)

    async def reach(self, at: int, deadline_s: float | None, *, at_once: bool = False) -> None:
        """Wait until the upper is above a time, and move it if no other client does. Raises NotYet.

        ``at_once``: as soon as the time has come, and not at the next tick.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            pause = self._pause(at, at_once=at_once)
            try:
                await self._access.reach(self.shard, at, pause if left is None else min(pause, left))
            except NotYet:
                await self._tick(at)
                if self.upper <= at and left is not None and left <= pause:
                    raise
            else:
                return

    def _pause(self, at: int, *, at_once: bool) -> float:
        """How long others are waited for: a time to come is not there before it has come."""
        if not self._is_behind:
            to_come = (at - self.now()) / 1000
            if to_come > 0:
                return to_come + 0.001
            if at_once:
                return 0.0
        return self._tick_s * random.uniform(1.0, 1.2)  # noqa: S311 - not a secret: one of all waiting clients is first

    @property
    def _is_behind(self) -> bool:
        """True if the clock of this machine was set back, or lags others', for longer than readers should wait."""
        return self.upper - self.now() > _BEHIND_MS

    async def _tick(self, at: int) -> None:
        to = self.reached()
        # Another one may have been first, just when this one has waited long enough.
        if self.upper <= at and (self._is_behind or at <= to):
            try:
                await self._access.append([self.moved(self.upper, to)], None)
            except UpperMismatch:  # another one was first
                await asyncio.sleep(0)
