"""The least and the greatest value per group, under retraction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.rows import equal_values, group_rows
from nebuli.dataflow.state import KeyedState, Run, consolidated
from nebuli.dataflow.zset import WEIGHT, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.accumulators import Change
    from nebuli.dataflow.rows import Groups

_VALUE = "_value"


class Extreme:
    """``min`` and ``max``: the extreme as it is now in a column, and all values with their weights beside it.

    A value that is given only has to be compared with the extreme of its group. The group's other values are
    looked at when the extreme itself is taken back. NaN is the greatest of all, as in DuckDB.
    """

    def __init__(self, type_: pa.DataType, keys: Sequence[str], order: str) -> None:
        self.types = (type_,)
        self._order = order
        self._values = KeyedState(keys, consolidated)

    @property
    def state_bytes(self) -> int:
        """The memory of all values."""
        return self._values.nbytes

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """The extremes after the batch."""
        groups, values, weights = _distinct(change.groups.ids, change.values, change.valid_weights)
        self._values.insert(_run(change.keys, groups, values, weights))
        extremes = old[0]
        lost = np.zeros(len(extremes), dtype=np.bool_)
        taken = weights < 0
        if taken.any():
            lost[groups[taken & equal_values(values, extremes.take(pa.array(groups)))]] = True
        kept = extremes.is_valid().to_numpy(zero_copy_only=False) & ~lost
        candidates = [
            (np.flatnonzero(kept), extremes.filter(pa.array(kept))),
            _given(groups, values, weights),
        ]
        if lost.any():
            candidates.append(self._present(change.keys, np.flatnonzero(lost)))
        return [self._best(candidates, len(extremes))]

    def empty(self, rows: int) -> list[Any]:
        """No extreme."""
        return [pa.nulls(rows, self.types[0])]

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """The newest."""
        newest = groups.order[np.append(groups.starts[1:], len(groups.order)) - 1]
        return [columns[0].take(pa.array(newest))]

    def result(self, columns: Sequence[Any]) -> Any:
        """The extreme; null without values."""
        return columns[0]

    def _present(self, keys: Run, groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
        """The values that the given groups have now, each with its group."""
        probe = Run(keys.rows.take(pa.array(groups)), keys.hashes[groups])
        owners, values, weights = [groups[:0]], [pa.array([], self.types[0])], [groups[:0]]
        for match in self._values.lookup(probe):
            rows = match.found.take(pa.array(match.rows))
            owners.append(groups[match.probe])
            values.append(rows.column(_VALUE))
            weights.append(weights_of(rows))
        return _given(*_distinct(np.concatenate(owners), pa.concat_arrays(values), np.concatenate(weights)))

    def _best(self, candidates: Sequence[tuple[NDArray[np.int64], Any]], groups: int) -> Any:
        owners = np.concatenate([each for each, _ in candidates])
        values = pa.concat_arrays([each for _, each in candidates])
        best = np.full(groups, -1, dtype=np.int64)
        first = _in_order(values, self._order)[::-1]  # of several writes to a place the last stays
        best[owners[first]] = first
        return values.take(pa.array(best, mask=best < 0))


def _in_order(values: Any, order: str) -> NDArray[np.int64]:
    """The positions of ``values`` from the best on; Arrow sorts NaN last both ways."""
    ascending = np.asarray(pc.array_sort_indices(values, order="ascending").to_numpy(), dtype=np.int64)
    return ascending if order == "ascending" else ascending[::-1]


def _distinct(
    owners: NDArray[np.int64], values: Any, weights: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Any, NDArray[np.int64]]:
    """Each value of each owner once, by owner, with its weight; without nulls and without weights of zero."""
    some = np.flatnonzero(weights)
    owners, values, weights = owners[some], values.take(pa.array(some)), weights[some]
    columns = [pa.array(owners), values]
    grouped = group_rows(columns, owners.astype(np.uint64), hashing.hash_rows(columns, len(owners)))
    sums = grouped.sum(weights)
    present = np.flatnonzero(sums)
    kept = grouped.firsts[present]
    return owners[kept], values.take(pa.array(kept)), sums[present]


def _given(
    owners: NDArray[np.int64], values: Any, weights: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Any]:
    return owners[weights > 0], values.filter(pa.array(weights > 0))


def _run(keys: Run, groups: NDArray[np.int64], values: Any, weights: NDArray[np.int64]) -> Run:
    columns = [column.take(pa.array(groups)) for column in keys.rows.columns]
    names = [*keys.rows.schema.names, _VALUE, WEIGHT]
    return Run(pa.record_batch([*columns, values, pa.array(weights)], names), keys.hashes[groups])
