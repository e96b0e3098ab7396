"""Counts, sums and averages per group that rows can be taken out of again.

Sums do not drift: a sum of integers is kept in 96 bits, so it may pass through values beyond int64 and
come back: only a result has to fit. A count that int64 cannot hold is an error where it arises, as it would wrap;
a sum of floats is kept as two doubles (106 bits of mantissa, Dekker 1971), with infinities and
NaNs counted apart. A retracted row thus leaves no visible trace, unless finite values differ by
more than 32 orders of magnitude. A finite sum that was beyond the range of float64 stays infinite, or NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.rows import counted, group_rows, may_wrap
from nebuli.dataflow.state import KeyedState, Run, consolidated
from nebuli.dataflow.zset import WEIGHT, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.rows import Groups

    Integers = NDArray[np.int64]
    Reals = NDArray[np.float64]
    Portion = tuple[Integers, Sequence[Any]]
    """Numbers of groups, and for each a row of its state, in columns."""

_LOW = np.int64(0xFFFFFFFF)
_SPLITTER = 134217729.0  # 2**27 + 1: splits a double into halves whose products are exact
_VALUE = "_value"
VALUE_BITS = 36
"""So many of the lowest bits of a row's hash are its value's; the others are its group's."""
_VALUE_BITS = np.uint64(VALUE_BITS)


@dataclass(frozen=True, slots=True)
class Change:
    """A batch as an aggregate sees it: argument and weight of each row, and the groups of the rows.

    ``keys`` has one row per group, in the order of the groups.
    """

    values: Any
    weights: Integers
    groups: Groups
    keys: Run

    @property
    def valid_weights(self) -> Integers:
        """The weights, zero where the argument is null."""
        if not self.values.null_count:
            return self.weights
        return np.where(self.values.is_valid().to_numpy(zero_copy_only=False), self.weights, 0)


