"""min and max of values that lie close together, which are counted out: against Python's own, at the ends of types."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import arrow_type
from nebuli.dataflow.aggregates import extremes
from placement.plan import AggregateOperator, NetworkSink, NetworkSource
from tests.nebuli.dataflow.driven import Driven
from topology import DataType

ROWS, CHANGES, GROUPS = 60, 12, 4
DAY, HOUR = dt.date(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_998, dt.UTC)
CASES: list[tuple[DataType, list[Any], bool]] = [
    (DataType.BOOL, [False, True], True),
    (DataType.INT8, [-128, -127, -126, -1, -113], False),
    (DataType.INT8, [126, 127], True),
    (DataType.UINT8, [0, 1, 2, 10], True),
    (DataType.INT64, [-(1 << 63) + n for n in range(8)], True),
    (DataType.INT64, [-(1 << 63), 0, (1 << 63) - 1], False),
    (DataType.UINT64, [(1 << 64) - 1 - n for n in range(8)], True),
    (DataType.UINT64, [0, 1, (1 << 64) - 1], False),
    (DataType.INT32, [n * 10 for n in range(-3, 3)], True),  # about as far apart as can be counted out
    (DataType.DATE, [DAY + dt.timedelta(days=n) for n in range(-3, 3)], True),
    (DataType.TIMESTAMP, [HOUR + dt.timedelta(microseconds=n) for n in range(5)], True),
    (DataType.FLOAT64, [5e-324, 1e-323, 1.5e-323], True),
    (DataType.FLOAT64, [-1.5, 0.0, 2e300], False),
]


@pytest.mark.parametrize(("type_", "values", "close"), CASES)
def test_extremes_are_right_after_every_change(
    type_: DataType, values: list[Any], close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups lose their extremes again and again, all of one value at once, and in the end every row."""
    counted_out = []
    densely_summed = extremes._Values.densely_summed

    def watched(all_: Any) -> Any:
        counted_out.append(densely_summed(all_))
        return counted_out[-1]

    monkeypatch.setattr(extremes._Values, "densely_summed", watched)
    random, there = Random(type_), Counter[tuple[int, Any]]()
    columns = [{"name": "k", "type": "int64"}, {"name": "v", "type": type_}]
    source = NetworkSource.model_validate({"id": "s", "channel": "c", "address": "a:1", "schema": columns})
    both = AggregateOperator(id="a", input="s", by=("k",), aggregates={"low": "min(v)", "high": "max(v)"})
    circuit = Driven([source, both, NetworkSink(id="out", input="a", channel="d", address="a:1")])
    out = Counter[tuple[Any, ...]]()
    for number in range(CHANGES):
        rows = [(random.randrange(GROUPS), random.choice([None, *values])) for _ in range(ROWS)]
        change = [(*row, random.randint(1, 2)) for row in rows if number % 3 != 2 or random.random() < 0.1]
        if number % 3:
            gone = [row for row in there if there[row] and random.random() < 0.7]
            change += [(*row, -there[row]) for row in gone]
        if number == CHANGES - 1:
            change = [(*row, -count) for row, count in there.items() if count]
        random.shuffle(change)
        for key, value, weight in change:
            there[key, value] += weight
        arrays = [
            pa.array([row[index] for row in change], each)
            for index, each in enumerate((pa.int64(), arrow_type(type_), pa.int64()))
        ]
        for batch in circuit.push("s", pa.record_batch(arrays, schema=circuit.sources["s"])):
            for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                out[tuple(row)] += weight
        assert {row: count for row, count in out.items() if count} == dict.fromkeys(_expected(there), 1)
    assert not +out
    sums = [each for each in counted_out if each is not None]
    assert len(sums) > CHANGES if close else len(sums) < CHANGES / 2


def _expected(there: Counter[tuple[int, Any]]) -> list[tuple[Any, ...]]:
    expected = []
    for key in {key for (key, _), count in there.items() if count}:
        values = [value for (k, value), count in there.items() if k == key and count and value is not None]
        expected.append((key, min(values, default=None), max(values, default=None)))
    return expected
