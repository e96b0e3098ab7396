"""Updates as bytes: Arrow's stream format, with the columns of the rows, their weights and their times.

The times are the last column, encoded by runs, so that rows of one time cost no more than one run; rows are in the
order of their times. Any Arrow reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow.zset import WEIGHT, consolidate
from nebuli.store.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

TIME = "_time"
_AS_WRITTEN = pa.ipc.IpcWriteOptions()
"""Given, they need not be asked of the environment for each entry."""
_TIME_TYPE = pa.run_end_encoded(pa.int32(), pa.uint64())
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
            raise SchemaMismatch(shard, "...", schema, f"rows of it cannot be compared: {error}") from error
    return schema.remove_metadata()


def encoded(updates: Sequence[Update], schema: pa.Schema) -> pa.Buffer:
    """Updates in the order of their times, none of them without rows."""
    stream = pa.BufferOutputStream()
    whole = written(schema)
    with pa.ipc.new_stream(stream, whole, options=_AS_WRITTEN) as writer:
        for few in _together(updates):
            rows = few[0][1] if len(few) == 1 else pa.concat_batches([rows for _, rows in few])
            ends = pa.array(accumulate(rows.num_rows for _, rows in few), pa.int32())
            times = pa.array([time for time, _ in few], pa.uint64())
            column = pa.RunEndEncodedArray.from_arrays(ends, times)
            writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, column], schema=whole))
    return stream.getvalue()


def written(schema: pa.Schema) -> pa.Schema:
    """The schema of the bytes."""
    return schema.append(pa.field(TIME, _TIME_TYPE))


def decoded(buffer: Any, schema: pa.Schema) -> list[Runs]:
    """Decode updates, without copying the rows."""
    found = []
    for batch in pa.ipc.open_stream(buffer):
        column = batch.column(batch.num_columns - 1)
        rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
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
