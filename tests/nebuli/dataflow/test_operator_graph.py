"""Circuits: whatever the order of changes, what came out adds up to DuckDB's answer over what went in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import DataflowError, OperatorGraph, hashing, zset
from nebuli.dataflow.aggregates import extremes
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    NetworkSink,
    ProjectOperator,
)
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.plans import ROWS, ZSETS, Plan, Row, change, plans, source_of
from tests.support.arrow_memory import memory_pool
from tests.support.sizes import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Changes = list[tuple[str, list[tuple[Row, int]]]]


def _all_alike(_: Sequence[Any], rows: int) -> NDArray[np.uint64]:
    return np.zeros(rows, dtype=np.uint64)


# What float arithmetic has its troubles with: beyond the range, more than 106 bits apart, two zeros.
EXTREMES = [1e308, -1e308, 1e100, 0.1, -5e-324, 0.0, -0.0]


@st.composite
def _changes(draw: st.DrawFn, sources: Sequence[str]) -> Changes:
    """Batches of the sources, interleaved; a row is taken back only while it is there."""
    present: dict[str, Counter[Row]] = {source: Counter() for source in sources}
    changes: Changes = []
    for _ in range(draw(st.integers(0, 6))):
        source = draw(st.sampled_from(sources))
        batch = [(row, draw(st.integers(1, 2))) for row in draw(st.lists(ROWS, max_size=4))]
        there = sorted((row for row, count in present[source].items() if count), key=repr)
        if there:
            batch += [
                (row, -present[source][row]) for row in draw(st.lists(st.sampled_from(there), unique_by=repr))
            ]
        for row, weight in batch:
            present[source][row] += weight
        changes.append((source, draw(st.permutations(batch))))
    return changes


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), plans(), st.sampled_from([hashing.hash_rows, _all_alike]))
def test_random_plans_agree_with_duckdb(data: st.DataObject, plan: Plan, hash_rows: Any) -> None:
    changes = data.draw(_changes(plan.sources))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        result = _result(plan.circuit(), changes, ends_early=data.draw(st.booleans()))
    tables = {
        source: _rows([change([]), *(change(rows) for at, rows in changes if at == source)])
        for source in plan.sources
    }
    assert oracle.multiset(_tuples(result)) == oracle.multiset(oracle.query(plan.query, tables)[1])


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.sampled_from(["sum", "avg", "min", "max", "by", "distinct", "join"]))
def test_what_is_taken_back_is_what_was_given(data: st.DataObject, kind: str) -> None:
    """To the bit, so that what is computed of it above is the same, too: 1 / x tells 0.0 and -0.0 apart."""
    plan = Plan()
    left = source_of(plan, "l")
    match kind:
        case "by":
            top = AggregateOperator(id="top", input=left, by=("x",), aggregates={"n": "count(*)"})
        case "distinct":
            plan.operators.append(ProjectOperator(id="x", input=left, columns={"x": "x"}))
            plan.operators.append(DistinctOperator(id="d", input="x"))
            top = AggregateOperator(id="top", input="d", by=("x",), aggregates={"n": "count(*)"})
        case "join":
            right = source_of(plan, "r")
            aggregate = AggregateOperator(id="n", input=left, by=("x",), aggregates={"n": "count(*)"})
            once = AggregateOperator(id="m", input=right, by=("k", "x"), aggregates={"m": "sum(n)"})
            plan.operators += [aggregate, once]
            top = JoinOperator(id="top", inputs=("m", "n"), on=("x",))
        case _:
            counted = {"n": "count(*)"} if data.draw(st.booleans()) else {}
            aggregates = {"x": f"{kind}(x)"} | counted
            top = AggregateOperator(id="top", input=left, by=("k",), aggregates=aggregates)
    plan.operators.append(top)
    plan.operators.append(ProjectOperator(id="p", input="top", columns={"x": "x", "r": "1 / x"}))
    # Among groups that stay as they are, so that what comes later lies in runs of its own for a while.
    first = data.draw(st.sampled_from(EXTREMES))
    changes: Changes = [(left, [((k, "a", first if k == 1 else 1.0, 1), 1) for k in range(1, 11)])]
    steps = st.tuples(st.sampled_from(plan.sources), st.sampled_from(EXTREMES), st.booleans())
    for source, x, is_back in data.draw(st.lists(steps, max_size=12)):
        row: Row = (1, "a", x, 1)
        there = sum(weight for at, [(other, weight), *_] in changes if (at, other) == (source, row))
        changes.append((source, [(row, -1 if is_back and there else 1)]))
    result = _result(plan.circuit(), changes)
    if kind in ("sum", "avg", "min", "max"):
        there = _rows([change([]), *(change(rows) for _, rows in changes)])
        assert result.num_rows == len(there.column("k").unique())


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from([hashing.hash_rows, _all_alike]))
def test_min_and_max_are_right_after_every_change(data: st.DataObject, hash_rows: Any) -> None:
    plan, out = Plan(), []
    source = source_of(plan, "s")
    aggregates = {"low": "min(x)", "high": "max(x)", "first": "min(g)", "last": "max(g)"}
    plan.operators.append(AggregateOperator(id="a", input=source, by=("k",), aggregates=aggregates))
    query = "SELECT k, min(x), max(x), min(g), max(g) FROM s GROUP BY k"
    changes = data.draw(_changes([source]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        patch.setattr(extremes, "_FIRST_LOOK", 1)
        circuit = plan.circuit()
        for index, (_, rows) in enumerate(changes):
            out += circuit.push(source, change(rows))
            table = _rows([change([]), *(change(each) for _, each in changes[: index + 1])])
            expected = oracle.multiset(oracle.query(query, {"s": table})[1])
            assert oracle.multiset(_tuples(_rows([zset.empty(circuit.schema), *out]))) == expected


@pytest.mark.parametrize("hash_rows", [hashing.hash_rows, _all_alike])
def test_the_greatest_is_taken_back_again_and_again(hash_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "hash_rows", hash_rows)
    monkeypatch.setattr(extremes, "_FIRST_LOOK", 2)
    plan = Plan()
    source = source_of(plan, "s")
    plan.operators.append(AggregateOperator(id="a", input=source, by=("k",), aggregates={"high": "max(x)"}))
    circuit = plan.circuit()
    out = circuit.push(source, change([((k, "a", float(x), 1), 1) for k in (1, 2) for x in range(20)]))
    for greatest in range(19, 0, -1):
        out += circuit.push(source, change([((1, "a", float(greatest), 1), -1)]))
        assert set(_tuples(_rows(out))) == {(1, greatest - 1.0), (2, 19.0)}


def test_without_by_there_is_one_row_even_of_nothing() -> None:
    plan = Plan()
    source = source_of(plan, "s")
    aggregates = {"n": "count(*)", "total": "sum(k)", "mean": "avg(x)", "low": "min(g)"}
    plan.operators.append(AggregateOperator(id="a", input=source, aggregates=aggregates))
    assert _tuples(_result(plan.circuit(), [])) == [(0, None, None, None)]
    row: Row = (1, "a", 0.5, 2)
    assert _tuples(_result(plan.circuit(), [(source, [(row, 2)]), (source, [(row, -2)])])) == [
        (0, None, None, None)
    ]


def test_sums_come_back_from_beyond_the_range_and_from_what_is_no_number() -> None:
    plan = Plan()
    source = source_of(plan, "s")
    plan.operators.append(AggregateOperator(id="a", input=source, aggregates={"i": "sum(k)", "f": "sum(x)"}))
    huge: Row = (2**63 - 1, None, 1e300, None)
    odd: Row = (5, None, float("nan"), None)
    kept: Row = (1, None, 0.1, None)
    batch = [(kept, 1), (huge, 1), (odd, 3), (huge, -1), (odd, -3), (kept, 2)]
    assert _tuples(_result(plan.circuit(), [(source, batch)])) == [(3, 0.1 + 0.1 + 0.1)]
    with pytest.raises(
        DataflowError, match=r"operator a: the sum 18446744073709551614 .* int64, in 'sum\(k\)'"
    ):
        _result(plan.circuit(), [(source, [(huge, 2)])])


def test_float_sums_do_not_drift() -> None:
    plan = Plan()
    source = source_of(plan, "s")
    plan.operators.append(AggregateOperator(id="a", input=source, aggregates={"f": "sum(x)"}))
    values = np.random.default_rng(7).standard_normal(50_000) * 10.0 ** np.arange(-10, 15).repeat(2000)
    circuit, out = plan.circuit(), []
    for weight in (1, -1):
        for part in np.array_split(values, 7 + weight):
            out += circuit.push(source, _of_floats(part, weight))
    assert _tuples(_rows([*out, *circuit.push(source, change([((1, "a", 0.25, 1), 1)]))])) == [(0.25,)]


def test_a_join_keeps_its_batches_within_bounds() -> None:
    plan = Plan()
    left, right = source_of(plan, "l"), source_of(plan, "r")
    plan.operators.append(JoinOperator(id="j", inputs=(left, right), on=("k",)))
    circuit, rows = plan.circuit(), 700
    one = _of_floats(np.arange(float(rows)), 1)
    assert circuit.push(left, one) == []
    out = circuit.push(right, one)
    assert sum(batch.num_rows for batch in out) == rows * rows
    assert max(batch.num_rows for batch in out) <= MAX_BATCH_ROWS
    assert circuit.statistics()["j"].rows_out == rows * rows


def test_what_a_join_makes_of_one_batch_is_never_all_in_memory() -> None:
    plan = Plan()
    left, right = source_of(plan, "l"), source_of(plan, "r")
    plan.operators.append(JoinOperator(id="j", inputs=(left, right), on=("k",)))
    root = NetworkSink(id="root", input="j", channel="out", address="nowhere")
    circuit, rows = OperatorGraph([*plan.operators, root]), 2000
    one = _of_floats(np.arange(float(rows)), 1)
    assert list(circuit.push(left, one)) == []
    seen = held = 0
    with memory_pool() as pool:
        for batch in circuit.push(right, one):
            seen += batch.num_rows
            held = max(held, pool.bytes_allocated())
    assert seen == rows * rows
    bytes_per_row = 7 * 8  # k, and of both sides g (null), x and n, and the weight
    assert held < rows * rows * bytes_per_row / 4


def test_state_shrinks_when_rows_are_taken_back() -> None:
    plan = Plan()
    left, right = source_of(plan, "l"), source_of(plan, "r")
    plan.operators.append(JoinOperator(id="j", inputs=(left, right), on=("k", "x")))
    columns = {"k": "k", "g": '"l.g"', "x": "x", "n": '"r.n"'}
    plan.operators.append(ProjectOperator(id="p", input="j", columns=columns))
    plan.operators.append(AggregateOperator(id="a", input="p", by=("x",), aggregates={"high": "max(n)"}))
    circuit = plan.circuit()
    for start in range(0, 40_000, 1000):
        rows = np.arange(start, start + 1000.0)
        for source in (left, right):
            circuit.push(source, _of_floats(rows, 1))
            if start >= 2000:
                circuit.push(source, _of_floats(rows - 2000, -1))
    held = sum(each.state_bytes for each in circuit.statistics().values())
    assert held < 2_000_000, "the state is that of 2 000 rows, not of 40 000"


def test_a_join_keeps_only_what_can_still_be_met() -> None:
    plan = Plan()
    left, right = source_of(plan, "l"), source_of(plan, "r")
    plan.operators.append(JoinOperator(id="j", inputs=(left, right), on=("x",)))
    circuit, rows = plan.circuit(), _of_floats(np.arange(1000.0), 1)

    def held() -> int:
        return circuit.statistics()["j"].state_bytes

    circuit.push(left, rows)
    one = held()
    circuit.push(right, rows)
    both = held()
    assert both > one > 0
    circuit.end(left)
    settled = held()
    assert settled < 1.2 * one, "what came from the right is met by nothing any more"
    assert sum(batch.num_rows for batch in circuit.push(right, rows)) == 1000
    assert held() == settled
    circuit.end(right)
    assert held() == 0


def test_a_stateless_plan_holds_nothing() -> None:
    plan = Plan()
    source = source_of(plan, "s")
    plan.operators.append(FilterOperator(id="f", input=source, predicate="x > 10"))
    plan.operators.append(ProjectOperator(id="p", input="f", columns={"y": "x * 2", "g": "upper(g)"}))
    circuit, batch = plan.circuit(), _of_floats(np.arange(10_000.0), 1)
    with memory_pool() as pool:
        for _ in range(3):
            out = circuit.push(source, batch)
            assert pool.bytes_allocated() > 0
            del out
            assert pool.bytes_allocated() == 0
    assert all(each.state_bytes == 0 for each in circuit.statistics().values())


def test_errors_name_the_operator_and_the_expression() -> None:
    plan = Plan()
    source = source_of(plan, "s")
    plan.operators.append(ProjectOperator(id="p", input=source, columns={"y": "k // n"}))
    with pytest.raises(
        DataflowError, match=r"operator p: divide by zero in k // n, in the expression 'k // n'"
    ):
        plan.circuit().push(source, change([((1, "a", 1.0, 0), 1)]))


def test_a_source_that_ended_or_does_not_exist_is_refused() -> None:
    plan = Plan()
    source = source_of(plan, "s")
    circuit = plan.circuit()
    with pytest.raises(DataflowError, match="nobody is not one of the sources s"):
        circuit.end("nobody")
    with pytest.raises(DataflowError, match="expected"):
        circuit.push(source, change([]).select(["k", "_weight"]))
    circuit.end(source)
    with pytest.raises(DataflowError, match="s has ended"):
        circuit.push(source, change([]))


def _of_floats(values: NDArray[np.float64], weight: int) -> pa.RecordBatch:
    count = len(values)
    columns = [np.ones(count, dtype=np.int64), pa.nulls(count, pa.string()), values, np.arange(count)]
    weights = np.full(count, weight, dtype=np.int64)
    return pa.record_batch([pa.array(each) for each in [*columns, weights]], schema=ZSETS)


def _result(circuit: OperatorGraph, changes: Changes, *, ends_early: bool = False) -> pa.RecordBatch:
    """The rows that remain of all that came out; a source ends behind its last change, or all of them at the end."""
    out = [zset.empty(circuit.schema)]
    last = {source: number for number, (source, _) in enumerate(changes)}
    for number, (source, rows) in enumerate(changes):
        out += circuit.push(source, change(rows))
        if ends_early and last[source] == number:
            out += circuit.end(source)
    for source in circuit.sources:
        if not ends_early or source not in last:
            out += circuit.end(source)
    assert circuit.ended
    return _rows(out)


def _rows(changes: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return zset.expand(zset.consolidate(changes))


def _tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
