"""The bytes of a shard's updates: Arrow's stream format, kept in an entry or in a blob, read and checked."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64, xxh3_64_intdigest

from nebuli.dataflow.zset import WEIGHT, consolidate, weights_of
from nebuli.store.errors import BlobDamaged, BlobMissing, SchemaMismatch, StorageError

from .ledger import key_of
from .shard_state import Fenced, Payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from nebuli.store.blobs import Blobs

    from .shard_state import Part, ShardState


TIME = "_time"
_AS_WRITTEN = pa.ipc.IpcWriteOptions()
"""Given, they need not be asked of the environment for each entry."""
_TIME_TYPE = pa.run_end_encoded(pa.int32(), pa.uint64())
_RUNS_TYPE = pa.run_end_encoded(pa.int32(), pa.int64())
"""The type of weights that are the same in many rows."""
_MANY_ROWS = 1 << 10
_ROWS_OF_RUN = 8
"""Weights are written as runs if these have so many rows on average, and there are many rows."""
MAX_BATCH_ROWS = 1 << 20
"""Rows of a batch that is made of several."""

Update = tuple[int, pa.RecordBatch]
"""A time, and what changes at it: a Z-set."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows by their times: those of ``times[i]`` end before row ``ends[i]`` of ``rows``; times ascend."""

    rows: pa.RecordBatch
    times: NDArray[np.uint64]
    ends: NDArray[np.int64]

    def between(self, first: int, until: int) -> pa.RecordBatch:
        """The rows of times from ``first`` up to but not including ``until``."""
        start, end = self._row_at(first), self._row_at(until)
        return self.rows if (start, end) == (0, self.rows.num_rows) else self.rows.slice(start, end - start)

    def updates(self, first: int, until: int) -> Iterator[Update]:
        """An update for each time from ``first`` up to but not including ``until`` that has rows."""
        low, high = self._run_at(first), self._run_at(until)
        start = int(self.ends[low - 1]) if low else 0
        for time, end in zip(self.times[low:high].tolist(), self.ends[low:high].tolist(), strict=True):
            yield time, self.rows.slice(start, end - start)
            start = end

    def _row_at(self, time: int) -> int:
        """The first row whose time is not below it."""
        run = self._run_at(time)
        return int(self.ends[run - 1]) if run else 0

    def _run_at(self, time: int) -> int:
        """The first run whose time is not below it."""
        if time >= 1 << 64:  # above every time
            return len(self.times)
        return int(np.searchsorted(self.times, np.uint64(time)))


def check_schema(shard: str, schema: pa.Schema, *, keeps_contents: bool) -> pa.Schema:
    """Check that a shard may have this schema. Raises SchemaMismatch."""
    last = schema.field(len(schema) - 1) if len(schema) else None
    if last is None or last.name != WEIGHT or last.type != pa.int64():
        raise SchemaMismatch(
            shard, "...", schema, f"expected {WEIGHT} (int64) as the last column: `weighted` adds it"
        )
    if schema.get_field_index(TIME) != -1:
        raise SchemaMismatch(shard, "...", schema, f"a column cannot be named {TIME}: the store adds it")
    if keeps_contents:
        try:
            nulls = [pa.nulls(2, field.type) for field in list(schema)[:-1]]
            consolidate(pa.record_batch([*nulls, [1, 1]], schema=schema))
        except (ValueError, NotImplementedError, AttributeError) as error:
            raise SchemaMismatch(shard, "...", schema, f"its rows cannot be compared: {error}") from error
    return schema.remove_metadata()


def encoded(updates: Sequence[Update], schema: pa.Schema) -> pa.Buffer:
    """Updates in the order of their times, none of them without rows."""
    stream = pa.BufferOutputStream()
    _encode(updates, schema, stream)
    return stream.getvalue()


class _Pieces:
    """A file in memory: the buffers that were written to it, which are not copied."""

    closed = False

    def __init__(self) -> None:
        self.buffers: list[bytes | pa.Buffer] = []

    def write(self, buffer: bytes | pa.Buffer) -> None:
        """Keep a buffer."""
        self.buffers.append(buffer)

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""


