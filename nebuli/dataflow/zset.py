"""Z-sets: rows with integer weights, as Arrow batches whose last column is the weight.

A weight is the number of copies of a row; a change is a Z-set, too, in which a negative weight retracts a row. The same
row may stand in a batch more than once: its weight is the sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.rows import MAX_BATCH_ROWS, group_rows, with_one_zero
from placement.checking.schemas import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

WEIGHT = RESERVED
MOST_REPEATED = 1 << 28
"""Rows that a batch stands for, at most: each takes memory where they are written out."""
_FEW = 8
_SAMPLE = 64
"""So many rows nearly always show if a column does not increase."""
_WEIGHT_FIELD = pa.field(WEIGHT, pa.int64())


def weighted(schema: pa.Schema) -> pa.Schema:
    """The schema of Z-sets whose rows have ``schema``."""
    if schema.get_field_index(WEIGHT) != -1:
        raise DataflowError(
            f"a column cannot be named {WEIGHT}: this name is reserved for the weights of rows"
        )
    return schema.append(_WEIGHT_FIELD)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of ``schema`` without rows."""
    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)


def insertions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The Z-set that has every row of ``batch`` once."""
    return pa.record_batch([*batch.columns, _ones(batch.num_rows)], schema=weighted(batch.schema))


@lru_cache(maxsize=1)
def _ones(rows: int) -> pa.Array:
    """So many weights of one: the batches of a source are of one size, but for a few."""
    return pa.array(np.ones(rows, dtype=np.int64))


def as_read(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The Z-set of what was read: with the weights that are its last column, or else with every row once."""
    return batch if batch.schema.names[-1:] == [WEIGHT] else insertions(batch)


def with_weights(batch: pa.RecordBatch, weights: NDArray[np.int64]) -> pa.RecordBatch:
    """The Z-set of the rows of ``batch``, which has no weights yet, with these."""
    return pa.record_batch([*batch.columns, pa.array(weights)], schema=weighted(batch.schema))


