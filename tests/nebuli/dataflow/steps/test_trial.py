"""Rows that no step can be computed with, known from themselves: each operator that they reach, each mode of sinks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import DataflowError, SteppedCircuit
from nebuli.dataflow.steps.trial import Trial
from nebuli.steps.stepped_query import stepped_query
from placement.stepped_plan import SteppedPlan
from tests.support.documents import op
from tests.support.documents import query as query_of
from topology import parse_topology

MODES = ("final", "changes", "append")
DIVIDES = op("filter", "f", input="a", predicate="100 // n > 1")
CASTS = op("project", "f", input="a", columns={"n": "CAST(n AS TINYINT)"})
SUMS = op("aggregate", "f", input="a", by=["t"], aggregates={"n": "count(*)", "m": "max(100 // n)"})
KEEPS = op("filter", "f", input="a", predicate="n > 0")
PASSES = op("union", "f", inputs=["a", "b"])
TIMES = op("window", "f", input="a", time="t", size="1 hour")


def plan_of(operator: dict[str, Any] | None, mode: str, members: int) -> SteppedPlan:
    """From inputs by the operator to a sink."""
    columns = "[{name: n, type: int64}, {name: t, type: timestamp}]"
    topology = parse_topology(
        f"""
logical:
  - {{name: a, schema: {columns}}}
  - {{name: b, schema: {columns}}}
nodes:
  - address: 127.0.0.1:27900
    sinks: [{{name: out, type: CSV, path: out.csv, mode: {mode}}}]
""",
        "topology.yaml",
    )
    sources = [op("source", name, logical=name) for name in ("a", "b")]
    below = [] if operator is None else [operator]
    used = sources if operator is PASSES else sources[:1]
    query = query_of(*used, *below, op("sink", "out", input="f" if below else "a", sink="out"))
    return stepped_query(query, topology, members).plan


def rows_of(plan: SteppedPlan, *rows: tuple[int, int]) -> pa.RecordBatch:
    """Numbers with weights."""
    numbers, weights = zip(*rows, strict=True)
    times = [datetime(2026, 1, 1)] * len(rows)
    return pa.record_batch([numbers, times, weights], schema=SteppedCircuit(plan, 0).inputs["a"])


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("operator", "rows", "error"),
    [
        (DIVIDES, [(1, 1), (0, 1)], "operator f: divide by zero"),
        (DIVIDES, [(1, 1), (7, 1)], None),
        (DIVIDES, [(0, 1), (0, -1)], None),
        (CASTS, [(128, 1)], "operator f: .*128 not in range"),
        (CASTS, [(127, 1)], None),
    ],
)
def test_what_an_expression_cannot_compute_is_known_whatever_the_sink(
    operator: dict[str, Any], rows: list[tuple[int, int]], error: str | None, mode: str, members: int
) -> None:
    plan = plan_of(operator, mode, members)
    assert_tried(plan, rows_of(plan, *rows), error)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("operator", "rows", "is_unfit"),
    [
        (None, [(1, 1), (2, -1)], True),
        (None, [(1, 1), (1, -1)], False),
        (None, [(1, 2)], False),
        (PASSES, [(2, -1)], True),
        (KEEPS, [(2, -1)], True),
        (KEEPS, [(-2, -1)], False),
        (TIMES, [(2, -1)], False),
    ],
)
def test_a_row_taken_back_is_unfit_if_it_reaches_a_sink_that_appends_through_operators_that_keep_nothing(
    operator: dict[str, Any] | None,
    rows: list[tuple[int, int]],
    is_unfit: bool,
    mode: str,
    members: int,
) -> None:
    plan = plan_of(operator, mode, members)
    assert_tried(plan, rows_of(plan, *rows), "a row is retracted" if is_unfit and mode == "append" else None)


@pytest.mark.parametrize(
    ("operator", "numbers", "unfit"),
    [
        (DIVIDES, [1, 2, 3], []),
        (DIVIDES, [0, 1, 2, 0, 3, 4, 0], [0, 0, 0]),
        (CASTS, [*range(100, 140)], [*range(128, 140)]),
        (CASTS, [128], [128]),
        (SUMS, [1, 0, 2, 0], [0, 0]),
        (None, [1, 2], []),
    ],
)
def test_rows_that_fail_on_their_own_are_told_from_the_others(
    operator: dict[str, Any] | None, numbers: list[int], unfit: list[int]
) -> None:
    plan = plan_of(operator, "final", 1)
    fit, rest = Trial(plan).parted("a", rows_of(plan, *((number, 1) for number in numbers)))
    assert rest.column("n").to_pylist() == unfit
    assert fit.column("n").to_pylist() == [number for number in numbers if number not in unfit]
    assert rest.schema == fit.schema == SteppedCircuit(plan, 0).inputs["a"]


@pytest.mark.parametrize(
    ("operator", "tried"),
    [
        (None, {"out"}),
        (CASTS, {"f", "out"}),
        (PASSES, {"f", "out"}),
        (TIMES, {"f"}),
        (op("distinct", "f", input="a"), set()),
        (SUMS, set()),
    ],
)
def test_all_failures_of_operators_that_keep_rows_are_not_known(
    operator: dict[str, Any] | None, tried: set[str]
) -> None:
    """Nor are those of the operators above."""
    assert Trial(plan_of(operator, "final", 1)).tried == tried


def assert_tried(plan: SteppedPlan, rows: pa.RecordBatch, error: str | None) -> None:
    trial = Trial(plan)
    for _ in range(2):  # it keeps nothing
        if error is None:
            trial.check("a", rows)
        else:
            with pytest.raises(DataflowError, match=error):
                trial.check("a", rows)
