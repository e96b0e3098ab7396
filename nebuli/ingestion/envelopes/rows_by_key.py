"""The rows of a collection in which each key is at most once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow import zset
from nebuli.dataflow.keys import hashing
from nebuli.dataflow.state import KeyedState, Run, consolidated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


class RowsByKey:
    """The rows with columns of ``schema``, found by those of ``key``.

    They are kept as sorted runs of Arrow rows, which are merged as they grow: a change costs by its own size, and
    memory is about that of the rows, twice that for a while.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self._schema = schema
        self._key = tuple(key)
        self._state = KeyedState(self._key, consolidated)

    def load(self, rows: pa.Table | None) -> None:
        """Begin with these, instead of what is there."""
        self._state.clear()
        for batch in rows.select(self._schema.names).to_batches() if rows is not None else ():
            self._insert(zset.insertions(batch.cast(self._schema)))

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with any of these keys, each of which is there once, as a Z-set."""
        hashes = hashing.hash_rows([keys.column(name) for name in self._key], keys.num_rows)
        found = [match.found for match in self._state.lookup(Run(keys, hashes))]
        return zset.consolidate([zset.empty(zset.weighted(self._schema)), *found])

    def replace(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Have ``rows`` be all that there is of ``keys``; each key is once in either. Gives what that changes."""
        change = zset.consolidate([_negated(self.find(keys)), zset.insertions(rows)])
        self._insert(change)
        return change

    def clear(self) -> pa.RecordBatch:
        """Have no rows any more. Gives what that changes."""
        settled, fresh = self._state.runs
        rows = [run.rows for run in (*settled, *fresh)]
        self._state.clear()
        return _negated(zset.consolidate([zset.empty(zset.weighted(self._schema)), *rows]))

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        return self._state.nbytes

    def _insert(self, change: pa.RecordBatch) -> None:
        self._state.insert(Run.of(change, self._key))


def _negated(rows: pa.RecordBatch) -> pa.RecordBatch:
    return zset.with_weights(zset.without_weight(rows), -zset.weights_of(rows))
