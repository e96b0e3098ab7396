"""Random statements: what comes of their operators is what DuckDB answers over the same rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import arrow_schema, zset
from placement.plan import NetworkSink, NetworkSource, SinkOperator, SourceOperator
from placement.statements.statement import parse_statement
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.driven import Driven
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


def answer(statement: str, tables: dict[str, pa.RecordBatch], random: Random) -> list[tuple[Any, ...]]:
    """What remains of all that the operators of a statement give, whichever row comes first."""
    query = parse_statement(f"INSERT INTO out {statement}", TOPOLOGY)
    operators: list[Any] = []
    logical = {}
    for each in query.operators:
        if isinstance(each, SourceOperator):
            logical[each.id] = each.logical
            schema = [column.model_dump() for column in COLUMNS]
            operators.append(
                NetworkSource.model_validate(
                    {"id": each.id, "channel": "c", "address": "a", "schema": schema}
                )
            )
        elif isinstance(each, SinkOperator):
            operators.append(NetworkSink(id=each.id, input=each.input, channel="out", address="a"))
        else:
            operators.append(each)
    circuit = Driven(operators)
    waiting = [(id_, number) for id_, name in logical.items() for number in range(tables[name].num_rows)]
    random.shuffle(waiting)
    given = [zset.empty(circuit.schema)]
    for id_, number in waiting:
        given += circuit.push(id_, zset.insertions(tables[logical[id_]].slice(number, 1)))
    for id_ in logical:
        given += circuit.end(id_)
    left = zset.consolidate(given)
    rows = zip(*(column.to_pylist() for column in left.columns), strict=True)
    return [row[:-1] for row in rows for _ in range(row[-1])]


@pytest.mark.parametrize("first", seeds(range(0, 500, 25)))
def test_random_statements_agree_with_duckdb(first: int) -> None:
    for seed in range(first, first + 25):
        random = Random(seed)
        tables = {name: rows_of(random) for name in TABLES}
        statement = Generator(seed).statement()
        expected = oracle.query(statement, tables)[1]
        ours = answer(statement, tables, random)
        assert oracle.multiset(ours) == oracle.multiset(expected), f"seed {seed}: {statement}"
