"""Random plans over three sources, each with the SQL query that says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from nebuli.dataflow import arrow_schema, zset
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    FragmentOperator,
    JoinOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    UnionOperator,
)
from tests.nebuli.dataflow.driven import Driven
from topology import Column, DataType

COLUMNS = (
    Column(name="k", type=DataType.INT64),
    Column(name="g", type=DataType.STRING),
    Column(name="x", type=DataType.FLOAT64),
    Column(name="n", type=DataType.INT64),
)
SCHEMA = arrow_schema(COLUMNS)
ZSETS = zset.weighted(SCHEMA)
Row = tuple[int | None, str | None, float | None, int | None]

# Floats are quarters, so that sums are exact in any order.
ROWS: st.SearchStrategy[Row] = st.tuples(
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from(["", "a", "é"]),
    st.none() | st.integers(-4, 4).map(lambda n: n / 4) | st.sampled_from([-0.0, float("nan"), float("inf")]),
    st.none() | st.integers(-2, 2),
)
PREDICATES = ["k > 0", "x >= 0e0 OR g IS NULL", "g LIKE '%a'", "n <> 1", "x > 'NaN'::DOUBLE OR k IS NOT NULL"]
PROJECTIONS = [
    {"k": "n", "g": "upper(g)", "x": "-x", "n": "k"},
    {"k": "k + 1", "g": "coalesce(g, 'a')", "x": "CASE WHEN k = 1 THEN x ELSE 1e0 END", "n": "n * 2"},
]
HOW = ["left", "right", "full"]
KEYS = [("k",), ("k", "g"), ("x",), ("n", "x", "g", "k")]
AGGREGATES: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("k",), {"g": "max(g)", "x": "sum(x)", "n": "count(x)"}),
    (("g", "k"), {"x": "avg(x)", "n": "CAST(sum(n) AS BIGINT)"}),
    (("x",), {"k": "min(k)", "g": "min(g)", "n": "count(*)"}),
    (("n",), {"k": "max(k)", "g": "min(g)", "x": "min(x)"}),
    (("k",), {"g": "max(g)", "x": "max(x)", "n": "count(DISTINCT x)"}),
    (("x", "n"), {"g": "min(g)", "k": "count(DISTINCT g)"}),
    ((), {"k": "count(k)", "g": "min(g)", "x": "max(x)", "n": "CAST(sum(k) AS BIGINT)"}),
]


@dataclass
class Plan:
    """Operators bottom up, and the query of each by its id."""

    operators: list[FragmentOperator] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)

    def add(self, operator: FragmentOperator, query: str) -> str:
        self.operators.append(operator)
        self.queries[operator.id] = query
        return operator.id

    @property
    def sources(self) -> list[str]:
        return [each.id for each in self.operators if isinstance(each, NetworkSource)]

    @property
    def query(self) -> str:
        return self.queries[self.operators[-1].id]

    def circuit(self) -> Driven:
        root = NetworkSink(id="root", input=self.operators[-1].id, channel="out", address="nowhere")
        return Driven([*self.operators, root])


def source_of(plan: Plan, id_: str) -> str:
    """Adds a source of that name."""
    columns = [column.model_dump() for column in COLUMNS]
    settings = {"id": id_, "channel": id_, "address": "nowhere", "schema": columns}
    return plan.add(NetworkSource.model_validate(settings), f"SELECT * FROM {id_}")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    plan = Plan()
    _grow(draw, plan, draw(st.integers(1, 3)))
    return plan


def _grow(draw: st.DrawFn, plan: Plan, depth: int) -> str:
    """Adds an operator tree; each gives columns k, g, x and n."""
    kind = (
        draw(st.sampled_from(["filter", "project", "union", "join", "aggregate", "distinct"]))
        if depth
        else "source"
    )
    name = lambda: f"{kind}{len(plan.operators)}"  # noqa: E731 - counted when it is called
    if kind == "source":
        columns = [column.model_dump() for column in COLUMNS]
        settings = {"id": name(), "channel": "c", "address": "nowhere", "schema": columns}
        return plan.add(NetworkSource.model_validate(settings), f"SELECT * FROM {name()}")
    inputs = [_grow(draw, plan, depth - 1)]
    if kind == "filter":
        predicate = draw(st.sampled_from(PREDICATES))
        query = f"SELECT * FROM ({plan.queries[inputs[0]]}) WHERE {predicate}"
        return plan.add(FilterOperator(id=name(), input=inputs[0], predicate=predicate), query)
    if kind == "project":
        return _project(plan, inputs[0], draw(st.sampled_from(PROJECTIONS)))
    if kind == "distinct":
        query = f"SELECT DISTINCT * FROM ({plan.queries[inputs[0]]})"
        return plan.add(DistinctOperator(id=name(), input=inputs[0]), query)
    if kind == "aggregate":
        by, aggregates = draw(st.sampled_from(AGGREGATES))
        return _aggregate(plan, inputs[0], by, aggregates)
    inputs += [_grow(draw, plan, depth - 1) for _ in range(draw(st.integers(1, 2)))]
    if kind == "union":
        query = " UNION ALL ".join(f"({plan.queries[child]})" for child in inputs)
        return plan.add(UnionOperator(id=name(), inputs=tuple(inputs)), query)
    how = draw(st.sampled_from(["inner", *HOW])) if len(inputs) == 2 else "inner"
    return _join(plan, inputs, draw(st.sampled_from(KEYS)), how)


def _project(plan: Plan, child: str, columns: dict[str, str]) -> str:
    chosen = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    query = f"SELECT {chosen} FROM ({plan.queries[child]})"
    return plan.add(ProjectOperator(id=f"project{len(plan.operators)}", input=child, columns=columns), query)


def _aggregate(plan: Plan, child: str, by: tuple[str, ...], aggregates: dict[str, str]) -> str:
    chosen = ", ".join([*by, *(f"{sql} AS {name}" for name, sql in aggregates.items())])
    group = f"GROUP BY {', '.join(by)}" if by else ""
    ours = {name: sql.removeprefix("CAST(").removesuffix(" AS BIGINT)") for name, sql in aggregates.items()}
    operator = AggregateOperator(id=f"aggregate{len(plan.operators)}", input=child, by=by, aggregates=ours)
    id_ = plan.add(operator, f"SELECT {chosen} FROM ({plan.queries[child]}) {group}")
    # Averages are not quarters; rounding them down makes them such.
    return _project(plan, id_, {"k": "k", "g": "g", "x": "floor(x)", "n": "n"})


def _join(plan: Plan, children: list[str], on: tuple[str, ...], how: Any) -> str:
    id_ = f"join{len(plan.operators)}"
    tables = [f"({plan.queries[child]}) AS {child}" for child in children]
    joined = f" {how} JOIN ".join([tables[0], *(f"{table} USING ({', '.join(on)})" for table in tables[1:])])
    # Each column that is not a key from another input, in turn.
    origin = {name: children[index % len(children)] for index, name in enumerate("kgxn")}
    chosen = [name if name in on else f"{origin[name]}.{name}" for name in "kgxn"]
    query = f"SELECT {', '.join(chosen)} FROM {joined}"
    plan.add(JoinOperator(id=id_, inputs=tuple(children), on=on, how=how), query)
    columns = {name: name if name in on else f'"{origin[name]}.{name}"' for name in "kgxn"}
    operator = ProjectOperator(id=f"project{len(plan.operators)}", input=id_, columns=columns)
    return plan.add(operator, query)


def change(rows: Sequence[tuple[Row, int]]) -> pa.RecordBatch:
    """A Z-set of rows with weights."""
    columns: list[Any] = [list(column) for column in zip(*(row for row, _ in rows), strict=True)] or [[]] * 4
    arrays = [pa.array(values, field_.type) for values, field_ in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch([*arrays, pa.array([weight for _, weight in rows], pa.int64())], schema=ZSETS)
