"""Order codes: 64 bits per value that sort as the values do.

Values in order have codes in order; equal codes mean equal values except for text, of which a code holds the first
eight bytes. NaN is the greatest float, as in DuckDB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.hashing import float_bits, text_buffers
from nebuli.dataflow.rows import equal_values, group_rows, with_one_zero
from nebuli.dataflow.state import KeyedState, Run, ordered
from nebuli.dataflow.zset import WEIGHT, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.rows import Groups
    from nebuli.dataflow.state import Found

    from .accumulators import Change, Portion

    Owned = tuple[NDArray[np.int64], Any]
    """Values, and the number of each one's group."""

_SIGN = np.uint64(1 << 63)


def order_codes(values: Any) -> NDArray[np.uint64]:
    """The codes of an Arrow array without nulls."""
    type_ = values.type
    if _is_text(type_):
        return _text_codes(values)
    if pa.types.is_boolean(type_) or pa.types.is_unsigned_integer(type_):
        return np.asarray(pc.cast(values, pa.uint64()).to_numpy())
    if pa.types.is_floating(type_):
        return _float_codes(np.asarray(values.to_numpy(), dtype=np.float64))
    return np.asarray(values.view(f"int{type_.bit_width}").to_numpy(), dtype=np.int64).view(np.uint64) ^ _SIGN


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _float_codes(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """IEEE floats sort as integers once negative ones are complemented."""
    bits = float_bits(values)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _text_codes(values: Any) -> NDArray[np.uint64]:
    codes = np.zeros(len(values), dtype=np.uint64)
    if not len(values):
        return codes
    offsets, data = text_buffers(values)
    for position in range(8):
        codes <<= np.uint64(8)
        at = offsets[:-1] + position
        longer = at < offsets[1:]
        codes[longer] |= data[at[longer]]
    return codes


_VALUE, _CODE = "_value", "_code"
_FIRST_LOOK = 16  # values sought per group and run at first; four times as many each time none is there
_MOST_PLACES_PER_ROW = 4
_NONE = np.zeros(0, dtype=np.int64)
_WORST = np.uint64((1 << 64) - 1)


class GrowingExtreme:
    """``min`` and ``max`` of rows none of which is retracted: the extreme as it is now, in a column.

    A value only has to be compared with the extreme of its group. NaN is the greatest of all, as in DuckDB.
    """

    def __init__(self, type_: pa.DataType, order: str) -> None:
        self.types = (type_,)
        self._order = order

    @property
    def states(self) -> Sequence[KeyedState]:
        """None: a value that is not the extreme now never will be."""
        return ()

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """The extremes after the batch. Raises ``DataflowError`` if it retracts a row."""
        if (change.weights < 0).any():
            raise DataflowError(
                "a row is retracted, but according to the plan, none of the operators and sources before this one "
                "retracts rows: if the source's connector retracts rows, let it declare so ('retracts')"
            )
        some = np.flatnonzero(change.valid_weights)
        given = with_one_zero(change.values.take(pa.array(some)))
        return [self._best([_present(old[0]), (change.groups.ids[some], given)], len(old[0]))]

    def gather(self, groups: int, parts: Sequence[Portion]) -> list[Any]:
        """The newest."""
        if not parts:
            return [pa.nulls(groups, self.types[0])]
        places = np.concatenate([each for each, _ in parts])
        newest = np.full(groups, -1, dtype=np.int64)
        newest[places] = np.arange(len(places))  # of several writes to a place the last stays
        values = pa.concat_arrays([column for _, (column,) in parts])
        return [values.take(pa.array(newest, mask=newest < 0))]

    def after(self, old: Sequence[Any], changed: Sequence[Any]) -> list[Any]:
        """Return the new state."""
        return list(changed)

    def combine(self, columns: Sequence[Any], groups: Groups) -> list[Any]:
        """The newest."""
        return [columns[0].take(pa.array(groups.lasts))]

    def result(self, columns: Sequence[Any]) -> Any:
        """The extreme; null without values."""
        return columns[0]

    def _codes(self, values: Any) -> NDArray[np.uint64]:
        """Codes of which the best value has the least."""
        return order_codes(values) if self._order == "ascending" else ~order_codes(values)

    def _best(self, candidates: Iterable[Owned], groups: int) -> Any:
        """The best value of each group among all candidates; null without any."""
        parts = list(candidates)
        owners = np.concatenate([each for each, _ in parts])
        values = pa.concat_arrays([each for _, each in parts])
        codes, least = self._codes(values), np.full(groups, _WORST)
        np.minimum.at(least, owners, codes)
        rows = np.flatnonzero(codes == least[owners])
        if _is_text(values.type):  # of which a code holds only the beginning
            rows = rows[_sorted(values.take(pa.array(rows)), self._order)[::-1]]
        best = np.full(groups, -1, dtype=np.int64)
        best[owners[rows]] = rows  # of several writes to a place the last stays
        return values.take(pa.array(best, mask=best < 0))


class Extreme(GrowingExtreme):
    """``min`` and ``max`` of rows that may be retracted: all values with their weights, in addition to the extreme.

    If the extreme itself is retracted and nothing better is added, the group's values are sought from there on, best
    first.
    """

    def __init__(self, type_: pa.DataType, keys: Sequence[str], order: str) -> None:
        super().__init__(type_, order)
        self._values = KeyedState(keys, ordered(_CODE))

    @property
    def states(self) -> Sequence[KeyedState]:
        """All values."""
        return (self._values,)

    def change(self, change: Change, old: Sequence[Any]) -> list[Any]:
        """The extremes after the batch."""
        delta = self._values_of(change.groups.ids, change.values, change.valid_weights)
        self._values.insert(_run(change.keys, delta))
        best = self._best([_present(old[0]), delta.given], len(old[0]))
        taken = delta.rows(delta.weights < 0)
        lost = taken.rows(equal_values(taken.values, best.take(pa.array(taken.owners))))
        if not len(lost.owners):
            return [best]
        others = self._best(self._following(change.keys, lost), len(best))
        is_lost = np.zeros(len(best), dtype=np.bool_)
        is_lost[lost.owners] = True
        return [pc.if_else(pa.array(is_lost), others, best)]

    def _following(self, keys: Run, lost: _Values) -> Iterator[Owned]:
        """Return the best values of the groups in ``lost``, none of which is better than the lost one."""
        groups, start, limit = lost.owners, lost.codes, _FIRST_LOOK
        yield groups[:0], lost.values[:0]
        while len(groups):
            probe = Run(keys.rows.take(pa.array(groups)), keys.hashes[groups])
            found = self._values.seek(probe, _CODE, start, limit)
            owners, values = self._complete(found).given
            yield groups[owners], values
            open_ = found.more.copy()
            open_[owners] = False
            groups, start, limit = groups[open_], found.bounds[open_], limit * 4

    def _complete(self, found: Found) -> _Values:
        """The values found, without those whose weight may be in more rows than were seen."""
        owners, values, weights = [_NONE], [pa.nulls(0, self.types[0])], [_NONE]
        for match in found.matches:
            owners.append(match.probe)
            values.append(match.found.column(_VALUE))
            weights.append(weights_of(match.found))
        seen = self._values_of(np.concatenate(owners), pa.concat_arrays(values), np.concatenate(weights))
        return seen.rows((seen.codes < found.bounds[seen.owners]) | ~found.more[seen.owners])

    def _values_of(self, owners: NDArray[np.int64], values: Any, weights: NDArray[np.int64]) -> _Values:
        """Each value of each owner once, by owner and code; without nulls and without weights of zero."""
        some = np.flatnonzero(weights)
        owners, values, weights = owners[some], with_one_zero(values.take(pa.array(some))), weights[some]
        codes = self._codes(values)
        all_ = _Values(owners, values, codes, weights)
        if (dense := all_.densely_summed()) is not None:
            return dense
        columns = [pa.array(owners), values]
        grouped = group_rows(
            columns, owners.astype(np.uint64), codes, hashing.hash_rows([values], len(owners))
        )
        sums = grouped.count(weights)
        return replace(all_.at(grouped.firsts), weights=sums).rows(sums != 0)


@dataclass(frozen=True, slots=True)
class _Values:
    """Values with their owners (numbers of groups), order codes and weights."""

    owners: NDArray[np.int64]
    values: Any
    codes: NDArray[np.uint64]
    weights: NDArray[np.int64]

    def at(self, rows: NDArray[np.int64]) -> _Values:
        return _Values(
            self.owners[rows], self.values.take(pa.array(rows)), self.codes[rows], self.weights[rows]
        )

    def rows(self, which: NDArray[np.bool_]) -> _Values:
        return self.at(np.flatnonzero(which))

    def densely_summed(self) -> _Values | None:
        """Each value of each owner once, by owner and code, without those whose weights sum up to zero.

        None where there is more between the least and the greatest code than can be counted out, or where equal codes
        do not mean equal values.
        """
        if _is_text(self.values.type) or not len(self.codes):
            return None
        least = self.codes.min()
        span = int(self.codes.max() - least) + 1
        size = span * (int(self.owners.max()) + 1)
        if size > _MOST_PLACES_PER_ROW * len(self.codes):
            return None
        places = self.owners * span + (self.codes - least).view(np.int64)
        sums, rows = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        np.add.at(sums, places, self.weights)
        rows[places] = np.arange(len(places))
        some = np.flatnonzero(sums)
        return replace(self.at(rows[some]), weights=sums[some])

    @property
    def given(self) -> Owned:
        some = self.rows(self.weights > 0)
        return some.owners, some.values


def _present(extremes: Any) -> Owned:
    """The extremes of the groups that have one."""
    return np.flatnonzero(extremes.is_valid().to_numpy(zero_copy_only=False)), extremes.drop_null()


def _sorted(values: Any, order: str) -> NDArray[np.int64]:
    """The positions of ``values`` in order; Arrow sorts NaN last both ways, so it only gets to ascend."""
    ascending = np.asarray(pc.array_sort_indices(values, order="ascending").to_numpy(), dtype=np.int64)
    return ascending if order == "ascending" else ascending[::-1]


def _run(keys: Run, values: _Values) -> Run:
    """The values as a run: by hash and then by code, also where the hashes of two groups are the same."""
    hashes = keys.hashes[values.owners]
    order = np.lexsort((values.codes, hashes))
    values, owners = values.at(order), pa.array(values.owners[order])
    names = [*keys.rows.schema.names, _VALUE, _CODE, WEIGHT]
    columns = [values.values, pa.array(values.codes), pa.array(values.weights)]
    rows = pa.record_batch([*(key.take(owners) for key in keys.rows.columns), *columns], names)
    return Run(rows, hashes[order])
