"""The arrivals at a handle, in a shard whose times count them, and how many of them count for no step yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nebuli.steps.logs.zset_sums import added

if TYPE_CHECKING:
    import pyarrow as pa

    from nebuli.store.shards.shard import Shard


class HandleLog:
    """Those from ``assigned`` on count for no step yet; ``rows`` is how many rows they have that are counted."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.assigned = shard.since
        self.rows = 0
        self._counted = shard.since  # the first arrival whose rows are not counted
        self._waiting: deque[tuple[int, int]] = deque()

    @property
    def upper(self) -> int:
        """The number of the next arrival."""
        return self.shard.upper

    @property
    def waiting(self) -> int:
        """How many arrivals count for no step yet."""
        return self.upper - self.assigned

    async def read(self, first: int, until: int) -> pa.RecordBatch:
        """Arrivals from ``first`` up to but not including ``until``, added."""
        updates = await self.shard.read(first, until) if first < until else []
        return added([rows for _, rows in updates], self.shard.schema)

    def assign(self, until: int) -> None:
        """Those below count for steps by now."""
        self.assigned = until
        self._counted = max(self._counted, until)
        while self._waiting and self._waiting[0][0] < until:
            self.rows -= self._waiting.popleft()[1]

    def arrived(self, at: int, rows: int) -> None:
        """Count the rows of an arrival, unless they are counted, or it counts for a step already."""
        if at >= self._counted:
            self._counted = at + 1
            self._waiting.append((at, rows))
            self.rows += rows

    async def count(self) -> None:
        """Count the rows of all that is there."""
        await self.shard.refresh()
        if self._counted < self.upper:
            for at, rows in await self.shard.read(self._counted, self.upper):
                self.arrived(at, rows.num_rows)
