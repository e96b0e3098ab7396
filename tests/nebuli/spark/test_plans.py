"""Plans on Spark against the embedded engine, which is held against DuckDB: random trees over random rows."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import OperatorGraph, arrow_schema, zset
from nebuli.spark.plans import compile_plan, view
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    Fragment,
    JoinOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    SparkEngine,
    WindowOperator,
)
from tests.nebuli.dataflow import oracle, plans
from topology import Column, DataType

pytestmark = pytest.mark.spark


def fragment_of(operators: list) -> Fragment:
    return Fragment(id="f", node="n", operators=operators, engine=SparkEngine(master="local", bounded=True))


def embedded(plan: plans.Plan, tables: dict[str, list[plans.Row]]) -> list[tuple]:
    """The rows of the result."""
    circuit = plan.circuit()
    changes = []
    for source, rows in tables.items():
        changes += circuit.push(source, plans.change([(row, 1) for row in rows]))
        changes += circuit.end(source)
    if not changes:
        return []
    rows = zset.expand(zset.consolidate(changes)).to_pydict()
    return list(zip(*rows.values(), strict=True))


def on_spark(compute, plan: plans.Plan, tables: dict[str, list[plans.Row]]) -> list[tuple]:
    root = NetworkSink(id="root", input=plan.operators[-1].id, channel="out", address="nowhere")
    compiled = compile_plan(fragment_of([*plan.operators, root]))
    inputs = {
        view(index): (
            columns,
            pa.table(zset.without_weight(plans.change([(row, 1) for row in tables[source]]))),
        )
        for index, (source, columns) in enumerate(compiled.inputs.items())
    }
    result = compute(compiled, inputs, compiled.output)
    return list(zip(*result.to_pydict().values(), strict=True))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans.plans(), st.data())
def test_random_plans_give_what_the_embedded_engine_gives(compute, plan, data):
    """SP-ENG-1."""
    tables = {source: data.draw(st.lists(plans.ROWS, max_size=5)) for source in plan.sources}
    ours, theirs = embedded(plan, tables), on_spark(compute, plan, tables)
    assert oracle.multiset(theirs) == oracle.multiset(ours), plan.query


WIDE = (
    Column(name="small", type=DataType.UINT8),
    Column(name="big", type=DataType.INT64),
    Column(name="real", type=DataType.FLOAT32),
    Column(name="b", type=DataType.BOOL),
)
EXTREMES = {
    "small": [255, 1, None],
    "big": [2**63 - 1, 2**63 - 1, -(2**63)],
    "real": [1e30, float("nan"), -1.5],
    "b": [True, None, False],
}


def test_aggregates_of_extreme_values_give_what_the_embedded_engine_gives(compute):
    """SP-ENG-1: sums pass through what no int64 holds, and averages are exact before they are divided."""
    calls = {
        f"{function}_{column.name}": f'{function}("{column.name}")'
        for function, column in itertools.product(("count", "sum", "avg", "min", "max"), WIDE)
        if function in ("count", "min", "max") or column.type is not DataType.BOOL
    }
    source = {"id": "in", "channel": "c", "address": "n", "schema": [column.model_dump() for column in WIDE]}
    operators = [
        NetworkSource.model_validate(source),
        AggregateOperator(id="all", input="in", aggregates=calls),
        NetworkSink(id="out", input="all", channel="c", address="n"),
    ]
    rows = pa.table(EXTREMES, schema=arrow_schema(WIDE))
    compiled = compile_plan(fragment_of(operators))
    (theirs,) = compute(compiled, {view(0): (WIDE, rows)}, compiled.output).to_pylist()
    changes = list(OperatorGraph(operators).push("in", zset.insertions(rows.to_batches()[0])))
    (ours,) = zset.without_weight(changes[-1]).to_pylist()
    assert theirs["sum_big"] == 2**63 - 2
    assert list(theirs) == list(ours)
    assert all(oracle.close(theirs[name], ours[name]) for name in ours), (theirs, ours)


EVENTS = (Column(name="t", type=DataType.TIMESTAMP), Column(name="k", type=DataType.INT64))
CHAINS = {
    "windows": [
        WindowOperator(id="w", input="in", time="t", size="1 minute", slide="25 seconds", lateness="1 day"),
        AggregateOperator(id="last", input="w", by=("window_end", "k"), aggregates={"n": "count(*)"}),
    ],
    "distinct": [DistinctOperator(id="last", input="in")],
    "different values": [
        AggregateOperator(id="last", input="in", by=("k",), aggregates={"n": "count(DISTINCT t)"})
    ],
    "nothing, of which no constant fails": [
        FilterOperator(id="none", input="in", predicate="k IS NULL AND k IS NOT NULL"),
        ProjectOperator(id="last", input="none", columns={"x": "1 // 0"}),
    ],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_operators_one_by_one_give_what_the_embedded_engine_gives(compute, chain):
    """SP-ENG-1."""
    seconds = [0, 7, 7, 24, 25, 49, 50, 51, None, -1, -3600, 86400]
    keys = pa.array([1, 1, 1, None, 2, 2, None, 1, 1, 2, 2, 2])
    times = pa.array(
        [None if each is None else each * 10**6 for each in seconds], arrow_schema(EVENTS)[0].type
    )
    rows = pa.table([times, keys], schema=arrow_schema(EVENTS))
    source = {
        "id": "in",
        "channel": "c",
        "address": "n",
        "schema": [column.model_dump() for column in EVENTS],
    }
    operators = [
        NetworkSource.model_validate(source),
        *chain,
        NetworkSink(id="out", input="last", channel="c", address="n"),
    ]
    compiled = compile_plan(fragment_of(operators))
    theirs = compute(compiled, {view(0): (EVENTS, rows)}, compiled.output).to_pydict()
    circuit = OperatorGraph(operators)
    changes = [*circuit.push("in", zset.insertions(rows.to_batches()[0])), *circuit.end("in")]
    ours = zset.expand(zset.consolidate(changes)).to_pydict() if changes else {}
    found = oracle.multiset(zip(*theirs.values(), strict=True))
    assert found == oracle.multiset(zip(*ours.values(), strict=True))


@pytest.mark.parametrize("how", plans.HOW)
def test_an_outer_join_gives_what_the_embedded_engine_gives(compute, how):
    """SP-ENG-1: also nulls among keys, and keys that one input has only."""
    left = [(1, "a", 0.5, 1), (1, "a", 0.5, 2), (2, None, 1.0, 3), (None, "b", 2.0, 4)]
    right = [(1, "a", 0.25, 5), (3, "c", 1.0, 6), (None, "b", 2.0, 7)]
    for on in plans.KEYS:
        plan = plans.Plan()
        sources = [plans.source_of(plan, name) for name in ("a", "b")]
        plan.operators.append(JoinOperator(id="ab", inputs=tuple(sources), on=on, how=how))
        tables = dict(zip(sources, (left, right), strict=True))
        ours, theirs = embedded(plan, tables), on_spark(compute, plan, tables)
        assert oracle.multiset(theirs) == oracle.multiset(ours)
        assert any(None in row for row in ours)


def test_a_predicate_above_a_join_is_not_computed_for_rows_that_the_join_drops(compute):
    """SP-ENG-1: a division by zero in such a row is not an error."""
    sources = [
        {"id": id_, "channel": "c", "address": "n", "schema": [column.model_dump() for column in EVENTS]}
        for id_ in ("a", "b")
    ]
    operators = [
        *map(NetworkSource.model_validate, sources),
        JoinOperator(id="ab", inputs=("a", "b"), on=("k",)),
        FilterOperator(id="some", input="ab", predicate="10 // k > 1"),
        NetworkSink(id="out", input="some", channel="c", address="n"),
    ]
    compiled = compile_plan(fragment_of(operators))
    left, right = (
        pa.table([pa.nulls(2, arrow_schema(EVENTS)[0].type), pa.array(keys)], schema=arrow_schema(EVENTS))
        for keys in ([0, 5], [5, 7])
    )
    found = compute(compiled, {view(0): (EVENTS, left), view(1): (EVENTS, right)}, compiled.output)
    assert found["k"].to_pylist() == [5]
