"""A checksum of rows in their order, in any pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import xxhash

from nebuli.connectors.endpoints import Signal, Skipping, Source
from nebuli.connectors.errors import InputReplaced
from nebuli.dataflow.hashing import text_buffers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nebuli.dataflow import Progress


_WHOLE = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def checksum(batches: Iterable[pa.RecordBatch]) -> int:
    """64 bits, the same for the same rows in the same order; of no rows 0. Batches have one schema."""
    columns: list[_Column] = []
    for batch in batches:
        columns = columns or [_Column() for _ in range(batch.num_columns)]
        for column, values in zip(columns, batch.columns, strict=True):
            column.add(values)
    return xxhash.xxh3_64_intdigest(b"".join(each.digest() for each in columns)) if columns else 0


class _Column:
    def __init__(self) -> None:
        self._values = xxhash.xxh3_128()
        self._lengths = xxhash.xxh3_128()  # of texts
        self._nulls = xxhash.xxh3_128()  # which values are
        self._rows = 0

    def add(self, values: Any) -> None:
        if not len(values):
            return
        values = _plain(values)
        if values.null_count:
            # The value under a null is undefined.
            nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            self._nulls.update((nulls + self._rows).tobytes())
            values = values.fill_null(0 if pa.types.is_integer(values.type) else "")
        self._rows += len(values)
        if pa.types.is_integer(values.type):
            self._values.update(values.to_numpy())
        else:
            places, data = text_buffers(values)
            self._lengths.update(np.diff(places).tobytes())
            self._values.update(data[places[0] : places[-1]].data)

    def digest(self) -> bytes:
        sums = self._values.digest() + self._lengths.digest() + self._nulls.digest()
        return sums + self._rows.to_bytes(8)


def _plain(values: Any) -> Any:
    """As whole numbers or as texts, from the same bytes."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return values
    return values.view(_WHOLE[kind.bit_width])


_LAST_ROWS = 64
"""So many rows before a position are known by their checksum, at most."""


@dataclass(frozen=True, slots=True)
class _Position:
    """After so many ``rows``, of which the ``last`` ones have this checksum."""

    rows: int = 0
    last: int = 0
    sum: int = 0

    @classmethod
    def from_text(cls, text: str) -> Self:
        rows, last, sum_ = text.split() if text else ("0", "0", "0")
        return cls(int(rows), int(last), int(sum_, 16))

    def __str__(self) -> str:
        return f"{self.rows} {self.last} {self.sum:x}"


class RowPositions(Source):
    """``source``, with places in it that are rows; what it cannot skip it reads and drops.

    A source that is read up to a position is looked at there: it raises InputReplaced where it has fewer rows, or
    others right before. ``reads`` describes it in messages.
    """

    def __init__(self, source: Source, reads: str) -> None:
        self._source = source
        self._reads = reads
        self._start = _Position()
        self._passed = 0
        self._tail: pa.RecordBatch | None = None

    def seek(self, position: str) -> None:
        """Begin after so many rows."""
        self._start = _Position.from_text(position)

    @property
    def position(self) -> str:
        """How many rows were given, or are before them, and what the last ones were."""
        if self._passed <= self._start.rows or self._tail is None:
            return str(self._start)
        return str(_Position(self._passed, self._tail.num_rows, checksum([self._tail])))

    def release(self, position: str) -> None:
        """A file stays as it is."""

    def open(self) -> None:
        """Open it, after rows that are not needed."""
        self._source.open()
        if self._start.rows and isinstance(self._source, Skipping):
            self._source.skip(self._start.rows)
            self._passed = self._start.rows

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """The next rows."""
        while True:
            batch = self._source.poll()
            behind = self._start.rows - self._passed
            if batch is Signal.END and behind > 0:
                raise InputReplaced(self._reads, self._start.rows, self._passed)
            if not isinstance(batch, pa.RecordBatch):
                return batch
            if behind <= 0:
                self._pass(batch)
                return batch
            self._pass(batch.slice(0, behind))
            if behind <= batch.num_rows:
                self._check()
            if behind < batch.num_rows:
                rest = batch.slice(behind)
                self._pass(rest)
                return rest

    def _pass(self, batch: pa.RecordBatch) -> None:
        self._passed += batch.num_rows
        few = batch.slice(max(batch.num_rows - _LAST_ROWS, 0))
        if self._tail is not None and few.num_rows < _LAST_ROWS:
            both = pa.concat_batches([self._tail, few])
            few = both.slice(max(both.num_rows - _LAST_ROWS, 0))
        self._tail = few.take(pa.array(np.arange(few.num_rows)))  # the batch is not to stay for that

    def _check(self) -> None:
        """Check that the rows before the place of resumption are the earlier ones."""
        start = self._start
        assert self._tail is not None, "rows were read"
        last = self._tail.slice(self._tail.num_rows - start.last)
        if start.last and checksum([last]) != start.sum:
            raise InputReplaced(self._reads, start.rows, start.rows)

    def close(self, reason: str) -> None:
        """Close it."""
        self._source.close(reason)

    def interrupt(self) -> None:
        """Have it wait no more."""
        self._source.interrupt()
