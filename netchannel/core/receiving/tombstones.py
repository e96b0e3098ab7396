"""A receiver's records of finished streams, for senders that come late."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

TOMBSTONE_S = 3600.0
TOMBSTONES = 100_000
ANY_STREAM = ""
"""The stream of a channel closed before any sender came: until it is registered again, no sender is wanted
there."""


class Tombstone(NamedTuple):
    """The record of a finished stream."""

    messages: int
    reason: str
    message: str


class Tombstones:
    """Tombstones by channel and stream: so many, and for so long."""

    def __init__(self) -> None:
        self._graves: OrderedDict[tuple[str, str], tuple[Tombstone, float]] = OrderedDict()
        self._streams: Counter[str] = Counter()  # of those that had a sender, by channel

    def bury(self, channel_id: str, stream: str, tombstone: Tombstone, now: float) -> None:
        """Remember that a stream is over."""
        graves = self._graves
        while graves and (len(graves) >= TOMBSTONES or next(iter(graves.values()))[1] <= now):
            (forgotten, of), _ = graves.popitem(last=False)
            self._count(forgotten, of, -1)
        if (channel_id, stream) not in graves:
            self._count(channel_id, stream, 1)
        graves[channel_id, stream] = tombstone, now + TOMBSTONE_S

    def _count(self, channel_id: str, stream: str, change: int) -> None:
        if stream != ANY_STREAM:
            self._streams[channel_id] += change
            if not self._streams[channel_id]:
                del self._streams[channel_id]

    def has_streams(self, channel_id: str) -> bool:
        """True if a sender of the channel was here: at least one knows the way."""
        return channel_id in self._streams

    def find(self, channel_id: str, stream: str) -> Tombstone | None:
        """Return the record of the stream, or of all streams of the channel."""
        found = self._graves.get((channel_id, stream)) or self._graves.get((channel_id, ANY_STREAM))
        return None if found is None else found[0]

    def registered(self, channel_id: str) -> None:
        """Want any stream again that comes."""
        self._graves.pop((channel_id, ANY_STREAM), None)

    def standing(self, now: float) -> Iterator[tuple[str, str, Tombstone]]:
        """All tombstones that stand, the oldest first."""
        for (channel_id, stream), (tombstone, until) in self._graves.items():
            if until > now:
                yield channel_id, stream, tombstone
