"""Where operators are placed: the source document's examples, and what holds of every placement."""

from __future__ import annotations

import re
import time
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement import NoCapacity, NoCommonAncestor, NoPath, Query, check, place
from placement.strategies.bottom_up import place_bottom_up
from tests.support.cases import UNBOUNDED, cases
from tests.support.documents import CHAIN, JOIN, op, query, topology
from topology import Topology
from topology.graph import link_graph

DIAMOND = {"A": "B C", "B": "D", "C": "D", "D": ""}


def test_the_documents_join_over_three_nodes():
    """PL-PIN-1, PL-UN-1, PL-NA-1: the figure with Node 1, Node 2 and Node 3."""
    nodes = topology({"1": "3", "2": "3", "3": ""}, {"one": "1", "two": "2"}, sink="3")
    placement = place(JOIN, nodes)
    assert placement.nodes == {
        "source1": "1:1",
        "filter1": "1:1",
        "source2": "2:1",
        "filter2": "2:1",
        "join": "3:1",
        "sink": "3:1",
    }
    assert placement.reasons["source1"] == "pinned: one.csv is attached here"
    assert placement.reasons["filter1"] == "with its input source1"
    assert placement.reasons["join"] == "lowest common ancestor of filter1 and filter2"


@pytest.mark.parametrize(
    ("capacity", "node", "reason"),
    [
        ({"A": 1}, "A", "with its input s, 1 of 1 slots used"),
        ({"A": 0}, "B", "A:1 is full (0 of 0), next with room on the path to C:1"),
        ({"A": 0, "B": 1}, "B", "A:1 is full (0 of 0), next with room on the path to C:1, 1 of 1 slots used"),
        ({"A": 0, "B": 0}, "C", "A:1 is full (0 of 0), next with room on the path to C:1"),
    ],
)
def test_a_filter_moves_downstream_where_its_node_is_full(capacity: dict[str, int], node: str, reason: str):
    """PL-UN-1: stays with its child while there is capacity, else the next node with capacity on the path.

    PL-PIN-1: the source and the sink use none of it.
    """
    placement = place(CHAIN, topology({"A": "B", "B": "C", "C": ""}, {"s": "A"}, sink="C", capacity=capacity))
    assert placement.nodes["f"] == f"{node}:1"
    assert placement.reasons["f"] == reason


def test_each_path_of_a_diamond_is_taken_over_200_seeds():
    """PL-UN-2: by operators that move, and by channels of operators that stay; the same seed, the same plan."""
    for capacity in ({"A": 0}, {"A": 1}):
        nodes = topology(DIAMOND, {"s": "A"}, sink="D", capacity=capacity)
        placements = [place(CHAIN, nodes, seed) for seed in range(200)]
        assert {p.paths["s"] + p.paths["f"] for p in placements} == (
            {("A:1", "B:1", "B:1", "D:1"), ("A:1", "C:1", "C:1", "D:1")}
            if capacity["A"] == 0
            else {("A:1", "A:1", "B:1", "D:1"), ("A:1", "A:1", "C:1", "D:1")}
        )
        assert placements == [place(CHAIN, nodes, seed) for seed in range(200)]


def test_the_path_with_room_is_found():
    """PL-UN-2: among the shortest that have room, else among all that have."""
    shortest = topology(DIAMOND, {"s": "A"}, sink="D", capacity={"A": 0, "B": 0, "C": 1, "D": 0})
    assert {place(CHAIN, shortest, seed).nodes["f"] for seed in range(50)} == {"C:1"}

    links = {"A": "D E", "E": "F", "F": "D", "D": ""}
    longer = topology(links, {"s": "A"}, sink="D", capacity={"A": 0, "E": 0, "F": 1, "D": 0})
    assert place(CHAIN, longer).paths == {"s": ("A:1", "E:1", "F:1"), "f": ("F:1", "D:1")}


def test_a_chain_takes_a_path_that_has_room_for_all_of_it():
    """The path by B would hold the first filter, and leave the second nowhere to go."""
    chain = query(
        op("source", "s", logical="s"),
        op("filter", "f", input="s", predicate="k > 0"),
        op("filter", "g", input="f", predicate="k > 1"),
        op("sink", "out", input="g", sink="out"),
    )
    nodes = topology(DIAMOND, {"s": "A"}, sink="D", capacity={"A": 0, "B": 1, "C": 2, "D": 0})
    for seed in range(50):
        assert place(chain, nodes, seed).nodes["g"] == "C:1"


def test_branches_walk_toward_the_node_where_they_meet():
    """A path past M would leave the join no node but the sink's, which has no room."""
    links = {"A": "X M", "B": "M", "M": "T", "X": "T", "T": ""}
    nodes = topology(links, {"one": "A", "two": "B"}, sink="T", capacity={"A": 0, "T": 0})
    for seed in range(50):
        placement = place(JOIN, nodes, seed)
        assert (placement.nodes["filter1"], placement.nodes["join"]) == ("M:1", "M:1")


def test_an_nary_operator_walks_on_toward_the_sink_from_a_full_ancestor():
    """PL-NA-1: the lowest common ancestor that has capacity, walking toward the sink."""
    nodes = topology(
        {"A": "M", "B": "M", "M": "N", "N": "T", "T": ""},
        {"one": "A", "two": "B"},
        sink="T",
        capacity={"M": 0},
    )
    placement = place(JOIN, nodes)
    assert placement.nodes["join"] == "N:1"
    assert placement.reasons["join"] == (
        "lowest common ancestor of filter1 and filter2: M:1 is full (0 of 0), next with room on the path to T:1"
    )


