"""min and max: against Python's own, at the ends of types, and against DuckDB where no row is retracted."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import DataflowError, arrow_type, hashing, zset
from nebuli.dataflow.aggregates import extremes
from nebuli.free.selection import engine_of
from placement.plan import AggregateOperator, NetworkSink, NetworkSource
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.driven import Driven
from tests.nebuli.dataflow.windowed import SCHEMA, fragment, source
from tests.support.documents import op
from tests.support.sizes import examples
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


TEXTS = [
    "",
    "\0",
    "a",
    "a\0",
    "abcdefgh",
    "abcdefgh\0",
    "abcdefghi",
    "abcdefghj",
    "abcdefg",
    "é",
    "𐀀",
    "\uffff",
]
REALS = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, -1.5, 2e300]
MOMENTS = [HOUR, HOUR + dt.timedelta(microseconds=1), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)]
GROWING: dict[str, list[Any]] = {
    "b": [False, True],
    "i": [-128, -1, 0, 127],
    "u": [0, 1, (1 << 63), (1 << 64) - 1],
    "x": REALS,
    "y": REALS[:6],
    "s": TEXTS,
    "d": [DAY, DAY - dt.timedelta(days=1), dt.date(9999, 12, 31)],
    "t": MOMENTS,
}
TYPES = ("bool", "int8", "uint64", "float64", "float32", "string", "date", "timestamp")
INPUT = [{"name": "k", "type": "int64"}]
INPUT += [{"name": name, "type": type_} for name, type_ in zip(GROWING, TYPES, strict=True)]


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from([hashing.hash_rows, lambda _, rows: np.zeros(rows, np.uint64)]))
def test_extremes_of_rows_that_stay_are_those_of_duckdb(data: st.DataObject, hash_rows: Any) -> None:
    """After every batch, of every type, with nulls, and with groups whose hashes collide."""
    calls = {f"{name}_{call}": f"{call}({name})" for name in GROWING for call in ("min", "max")}
    circuit = _only_growing(INPUT, calls)
    schema = circuit.sources["s"]
    row = st.tuples(
        st.none() | st.integers(0, 2), *(st.none() | st.sampled_from(each) for each in GROWING.values())
    )
    out, there = [zset.empty(circuit.schema)], [zset.empty(schema)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        for rows in data.draw(st.lists(st.lists(row, min_size=1, max_size=12), max_size=4)):
            weights = data.draw(st.lists(st.integers(1, 2), min_size=len(rows), max_size=len(rows)))
            columns = [*zip(*rows, strict=True), weights]
            arrays = [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)]
            there.append(pa.record_batch(arrays, schema=schema))
            out += circuit.push("s", there[-1])
            ours = zset.expand(zset.consolidate(out))
            sql = f"SELECT k, {', '.join(calls.values())} FROM s GROUP BY k"
            _, theirs = oracle.query(sql, {"s": pa.Table.from_batches(there)})
            assert oracle.multiset(
                map(tuple, (each.values() for each in ours.to_pylist()))
            ) == oracle.multiset(theirs)


def test_a_group_of_rows_that_stay_keeps_one_value() -> None:
    """By the plan of a query, through the engine of its fragment; where rows are retracted it keeps all of them."""
    both = op("aggregate", "e", input="a", by=["k"], aggregates={"low": "min(x)", "high": "max(x)"})
    only = fragment(source("a"), both)
    sizes = {}
    for planned in (only, only.model_copy(update={"only_growing": ()})):
        graph = engine_of(planned, 1 << 30)
        for number in range(20):
            rows = pa.record_batch(
                [
                    pa.nulls(5000, SCHEMA.field("t").type),
                    pa.array(np.arange(5000) % 10),
                    pa.array(np.arange(5000.0) * 20 + number),
                ],
                schema=SCHEMA,
            )
            assert not any(each.num_rows > 20 for each in graph.push("a", zset.insertions(rows)))
        sizes[planned.only_growing] = graph.statistics()["e"].state_bytes
    assert sizes["e",] < 10_000 < 1_000_000 < sizes[()]


def test_a_row_that_is_retracted_all_the_same_is_an_error() -> None:
    circuit = _only_growing(INPUT[:2], {"high": "max(b)"})
    rows = pa.record_batch([pa.array([1]), pa.array([True])], names=["k", "b"])
    circuit.push("s", zset.insertions(rows))
    with pytest.raises(
        DataflowError, match=r"^operator a: a row is retracted, but according to the plan, none of the"
    ):
        circuit.push("s", zset.with_weights(rows, np.array([-1])))


def _only_growing(columns: list[dict[str, str]], calls: dict[str, str]) -> Driven:
    rows = {"id": "s", "channel": "c", "address": "a:1", "schema": columns}
    aggregate = AggregateOperator(id="a", input="s", by=("k",), aggregates=calls)
    out = NetworkSink(id="out", input="a", channel="d", address="a:1")
    return Driven([NetworkSource.model_validate(rows), aggregate, out], only_growing=["a"])


def _expected(there: Counter[tuple[int, Any]]) -> list[tuple[Any, ...]]:
    expected = []
    for key in {key for (key, _), count in there.items() if count}:
        values = [value for (k, value), count in there.items() if k == key and count and value is not None]
        expected.append((key, min(values, default=None), max(values, default=None)))
    return expected
