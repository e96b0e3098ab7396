"""Expressions on Spark against the embedded engine, which is held against DuckDB: listed cases, and random ones."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from nebuli.dataflow import DataflowError, arrow_schema
from nebuli.dataflow.evaluation import compile_expression
from nebuli.spark.expressions import identifier, sql_of
from placement.fragments.engines import refusals
from placement.plan import ProjectOperator
from placement.sql.expressions import Expression, ExpressionError, parse
from tests.nebuli.dataflow import oracle, test_evaluation
from topology import Column

pytestmark = pytest.mark.spark

COLUMNS = tuple(column for column in test_evaluation.COLUMNS if column.name != "u64")
SCHEMA = arrow_schema(COLUMNS)
ROWS = test_evaluation.ROWS.select(SCHEMA.names)


def readable(sql: str) -> Expression | None:
    """The expression, if there are such over these columns, and Spark is given them."""
    try:
        expression = parse(sql, COLUMNS)
    except ExpressionError:
        return None
    project = ProjectOperator(id="p", input="i", columns={"c": sql})
    return None if list(refusals(project, [COLUMNS])) else expression


def embedded(expression: Expression, rows: pa.RecordBatch) -> list | None:
    """The values, or None if there is an error."""
    try:
        return compile_expression(expression, SCHEMA)(rows).to_pylist()
    except DataflowError:
        return None


def on_spark(compute, expressions: list[Expression], rows: pa.RecordBatch) -> list[list]:
    columns = [Column(name=f"c{n}", type=each.type) for n, each in enumerate(expressions)]
    chosen = ", ".join(
        f"{sql_of(each.tree)} AS {identifier(c.name)}" for each, c in zip(expressions, columns, strict=True)
    )
    table = compute(f"SELECT {chosen} FROM input", {"input": (COLUMNS, pa.table(rows))}, tuple(columns))
    return [table.column(column.name).to_pylist() for column in columns]


def check(compute, cases: list[str], rows: pa.RecordBatch) -> None:
    """Those with values at once, each of those with an error by itself."""
    readable_ones = [each for each in map(readable, cases) if each is not None]
    values = [(each, embedded(each, rows)) for each in readable_ones]
    good = [(each, ours) for each, ours in values if ours is not None]
    if good:
        theirs = on_spark(compute, [each for each, _ in good], rows)
        for (each, ours), their in zip(good, theirs, strict=True):
            assert all(map(oracle.close, ours, their)), (each.sql, sql_of(each.tree)[:1000], ours, their)
    for each, ours in values:
        if ours is None:
            with pytest.raises(PySparkException):
                on_spark(compute, [each], rows)


def test_listed_expressions_give_what_the_embedded_engine_gives(compute):
    """SP-ENG-1."""
    cases = test_evaluation._listed()
    assert len([each for each in cases if readable(each)]) > 190
    check(compute, cases, ROWS)


BATCHES = test_evaluation._batches().map(lambda batch: batch.select(SCHEMA.names))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(test_evaluation._expressions(), min_size=1, max_size=8), BATCHES)
def test_random_expressions_give_what_the_embedded_engine_gives(compute, cases, rows):
    """SP-ENG-1."""
    check(compute, cases, rows)


def test_values_near_halves_are_rounded_as_by_the_embedded_engine(compute):
    """SP-ENG-1."""
    halves = [(whole + 0.5) / 10**digits for digits in (0, 1, 2, 5, 22) for whole in range(-60, 60)]
    values = [math.nextafter(half, to) for half in halves for to in (half, math.inf, -math.inf)]
    columns = [pa.array([None] * len(values), field.type) for field in SCHEMA]
    columns[SCHEMA.get_field_index("f")] = pa.array(values)
    rows = pa.record_batch(columns, schema=SCHEMA)
    cases = [f"round(f, {digits})" for digits in (0, 1, 2, 5, 22, 23, -1, -400)]
    check(compute, cases, rows)
