"""A shard, listened to."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import pyarrow as pa

from nebuli.store import Shard, Span
from nebuli.store.errors import StorageError
from nebuli.store.shards.payloads import Update


class Follower:
    """All that changes in a shard from a time on; each change is taken once."""

    def __init__(self, shard: Shard, first: int) -> None:
        self._shard = shard
        self._upper = first
        self._spans: AsyncIterator[Span] | None = None
        self._heard: deque[Update] = deque()

    async def hear(self, upper: int) -> None:
        """Hear all below ``upper``, which is written. Raises SinceMismatch and other StorageErrors."""
        while self._upper < upper:
            if self._spans is None:
                self._spans = self._shard.listen(self._upper)
            try:
                span = await anext(self._spans)
            except StorageError:
                self._spans = None  # which has ended by that
                raise
            self._heard += span.updates
            self._upper = span.upper

    def taken(self, upper: int) -> list[pa.RecordBatch]:
        """What was heard below ``upper``, and not taken yet."""
        found = []
        while self._heard and self._heard[0][0] < upper:
            found.append(self._heard.popleft()[1])
        return found
