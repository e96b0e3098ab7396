"""An index of a base: its rows found by some columns, also while most of them are still to be taken in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.partial.key_sets import among, batch_of
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.rows import with_one_zero
from nebuli.dataflow.zset import consolidate, empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PIECE_ROWS = 1 << 17
"""So many are taken in at once, which takes some hundredths of a second."""


class BaseIndex:
    """A Z-set of rows with ``schema``, found by ``columns``; without columns they are only kept.

    Large additions are deferred: it is scanned by lookups until ``work`` has taken it in, bit by bit. Later rows need
    not wait for that, as the order in which rows are added to a Z-set does not matter.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        self._rows = KeyedRows(schema, columns, full=True)
        self._owed: deque[pa.RecordBatch] = deque()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns by which rows are found."""
        return self._rows.columns

    @property
    def is_settled(self) -> bool:
        """True if nothing is deferred."""
        return not self._owed

    @property
    def nbytes(self) -> int:
        """The memory that it holds; what is owed may be another index's as well."""
        return int(self._rows.nbytes + sum(batch.nbytes for batch in self._owed))

    def apply(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        if not self.columns or rows.num_rows <= _PIECE_ROWS:
            self._take_in(rows)
        else:
            self.owe([rows])

    def owe(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows that may be many."""
        for batch in batches:
            starts = range(0, batch.num_rows, _PIECE_ROWS)
            self._owed += (batch.slice(start, _PIECE_ROWS) for start in starts)

    def work(self) -> None:
        """Take in a bounded part of what is owed."""
        self._take_in(self._owed.popleft())

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with these keys, each given once."""
        found = self._rows.lookup(keys)
        if not self._owed:
            return found
        return consolidate([found, *self._scanned(keys)])

    def all(self) -> pa.RecordBatch:
        """All rows."""
        if not self._owed:
            return self._rows.all()
        return consolidate([empty(self._rows.schema), *self.batches()])

    def batches(self) -> list[pa.RecordBatch]:
        """Return all rows as stored: some may be retracted by others."""
        return [*self._rows.batches(), *self._owed]

    def _take_in(self, rows: pa.RecordBatch) -> None:
        self._rows.apply(rows)
        if self.columns:
            self._rows.sort(_PIECE_ROWS // 2)

    def _scanned(self, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with these keys that are owed."""
        for batch in self._owed:
            likely = _are_in(batch.column(self.columns[0]), keys.column(0))
            if likely.true_count:
                rows = batch.filter(likely)
                of_keys = among(batch_of([rows.column(name) for name in self.columns]), keys)
                yield rows.filter(pa.array(of_keys))


def _are_in(column: Any, values: Any) -> Any:
    """Which values of a column are among some others: null is null, NaN is NaN."""
    column = with_one_zero(column)
    if len(values) == 1 and values[0].is_valid and values[0] == values[0]:
        return pc.fill_null(pc.equal(column, values[0]), False)
    return pc.is_in(column, value_set=values)
