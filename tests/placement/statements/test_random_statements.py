"""Random statements: what comes of their operators is what DuckDB answers over the same rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import arrow_schema
from placement.statements.statement import parse_statement
from tests.nebuli.dataflow import oracle
from tests.placement.statements import answering
from tests.placement.statements.generator import TABLES, Generator
from tests.support.sizes import seeds
from topology import Column, DataType, parse_topology

COLUMNS = (
    Column(name="k", type=DataType.INT64),
    Column(name="g", type=DataType.STRING),
    Column(name="x", type=DataType.FLOAT64),
    Column(name="n", type=DataType.INT64),
)
_SCHEMA = arrow_schema(COLUMNS)
TOPOLOGY = parse_topology(
    """
logical:
  - {name: t, schema: &columns [{name: k, type: int64}, {name: g, type: string}, {name: x, type: float64},
                                {name: n, type: int64}]}
  - {name: u, schema: *columns}
nodes:
  - address: 127.0.0.1:27571
    physical: [{logical: t, type: CSV, path: t.csv}, {logical: u, type: CSV, path: u.csv}]
    sinks: [{name: out, type: CSV, path: out.csv, mode: final}]
"""
)


def rows_of(random: Random) -> pa.RecordBatch:
    """Up to eight rows, with nulls, of few values, so that many match. Floats are quarters, whose sums are exact."""
    drawn: list[tuple[Any, ...]] = [
        (
            random.choice([None, 0, 1, 2, 3]),
            random.choice([None, "", "a", "é"]),
            random.choice([None, -0.0, 0.25, -0.5, 1.0, float("nan")]),
            random.choice([None, -2, 0, 1, 2]),
        )
        for _ in range(random.randint(0, 8))
    ]
    columns = zip(*drawn, strict=True) if drawn else [()] * 4
    return pa.record_batch(
        [pa.array(each, field.type) for each, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def mismatch(seed: int, members: int) -> str | None:
    """The statement of a seed if it is not what DuckDB answers: free in random order, and in steps with retractions."""
    random = Random(seed)
    tables, others = ({name: rows_of(random) for name in TABLES} for _ in range(2))
    statement = Generator(seed).statement()
    expected = oracle.multiset(oracle.query(statement, tables)[1])
    query = parse_statement(f"INSERT INTO out {statement}", TOPOLOGY)
    _, ours = answering.free(query, TOPOLOGY, tables, random)
    if oracle.multiset(ours) != expected:
        return f"seed {seed}, free: {statement}"
    _, ours = answering.in_steps(query, TOPOLOGY, tables, random, others, members)
    return None if oracle.multiset(ours) == expected else f"seed {seed}, in steps: {statement}"


@pytest.mark.parametrize("first", seeds(range(0, 500, 10)))
def test_random_statements_agree_with_duckdb(first: int) -> None:
    found = [mismatch(seed, 1 + seed % 2) for seed in range(first, first + 10)]
    assert [each for each in found if each] == []
