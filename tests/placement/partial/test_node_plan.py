"""Queries with views as nodes, the same in every fragment."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from nebuli.dataflow.partial import PartialGraph
from placement import Fragment, NoCapacity, Query, check, decompose, place
from placement.partial.node_plan import nodes_of, planned_of
from placement.plan import JoinOperator, UnionOperator
from placement.view_nodes import Base, Output, Stream, View
from tests.nebuli.dataflow.partial.library import rows
from tests.nebuli.dataflow.partial.reference import contents
from tests.placement.strategies.test_roots import viewed
from tests.support.cases import cases
from tests.support.documents import op, query, topology
from topology import Column, DataType, Topology

COLUMNS = (Column(name="k", type=DataType.INT64), Column(name="v", type=DataType.FLOAT64))
LINKS = {"A": "C", "B": "C", "C": ""}
ONE, TWO = op("source", "one", logical="one"), op("source", "two", logical="two")


def with_bases(*bases: str, capacity: dict[str, int] | None = None) -> Topology:
    """Sources one and two, those of which are bases that are named, and a sink."""
    nodes = topology(LINKS, {"one": "A", "two": "B"}, sink="C", capacity=capacity, mode="changes")
    return nodes.model_copy(
        update={
            "nodes": tuple(
                node.model_copy(
                    update={
                        "physical": tuple(
                            each.model_copy(update={"base": each.logical in bases}) for each in node.physical
                        )
                    }
                )
                for node in nodes.nodes
            )
        }
    )


def nodes(*operators: dict[str, Any], bases: tuple[str, ...] = ("one",)) -> list[Any]:
    return list(nodes_of(check(query(*operators), with_bases(*bases))))


def test_without_views_there_is_nothing_to_plan():
    assert nodes(ONE, op("sink", "s", input="one", sink="out")) == []


def test_sources_are_bases_where_the_topology_says_so():
    union = op("union", "u", inputs=["one", "two"])
    assert nodes(ONE, TWO, union, op("view", "v", input="u", key=["k"])) == [
        Base("one", COLUMNS),
        Stream("two", COLUMNS),
        UnionOperator(id="u", inputs=("one", "two")),
        View("v", "u", ("k",)),
    ]


def test_views_are_read_as_other_operators_are():
    """They stand where they were written, and give on what they are given."""
    views = [op("view", "v", input="one", key=["k"]), op("view", "w", input="v", key=["v"])]
    joined = op("join", "j", inputs=["w", "two"], on=["k"])
    assert nodes(ONE, TWO, *views, joined, op("sink", "s", input="j", sink="out")) == [
        Base("one", COLUMNS),
        View("v", "one", ("k",)),
        View("w", "v", ("v",)),
        Stream("two", COLUMNS),
        JoinOperator(id="j", inputs=("w", "two"), on=("k",)),
        Output("s", "j"),
    ]


def test_a_join_of_what_views_are_given_has_their_rows():
    """Each view beside it is read as well."""
    joined = [op("view", "v", input="one", key=["k"]), op("join", "j", inputs=["v", "two"], on=["k"])]
    found = nodes(ONE, TWO, *joined, op("view", "w", input="j", key=["v.v"]), bases=("one", "two"))
    graph = PartialGraph(found)
    for base, value in (("one", 0.5), ("two", 7.0)):
        graph.write(base, rows(Base(base, COLUMNS), [(1, value), (2, value + 1)]))
    graph.drain()
    read = {}
    for view, key in (("w", 0.5), ("v", 2)):
        assert graph.read(view, [(key,)]).missing.num_rows == 1
        (filled,) = graph.drain()
        read[view] = contents(filled.rows)
    assert read == {"w": {(1, 0.5, 7.0): 1}, "v": {(2, 1.5): 1}}


def test_all_fragments_have_the_same_plan():
    """With the same numbers for its paths, whichever process makes it of what it was sent."""
    operators = [
        op("view", "v", input="one", key=["k"]),
        op("join", "j", inputs=["v", "two"], on=["k"]),
        op("view", "w", input="j", key=["v.v"]),
    ]
    placement = place(query(ONE, TWO, *operators), with_bases("one", "two"))
    cut = decompose(placement).fragments
    assert [each.node for each in cut] == ["A:1", "B:1", "C:1"]
    received = [Fragment.model_validate_json(each.model_dump_json(by_alias=True)) for each in cut]
    assert received == list(cut)
    first, *others = map(planned_of, received)
    assert all(plan == first for plan in others)
    assert [(path.number, str(path.source), str(path.target)) for path in first.paths] == [
        (0, "one by k", "v by k"),
        (1, "one by k", "input 0 of j by k"),
        (2, "two by k", "input 1 of j by k"),
        (3, "one by v", "w by v.v"),
    ]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_query_with_a_view_can_be_planned(case: tuple[Topology, Query]):
    """And its nodes give out what its operators do."""
    topology_, reading = case
    plan = check(viewed(reading, "a"), topology_)
    try:
        cut = decompose(place(viewed(reading, "a"), topology_)).fragments
    except NoCapacity:
        return
    schemas = planned_of(cut[0]).schemas
    assert {key: schemas[key] for key in plan.operators} == dict(plan.schemas)
