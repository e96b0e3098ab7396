"""Rows that several processes bring for one insert: durable and not visible, until one of them has all inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.store.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.store.collections.space import Collection, Space


class StagedRows:
    """Those of the collections of a store. Closed by its owner."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._open: dict[str, Staging] = {}

    def _staging(self, collection: Collection) -> Staging:
        id_ = collection.entry.id
        if id_ not in self._open:
            self._open[id_] = Staging(self._space.store.blob_folder(f"collections/{id_}/staged"))
        return self._open[id_]

    async def stage(self, collection: Collection, rows: pa.RecordBatch, producer: str, sequence: int) -> str:
        """Keep a Z-set, durably: its name. Raises StagingFull, StagedLost, StorageError."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        return await self._staging(collection).stage(producer, sequence, sink.getvalue().to_pybytes())

    async def look(self, collection: Collection) -> None:
        """Learn what other processes have staged. Raises StorageError."""
        await self._staging(collection).catch_up()

    async def taken(
        self, collection: Collection, pieces: Sequence[str], producer: str, sequence: int
    ) -> pa.RecordBatch:
        """All pieces, which are known, as one Z-set. Raises StagedLost, BlobDamaged, StorageError."""
        staging = self._staging(collection)
        staging.size(producer, sequence, pieces)  # all are there, and no other's
        read = [pa.ipc.open_stream(await staging.read(each)).read_all() for each in pieces]
        batches = [batch for table in read for batch in table.to_batches()]
        return pa.concat_batches(batches) if batches else _none(collection)

    def inserted(self, collection: Collection, producer: str, sequence: int) -> None:
        """Forget what was staged for this number of a producer, or for one before it."""
        self._staging(collection).drop_up_to(producer, sequence)

    async def drop(self, collection: Collection, pieces: Sequence[str], producer: str) -> None:
        """Forget pieces; it does not matter whether they are there."""
        staging = self._staging(collection)
        await staging.catch_up()
        staging.drop(producer, pieces)
        await staging.swept()

    async def close(self) -> None:
        """Return when what was begun is done."""
        for each in self._open.values():
            await each.swept()
            await each.close()


def _none(collection: Collection) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=collection.schema)
