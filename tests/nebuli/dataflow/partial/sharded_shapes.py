"""Graphs with operators in shards, and the same without."""

from __future__ import annotations

from hypothesis import strategies as st

from nebuli.dataflow.partial import Base, PartialNode, View, planned
from placement.partial.sharding import spread
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    Sharding,
    UnionOperator,
)
from tests.nebuli.dataflow.partial.drawn_graphs import COLUMNS, KEYS

S, T = Base("s", COLUMNS), Base("t", COLUMNS)


def in_shards(nodes: list[PartialNode]) -> list[PartialNode]:
    """What is to be divided is, in what a query with these operators is planned as."""
    return list(spread({node.id: node for node in nodes}, planned(nodes).schemas).operators.values())


def into(number: int, *by: str) -> Sharding:
    return Sharding(into=number, by=by or None)


def distinct(id_: str, input_: str, shard: Sharding) -> DistinctOperator:
    return DistinctOperator(id=id_, input=input_, shard=shard)


FULL = "shards that keep everything"
"""What those that begin anew lose comes no more."""
WHOLE: dict[str, list[PartialNode]] = {
    "shards asked one by one and all at once": [
        S,
        AggregateOperator(id="n", input="s", by=("a", "b"), aggregates={"c": "count(*)"}, shard=into(3, "a")),
        FilterOperator(id="f", input="n", predicate="b <> 1"),
        View("by_a", "f", ("a",)),
        View("by_b", "f", ("b",)),
        View("by_ba", "f", ("b", "a")),
    ],
    "groups of groups in the same shards": [
        S,
        T,
        distinct("d", "s", into(2, "b")),
        ProjectOperator(id="p", input="d", columns={"a": "b", "b": "a", "c": "c"}),
        AggregateOperator(id="n", input="p", by=("c", "a"), aggregates={"b": "max(c)"}, shard=into(2)),
        ProjectOperator(id="q", input="n", columns={"a": "a", "b": "b", "c": "c"}),
        UnionOperator(id="u", inputs=("q", "t")),
        View("by_a", "u", ("a",)),
        View("by_c", "u", ("c",)),
    ],
    "rows divided anew again and again": [
        S,
        distinct("d", "s", into(3, "a")),
        distinct("e", "d", into(2, "b")),
        FilterOperator(id="f", input="e", predicate="a > 0"),
        distinct("g", "f", into(3, "c")),
        View("by_a", "g", ("a",)),
        View("by_c", "g", ("c",)),
        View("by_ab", "g", ("a", "b")),
    ],
    "joins in shards": [
        S,
        T,
        distinct("d", "s", into(2, "a")),
        distinct("e", "t", into(2, "b")),
        JoinOperator(id="j", inputs=("d", "e"), on=("b",), shard=into(2)),
        ProjectOperator(id="p", input="j", columns={"a": '"d.a"', "b": "b", "c": '"e.c"'}),
        View("by_a", "p", ("a",)),
        View("by_b", "p", ("b",)),
        View("by_c", "p", ("c",)),
    ],
    "outer joins in shards": [
        S,
        T,
        distinct("d", "s", into(2, "b")),
        JoinOperator(id="j", inputs=("d", "t"), on=("b",), how="left", shard=into(2)),
        ProjectOperator(id="p", input="j", columns={"a": '"d.a"', "b": "b", "c": '"t.c"'}),
        View("by_a", "p", ("a",)),
        View("by_b", "p", ("b",)),
    ],
    FULL: [
        S,
        distinct("d", "s", into(2, "a")),
        AggregateOperator(id="n", input="d", by=("b",), aggregates={"c": "count(*)"}, shard=into(2)),
        View("by_c", "n", ("c",)),
        View("by_b", "by_c", ("b",)),
    ],
}
GROUPS: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("a", "b"), {"c": "count(*)"}),
    (("b", "c"), {"a": "max(c)"}),
    (("c",), {"a": "sum(b)", "b": "count(*)"}),
]
SAME, TURNED = {name: name for name in "abc"}, {"a": "b", "b": "a", "c": "c"}


@st.composite
def sharded_chains(draw: st.DrawFn) -> list[PartialNode]:
    """A base, and operators of which most are in shards, each reading the one before; views of the last one."""
    nodes: list[PartialNode] = [S]
    for number in range(draw(st.integers(1, 4))):
        id_, above = f"o{number}", nodes[-1].id
        shard = draw(st.sampled_from([None, Sharding(into=2), Sharding(into=3)]))
        match draw(st.sampled_from(["filter", "project", "distinct", "distinct", "aggregate", "aggregate"])):
            case "filter":
                nodes.append(FilterOperator(id=id_, input=above, predicate="a > 0"))
            case "project":
                nodes.append(ProjectOperator(id=id_, input=above, columns=TURNED))
            case "distinct":
                nodes.append(DistinctOperator(id=id_, input=above, shard=_drawn(draw, shard, tuple("abc"))))
            case "aggregate":
                by, aggregates = draw(st.sampled_from(GROUPS))
                groups = AggregateOperator(
                    id=f"{id_}n", input=above, by=by, aggregates=aggregates, shard=_drawn(draw, shard, by)
                )
                nodes += [groups, ProjectOperator(id=id_, input=f"{id_}n", columns=SAME)]
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    nodes += [View(f"view{number}", nodes[-1].id, key) for number, key in enumerate(keys)]
    return in_shards(nodes)


def _drawn(draw: st.DrawFn, shard: Sharding | None, by: tuple[str, ...]) -> Sharding | None:
    """By nothing that is said, or by some of the columns."""
    if shard is None:
        return None
    columns = draw(st.none() | st.lists(st.sampled_from(by), min_size=1, unique=True))
    return Sharding(into=shard.into, by=columns)


SHARDED = {name: in_shards(nodes) for name, nodes in WHOLE.items()}