class Accumulator(Protocol):
    """One aggregate's state, in columns (``types``) with a row per group."""

    types: tuple[pa.DataType, ...]

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """Return the row of state per group for a batch, given its state ``old``: the addition, or the new state.

        The other methods know which of them.
        """

    def gather(self, groups: int, parts: Sequence[Portion]) -> list[Any]:
        """The state of so many groups from the rows that were found of some of them, older before newer."""

    def after(self, old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
        """The state of groups that had ``old``, and that a change gave ``changed``."""

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """The state of each group from its rows, of which older stand before newer."""

    def result(self, columns: Sequence[Any]) -> Any:
        """The aggregate's value of each row of state."""

    @property
    def states(self) -> Sequence[KeyedState]:
        """Its state other than its columns, by the groups' keys."""


class CountRows:
    """``count(*)``."""

    types: tuple[pa.DataType, ...] = (pa.int64(),)
    states: Sequence[KeyedState] = ()

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """The sum of the weights."""
        return _columns(change.groups.count(change.weights))

    def gather(self, groups: int, parts: Sequence[Portion]) -> list[Any]:
        """Add up."""
        return _columns(*_added(1, groups, parts))

    def after(self, old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
        """Add."""
        return _columns(_plus(old[0].to_numpy(), changed[0].to_numpy()))

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """Add up."""
        return _columns(groups.count(columns[0].to_numpy()))

    def result(self, columns: Sequence[Any]) -> Any:
        """The count."""
        return columns[0]


class CountValues(CountRows):
    """``count(x)``: rows whose argument is not null."""

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """The sum of the weights of the values."""
        return _columns(change.groups.count(change.valid_weights))


class IntegerSum:
    """``sum`` of integers: count, and the sum as ``high * 2**32 + low`` with ``0 <= low < 2**32``."""

    types: tuple[pa.DataType, ...] = (pa.int64(), pa.int64(), pa.int64())
    states: Sequence[KeyedState] = ()

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """Count and sum of a batch."""
        weights = change.valid_weights
        filled = pc.fill_null(change.values, 0) if change.values.null_count else change.values
        values = filled.to_numpy()
        values = values if values.dtype == np.uint64 else values.astype(np.int64)
        count = change.groups.count(weights)
        if may_wrap(len(weights), weights, limit=(1 << 31) - 1):
            return _columns(count, *_exact(values, weights, change.groups))
        high = (values >> values.dtype.type(32)).astype(np.int64)
        low = (values & values.dtype.type(_LOW)).astype(np.int64)
        return _columns(count, *_carried(change.groups.sum(high * weights), change.groups.sum(low * weights)))

    def gather(self, groups: int, parts: Sequence[Portion]) -> list[Any]:
        """Add up."""
        count, high, low = _added(3, groups, parts)
        return _columns(count, *_carried(high, low))

    def after(self, old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
        """Add."""
        pairs = zip(old, changed, strict=True)
        count, high, low = (_plus(was.to_numpy(), more.to_numpy()) for was, more in pairs)
        return _columns(count, *_carried(high, low))

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """Add up."""
        count, high, low = (groups.count(column.to_numpy()) for column in columns)
        return _columns(count, *_carried(high, low))

    def beyond(self, columns: Sequence[Any]) -> NDArray[np.bool_]:
        """Which rows of state have a sum that int64 cannot hold, and thus no result."""
        count, high, _ = (column.to_numpy() for column in columns)
        return np.asarray((count > 0) & ((high < -(1 << 31)) | (high >= 1 << 31)))

    def check(self, columns: Sequence[Any], sql: str) -> None:
        """Raise ``DataflowError``, naming the first sum that int64 cannot hold."""
        if (beyond := self.beyond(columns)).any():
            row = int(np.argmax(beyond))
            _, high, low = (column[row].as_py() for column in columns)
            total = (high << 32) + low
            raise DataflowError(
                f"the sum {total} is beyond the range of int64, in {sql!r}: add up fewer rows, or floats (x::DOUBLE)"
            )

    def result(self, columns: Sequence[Any]) -> Any:
        """The sum as an int64; null without values; any number where it is ``beyond``."""
        count, high, low = (column.to_numpy() for column in columns)
        return pa.array((high << np.int64(32)) + low, mask=count == 0)


class IntegerAverage(IntegerSum):
    """``avg`` of integers."""

    def result(self, columns: Sequence[Any]) -> Any:
        """The average as a float64; null without values."""
        count, high, low = (column.to_numpy() for column in columns)
        return _quotient(high * 4294967296.0 + low, count)


class RealSum:
    """``sum`` of floats: counts of values, of NaN, of each infinity, and the finite sum as two doubles.

    Float sums depend on the order of their parts. Each row of state therefore is the whole sum, and not a part of
    it: so the retracted sum is the one that was emitted.
    """

    types: tuple[pa.DataType, ...] = (*(pa.int64(),) * 4, pa.float64(), pa.float64())
    states: Sequence[KeyedState] = ()

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """Counts and sum, with the batch."""
        weights = change.valid_weights
        values = pc.fill_null(change.values, 0.0).to_numpy().astype(np.float64)
        kinds = (np.isnan(values), values == np.inf, values == -np.inf)
        counts = [change.groups.count(each) for each in (weights, *(weights * kind for kind in kinds))]
        products = _products(np.where(np.isfinite(values), values, 0.0), weights)
        *before, high, low = (column.to_numpy() for column in old)
        sums = _add_pairs(high, low, *_sum_pairs(*products, change.groups))
        return _columns(*(_plus(was, more) for was, more in zip(before, counts, strict=True)), *sums)

    def gather(self, groups: int, parts: Sequence[Portion]) -> list[Any]:
        """The newest."""
        states = [np.zeros(groups, type_.to_pandas_dtype()) for type_ in self.types]
        for places, columns in parts:
            for state, column in zip(states, columns, strict=True):
                state[places] = column.to_numpy()  # of several writes to a place the last stays
        return _columns(*states)

    def after(self, old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
        """Return the new state."""
        return list(changed)

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """The newest."""
        newest = pa.array(groups.lasts)
        return [column.take(newest) for column in columns]

    def result(self, columns: Sequence[Any]) -> Any:
        """The sum as a float64; null without values."""
        sums, count = _real_sums(columns)
        return pa.array(sums, mask=count == 0)


class RealAverage(RealSum):
    """``avg`` of floats."""

    def result(self, columns: Sequence[Any]) -> Any:
        """The average as a float64; null without values."""
        return _quotient(*_real_sums(columns))


def _columns(*arrays: NDArray[Any]) -> list[Any]:
    return [pa.array(array) for array in arrays]


def _added(columns: int, groups: int, parts: Sequence[Portion]) -> list[Integers]:
    """Per column the sum of what each group has."""
    terms = sum(len(places) for places, _ in parts)
    large = any(may_wrap(terms, *(column.to_numpy() for column in found)) for _, found in parts)
    sums = [np.zeros(groups, dtype=object if large else np.int64) for _ in range(columns)]
    for places, found in parts:
        for sum_, column in zip(sums, found, strict=True):
            np.add.at(sum_, places, column.to_numpy().astype(sum_.dtype, copy=False))
    return [counted(sum_) for sum_ in sums] if large else sums


def _plus(a: Integers, b: Integers) -> Integers:
    """The sums of pairs of counts."""
    return counted(a.astype(object) + b.astype(object)) if may_wrap(2, a, b) else a + b


def _carried(high: Integers, low: Integers) -> tuple[Integers, Integers]:
    return high + (low >> np.int64(32)), low & _LOW


def _exact(values: NDArray[Any], weights: Integers, groups: Groups) -> tuple[Integers, Integers]:
    """The sums of products that 64 bits could overflow on, which only huge weights make."""
    sums = groups.sum(values.astype(object) * weights.astype(object))
    return counted(sums >> 32), (sums & int(_LOW)).astype(np.int64)


def _quotient(sums: Reals, count: Integers) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        return pa.array(sums / count + 0.0, mask=count == 0)  # no -0.0, which equals 0.0, but is another row


def _real_sums(columns: Sequence[Any]) -> tuple[Reals, Integers]:
    count, nans, plus, minus, high, low = (column.to_numpy() for column in columns)
    sums = high + low
    sums[plus > 0] = np.inf
    sums[minus > 0] = -np.inf
    sums[(nans > 0) | ((plus > 0) & (minus > 0))] = np.nan
    return sums, count


def _products(values: Reals, weights: Integers) -> tuple[Reals, Reals]:
    """``values * weights`` as two doubles each, exact (Dekker's product)."""
    factors = weights.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        high = values * factors
        if np.abs(weights).max(initial=0) <= 1:
            return high, np.zeros_like(high)
        a, b = _halves(values), _halves(factors)
        low = ((a[0] * b[0] - high) + a[0] * b[1] + a[1] * b[0]) + a[1] * b[1]
        return high, np.where(np.isfinite(low), low, 0.0)


def _halves(values: Reals) -> tuple[Reals, Reals]:
    scaled = values * _SPLITTER
    upper = scaled - (scaled - values)
    return upper, values - upper


def _sum_pairs(high: Reals, low: Reals, groups: Groups) -> tuple[Reals, Reals]:
    """The sums of two-double numbers per group, by adding neighbours until one is left."""
    high, low, starts = high[groups.order], low[groups.order], groups.starts
    while len(starts) < len(high):
        sizes = np.diff(starts, append=len(high))
        position = np.arange(len(high)) - np.repeat(starts, sizes)
        kept = np.flatnonzero(position % 2 == 0)
        paired = np.flatnonzero(position[kept] + 1 < np.repeat(sizes, sizes)[kept])
        left = kept[paired]
        sums = _add_pairs(high[left], low[left], high[left + 1], low[left + 1])
        high, low = high[kept], low[kept]
        high[paired], low[paired] = sums
        halved = (sizes + 1) // 2
        starts = np.cumsum(halved) - halved
    return high, low


def _add_pairs(a: Reals, a_low: Reals, b: Reals, b_low: Reals) -> tuple[Reals, Reals]:
    with np.errstate(over="ignore", invalid="ignore"):
        total = a + b
        part = total - a
        rest = ((a - (total - part)) + (b - part)) + (a_low + b_low)
        rest = np.where(np.isfinite(rest), rest, 0.0)
        high = total + rest
        low = rest - (high - total)
    return high, np.where(np.isfinite(low), low, 0.0)


class CountDistinct:
    """``count(DISTINCT x)``: the count in a column, and every value with its weight."""

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
