"""How many different values a group has, under retraction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow.aggregates.accumulators import CountRows
from nebuli.dataflow.keys import hashing
from nebuli.dataflow.rows import group_rows
from nebuli.dataflow.state import KeyedState, Run, consolidated
from nebuli.dataflow.zset import WEIGHT, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.dataflow.aggregates.accumulators import Change, Portion
    from nebuli.dataflow.rows import Groups

_VALUE = "_value"
VALUE_BITS = 36
"""So many of the lowest bits of a row's hash are its value's; the others are its group's."""
_VALUE_BITS = np.uint64(VALUE_BITS)


class CountDistinct:
    """``count(DISTINCT x)``: the count in a column, and every value with its weight beside it."""

    types = CountRows.types

    def __init__(self, keys: Sequence[str]) -> None:
        self._counts = CountRows()
        self._values = KeyedState([*keys, _VALUE], consolidated)

    @property
    def states(self) -> Sequence[KeyedState]:
        """All values."""
        return (self._values,)

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """How many values each group has got, less those that it has lost."""
        delta, owners = self._delta(change)
        before = np.zeros(len(owners), dtype=np.int64)
        for match in self._values.lookup(delta):
            np.add.at(before, match.probe, weights_of(match.found))
        after = before + weights_of(delta.rows)
        self._values.insert(delta)
        counts = np.zeros(len(change.keys.hashes), dtype=np.int64)
        np.add.at(counts, owners, (after > 0).astype(np.int64) - (before > 0))
        return [pa.array(counts)]

    def gather(self, groups: int, parts: Sequence[Portion]) -> list[Any]:
        """Add up."""
        return self._counts.gather(groups, parts)

    def after(self, old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
        """Add."""
        return self._counts.after(old, changed)

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """Add up."""
        return self._counts.combine(columns, groups)

    def result(self, columns: Sequence[Any]) -> Any:
        """The count."""
        return columns[0]

    def _delta(self, change: Change) -> tuple[Run, Any]:
        """Each value of each group once, with its weight and the number of its group; no nulls."""
        some = np.flatnonzero(change.valid_weights)
        owners, values = change.groups.ids[some], change.values.take(pa.array(some))
        # The highest bits are those of the group, so that runs stay sorted by window where there are windows.
        group = change.keys.hashes[owners]
        both = hashing.hash_rows([pa.array(group), values], len(owners))
        hashes = (group >> _VALUE_BITS << _VALUE_BITS) | (both >> (np.uint64(64) - _VALUE_BITS))
        grouped = group_rows([pa.array(owners), values], hashes)
        weights = grouped.count(change.valid_weights[some])
        owners, rows = owners[grouped.firsts], pa.array(grouped.firsts)
        keys = [key.take(pa.array(owners)) for key in change.keys.rows.columns]
        names = [*change.keys.rows.schema.names, _VALUE, WEIGHT]
        batch = pa.record_batch([*keys, values.take(rows), pa.array(weights)], names)
        return Run(batch, hashes[grouped.firsts]), owners
