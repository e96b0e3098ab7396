"""A store: shards and databases that any number of processes have open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from nebuli.storage.blobs.blob_files import FileBlobs
from nebuli.storage.errors import StoreClosed
from nebuli.storage.names import checked
from nebuli.storage.ordering.sqlite import FILE, SqliteOrdering
from nebuli.storage.shards.access import ShardAccess
from nebuli.storage.shards.changes import Create, SetHolds
from nebuli.storage.shards.shard import Shard
from nebuli.storage.shards.shard_state import Hold
from nebuli.storage.shards.updates import check_schema
from nebuli.storage.states.state_store import StateStore

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa

    from nebuli.storage.blobs import Blobs
    from nebuli.storage.ordering import Ordering
    from nebuli.storage.shards.access import NewPart

Keeps = Literal["contents", "updates"]


class Store:
    """Entered and left on one event loop, on which all methods are called, of its shards and databases, too.

    A call that is cancelled has happened or has not. Leaving ends what was begun; whoever still waits gets StoreClosed.
    """

    def __init__(self, ordering: Ordering, blobs: Blobs) -> None:
        self._ordering = ordering
        self._blobs = blobs
        self._entered: ShardAccess | None = None

    @classmethod
    def in_folder(cls, folder: str | os.PathLike[str]) -> Self:
        """A store in a folder of this machine, which is made if it is not there."""
        return cls(SqliteOrdering(Path(folder)), FileBlobs(Path(folder) / "blobs"))

    @staticmethod
    def is_in(folder: str | os.PathLike[str]) -> bool:
        """Whether there is one in a folder."""
        return (Path(folder) / FILE).exists()

    @classmethod
    async def is_blank(cls, folder: str | os.PathLike[str]) -> bool:
        """Whether there is none in a folder, or one to whose shards nothing was ever appended.

        Raises StoreUnusable, StoreFull.
        """
        if not cls.is_in(folder):
            return True
        async with cls.in_folder(folder) as store:
            return all([not (await store.open_shard(name)).upper for name in await store.shards()])

    @staticmethod
    def make_in(folder: str | os.PathLike[str]) -> None:
        """Have one in a folder, for whoever opens it; harmless where it is. Blocking. Raises as `__aenter__`."""
        ordering = SqliteOrdering(Path(folder))
        ordering.open()
        ordering.close()

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
    def _access(self) -> ShardAccess:
        if self._entered is None:
            raise StoreClosed
        return self._entered

    async def shards(self) -> list[str]:
        """The names of all shards."""
        return await self._access.names()

    async def create_shard(self, name: str, schema: pa.Schema, *, keeps: Keeps = "contents") -> Shard:
        """Open a shard, made if it is not there, of Z-sets of this schema (whose last column is the weight).

        Below its since it keeps the ``contents`` (as of since), or no ``updates``, as logs do. Raises SchemaMismatch if
        it is there and is another.
        """
        keeps_contents = keeps == "contents"
        checked_schema = check_schema(name, schema, keeps_contents=keeps_contents)
        await self._access.change([Create(checked(name), checked_schema, keeps_contents)])
        return await self.open_shard(name)

    async def open_shard(self, name: str) -> Shard:
        """The shard of this name. Raises ShardUnknown."""
        return Shard(await self._access.track(name), self._access)

    async def append(self, parts: Sequence[NewPart], *, append_id: bytes | None = None) -> None:
        """Append to several shards what their `Shard.part` gave: to all of them, or to none; durable when it returns.

        As for `Shard.compare_and_append`.
        """
        await self._access.append(parts, append_id)

    async def hold(self, name: str, times: Mapping[Shard, int]) -> None:
        """Set or move the hold ``name`` of several shards, of all or, raising SinceMismatch, of none."""
        await self._access.change(
            [SetHolds(shard.name, {name: Hold(at, None)}) for shard, at in times.items()]
        )

    def state_store(self, name: str) -> StateStore:
        """A database with at most two versions, which is there from its first `StateStore.open` on."""
        return StateStore(checked(name), self._ordering, self._blobs, self._access.work)