def _encode(updates: Sequence[Update], schema: pa.Schema, stream: pa.NativeFile | _Pieces) -> None:
    has_runs = _has_long_runs([rows for _, rows in updates])
    *fields, weight = schema
    weight = pa.field(WEIGHT, _RUNS_TYPE) if has_runs else weight
    whole = pa.schema([*fields, weight, pa.field(TIME, _TIME_TYPE)])
    with pa.ipc.new_stream(stream, whole, options=_AS_WRITTEN) as writer:
        for few in _together(updates):
            rows = few[0][1] if len(few) == 1 else pa.concat_batches([rows for _, rows in few])
            ends = pa.array(accumulate(rows.num_rows for _, rows in few), pa.int32())
            times = pa.array([time for time, _ in few], pa.uint64())
            column = pa.RunEndEncodedArray.from_arrays(ends, times)
            *columns, weights = rows.columns
            weights = pc.run_end_encode(weights) if has_runs else weights
            writer.write_batch(pa.RecordBatch.from_arrays([*columns, weights, column], schema=whole))


def _has_long_runs(batches: Sequence[pa.RecordBatch]) -> bool:
    """True if weights are nearly always those of the row before: in rows that are only added, all are 1."""
    rows = sum(batch.num_rows for batch in batches)
    if rows < _MANY_ROWS:
        return False
    runs = sum(1 + np.count_nonzero(np.diff(weights_of(batch))) for batch in batches)
    return bool(runs * _ROWS_OF_RUN <= rows)


def decoded(buffer: Any, schema: pa.Schema) -> list[Runs]:
    """Decode updates, without copying the rows."""
    found = []
    for batch in pa.ipc.open_stream(buffer):
        *columns, weights, column = batch.columns
        weights = pc.run_end_decode(weights) if weights.type == _RUNS_TYPE else weights
        rows = pa.RecordBatch.from_arrays([*columns, weights], schema=schema)
        found.append(Runs(rows, column.values.to_numpy(), column.run_ends.to_numpy().astype(np.int64)))
    return found


def _together(updates: Sequence[Update]) -> Iterator[list[Update]]:
    """Updates that become one batch each."""
    few: list[Update] = []
    count = 0
    for update in updates:
        if few and count + update[1].num_rows > MAX_BATCH_ROWS:
            yield few
            few, count = [], 0
        few.append(update)
        count += update[1].num_rows
    if few:
        yield few


def merged(runs: Iterable[Runs], since: int, *, keeps_contents: bool) -> list[Update]:
    """The same updates, with what lies below ``since`` consolidated at ``since``, or left out."""
    below: list[pa.RecordBatch] = []
    rest: list[Update] = []
    for each in runs:
        if keeps_contents:
            below.append(each.between(0, since + 1))
            rest += each.updates(since + 1, 1 << 64)
        else:
            rest += each.updates(since, 1 << 64)
    if below:
        contents = consolidate(pa.Table.from_batches(below))
        rest.insert(0, (since, contents))
    return [update for update in rest if update[1].num_rows]


INLINE_BYTES = 1 << 16
"""Updates of no more bytes are in the entry itself: a blob costs three syncs, an entry one."""


class BlobGone(Exception):
    """The part's blob is not there: a compaction has replaced it, unless the part is still in use."""


def kept(
    blobs: Blobs, shard: str, state: ShardState, updates: Sequence[Update], *, consolidated: bool = False
) -> Payload:
    """The updates as bytes, in a blob if they are many. Blocking. Raises Fenced."""
    if sum(rows.nbytes for _, rows in updates) <= INLINE_BYTES:
        buffer = encoded(updates, state.schema)
        if buffer.size <= INLINE_BYTES:
            return _inlined(updates, buffer, consolidated=consolidated)
        buffers = [buffer]
    else:
        pieces = _Pieces()
        _encode(updates, state.schema, pieces)
        buffers = pieces.buffers
    size, checksum = 0, xxh3_64()
    for each in buffers:
        size += len(each)
        checksum.update(each)
    name = f"{state.sequence:016x}-{os.urandom(8).hex()}"
    try:
        blobs.put(key_of(shard), name, buffers)
    except FileNotFoundError:  # it was swept away while it was written
        raise Fenced from None
    return Payload(_rows(updates), size, checksum.intdigest(), None, name, state.sequence, consolidated)


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
