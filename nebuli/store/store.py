"""A store: shards and databases that any number of processes have open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, Self

from nebuli.store.backends import backends_at, is_store, remove_store
from nebuli.store.blobs.blob_folder import BlobFolder
from nebuli.store.errors import StoreClosed
from nebuli.store.names import checked
from nebuli.store.shards.access import ShardAccess
from nebuli.store.shards.payloads import check_schema
from nebuli.store.shards.shard import Shard
from nebuli.store.shards.shard_state import Create, Hold, SetHolds
from nebuli.store.states.state_store import StateStore
from nebuli.store.store_url import StoreUrl, store_place

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa

    from nebuli.store.blobs import Blobs
    from nebuli.store.ordering import Ordering
    from nebuli.store.shards.access import NewPart
    from nebuli.store.store_url import StorePlace

Keeps = Literal["contents", "updates"]


class Store:
    """Entered and left on one event loop, on which all methods are called, of its shards and databases, too.

    A call that is cancelled has happened or has not. Leaving ends running calls; waiting ones get StoreClosed.
    """

    def __init__(self, ordering: Ordering, blobs: Blobs) -> None:
        self._ordering = ordering
        self._blobs = blobs
        self._entered: ShardAccess | None = None

    @classmethod
    def at(cls, place: str | os.PathLike[str] | StoreUrl) -> Self:
        """The store of a folder, or of a URL, which is made when it is entered if it is not there.

        Two of one database, or of one bucket and prefix, do not see each other where their schemas differ. Raises
        StoreUrlInvalid, ExtraMissing.
        """
        return cls(*backends_at(place if isinstance(place, StoreUrl) else store_place(place)))

    @staticmethod
    def is_at(place: StorePlace) -> bool:
        """True if there is one. Blocking. Raises StoreUnusable."""
        return is_store(place)

    @classmethod
    async def is_blank(cls, place: StorePlace) -> bool:
        """True if there is none, or one to whose shards nothing was ever appended.

        Raises StoreUnusable, StoreFull.
        """
        if not await asyncio.to_thread(cls.is_at, place):
            return True
        async with cls.at(place) as store:
            return all([not (await store.open_shard(name)).upper for name in await store.shards()])

    @staticmethod
    def make(place: StorePlace) -> None:
        """Make one, to be opened; harmless if it is there. Blocking. Raises as `__aenter__`."""
        ordering, _ = backends_at(place)
        ordering.open()
        ordering.close()

    @staticmethod
    def remove(place: StorePlace) -> None:
        """Delete one that is not open; harmless if there is none. Blocking.

        Raises StorageError, OSError.
        """
        remove_store(place)

    async def __aenter__(self) -> Self:
        """Open it. Raises StoreUnusable, StoreFull."""
        access = ShardAccess(self._ordering, self._blobs)
        await access.open()
        self._entered = access
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what was begun, and close."""
        if self._entered is not None:
            await self._entered.close()

    @property
    def access(self) -> ShardAccess:
        """Return the access to shards of several kinds at once. Raises StoreClosed."""
        if self._entered is None:
            raise StoreClosed
        return self._entered

    async def shards(self) -> list[str]:
        """The names of all shards."""
        return await self.access.names()

    async def create_shard(self, name: str, schema: pa.Schema, *, keeps: Keeps = "contents") -> Shard:
        """Open a shard, made if it is not there, of Z-sets of this schema (whose last column is the weight).

        Below its since it keeps the ``contents`` (as of since), or no ``updates``, as logs do. Raises SchemaMismatch if
        it is there and is another.
        """
        keeps_contents = keeps == "contents"
        checked_schema = check_schema(name, schema, keeps_contents=keeps_contents)
        await self.access.change([Create(checked(name), checked_schema, keeps_contents)])
        return await self.open_shard(name)

    async def open_shard(self, name: str) -> Shard:
        """The shard of this name. Raises ShardUnknown."""
        return Shard(await self.access.track(name), self.access)

    async def append(self, parts: Sequence[NewPart], *, append_id: bytes | None = None) -> None:
        """Append to several shards what their `Shard.part` gave: to all of them, or to none; durable when it returns.

        As for `Shard.compare_and_append`.
        """
        await self.access.append(parts, append_id)

    async def hold(self, name: str, times: Mapping[Shard, int]) -> None:
        """Set or move the hold ``name`` of several shards, of all or, raising SinceMismatch, of none."""
        await self.access.change(
            [SetHolds(shard.name, {name: Hold(at, None)}) for shard, at in times.items()]
        )

    def blob_folder(self, name: str) -> BlobFolder:
        """A folder of blobs, which belongs to no shard and no database."""
        return BlobFolder(f"folder/{checked(name)}", self._blobs, self.access.work)

    def state_store(self, name: str) -> StateStore:
        """A database with at most two versions, which is there from its first `StateStore.open` on."""
        return StateStore(checked(name), self._ordering, self._blobs, self.access.work)