def weights_of(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """The weights of a Z-set."""
    return np.asarray(batch.column(batch.num_columns - 1).to_numpy())


def without_weight(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a Z-set, each as often as it stands in the batch."""
    return batch.select(batch.schema.names[:-1])


def added(zsets: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The sum of Z-sets: a row that stands in several stands in it as often, each time with its weight."""
    return concatenated(zsets) if zsets else empty(schema)


def digest(zset: pa.RecordBatch) -> int:
    """Return 64 bits that are the same for equal Z-sets, in any order and pieces."""
    with np.errstate(over="ignore"):
        hashes = hashing.hash_rows(zset.columns[:-1], zset.num_rows) * weights_of(zset).view(np.uint64)
    return int(hashes.sum(dtype=np.uint64))


def consolidate(batches: pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The same Z-set with every distinct row once and no weight zero; at least one batch is needed.

    Null equals null, NaN equals NaN, and -0.0 equals 0.0.
    """
    return _merged(concatenated(batches))[0]


def together(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """As ``consolidate``, of any number of batches of ``schema``."""
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return empty(schema)
    rows = concatenated(some)
    return rows if is_consolidated(rows) else consolidate(rows)


def is_consolidated(batch: pa.RecordBatch) -> bool:
    """True if a Z-set is known to have every distinct row once and no weight zero; of many rows that is not known."""
    if batch.num_rows == 1:
        return bool(batch.column(batch.num_columns - 1)[0].as_py())
    if batch.num_rows > _FEW or any(pa.types.is_temporal(type_) for type_ in batch.schema.types):
        return False
    *columns, weights = batch.columns
    if not all(weights.to_pylist()):
        return False
    values = [column.to_pylist() for column in columns]
    rows = set(zip(*values, strict=True))
    return len(rows) == batch.num_rows and all(value == value for row in rows for value in row)  # noqa: PLR0124


def merged(batch: pa.RecordBatch, *order: NDArray[np.uint64]) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """As ``consolidate``, the rows by ``order``, which equal rows have the same of; and which of them were kept."""
    rows, kept, _ = _merged(batch, *order)
    return rows, kept


def _merged(
    batch: pa.RecordBatch, *order: NDArray[np.uint64]
) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.uint64]]:
    """As ``merged``; and the hashes of the rows that are left."""
    columns = batch.columns[:-1]
    hashes = hashing.hash_rows(columns, batch.num_rows)
    groups = group_rows(columns, *order, hashes)
    weights = groups.count(weights_of(batch))
    present = np.flatnonzero(weights)
    kept = groups.firsts[present]
    rows = batch.take(pa.array(kept))
    return rows.set_column(len(columns), _WEIGHT_FIELD, pa.array(weights[present])), kept, hashes[kept]


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As ``consolidate``, its rows in an order that is their own: by their hashes, and of one hash by their values.

    Equal Z-sets are thus equal batches, if equal floats in them have equal bits.
    """
    return canonical_and_hashes(batch)[0]


def canonical_and_hashes(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.uint64]]:
    """As ``canonical``; and the hashes of its rows, without their weights."""
    rows, _, hashes = _merged(batch)
    if not (hashes[1:] == hashes[:-1]).any():
        return rows, hashes
    columns = [pa.array(hashes), *rows.columns[:-1]]
    names = [str(index) for index, _ in enumerate(columns)]
    order = pc.sort_indices(pa.record_batch(columns, names), [(name, "ascending") for name in names])
    return rows.take(order), hashes


def consolidated_hashes(batch: pa.RecordBatch) -> NDArray[np.uint64] | None:
    """The hashes of its rows, where every row is known to stand once, and with a weight: no two have one hash."""
    if not weights_of(batch).all():
        return None
    hashes = hashing.hash_rows(batch.columns[:-1], batch.num_rows)
    in_order = np.sort(hashes)
    return None if (in_order[1:] == in_order[:-1]).any() else hashes


def has_distinct_rows(batch: pa.RecordBatch) -> bool:
    """True if every row is seen to stand once, and with a weight: an integer or a time increases from row to row.

    Event times and ids do, in the order in which they were written. No row is hashed; False if that were necessary.
    """
    return bool(weights_of(batch).all()) and any(map(_increases, batch.columns[:-1]))


def _increases(column: Any) -> bool:
    type_, types = column.type, pa.types
    if column.null_count or not (
        types.is_integer(type_) or types.is_timestamp(type_) or types.is_date(type_)
    ):
        return False
    values = column.view(f"{'u' * types.is_unsigned_integer(type_)}int{type_.bit_width}").to_numpy()
    return all(bool((some[1:] > some[:-1]).all()) for some in (values[:_SAMPLE], values))


def portions(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of bounded size: long ones divided, short ones concatenated."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
            part = batch.slice(start, MAX_BATCH_ROWS) if batch.num_rows > MAX_BATCH_ROWS else batch
            if rows + part.num_rows > MAX_BATCH_ROWS:
                yield concatenated(waiting)
                waiting, rows = [], 0
            waiting.append(part)
            rows += part.num_rows
    if waiting:
        yield concatenated(waiting)


def with_canonical_floats(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with equal floats spelled alike: 0.0 for -0.0, and one NaN."""
    columns = [
        _canonical(column) if pa.types.is_floating(column.type) else column for column in batch.columns
    ]
    return pa.record_batch(columns, schema=batch.schema)


def _canonical(column: Any) -> Any:
    column = with_one_zero(column)
    odd = pc.is_nan(column)
    return pc.if_else(odd, pa.scalar(float("nan"), column.type), column) if odd.true_count else column


def expand(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows themselves, each repeated by its weight.

    Raises ``DataflowError`` for a negative weight, and for more rows than memory is made for.
    """
    weights = weights_of(batch)
    least, most = weights.min(initial=1), weights.max(initial=1)
    if least == most == 1:
        return without_weight(batch)
    if least < 0:
        row = int(np.argmin(weights))
        values = without_weight(batch).slice(row, 1).to_pylist()[0]
        raise DataflowError(
            f"the row {values} was retracted {-weights[row]} times more often than it was added"
        )
    if weights.sum(dtype=np.float64) > MOST_REPEATED:
        row = int(np.argmax(weights))
        values = without_weight(batch).slice(row, 1).to_pylist()[0]
        raise DataflowError(
            f"the row {values} occurs {weights[row]:,} times, but at most {MOST_REPEATED:,} rows are written "
            "at once"
        )
    return without_weight(batch).take(pa.array(np.repeat(np.arange(len(weights)), weights)))


def concatenated(batches: pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of batches, at least one, as one batch."""
    if isinstance(batches, pa.RecordBatch):
        return batches
    if isinstance(batches, pa.Table):
        return pa.concat_batches([empty(batches.schema), *batches.to_batches()])
    return batches[0] if len(batches) == 1 else pa.concat_batches(list(batches))
