"""Random graphs, in which anything may be read by several: all nodes give the columns a, b and c."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import strategies as st

from nebuli.dataflow import arrow_schema, zset
from nebuli.dataflow.partial import Base, PartialNode, View
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    UnionOperator,
)
from tests.nebuli.dataflow.partial.reference import PREDICATES, Row
from topology import Column, DataType

COLUMNS = tuple(Column(name=name, type=DataType.INT64) for name in "abc")
ZSETS = zset.weighted(arrow_schema(COLUMNS))
VALUES = st.sampled_from([0, 1, 2, None])
ROWS = st.tuples(VALUES, VALUES, st.integers(0, 2))
PROJECTIONS = [
    {"a": "b", "b": "a", "c": "c"},
    {"a": "c", "b": "b", "c": "a"},
    {"a": "a", "b": "b", "c": "c + 1"},
    {"a": "a", "b": "a", "c": "b"},
]
GROUPS: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("a",), {"b": "count(*)", "c": "sum(c)"}),
    (("a", "b"), {"c": "max(c)"}),
    (("b", "a"), {"c": "count(DISTINCT c)"}),
    (("c", "b"), {"a": "count(*)"}),
    (("a", "b", "c"), {"n": "count(*)"}),
    ((), {"a": "count(*)", "b": "sum(b)", "c": "min(c)"}),
]
KEYS = [("a",), ("b",), ("c",), ("a", "b"), ("b", "a"), ("c", "b")]
KINDS = ["filter", "project", "union", "join", "join", "aggregate", "distinct"]


def change(rows: Sequence[tuple[Row, int]]) -> pa.RecordBatch:
    columns = list(zip(*((*row, weight) for row, weight in rows), strict=True)) or [[]] * 4
    return pa.record_batch([pa.array(list(each), pa.int64()) for each in columns], schema=ZSETS)


@st.composite
def graphs(draw: st.DrawFn) -> list[PartialNode]:
    """One to three bases, some operators on them and on each other, one to three views."""
    nodes: list[PartialNode] = [Base(f"base{index}", COLUMNS) for index in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 5))):
        grow(draw, nodes)
    return [*nodes, *(drawn_view(draw, nodes, index) for index in range(draw(st.integers(1, 3))))]


def drawn_view(draw: st.DrawFn, nodes: Sequence[PartialNode], number: int) -> View:
    seen = of_abc(nodes)
    return View(f"view{number}", draw(st.sampled_from(seen[::-1])), draw(st.sampled_from(KEYS)))


def of_abc(nodes: Sequence[PartialNode]) -> list[str]:
    """Those that give these columns: of a join and an aggregate the project above it, of shards what merges them."""
    others = View | JoinOperator | AggregateOperator
    return [node.id for node in nodes if not isinstance(node, others) and ">" not in node.id]


def grow(draw: st.DrawFn, nodes: list[PartialNode]) -> None:
    """Add an operator that reads nodes which are there."""
    given = of_abc(nodes)
    kind = draw(st.sampled_from(KINDS))
    id_ = f"{kind}{len(nodes)}"
    pick = lambda: draw(st.sampled_from(given[::-1]))  # noqa: E731 - drawn each time
    match kind:
        case "filter":
            nodes.append(
                FilterOperator(id=id_, input=pick(), predicate=draw(st.sampled_from(list(PREDICATES))))
            )
        case "project":
            nodes.append(ProjectOperator(id=id_, input=pick(), columns=draw(st.sampled_from(PROJECTIONS))))
        case "distinct":
            nodes.append(DistinctOperator(id=id_, input=pick()))
        case "union":
            nodes.append(UnionOperator(id=id_, inputs=tuple(pick() for _ in range(draw(st.integers(2, 3))))))
        case "aggregate":
            by, aggregates = draw(st.sampled_from(GROUPS))
            nodes.append(AggregateOperator(id=id_, input=pick(), by=by, aggregates=aggregates))
            nodes.append(ProjectOperator(id=f"{id_}p", input=id_, columns={name: name for name in "abc"}))
        case "join":
            _join(draw, nodes, id_, [pick() for _ in range(draw(st.sampled_from([2, 2, 2, 3])))])


def _join(draw: st.DrawFn, nodes: list[PartialNode], id_: str, inputs: list[str]) -> None:
    """A join may not read one input twice: a project is put between."""
    for index, child in enumerate(inputs):
        if child in inputs[:index]:
            inputs[index] = f"{id_}i{index}"
            columns = {name: name for name in "abc"}
            nodes.append(ProjectOperator(id=inputs[index], input=child, columns=columns))
    on = draw(st.sampled_from([("a",), ("b",), ("a", "b"), ("c",)]))
    how = draw(st.sampled_from(["inner", "left", "right", "full"])) if len(inputs) == 2 else "inner"
    nodes.append(JoinOperator(id=id_, inputs=tuple(inputs), on=on, how=how))
    columns = {name: name if name in on else f'"{draw(st.sampled_from(inputs))}.{name}"' for name in "abc"}
    nodes.append(ProjectOperator(id=f"{id_}p", input=id_, columns=columns))
