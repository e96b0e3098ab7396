"""Equal rows put together before they are sent: the same Z-set, and what an aggregate makes of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nebuli.dataflow.steps.exchange_parts import combined
from nebuli.dataflow.zset import weighted

SCHEMA = weighted(pa.schema([("k", pa.string()), ("day", pa.date32()), ("n", pa.int64())]))
ROWS = 20_000


def zset(kinds: int, weights: Any, *, rows: int = ROWS) -> pa.RecordBatch:
    """So many kinds of numbers in each column, some of them null."""
    drawn = np.random.default_rng(0).integers(0, kinds, (3, rows)).tolist()
    texts, days, numbers = ([None if value == 1 else value for value in column] for column in drawn)
    columns = [
        pa.array([None if value is None else f"k{value}" for value in texts]),
        pa.array(days, pa.int32()).cast(pa.date32()),
        pa.array(numbers, pa.int64()),
        pa.array(weights, pa.int64()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def contents(batch: pa.RecordBatch) -> dict[Any, int]:
    """The weights by row, added one by one."""
    found: Counter[Any] = Counter()
    for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        found[tuple(row)] += weight
    return {row: weight for row, weight in found.items() if weight}


@pytest.mark.parametrize(
    "weights", [[1] * ROWS, np.random.default_rng(1).integers(-2, 3, ROWS), [1, -1] * (ROWS // 2)]
)
def test_each_row_is_left_once_with_the_sum_of_its_weights(weights: Any) -> None:
    batch = zset(4, weights)
    found = combined(batch)
    assert found.schema == SCHEMA
    assert contents(found) == contents(batch)
    assert found.num_rows == len(contents(batch)) <= 64


def test_rows_of_which_few_are_equal_stay_as_they_are() -> None:
    for batch in (zset(50, [1] * ROWS), zset(4, [1] * 1000, rows=1000), zset(4, [1 << 50] * ROWS)):
        assert combined(batch) is batch


def test_floats_stay_as_they_are_spelled() -> None:
    schema = weighted(pa.schema([("x", pa.float64())]))
    batch = pa.record_batch([pa.array([0.0, -0.0] * 5000), pa.array([1] * 10_000)], schema=schema)
    assert combined(batch) is batch
