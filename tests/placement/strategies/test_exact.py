"""The exact strategy against brute force, and as a judge of the bottom-up one."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise, product

import networkx as nx
import pytest
from hypothesis import HealthCheck, assume, given, settings

from benchmarks.planning import case, query_over
from placement import BoundPlan, NoCapacity, Query, check
from placement.strategies.bottom_up import Placement, place_bottom_up
from placement.strategies.exact import TIME_LIMIT_S, place_exactly
from placement.strategies.traffic import Traffic
from tests.support.cases import cases
from tests.support.sizes import examples
from topology import CsvSource, LinkLimits, Links, Node, Topology
from topology.graph import link_graph

SLOW = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def least(plan: BoundPlan, topology: Topology) -> float | None:
    """The cost of the best of all placements, by trying each; None if none has room."""
    graph = link_graph(topology)
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    capacity = {node.address: node.capacity for node in topology.nodes}
    movable = [key for key in plan.operators if key not in plan.pins]
    weights = Traffic.of(plan).weights
    best: float | None = None
    for chosen in product(graph, repeat=len(movable)):
        nodes = {**plan.pins, **dict(zip(movable, chosen, strict=True))}
        if any((limit := capacity[node]) is not None and chosen.count(node) > limit for node in chosen):
            continue
        cost = 0.0
        for child, reader in plan.readers.items():
            way = hops[nodes[child]].get(nodes[reader])
            if way is None:
                break
            cost += weights[child] * way
        else:
            best = cost if best is None else min(best, cost)
    return best


def assert_sound(placement: Placement, topology: Topology) -> None:
    graph, plan = link_graph(topology), placement.plan
    capacity = {node.address: node.capacity for node in topology.nodes}
    for address, limit in capacity.items():
        held = [key for key, node in placement.nodes.items() if node == address and key not in plan.pins]
        assert limit is None or len(held) <= limit
    for child, path in placement.paths.items():
        assert path[0] == placement.nodes[child]
        assert path[-1] == placement.nodes[plan.readers[child]]
        assert all(graph.has_edge(start, end) for start, end in pairwise(path))
    assert {key: placement.nodes[key] for key in plan.pins} == plan.pins


@SLOW
@given(cases())
def test_it_is_optimal_on_small_cases(small):
    """PL-OPT-1: as good as the best of all placements; never worse than bottom-up, whose gap it tells."""
    topology, query = small
    plan = check(query, topology)
    movable = [key for key in plan.operators if key not in plan.pins]
    assume(len(topology.nodes) ** len(movable) <= 20_000)
    best = least(plan, topology)
    if best is None:
        with pytest.raises(NoCapacity):
            place_exactly(plan, topology)
        return
    exact = place_exactly(plan, topology)
    assert_sound(exact.placement, topology)
    assert exact.cost == best == Traffic.of(plan).cost(exact.placement)
    assert exact.gap == 0
    try:
        first = place_bottom_up(plan, topology)
    except NoCapacity:
        return
    assert Traffic.of(plan).cost(first) >= best


def diamond(**links: LinkLimits) -> Topology:
    """Two sources that meet at the sink, over the nodes `thin` and `wide`."""
    base = Topology.model_validate(
        {
            "logical": [
                {"name": name, "schema": [{"name": "k", "type": "int64"}]} for name in ("many", "few")
            ],
            "nodes": [{"address": "sink:1", "sinks": [{"name": "out", "type": "Print"}]}],
        }
    )
    nodes = [
        Node(
            address="a:1",
            links=Links(downstream=("thin:1", "wide:1"), limits=dict(links.items())),
            capacity=0,
            physical=(CsvSource(logical="many", type="CSV", path="many.csv", rate=1000.0),),
        ),
        Node(
            address="b:1",
            links=Links(downstream=("thin:1",)),
            capacity=0,
            physical=(CsvSource(logical="few", type="CSV", path="few.csv", rate=10.0),),
        ),
        Node(address="thin:1", links=Links(downstream=("sink:1",)), capacity=1),
        Node(address="wide:1", links=Links(downstream=("sink:1",)), capacity=1),
        *base.nodes,
    ]
    return Topology(logical=base.logical, nodes=tuple(nodes))


def plan_over(topology: Topology) -> BoundPlan:
    return check(
        Query.model_validate(
            {
                "operators": [
                    {"id": "m", "type": "source", "logical": "many"},
                    {"id": "w", "type": "source", "logical": "few"},
                    {"id": "u", "type": "union", "inputs": ["m", "w"]},
                    {"id": "s", "type": "sink", "input": "u", "sink": "out"},
                ]
            }
        ),
        topology,
    )


def test_bytes_count_where_all_sources_say_their_rate():
    topology = diamond()
    exact = place_exactly(plan_over(topology), topology)
    assert exact.unit == "bytes/s over links"
    assert exact.cost == 2 * 1000 + 2 * 10  # to the sink or to the thin node, and on: the same in all


def test_a_link_carries_no_more_than_its_bandwidth():
    topology = diamond(**{"thin:1": LinkLimits(bandwidth=500.0)})
    exact = place_exactly(plan_over(topology), topology)
    assert exact.placement.paths["m"] == ("a:1", "wide:1", "sink:1")
    assert exact.placement.nodes["u"] == "sink:1"


def fits(placement: Placement, topology: Topology) -> bool:
    """Whether the placement keeps to all bandwidths."""
    weights = Traffic.of(placement.plan).weights
    carried = Counter[tuple[str, str]]()
    for child, path in placement.paths.items():
        for link in pairwise(path):
            carried[link] += weights[child]
    return all(
        limits.bandwidth is None or carried[node.address, end] <= limits.bandwidth
        for node in topology.nodes
        for end, limits in node.links.limits.items()
    )


def loaded(bandwidth: float | None) -> tuple[Topology, BoundPlan]:
    """A case that is not solved at once: five sources of 100 bytes/s each, over links with this bandwidth."""
    topology, _ = case(50, 20)
    nodes = [
        node.model_copy(
            update={
                "links": Links(
                    downstream=node.links.downstream,
                    limits={end: LinkLimits(bandwidth=bandwidth) for end in node.links.downstream},
                ),
                "physical": tuple(each.model_copy(update={"rate": 100.0}) for each in node.physical),
            }
        )
        for node in topology.nodes
    ]
    topology = Topology(logical=topology.logical, nodes=tuple(nodes))
    return topology, check(query_over(5), topology)


def test_what_breaks_a_bandwidth_is_no_answer_when_time_is_up():
    topology, plan = loaded(250.0)
    assert not fits(place_bottom_up(plan, topology), topology)
    with pytest.raises(
        NoCapacity,
        match=r"within 0 s, though one may exist: .*; .* bytes/s over .* -> .*, whose bandwidth is 250",
    ):
        place_exactly(plan, topology, time_limit_s=0.0)
    assert fits(place_exactly(plan, topology).placement, topology)


def test_what_is_found_when_time_is_up_tells_how_far_it_may_be_from_the_best():
    topology, plan = loaded(None)
    first = place_exactly(plan, topology, time_limit_s=0.0)
    assert first.placement.paths == place_bottom_up(plan, topology).paths
    assert (first.bound, first.gap) == (0, 1)
    assert first.cost >= place_exactly(plan, topology).cost > 0


def test_a_bandwidth_that_is_too_small_is_named_with_the_traffic():
    topology = diamond(**{end: LinkLimits(bandwidth=500.0) for end in ("thin:1", "wide:1")})
    with pytest.raises(NoCapacity) as caught:
        place_exactly(plan_over(topology), topology)
    assert "all sources together give 1010 bytes/s" in str(caught.value)
    assert "a:1 -> thin:1 (500), a:1 -> wide:1 (500)" in str(caught.value)
    alone = Query.model_validate(
        {
            "operators": [
                {"id": "m", "type": "source", "logical": "many"},
                {"id": "s", "type": "sink", "input": "m", "sink": "out"},
            ]
        }
    )
    with pytest.raises(NoCapacity, match=r"^no placement has room: all sources together give 1000 bytes/s"):
        place_exactly(check(alone, topology), topology)


@pytest.mark.timed
def test_a_large_model_is_built_in_less_time_than_it_is_solved_in():
    topology, plan = case(1000, 100, capacity=None)
    begun = time.process_time()
    place_exactly(plan, topology, time_limit_s=0.0)
    assert time.process_time() - begun < TIME_LIMIT_S


def test_what_is_missing_is_named():
    topology = diamond()
    full = [node.model_copy(update={"capacity": 0}) for node in topology.nodes]
    topology = Topology(logical=topology.logical, nodes=tuple(full))
    with pytest.raises(
        NoCapacity, match=r"^u: every node after the sources and before the sink has capacity 0"
    ):
        place_exactly(plan_over(topology), topology)
