"""Comparing and grouping rows, by hash first and by value always."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.hashing import codes_of, is_coded, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_BATCH_ROWS = 65536
"""No operator gives out batches longer than this, except as long as they came in."""
_SAMPLE = 512
"""So many rows show whether groups are few; of fewer rows each way costs the same."""
_FEW = 64
"""So many values are compared by Python, which takes less than calls of Arrow."""
_FEWEST = 16
"""So many rows are grouped by Python."""
_UINT16 = 1 << 16
_MOST_COUNTED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups: ``order`` lists rows group by group, ``starts`` where each group begins in it."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The first row of each group."""
        return self.order[self.starts]

    @property
    def lasts(self) -> NDArray[np.int64]:
        """The last row of each group."""
        return np.asarray(self.order[np.append(self.starts, len(self.order))[1:] - 1])

    @property
    def ids(self) -> NDArray[np.int64]:
        """The number of each row's group, by row."""
        ids = np.empty(len(self.order), dtype=np.int64)
        ids[self.order] = np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self.order)))
        return ids

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum of ``values`` (by row) in each group."""
        return np.add.reduceat(values[self.order], self.starts) if len(self.starts) else values[:0]

    def count(self, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum of ``weights`` (by row) in each group; raises ``DataflowError`` where int64 cannot hold it."""
        if may_wrap(len(weights), weights):
            return counted(self.sum(weights.astype(object)))
        return self.sum(weights)


def may_wrap(terms: int, *weights: NDArray[np.int64], limit: int = _MOST_COUNTED) -> bool:
    """True if so many terms that are each one of these could add up to more than int64 holds, or than a ``limit``."""
    most = limit // max(terms, 1)
    return any(
        len(each) > 0 and (np.maximum.reduce(each) > most or np.minimum.reduce(each) < -most)
        for each in weights
    )


