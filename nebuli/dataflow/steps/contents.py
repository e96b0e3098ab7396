"""`Contents`: an input, an output or a view with all its rows so far, for queries of their sum."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.dataflow.state import KeyedState, Run, always, consolidated
from nebuli.dataflow.zset import consolidate, empty, merged, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_log = logging.getLogger("nebuli.dataflow")
_COMPLETE = "complete"


class Contents:
    """Rows of this Z-set's ``schema`` are passed on, and kept in sorted runs that never change.

    ``max_bytes``: what is kept may hold so much; if it would be more, all is forgotten, for good, and only passed on.
    None: the caller has its own bound. With a ``key``, runs are sorted by it, so that `of_keys` finds
    rows in them.
    """

    def __init__(
        self, name: str, schema: pa.Schema, max_bytes: int | None, key: Sequence[str] | None = None
    ) -> None:
        self._name = name
        self._keys = schema.names[:-1] if key is None else list(key)
        self._max_bytes = max_bytes
        self._state = KeyedState(self._keys, consolidated, _takes_back if key is None else always)
        self.is_complete = True
        """True if it has all rows since the first step."""

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Keep the batch, and give it on."""
        if self.is_complete and batch.num_rows:
            self._insert(Run.of(batch, self._keys))
        yield batch

    def keep(self, rows: pa.RecordBatch, hashes: NDArray[np.uint64]) -> None:
        """Keep rows whose hashes are known, and which lie in their order."""
        if self.is_complete and rows.num_rows:
            self._insert(Run(rows, hashes))

    def _insert(self, run: Run) -> None:
        self._state.insert(run)
        if self._max_bytes is not None and self._state.nbytes > self._max_bytes:
            _log.warning(
                "the contents of output %s have grown to %d bytes, but at most %d are kept: from now on "
                "queries cannot read them; --max-state-bytes sets the limit",
                self._name,
                self._state.nbytes,
                self._max_bytes,
            )
            self.forget()

    def forget(self) -> None:
        """Keep nothing, from now on neither."""
        self._state.clear()
        self.is_complete = False

    @property
    def runs(self) -> Sequence[Run]:
        """All rows, in runs that never change: the same row may stand in several, with weights to be added up."""
        return [run for runs in self._state.runs for run in runs]

    # -- as an `Operator`

    late_rows = 0

    def kept_as(self, key: str) -> str:
        """Columns keep their names."""
        return key

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Nothing is over: it has no event time."""
        return iter(())

    def ended(self, port: int) -> None:
        """All stays."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Nothing is owed."""
        return iter(())

    @property
    def states(self) -> Sequence[KeyedState]:
        """Its rows."""
        return (self._state,)

    @property
    def state_bytes(self) -> int:
        """The memory that they hold."""
        return self._state.nbytes

    @property
    def memory(self) -> dict[str, int | None]:
        """True if they are all."""
        return {_COMPLETE: int(self.is_complete)}

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Have them be all, or not."""
        self.is_complete = bool(memory[_COMPLETE])


def _takes_back(rows: pa.RecordBatch) -> bool:
    """True if a merge may leave fewer: rows that are only added stay, regardless of repetitions."""
    return bool((weights_of(rows) < 0).any())


def netted(runs: Sequence[Run]) -> list[pa.RecordBatch]:
    """Return the same Z-set, with all copies of a row merged if it has been retracted once.

    Other rows stay where they are.

    So what is below zero in it, is so in all of the runs together. Its cost other than looking at weights is
    proportional to the retractions, if runs are sorted.
    """
    taken = [run.hashes[weights_of(run.rows) < 0] for run in runs]
    hashes = np.unique(np.concatenate(taken)) if taken else np.empty(0, dtype=np.uint64)
    if not len(hashes):
        return [run.rows for run in runs]
    others, together = [], []
    for run in runs:
        places = _places(run, hashes)
        if len(places):
            together.append(run.take(places))
            kept = np.ones(len(run.hashes), dtype=np.bool_)
            kept[places] = False
            others.append(run.rows.filter(pa.array(kept)))
        else:
            others.append(run.rows)
    return [*others, consolidate(together)]


def of_keys(
    runs: Sequence[Run], key: Sequence[str], keys: pa.RecordBatch, schema: pa.Schema
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """The rows of different keys in runs that are sorted by ``key``, in the order of the keys; and how many each has.

    Its cost is proportional to the rows found, and to the logarithm of all rows. ``schema`` is that of the
    rows, with their weights, none of which is zero.
    """
    state = KeyedState(key, consolidated)
    state.restore(runs, ())
    probe = Run(keys, hashing.hash_rows(keys.columns, keys.num_rows))
    found = [match for match in state.lookup(probe) if len(match.probe)]
    if not found:
        return empty(schema), np.zeros(keys.num_rows, dtype=np.int64)
    owners = np.concatenate([match.probe for match in found])
    rows, kept = merged(pa.concat_batches([match.found for match in found]), owners.astype(np.uint64))
    return rows, np.bincount(owners[kept], minlength=keys.num_rows)


def _places(run: Run, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where rows of these hashes lie."""
    if not run.is_sorted:
        return np.flatnonzero(np.isin(run.hashes, hashes))
    first = np.searchsorted(run.hashes, hashes, side="left")
    counts = np.searchsorted(run.hashes, hashes, side="right") - first
    starts = np.cumsum(counts) - counts
    return np.repeat(first - starts, counts) + np.arange(int(counts.sum()))
