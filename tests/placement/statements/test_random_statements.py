"""Random statements: what comes of their operators is what DuckDB answers over the same rows."""

from __future__ import annotations

import datetime as dt
import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import arrow_schema
from placement.statements.statement import parse_statement
from tests.nebuli.dataflow import oracle
from tests.placement.statements import answering
from tests.placement.statements.generator import Generator, in_duckdb
from tests.support.sizes import seeds
from topology import Column, DataType, Topology, parse_topology

# Few of each, so that many match. Floats are quarters, whose sums are exact.
_TYPES: dict[str, tuple[DataType, list[Any]]] = {
    "int": (DataType.INT64, [None, -2, 0, 1, 2, 3]),
    "text": (DataType.STRING, [None, "", "a", "é", "it's"]),
    "small": (DataType.INT32, [None, -2, 0, 1, 2]),
    "half": (DataType.FLOAT32, [None, -0.0, 0.5, -1.0, float("nan")]),
    "bool": (DataType.BOOL, [None, True, False]),
    "real": (DataType.FLOAT64, [None, -0.0, 0.25, -0.5, 1.0, float("nan")]),
    "date": (DataType.DATE, [None, dt.date(2020, 2, 29), dt.date(2020, 1, 1), dt.date(1969, 12, 31)]),
    "time": (
        DataType.TIMESTAMP,
        [None, *(dt.datetime(2020, 1, 1, 0, 0, each, tzinfo=dt.UTC) for each in (5, 17)),
         dt.datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=dt.UTC)],
    ),
}  # fmt: skip


def topology_of(schemas: dict[str, dict[str, str]]) -> Topology:
    """The tables as files at one node."""
    logical = [
        {
            "name": table,
            "schema": [
                {"name": name.strip('"'), "type": _TYPES[type_][0]} for name, type_ in columns.items()
            ],
        }
        for table, columns in schemas.items()
    ]
    physical = [{"logical": table, "type": "CSV", "path": f"{table}.csv"} for table in schemas]
    sink = {"name": "out", "type": "CSV", "path": "out.csv", "mode": "final"}
    node = {"address": "127.0.0.1:27571", "physical": physical, "sinks": [sink]}
    return parse_topology(json.dumps({"logical": logical, "nodes": [node]}, default=str))


def rows_of(columns: dict[str, str], random: Random) -> pa.RecordBatch:
    """Up to eight rows."""
    count = random.randint(0, 8)
    schema = arrow_schema(
        tuple(Column(name=name.strip('"'), type=_TYPES[type_][0]) for name, type_ in columns.items())
    )
    drawn = [[random.choice(_TYPES[type_][1]) for _ in range(count)] for type_ in columns.values()]
    arrays = [pa.array(each, field.type) for each, field in zip(drawn, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def mismatch(seed: int, members: int) -> str | None:
    """The statement of a seed if it is not what DuckDB answers: free in random order, and in steps with retractions."""
    random, generator = Random(seed), Generator(seed)
    topology, statement = topology_of(generator.schemas), generator.statement()
    tables, others = (
        {name: rows_of(columns, random) for name, columns in generator.schemas.items()} for _ in range(2)
    )
    expected = oracle.multiset(oracle.query(in_duckdb(statement), tables)[1])
    query = parse_statement(f"INSERT INTO out {statement}", topology)
    _, ours = answering.free(query, topology, tables, random)
    if oracle.multiset(ours) != expected:
        return f"seed {seed}, free: {statement}"
    _, ours = answering.in_steps(query, topology, tables, random, others, members)
    return None if oracle.multiset(ours) == expected else f"seed {seed}, in steps: {statement}"


@pytest.mark.parametrize("first", seeds(range(0, 500, 10)))
def test_random_statements_agree_with_duckdb(first: int) -> None:
    found = [mismatch(seed, 1 + seed % 2) for seed in range(first, first + 10)]
    assert [each for each in found if each] == []
