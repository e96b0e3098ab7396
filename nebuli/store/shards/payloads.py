"""The bytes of a shard's updates: kept in an entry or in a blob, and read and checked."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from nebuli.store.errors import BlobDamaged, BlobMissing, StorageError
from nebuli.store.shards.changes import Fenced, Payload
from nebuli.store.shards.ledger import key_of
from nebuli.store.shards.updates import Runs, decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.store.blobs import Blobs
    from nebuli.store.shards.shard_state import Part, ShardState
    from nebuli.store.shards.updates import Update

INLINE_BYTES = 1 << 16
"""Updates of no more bytes are in the entry itself: a blob costs three syncs, an entry one."""


class BlobGone(Exception):
    """The part's blob is not there: a compaction has replaced it, unless the part is still in use."""


def kept(
    blobs: Blobs, shard: str, state: ShardState, updates: Sequence[Update], *, consolidated: bool = False
) -> Payload:
    """The updates as bytes, in a blob if they are many. Blocking. Raises Fenced."""
    buffer = encoded(updates, state.schema)
    if buffer.size <= INLINE_BYTES:
        return _inlined(updates, buffer, consolidated=consolidated)
    checksum, rows = xxh3_64_intdigest(buffer), _rows(updates)
    name = f"{state.sequence:016x}-{os.urandom(8).hex()}"
    try:
        blobs.put(key_of(shard), name, [buffer])
    except FileNotFoundError:  # it was swept away while it was written
        raise Fenced from None
    return Payload(rows, buffer.size, checksum, None, name, state.sequence, consolidated)


def inlined(schema: pa.Schema, updates: Sequence[Update]) -> Payload | None:
    """The updates as bytes in an entry; None if they are too many for one."""
    buffer = encoded(updates, schema)
    return _inlined(updates, buffer, consolidated=False) if buffer.size <= INLINE_BYTES else None


def _inlined(updates: Sequence[Update], buffer: pa.Buffer, *, consolidated: bool) -> Payload:
    checksum = xxh3_64_intdigest(buffer)
    return Payload(_rows(updates), buffer.size, checksum, buffer.to_pybytes(), None, 0, consolidated)


def _rows(updates: Sequence[Update]) -> int:
    return sum(each.num_rows for _, each in updates)


def drop(blobs: Blobs, shard: str, payload: Payload | None) -> None:
    """Delete the blob of a payload that will be of no part; what cannot be deleted now is by a later sweep."""
    if payload is not None and payload.blob is not None:
        with suppress(StorageError):
            blobs.delete(key_of(shard), [payload.blob])


def read(blobs: Blobs, shard: str, schema: pa.Schema, part: Part) -> list[Runs]:
    """The part's updates. Blocking. Raises BlobGone, BlobDamaged."""
    if part.blob is None:
        buffer, name = pa.py_buffer(part.inline or b""), f"entry {part.number}"
    else:
        name = part.blob
        try:
            buffer = blobs.get(key_of(shard), part.blob)
        except FileNotFoundError:
            raise BlobGone from None
    found = xxh3_64_intdigest(buffer)
    if found != part.checksum or buffer.size != part.size:
        raise BlobDamaged(f"shard {shard}", name, part.checksum, found)
    runs = decoded(buffer, schema)
    if part.at is None:
        return runs
    times = np.array([part.at], np.uint64)
    return [Runs(each.rows, times, np.array([each.rows.num_rows])) for each in runs]


def missing(shard: str, part: Part) -> BlobMissing:
    """The error for a part in use whose blob is not there."""
    return BlobMissing(f"shard {shard}", part.blob or "", part.checksum)


def sweep(
    blobs: Blobs, shard: str, names: Sequence[str], state: ShardState, replaced: Sequence[Part]
) -> list[str]:
    """Delete those of ``names`` that belong to no part and never will; ``state`` is newer than they are.

    A blob that was begun before the fence and is of no part will be of none: its writer has to begin again.
    """
    used = {each.blob for each in state.parts}
    let_go = {each.blob for each in replaced}
    gone = [name for name in names if name not in used and (name in let_go or _born(name) < state.fence)]
    blobs.delete(key_of(shard), gone)
    return gone


def _born(name: str) -> int:
    return int(name.partition("-")[0], 16)
