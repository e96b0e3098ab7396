"""Plans on Spark against the embedded engine, which is held against DuckDB: random trees over random rows."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import Circuit, arrow_schema, zset
from placement.plan import AggregateOperator, Fragment, NetworkSink, NetworkSource, SparkEngine
from spark_bridge.engine.plans import compile_plan, view
from tests.dataflow import oracle, plans
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


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
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
    changes = Circuit(operators).push("in", zset.insertions(rows.to_batches()[0]))
    (ours,) = zset.without_weight(changes[-1]).to_pylist()
    assert theirs["sum_big"] == 2**63 - 2
    assert list(theirs) == list(ours)
    assert all(oracle.close(theirs[name], ours[name]) for name in ours), (theirs, ours)
