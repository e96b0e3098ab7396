"""Topologies and queries of all shapes, for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from placement.plan import (
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    Query,
    QueryOperator,
    SinkOperator,
    SourceOperator,
    UnionOperator,
)
from topology import Column, CsvSource, DataType, Links, LogicalSource, Node, PrintSink, Topology

CAPACITIES = st.sampled_from([0, 1, 1, 2, 3, None])
UNBOUNDED = st.none()


@st.composite
def cases(draw: st.DrawFn, capacities: st.SearchStrategy[int | None] = CAPACITIES) -> tuple[Topology, Query]:
    """A topology whose nodes all reach the last, where the sink is, and a query over sources anywhere in it.

    Some logical sources have several physical ones. All columns are alike, so that any query type-checks.
    """
    sources = draw(st.integers(1, 4))
    return draw(topologies(capacities, sources)), draw(queries(sources))


@st.composite
def topologies(draw: st.DrawFn, capacities: st.SearchStrategy[int | None], sources: int) -> Topology:
    count = draw(st.integers(1, 7))
    addresses = [f"node{index}:1" for index in range(count)]
    physical: list[list[CsvSource]] = [[] for _ in addresses]
    for source in range(sources):
        for node in draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2)):
            physical[node].append(CsvSource(logical=f"l{source}", type="CSV", path=f"{source}.csv"))
    nodes = []
    for index, address in enumerate(addresses):
        last = index == count - 1
        below = addresses[index + 1 :]
        ends = draw(st.lists(st.sampled_from(below), min_size=1, max_size=3, unique=True)) if below else []
        nodes.append(
            Node(
                address=address,
                capacity=draw(capacities),
                links=Links(downstream=tuple(ends)),
                physical=tuple(physical[index]),
                sinks=(PrintSink(name="out", type="Print"),) if last else (),
            )
        )
    columns = (Column(name="a", type=DataType.INT64),)
    logical = tuple(LogicalSource(name=f"l{source}", schema=columns) for source in range(sources))
    return Topology(logical=logical, nodes=tuple(nodes))


@st.composite
def queries(draw: st.DrawFn, sources: int) -> Query:
    """A tree over the logical sources ``l0`` and so on, each read once."""
    operators: list[QueryOperator] = []
    loose = []
    for index in range(sources):
        operators.append(SourceOperator(id=f"s{index}", logical=f"l{index}"))
        loose.append(f"s{index}")
    steps = draw(st.lists(st.sampled_from(["filter", "project", "nary"]), max_size=5))
    for number, step in enumerate([*steps, *(["nary"] if sources > 1 else [])]):
        last = number == len(steps)
        key = f"op{number}"
        if step == "nary" and len(loose) > 1:
            chosen = tuple(
                loose if last else draw(st.permutations(loose))[: draw(st.integers(2, len(loose)))]
            )
            join = draw(st.booleans())
            operators.append(
                JoinOperator(id=key, inputs=chosen, on=("a",))
                if join
                else UnionOperator(id=key, inputs=chosen)
            )
        else:
            chosen = (draw(st.sampled_from(loose)),)
            operators.append(
                ProjectOperator(id=key, input=chosen[0], columns={"a": "a"})
                if step == "project"
                else FilterOperator(id=key, input=chosen[0], predicate="a > 0")
            )
        loose = [*(each for each in loose if each not in chosen), key]
    operators.append(SinkOperator(id="out", input=loose[0], sink="out"))
    return Query(operators=tuple(draw(st.permutations(operators))))
