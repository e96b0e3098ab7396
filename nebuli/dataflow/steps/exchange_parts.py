"""Equal rows merged before they are sent: an aggregate needs only their counts.

Rows are compared by codes and not by hashes, so it pays only if few values recur in each column; a look at the first
rows shows if they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import codes_of, is_coded, plain_rows
from nebuli.dataflow.zset import concatenated, empty, portions, weighted, weights_of
from placement.stepped_plan import ExchangeOperator, GatherOperator, ShardOperator

from .origins import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from placement.stepped_plan import Exchanging

    PartOf = Callable[[NDArray[np.uint64], int], NDArray[np.int64]]

_FEWEST_ROWS = 2048
"""Fewer are sent as they are."""
_SAMPLE = 512
_RATIO = 4
"""At most one of so many rows may be left, if all combinations of values are there."""
_EXACT = 1 << 53
"""Integers up to here are exact as floats."""


def combined(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same Z-set, with equal rows merged if that leaves few; otherwise as it is."""
    columns = batch.columns[:-1]
    if batch.num_rows < _FEWEST_ROWS or not all(map(_comes_again, columns)):
        return batch
    weights = weights_of(batch)
    if np.abs(weights).sum() > _EXACT:
        return batch
    numbers = _numbered(columns, batch.num_rows // _RATIO)
    if numbers is None:
        return batch
    firsts = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    firsts[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # of several writes to a place the last stays
    sums = np.bincount(numbers, weights).astype(np.int64)
    left = np.flatnonzero(sums)
    rows = batch.take(pa.array(firsts[left]))
    return rows.set_column(len(columns), batch.schema.field(len(columns)), pa.array(sums[left]))


def _comes_again(column: Any) -> bool:
    """True if the values of a column may be few. Equal floats may be spelled differently: they are left alone."""
    return not pa.types.is_floating(column.type) and len(column.slice(0, _SAMPLE).unique()) <= _SAMPLE // 2


def _numbered(columns: list[Any], limit: int) -> NDArray[np.int64] | None:
    """A number for each row, the same for equal rows and below ``limit``; None if there are more combinations."""
    numbers, count = np.zeros(1, dtype=np.int64), 1
    for column in columns:
        encoded = column.dictionary_encode()
        values = len(encoded.dictionary) + 1
        count *= values
        if count > limit:
            return None
        numbers = numbers * values + codes_of(encoded)
    return numbers


Received = Sequence[pa.RecordBatch]
"""A Z-set from each member, in their order: its own part as it gave it; without rows for members that do not send."""

_HALF = np.uint64(32)
WATERMARKS = weighted(pa.schema([(name, pa.int64()) for name in Seen._fields]))
"""Rows about event time: one for each place where a watermark begins, and one for each input without event time."""


@dataclass(frozen=True, slots=True)
class Sending:
    """The ``index``-th exchange of a step: a Z-set for each member, in their order.

    Only ``senders`` have rows to send, and only to ``receivers``; the parts for others are without rows. A member that
    is among neither continues at once, with Z-sets without rows.
    """

    index: int
    parts: Sequence[pa.RecordBatch]
    senders: Sequence[int]
    receivers: Sequence[int]


class ExchangeParts:
    """The rows with ``schema`` that an operator of a plan sends, and their receivers."""

    def __init__(self, operator: Exchanging, index: int, schema: pa.Schema, members: int) -> None:
        self._index = index
        self._members = members
        self._nothing = empty(schema)
        self._senders = self._receivers = tuple(range(members))
        self._by: tuple[str, ...] = ()
        self.combines = False
        """True if equal rows may be merged: their readers take them as a Z-set."""
        match operator:
            case ExchangeOperator(by=by):
                self._by = by
            case ShardOperator(by=by, member=member):
                self._by, self._senders = by, (member,)
            case GatherOperator(member=member):
                self._receivers = (member,)

    def of_rows(self, batches: Sequence[pa.RecordBatch]) -> Generator[None, None, Sending]:
        """Give rows to the members that they belong to. Gives control back between pieces of the work."""
        if not batches:
            return self._sending([self._nothing] * self._members)
        if self.combines:
            batches = _combined(batches)
            yield
        if not self._by:
            parts = [self._nothing] * self._members
            parts[self._receivers[0]] = concatenated(batches)
            return self._sending(parts)
        divided = yield from by_hash(batches, self._by, self._members, owners_of)
        return self._sending([concatenated(part) if part else self._nothing for part in divided])

    def of_watermarks(self, seen: Sequence[Seen]) -> Sending:
        """Send the same to all members."""
        columns = [*zip(*seen, strict=True), [1] * len(seen)]
        rows = pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=WATERMARKS)
        return self._sending([rows] * self._members)

    def _sending(self, parts: Sequence[pa.RecordBatch]) -> Sending:
        return Sending(self._index, parts, self._senders, self._receivers)


def by_hash(
    batches: Sequence[pa.RecordBatch], by: Sequence[str], parts: int, part_of: PartOf
) -> Generator[None, None, list[list[pa.RecordBatch]]]:
    """Divide rows by ``part_of`` the hashes of their columns ``by``.

    Gives control back between pieces of the work.
    """
    divided: list[list[pa.RecordBatch]] = [[] for _ in range(parts)]
    for batch in portions(batches):
        numbers = part_of(hashing.hash_rows([batch.column(name) for name in by], batch.num_rows), parts)
        rows = batch.take(pa.array(np.argsort(numbers, kind="stable")))
        start = 0
        for part, size in zip(divided, np.bincount(numbers, minlength=parts).tolist(), strict=True):
            if size:
                part.append(rows.slice(start, size))
            start += size
        yield
    return divided


def _combined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows, of equal ones as few as is worth it; without codes, which some batches may have."""
    coded = [batch for batch in batches if any(map(is_coded, batch.columns))]
    others = [batch for batch in batches if not any(map(is_coded, batch.columns))]
    return [plain_rows(combined(batch)) for batch in coded] + [combined(batch) for batch in portions(others)]


def watermarks_of(received: pa.RecordBatch) -> list[Seen]:
    """Return a member's report of its watermarks."""
    return [Seen(*row) for row in zip(*(column.to_pylist() for column in received.columns[:-1]), strict=True)]


def owners_of(hashes: NDArray[np.uint64], members: int) -> NDArray[np.int64]:
    """The member that each hash belongs to: equal ranges of hashes, in the order of members.

    That is the upper half of the hash's bits, times the number of members, divided by 2 to the 32.
    """
    return (((hashes >> _HALF) * np.uint64(members)) >> _HALF).astype(np.int64)
