"""A query computes the same from the columns that its sources are read for as DuckDB does from all of them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import OperatorGraph, arrow_schema, zset
from placement import check
from placement.plan import BoundSource
from tests.nebuli.dataflow import oracle
from tests.placement.checking.test_binding import JOIN, TOPOLOGY, F, W, chain
from tests.support.documents import op

QUERIES: list[tuple[list[dict[str, Any]], str, str]] = [
    (  # a column that only the filter looks at
        [
            F,
            op("filter", "g", input="f", predicate="temp > 0 AND delay IS NOT NULL"),
            op("project", "p", input="g", columns={"o": "origin"}),
        ],
        "SELECT origin FROM f WHERE temp > 0 AND delay IS NOT NULL",
        "delay origin temp",
    ),
    (
        [
            F,
            op("filter", "g", input="f", predicate="hour IS NOT NULL"),
            op("aggregate", "a", input="g", by=["origin"], aggregates={"n": "count(*)", "m": "max(delay)"}),
        ],
        "SELECT origin, count(*), max(delay) FROM f WHERE hour IS NOT NULL GROUP BY origin",
        "delay hour origin",
    ),
    ([F, op("aggregate", "a", input="f", aggregates={"n": "count(*)"})], "SELECT count(*) FROM f", "origin"),
    (
        [
            F,
            op("project", "p", input="f", columns={"d": "delay % 3", "t": "temp"}),
            op("project", "q", input="p", columns={"d": "d"}),
            op("distinct", "e", input="q"),
        ],
        "SELECT DISTINCT delay % 3 FROM f",
        "delay temp",
    ),
    (  # temp is in both: without one of them the other would have another name
        [F, W, JOIN, op("aggregate", "a", input="j", by=["w.temp"], aggregates={"n": "sum(delay)"})],
        "SELECT w.temp, CAST(sum(delay) AS BIGINT) FROM f JOIN w USING (origin, hour) GROUP BY w.temp",
        "delay hour origin temp",
    ),
    (
        [
            F,
            op("source", "f2", logical="flights"),
            op("union", "u", inputs=["f", "f2"]),
            op("filter", "g", input="u", predicate="delay > 0"),
            op("aggregate", "a", input="g", by=["origin"], aggregates={"n": "count(temp)"}),
        ],
        "SELECT origin, count(temp) FROM (FROM f UNION ALL FROM f2) WHERE delay > 0 GROUP BY origin",
        "delay origin temp",
    ),
]


def rows_of(schema: pa.Schema, random: Random) -> pa.RecordBatch:
    hours = [dt.datetime(2013, 1, 1, hour, tzinfo=dt.UTC) for hour in range(4)]
    drawn = {
        "origin": ["EWR", "JFK", "", None],
        "hour": [*hours, None],
        "delay": [*range(-5, 9), None],
        "temp": [-1.5, 0.0, 2.25, None],
    }
    columns = [[random.choice(drawn[name]) for _ in range(80)] for name in schema.names]
    return pa.record_batch(columns, schema=schema)


@pytest.mark.parametrize(("operators", "sql", "read"), QUERIES)
def test_what_is_left_out_is_not_missed(operators: list[dict[str, Any]], sql: str, read: str) -> None:
    plan = check(chain(*operators), TOPOLOGY)
    circuit, random = OperatorGraph(list(plan.operators.values())), Random(sql)
    tables, out = {}, Counter[tuple[Any, ...]]()
    sources = {each.id: each for each in plan.operators.values() if isinstance(each, BoundSource)}
    assert " ".join(sorted(column.name for column in sources["f"].columns)) == read
    for id_, source in sources.items():
        logical = next(each for each in TOPOLOGY.logical if each.name == source.logical)
        tables[id_] = rows_of(arrow_schema(logical.columns), random)
        narrow = zset.insertions(tables[id_].select([column.name for column in source.columns]))
        for batch in [*circuit.push(id_, narrow), *circuit.end(id_)]:
            for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                out[tuple(row)] += weight
    assert +out == oracle.multiset(oracle.query(sql, tables)[1])
