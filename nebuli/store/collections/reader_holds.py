"""Holds of readers: at a collection's metadata, so that no rendition goes away that is still read."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from nebuli.store.collections.errors import CollectionMisused, TooLate
from nebuli.store.errors import ShardUnknown, SinceMismatch, StorageError
from nebuli.store.shards.shard_state import Hold, SetHolds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.store.collections.space import Collection, Space

LEASE_S = 60.0
"""A reader has a hold for so long, and renews it before that; one that is killed delays nothing longer."""
_AGAIN_S = 15.0
HISTORY = "history"
"""The hold of the collection itself at its metadata, as long as it can be read back."""
HELD_OFF, HELD_OFF_S = "handover", 2.0
"""The hold of a handover to which inserts were first again and again: until it is let go, or over, they wait."""
_SKEW_S = 10.0
"""So far clocks are apart. A lease that is longer by more was given before this one was set back, and is over."""


def is_held_off(collection: Collection) -> bool:
    """True if inserts have to wait, as far as is known here."""
    hold = collection.metadata.holds.get(HELD_OFF)
    if hold is None or hold.expires is None:
        return False
    return 0 < hold.expires - time.time() < HELD_OFF_S + _SKEW_S


class ReaderHold:
    """The hold of one reader, at ``at``, which it moves on."""

    def __init__(self, space: Space, collection: Collection, at: int) -> None:
        self.at = at
        self._space = space
        self._collection = collection
        self._name = f"reader-{os.urandom(6).hex()}"

    async def set(self) -> None:
        """Have it. Raises TooLate, CollectionUnknown."""
        await set_hold(self._space, self._collection, self._name, self.at, LEASE_S)

    async def renew(self) -> None:
        """Have it again from time to time, where the reader is then, however long it does not ask for more."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            with suppress(StorageError):  # readers are notified, if it matters
                await self.set()

    async def release(self) -> None:
        """Release it; if that cannot be recorded, it expires."""
        with suppress(StorageError):
            await release_hold(self._space, self._collection, self._name)


@asynccontextmanager
async def reading(space: Space, collection: Collection, at: int) -> AsyncIterator[ReaderHold]:
    """A context within which the collection can be read from a time on. Raises TooLate, CollectionUnknown."""
    hold = ReaderHold(space, collection, at)
    await hold.set()
    task = asyncio.get_running_loop().create_task(hold.renew())
    try:
        yield hold
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await hold.release()


def check_not_own(hold: str) -> None:
    """Raise CollectionMisused for the collection's own holds: one forgets, and for the other inserts wait."""
    if hold == HELD_OFF:
        raise CollectionMisused(f"the hold {HELD_OFF} belongs to a handover: choose another name")
    if hold == HISTORY:
        raise CollectionMisused(
            f"the hold {HISTORY} belongs to the collection itself: choose another name; how far back the "
            f"collection can be read is set when the collection is created"
        )


async def set_hold(space: Space, collection: Collection, name: str, at: int, lease_s: float | None) -> None:
    """Set or move a hold. Raises TooLate, CollectionUnknown."""
    expires = None if lease_s is None else time.time() + lease_s
    try:
        await space.access.change(
            [SetHolds(collection.metadata.name, {name: Hold(collection.not_before(at), expires)})]
        )
        space.access.compact_if_due(collection.metadata.tracked)
    except SinceMismatch as error:
        raise TooLate(collection.name, at, error.since) from None
    except ShardUnknown:
        raise await space.gone(collection) from None


async def release_hold(space: Space, collection: Collection, name: str) -> None:
    """Let a hold go; it does not matter whether it was there. Raises CollectionUnknown."""
    try:
        await space.access.change([SetHolds(collection.metadata.name, {}, [name])])
        space.access.compact_if_due(collection.metadata.tracked)
    except ShardUnknown:
        raise await space.gone(collection) from None
