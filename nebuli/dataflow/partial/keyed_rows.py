"""Rows by key, where keys may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nebuli.dataflow.partial.key_sets import KeySet, batch_of, parted
from nebuli.dataflow.state import KeyedState, Run, takes_back, without_zeros
from nebuli.dataflow.zset import empty, together

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

_MOST_ROWS = 1 << 20
"""More are not sorted at once, so that nothing waits for long."""


class KeyedRows:
    """A Z-set of rows with ``schema`` (the weight last), found by ``columns``.

    A key is present or missing, and present without rows is another thing than missing. Where it is ``full``, all keys
    are present.
    """

    def __init__(
        self, schema: pa.Schema, columns: Sequence[str], *, full: bool, rows: KeyedState | None = None
    ) -> None:
        self.schema = schema
        self.columns = tuple(columns)
        self.types = [schema.field(name).type for name in columns]
        self.full = full
        self._rows = KeyedState(self.columns, without_zeros, takes_back, _MOST_ROWS) if rows is None else rows
        self._present = KeySet(self.types)
        self._none = empty(schema)

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        return self._rows.nbytes + self._present.nbytes

    @property
    def gone_bytes(self) -> int:
        """The part of it that evictions have left and that will be freed."""
        return self._rows.gone_bytes + self._present.gone_bytes

    @property
    def present(self) -> KeySet:
        """Number of present keys; not counted if it is full."""
        return self._present

    def has(self, keys: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which of the keys are present."""
        return np.ones(keys.num_rows, dtype=np.bool_) if self.full else self._present.has(keys)

    def has_keys_of(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which rows have a present key."""
        if self.full:
            return np.ones(rows.num_rows, dtype=np.bool_)
        return self.has(batch_of([rows.column(name) for name in self.columns]))

    def fill(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        """Have keys be present that were missing, each given once, with these rows, which have no others."""
        probe = self.hashed(keys)
        self._present.add_hashed(probe)
        if keys.num_rows == 1 and rows.num_rows:
            self._rows.insert(Run(rows, np.repeat(probe.hashes, rows.num_rows)))
        else:
            self._insert(rows)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Change the rows of keys that are present; gives those changes."""
        known, _ = parted(rows, self.has_keys_of(rows))
        self._insert(known)
        return known

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with these keys, each given once."""
        return self._looked_up(self.hashed(keys))

    def read(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows of those of the keys that are present, which are used by this, and the keys that are not."""
        probe = self.hashed(keys)
        if len(probe.hashes) == 1 and not self.full and (rows := self._looked_up(probe)).num_rows:
            self._present.note_use(probe)  # a key with rows is present, without that this is looked for
            return rows, keys.slice(0, 0)
        here = self.used_now(probe)
        if here.all():
            return self._looked_up(probe), keys.slice(0, 0)
        found, missing = parted(keys, here)
        return self.lookup(found) if found.num_rows else self._none, missing

    def evict(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Have those of the keys be missing that are present; gives them and the rows that go."""
        gone = self._present.discard(keys)
        runs = self._rows.take_out(self._renamed(self.hashed(gone))) if gone.num_rows else []
        return gone, self._together(run.rows for run in runs)

    def all(self) -> pa.RecordBatch:
        """All rows."""
        return self._together(self.batches())

    def batches(self) -> list[pa.RecordBatch]:
        """Return all rows as stored: some may be retracted by others."""
        settled, fresh = self._rows.runs
        return [self._as_given(run.rows) for run in (*settled, *fresh)]

    def hashed(self, keys: pa.RecordBatch) -> Run:
        """The keys as they are sought, here and wherever rows are found by as many columns of the same types."""
        return self._present.hashed(keys)

    def used_now(self, keys: Run) -> NDArray[np.bool_]:
        """Which of the keys are present; they were used now."""
        if self.full:
            return np.ones(len(keys.hashes), dtype=np.bool_)
        return self._present.used_now(keys)

    def sort(self, least: int) -> None:
        """Have what has come be sorted now, if it is at least so many rows: else the next lookup does it."""
        if self._rows.unsorted_rows >= least:
            self._rows.sort_now()

    def _looked_up(self, probe: Run) -> pa.RecordBatch:
        return self._together(match.found for match in self._rows.lookup(self._renamed(probe)))

    def _together(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        return together(self.schema, map(self._as_given, batches))

    def _as_given(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if rows.schema == self.schema else rows.select(self.schema.names)

    def _insert(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._rows.insert(Run.of(rows, self.columns))

    def _renamed(self, keys: Run) -> Run:
        """Keys, with the names of the columns that they are."""
        return Run(keys.rows.rename_columns(self.columns), keys.hashes)