def times(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """The products of weights; raises ``DataflowError`` where int64 cannot hold one."""
    most = max(abs(int(b.max(initial=0))), abs(int(b.min(initial=0))))
    return counted(a.astype(object) * b.astype(object)) if may_wrap(most, a) else a * b


def counted(exact: NDArray[Any]) -> NDArray[np.int64]:
    """Python's integers as int64; raises ``DataflowError`` for the first that does not fit."""
    try:
        return exact.astype(np.int64)
    except OverflowError:
        beyond = next(each for each in exact if abs(each) > _MOST_COUNTED)
        raise DataflowError(
            f"rows occur {beyond} times, beyond the range of int64: push them with smaller weights"
        ) from None


def group_rows(columns: Sequence[Any], *hashes: NDArray[np.uint64]) -> Groups:
    """Group equal rows, ordered by ``hashes`` (the first leads); equal rows have equal hashes."""
    if len(hashes) == 1 and len(hashes[0]) <= _FEWEST and columns:
        found = _fewest_groups(columns, hashes[0])
        if found is not None:
            return found
    return _few_groups(columns, hashes) or _sorted_groups(columns, hashes)


def _fewest_groups(columns: Sequence[Any], hashes: NDArray[np.uint64]) -> Groups | None:
    """Return the groups of few rows, by Python; None if Python distinguishes values that are equal here."""
    if any(pa.types.is_temporal(column.type) or is_coded(column) for column in columns):
        return None
    rows_of: dict[tuple[Any, ...], list[int]] = {}
    for row, values in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
        rows_of.setdefault(values, []).append(row)
    if len(rows_of) == 1:
        return Groups(np.arange(len(hashes)), np.zeros(1, dtype=np.int64))
    if any(value != value for values in rows_of for value in values):  # noqa: PLR0124 - NaN is NaN
        return None
    listed = hashes.tolist()
    groups = sorted(rows_of.values(), key=lambda rows: listed[rows[0]])
    order = [row for rows in groups for row in rows]
    starts = np.cumsum([0, *(len(rows) for rows in groups[:-1])])
    return Groups(np.array(order, dtype=np.int64), starts[: len(groups)])


def neighbours(columns: Sequence[Any], hashes: NDArray[np.uint64]) -> Groups:
    """The groups of rows that lie by their hashes already, which equal rows have the same of."""
    differ = hashes[1:] != hashes[:-1]
    again = np.flatnonzero(~differ)
    if len(again) and not equal_rows(columns, columns, again, again + 1).all():  # two groups have one hash
        return group_rows(columns, hashes)
    return Groups(np.arange(len(hashes)), np.flatnonzero(np.append(True, differ)))


def _few_groups(columns: Sequence[Any], hashes: Sequence[NDArray[np.uint64]]) -> Groups | None:
    """Return the groups, found by a hash table and then sorted; None if they are many, or hashes collide."""
    rows = len(hashes[0])
    if rows < _SAMPLE:
        return None
    keys = pa.array(hashes[0] if len(hashes) == 1 else hashing.combined(hashes))
    if len(keys.slice(0, _SAMPLE).unique()) > _SAMPLE // 2:
        return None
    encoded = keys.dictionary_encode()
    ids, groups = encoded.indices.to_numpy(), len(encoded.dictionary)
    if groups > rows // 2:
        return None
    firsts = _firsts(ids, groups)
    like = pa.array(firsts[ids])
    if not all(equal_values(column, column.take(like)).all() for column in columns):
        return None
    return _in_order(ids, [each[firsts] for each in hashes])


def coded_groups(columns: Sequence[Any]) -> tuple[Groups, NDArray[np.uint64]] | None:
    """Group equal rows of coded columns, ordered by the hashes of the groups, which are given too.

    None where a column has no codes, or their combinations are many.
    """
    if not columns:
        return None
    ids, count = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if not is_coded(column):
            return None
        values = len(column.dictionary) + 1
        ids, count = ids * values + codes_of(column), count * values
        if count > len(ids):
            return None
    present = np.flatnonzero(np.bincount(ids, minlength=count))
    numbers = np.zeros(count, dtype=np.int64)
    numbers[present] = np.arange(len(present))
    ids, groups = numbers[ids], len(present)
    rows = pa.array(_firsts(ids, groups))
    hashes = hashing.hash_rows([column.take(rows) for column in columns], groups)
    return _in_order(ids, [hashes]), np.sort(hashes)


def _firsts(ids: NDArray[Any], groups: int) -> NDArray[np.int64]:
    """The first row of each group, by the number of each row's group."""
    firsts = np.empty(groups, dtype=np.int64)
    firsts[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)  # of several writes to a place the last stays
    return firsts


def _in_order(ids: NDArray[Any], hashes: Sequence[NDArray[np.uint64]]) -> Groups:
    """The groups that rows have the numbers of, ordered by the hashes of the groups."""
    groups = len(hashes[0])
    order = _sorted_by(hashes)
    places = np.empty(
        groups, dtype=np.uint16 if groups <= _UINT16 else np.int64
    )  # NumPy sorts short ones by radix
    places[order] = np.arange(groups)
    sizes = np.bincount(ids, minlength=groups)[order]
    return Groups(np.argsort(places[ids], kind="stable"), np.cumsum(sizes) - sizes)


def _sorted_groups(columns: Sequence[Any], hashes: Sequence[NDArray[np.uint64]]) -> Groups:
    order = _sorted_by(hashes)
    fresh = _changes([each[order] for each in hashes])
    again = np.flatnonzero(~fresh)
    if len(again) and not equal_rows(columns, columns, order[again - 1], order[again]).all():
        codes = [_codes(column) for column in columns]
        order = _sorted_by((*hashes, *codes))
        fresh = _changes([each[order] for each in (*hashes, *codes)])
    return Groups(order, np.flatnonzero(fresh))


def equal_rows(
    a: Sequence[Any], b: Sequence[Any], a_rows: NDArray[np.int64], b_rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return if row ``a_rows[i]`` of ``a`` equals row ``b_rows[i]`` of ``b``: null is null, NaN is NaN."""
    equal = np.ones(len(a_rows), dtype=np.bool_)
    a_indices, b_indices = pa.array(a_rows), pa.array(b_rows)
    for left, right in zip(a, b, strict=True):
        equal &= equal_values(*(each.take(rows) for each, rows in ((left, a_indices), (right, b_indices))))
    return equal


def equal_values(a: Any, b: Any) -> NDArray[np.bool_]:
    """Return if each value of ``a`` equals that of ``b``: null is null, NaN is NaN."""
    if is_coded(a) and is_coded(b):
        return _equal_codes(a, b)
    a, b = plain(a), plain(b)
    equal = pc.equal(a, b)
    if pa.types.is_floating(a.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    if a.null_count or b.null_count:
        equal = pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(a), pc.is_null(b)))
    return np.asarray(equal.to_numpy(zero_copy_only=False))


def equal_few(wanted: Any, values: Any, rows: Sequence[int]) -> bool:
    """True if few values are known to be equal, each to that of ``wanted`` in its row; False means unknown."""
    if len(rows) > _FEW or pa.types.is_temporal(values.type):
        return False
    listed = wanted.to_pylist()
    return all(
        value == listed[row] or (value != value and listed[row] != listed[row])  # noqa: PLR0124 - NaN is NaN
        for row, value in zip(rows, values.to_pylist(), strict=True)
    )


def _equal_codes(a: Any, b: Any) -> NDArray[np.bool_]:
    """As ``equal_values``, each text of ``a`` sought once among those of ``b``."""
    among = pc.index_in(a.dictionary, value_set=b.dictionary).fill_null(-1).to_numpy()
    null = len(b.dictionary)  # as codes_of has it
    return np.asarray(np.append(among, null)[codes_of(a)] == codes_of(b))


def with_one_zero(column: Any) -> Any:
    """Return the column with 0.0 for -0.0: they are one key, which has to be added and retracted in one spelling."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _sorted_by(keys: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """A stable order by hashes, and where these are equal by the other keys."""
    if len(keys) > 1 and len(keys[0]) < hashing.FEWEST_SORTED:
        return np.lexsort(keys[::-1])
    order = hashing.stable_order(keys[0])
    if len(keys) > 1:
        equal = np.diff(keys[0][order]) == 0
        tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        rows = order[tied]
        order[tied] = rows[np.lexsort([each[rows] for each in keys[::-1]])]
    return order


def _changes(keys: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Where a sorted row differs from the row before it in any key; the first always does."""
    fresh = np.zeros(len(keys[0]), dtype=np.bool_)
    fresh[:1] = True
    for key in keys:
        fresh[1:] |= key[1:] != key[:-1]
    return fresh


def _codes(column: Any) -> NDArray[np.int64]:
    """A number per value, equal for equal values only; this settles collisions, which hashes cannot."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), with_one_zero(column))
    codes = column.dictionary_encode().indices
    return np.asarray(codes.fill_null(-1).to_numpy(), dtype=np.int64)
