"""Where a view is that nothing reads."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement import NoCapacity, NoCommonAncestor, NoPath, Query, StrategyName, check, decompose, place
from placement.plan import SinkOperator, ViewOperator
from placement.strategies.bottom_up import place_bottom_up
from placement.strategies.exact import place_exactly
from tests.placement.strategies.test_exact import assert_sound, least
from tests.support.cases import cases
from tests.support.documents import JOIN, op, query, topology
from tests.support.sizes import examples
from topology import Topology
from topology.graph import link_graph

STRATEGIES: list[StrategyName] = ["bottom-up", "optimal"]
SLOW = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def viewed(reading: Query, key: str, **more: Any) -> Query:
    """The query with a view in the place of its sink."""
    (sink,) = (each for each in reading.operators if isinstance(each, SinkOperator))
    view = ViewOperator.model_validate({"id": sink.id, "input": sink.input, "key": [key], **more})
    return Query(operators=tuple(view if each is sink else each for each in reading.operators))


CHAIN = query(
    op("source", "s", logical="s"),
    op("filter", "f", input="s", predicate="k > 0"),
    op("filter", "g", input="f", predicate="k > 1"),
    op("view", "v", input="g", key=["k"]),
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("capacity", "nodes"),
    [({}, "AAA"), ({"A": 3}, "AAA"), ({"A": 2}, "AAB"), ({"A": 1, "B": 1}, "ABD"), ({"A": 0, "B": 2}, "BBD")],
)
def test_above_one_source_a_view_is_placed_as_what_is_below_it(
    strategy: StrategyName, capacity: dict[str, int], nodes: str
):
    """And uses a slot. What has no room goes on to the nearest node by which all of it has some."""
    links = {"A": "B C", "B": "D", "C": "", "D": ""}
    capacity = {"C": 0, **capacity}
    placement = place(CHAIN, topology(links, {"s": "A"}, sink="C", capacity=capacity), strategy=strategy)
    found = [placement.nodes[key].removesuffix(":1") for key in "fgv"]
    if strategy == "bottom-up" or len(set(nodes)) == 1:
        assert (placement.nodes["s"], "".join(found)) == ("A:1", nodes)
    assert placement.paths["s"][0] == "A:1"


def test_the_reason_says_where_a_full_node_sends_a_view():
    links = {"A": "B", "B": "C", "C": ""}
    placement = place(CHAIN, topology(links, {"s": "A"}, sink="C", capacity={"A": 2, "B": 0}))
    assert placement.reasons["g"] == "with its input f, 2 of 2 slots used"
    assert placement.reasons["v"] == "A:1 is full (2 of 2), next with room on the path to C:1"
    assert [each.node for each in decompose(placement).fragments] == ["A:1", "B:1", "C:1"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_above_several_sources_a_view_is_where_all_of_them_have_the_fewest_hops_to(strategy: StrategyName):
    """At C one and two are 1 + 2 hops away, at D 2 + 1: the first in the topology."""
    links = {"A": "C X", "B": "Y D", "X": "D", "Y": "C", "C": "E", "D": "E", "E": ""}
    nodes = topology(links, {"one": "A", "two": "B"}, sink="E")
    placement = place(viewed(JOIN, "k"), nodes, strategy=strategy)
    assert placement.nodes["sink"] == "C:1"
    assert (
        placement.reasons["sink"]
        == "pinned: the node with the fewest hops among those that all sources reach"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_view_may_name_its_node(strategy: StrategyName):
    nodes = topology({"A": "C", "B": "C", "C": "D", "D": ""}, {"one": "A", "two": "B"}, sink="C")
    placement = place(viewed(JOIN, "k", node="D:1"), nodes, strategy=strategy)
    assert (placement.nodes["sink"], placement.reasons["sink"]) == ("D:1", "pinned: the view names this node")


@pytest.mark.parametrize(
    ("reading", "links", "capacity", "error", "said"),
    [
        (
            viewed(JOIN, "k"),
            {"1": "3", "2": "", "3": ""},
            {},
            NoCommonAncestor,
            (
                "view sink: no node is downstream of all of source1 at 1:1, source2 at 2:1; add links to a "
                "node where these sources meet"
            ),
        ),
        (
            viewed(JOIN, "k", node="4:1"),
            {"1": "3", "2": "3", "3": "", "4": ""},
            {},
            NoPath,
            "no links lead from source source1 at 1:1 to view sink at 4:1; add links: {downstream: [4:1]} to nodes",
        ),
        (
            viewed(JOIN, "k"),
            {"1": "3", "2": "3", "3": "4", "4": ""},
            {"3": 0},
            NoCapacity,
            "is the only node left, but does not have a free slot; raise a capacity, or give view sink another node",
        ),
        (
            query(op("source", "v", logical="one"), op("view", "by_k", input="v", key=["k"])),
            {"1": "3", "3": "", "2": ""},
            {"1": 0, "3": 0},
            NoCapacity,
            "view by_k: no path onward from 1:1 has a free slot; nodes: 1:1 (0 of 0 used), 3:1 (0 of 0 used)",
        ),
    ],
)
def test_what_keeps_a_view_from_being_placed_is_said(
    reading: Query, links: dict[str, str], capacity: dict[str, int], error: type[Exception], said: str
):
    nodes = topology(links, {"one": "1", "two": "2"}, sink="3", capacity=capacity)
    with pytest.raises(error) as caught:
        place(reading, nodes)
    assert said in str(caught.value)


@SLOW
@given(cases(), st.integers(0, 2**32))
def test_views_keep_to_capacity_and_links_and_the_exact_strategy_is_exact(
    case: tuple[Topology, Query], seed: int
):
    nodes, reading = case
    reading = viewed(reading, "a")
    plan = check(reading, nodes)
    try:
        exact = place_exactly(plan, nodes, seed)
    except NoCapacity:
        with pytest.raises(NoCapacity):
            place(reading, nodes, seed)
        return
    pinned = exact.placement.plan
    assert_sound(exact.placement, nodes)
    hops = dict(nx.all_pairs_shortest_path_length(link_graph(nodes)))
    if plan.pins.keys() != pinned.pins.keys():
        totals = {
            each.address: sum(hops[node][each.address] for node in plan.pins.values())
            for each in nodes.nodes
            if all(each.address in hops[node] for node in plan.pins.values())
        }
        assert pinned.pins[plan.root] == min(totals, key=lambda node: totals[node])
    assume(len(nodes.nodes) ** (len(plan.operators) - len(pinned.pins)) < 10_000)
    assert exact.cost == least(pinned, nodes)
    with suppress(NoCapacity):
        assert_sound(place_bottom_up(plan, nodes, seed), nodes)
