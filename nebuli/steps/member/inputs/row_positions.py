"""The number of rows as a position, for sources that give the same rows each time that they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from nebuli.connectors.endpoints import Signal, Skipping, Source
from nebuli.connectors.errors import InputReplaced
from nebuli.steps.member.inputs.checksums import checksum

if TYPE_CHECKING:
    from nebuli.dataflow import Progress

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
