"""The contents of a shard from its updates, without comparing rows that cannot have been retracted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.hashing import hash_rows
from nebuli.dataflow.zset import consolidate, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ROWS_AT_ONCE = 1 << 17
"""Rows that are compared at once: their hashes stay in the processor's cache."""
_WORTH = 4
"""Rows are compared with few others, so many times less; with more of them, all are put in an order at once."""
_TABLE_BITS = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a Z-set; ``consolidated``: each of them stands once in all pieces that are, and no weight is zero."""

    rows: pa.RecordBatch
    consolidated: bool


def each_once(pieces: Sequence[Piece], schema: pa.Schema) -> pa.Table:
    """Their sum, every row once."""
    apart = [each.rows for each in pieces if each.consolidated]
    return _joined(apart, [each.rows for each in pieces if not each.consolidated], schema)


def none_taken_back(pieces: Sequence[Piece], schema: pa.Schema) -> pa.Table:
    """Their sum, in which a row may stand several times; one whose weights are not all above zero stands once."""
    there, taken = [], []
    for each in pieces:
        above = weights_of(each.rows) > 0
        if above.all():
            there.append(each.rows)
        else:
            there.append(each.rows.filter(pa.array(above)))
            taken.append(each.rows.filter(pa.array(~above)))
    return _joined(there, taken, schema)


def _joined(apart: Sequence[pa.RecordBatch], others: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The sum of rows that need not be added up with each other, and of others that have to be with all."""
    if not others:
        return pa.Table.from_batches(apart, schema=schema)
    if sum(each.num_rows for each in others) * _WORTH > sum(each.num_rows for each in apart):
        return pa.Table.from_batches([consolidate([*apart, *others])], schema=schema)
    alike = _Alike(others, schema)
    left, met = [], list(others)
    for batch in apart:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = batch.slice(start, _ROWS_AT_ONCE)
            found = alike.find(rows)
            if found.any():
                met.append(rows.filter(pa.array(found)))
                rows = rows.filter(pa.array(~found))
            left.append(rows)
    return pa.Table.from_batches([*left, consolidate(met)], schema=schema)


class _Alike:
    """Finds all rows that may equal one of some; and few others.

    By their numbers, where they have any: to hash these takes a tenth of what texts take.
    """

    def __init__(self, some: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        columns = range(len(schema) - 1)
        self._columns = [each for each in columns if _is_number(schema.field(each).type)] or list(columns)
        self._hashes = np.unique(np.concatenate([self._hash(each) for each in some]))
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[_place(self._hashes)] = True

    def find(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which of them may."""
        hashes = self._hash(rows)
        found = self._table[_place(hashes)]
        some = np.flatnonzero(found)
        places = np.minimum(np.searchsorted(self._hashes, hashes[some]), len(self._hashes) - 1)
        found[some] = self._hashes[places] == hashes[some]
        return found

    def _hash(self, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        return hash_rows([rows.column(each) for each in self._columns], rows.num_rows)


def _place(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return hashes & np.uint64((1 << _TABLE_BITS) - 1)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_))