def test_a_logical_source_of_several_parts_becomes_their_union():
    """The union uses capacity as any operator does."""
    nodes = topology({"A": "C", "B": "C", "C": ""}, {"s#a": "A", "s#b": "B"}, sink="C", capacity={"C": 2})
    placement = place(CHAIN, nodes)
    assert placement.nodes == {"s/0": "A:1", "s/1": "B:1", "s": "C:1", "f": "C:1", "out": "C:1"}
    assert placement.reasons["s"] == "lowest common ancestor of s/0 and s/1, 1 of 2 slots used"


@pytest.mark.parametrize(
    ("links", "capacity", "error", "said"),
    [
        (
            {"1": "", "2": "3", "3": ""},
            {},
            NoCommonAncestor,
            "no node is downstream of all of source1 at 1:1, source2 at 2:1; add links: {downstream: [3:1]} to",
        ),
        (
            {"1": "4", "2": "4", "3": "", "4": ""},
            {},
            NoPath,
            "source source1 at 1:1 to sink sink at 3:1; add links: {downstream: [3:1]} to nodes 1:1, 2:1",
        ),
        (
            {"1": "2", "2": "", "3": "1"},
            {},
            NoPath,
            "; links lead from 3:1 to 1:1, 2:1: reverse them, or move the sink downstream",
        ),
        (
            {"1": "3", "2": "3", "3": ""},
            {"1": 1, "2": 1, "3": 0},
            NoCapacity,
            "join join: 3:1 (0 of 0 used) is the only node left, but does not have a free slot",
        ),
        (
            {"1": "3", "2": "3", "3": ""},
            {"1": 0, "3": 0},
            NoCapacity,
            "filter filter1: no path from 1:1 to 3:1 has a free slot; nodes: 1:1 (0 of 0 used), 3:1",
        ),
    ],
)
def test_what_cannot_be_placed_names_operator_and_nodes(links, capacity, error, said):
    """PL-ERR-1"""
    nodes = topology(links, {"one": "1", "two": "2"}, sink="3", capacity=capacity)
    with pytest.raises(error) as caught:
        place(JOIN, nodes)
    assert said in str(caught.value)


@pytest.mark.timed
@pytest.mark.long
def test_a_long_way_without_room_is_found_to_be_one_at_once():
    """Of thousands of nodes where a union could be, none is tried that has no room behind it."""
    names = [f"n{index}" for index in range(2000)]
    links = dict(zip(names, [*names[1:], ""], strict=True))
    sources = {"s#a": names[0], "s#b": names[0]}
    nodes = topology(links, sources, sink=names[-1], capacity=dict.fromkeys(names, 0))
    plan, begun = check(CHAIN, nodes), time.thread_time()
    with pytest.raises(
        NoCapacity, match="union s: no path from n0:1 to n1999:1 has a free slot for each of s, f"
    ):
        place_bottom_up(plan, nodes)
    assert time.thread_time() - begun < 5
    last_has_room = {**dict.fromkeys(names, 0), names[-1]: 2}
    begun = time.thread_time()
    assert (
        place(CHAIN, topology(links, sources, sink=names[-1], capacity=last_has_room)).nodes["s"] == "n1999:1"
    )


@given(cases(), st.integers(0, 2**32))
def test_every_placement_keeps_to_capacity_and_links(case: tuple[Topology, Query], seed: int):
    """PL-PIN-1, PL-UN-1, PL-UN-2: or says that there is no capacity; the same twice for a seed."""
    nodes, plan = case
    try:
        placement = place(plan, nodes, seed)
    except NoCapacity as error:
        with pytest.raises(NoCapacity, match=re.escape(str(error))):
            place(plan, nodes, seed)
        return
    bound = check(plan, nodes)
    graph = link_graph(nodes)
    used = Counter(node for key, node in placement.nodes.items() if key not in bound.pins)

    assert list(placement.nodes) == list(placement.reasons) == list(bound.operators)
    assert all(node.capacity is None or used[node.address] <= node.capacity for node in nodes.nodes)
    assert all(placement.nodes[key] == node for key, node in bound.pins.items())
    for child, reader in bound.readers.items():
        path = placement.paths[child]
        assert (path[0], path[-1]) == (placement.nodes[child], placement.nodes[reader])
        assert len(path) == 1 or nx.is_path(graph, path)
    assert placement == place(plan, nodes, seed)


@given(cases(UNBOUNDED), st.integers(0, 2**32))
def test_without_bounds_unary_operators_stay_and_others_go_to_the_lowest_common_ancestor(case, seed):
    """PL-UN-1, PL-NA-1, against an ancestor found by trying every node."""
    nodes, plan = case
    graph = link_graph(nodes)
    placement = place(plan, nodes, seed)
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    sink = placement.nodes["out"]
    for operator in placement.plan.operators.values():
        children = [placement.nodes[child] for child in operator.children]
        if len(children) == 1 and operator.type != "sink":
            assert placement.nodes[operator.id] == children[0]
        elif len(children) > 1:
            totals = {
                node: sum(hops[child][node] for child in children)
                for node in graph
                if sink in hops[node] and all(node in hops[child] for child in children)
            }
            assert totals[placement.nodes[operator.id]] == min(totals.values())
