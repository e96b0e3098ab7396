"""Where the rule finds no room, the exact strategy is asked; which says so, or that there is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.planning import case
from placement import NoCapacity, Query, check, place, place_bottom_up, place_bound
from tests.placement.strategies.test_exact import assert_sound, least
from tests.support.cases import cases
from tests.support.documents import CHAIN, rivals, topology
from tests.support.sizes import examples
from topology import Topology

SCARCE = st.sampled_from([0, 0, 1, 1, 2])
SEEDS = range(60)


def found_by_the_rule(nodes: Topology, plan: Query, seed: int) -> bool:
    try:
        place_bottom_up(check(plan, nodes), nodes, seed)
    except NoCapacity:
        return False
    return True


def test_what_the_rule_finds_for_half_of_the_seeds_is_found_for_all():
    nodes, plan = rivals(4)
    by_rule = [found_by_the_rule(nodes, plan, seed) for seed in SEEDS]
    assert 15 < sum(by_rule) < 45
    for seed, found in zip(SEEDS, by_rule, strict=True):
        placement = place(plan, nodes, seed)
        assert_sound(placement, nodes)
        assert {placement.nodes[f"fa{number}"] for number in range(4)} == {
            f"own{number}:1" for number in range(4)
        }
        if found:
            assert placement.note == ""
            assert placement == place_bottom_up(check(plan, nodes), nodes, seed)
        else:
            assert placement.note.startswith("bottom-up found no room (")
            assert placement.note.endswith(
                "; the optimal strategy found a placement: 16 hops, and no placement has less"
            )


@settings(deadline=None, max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(cases(SCARCE), st.integers(0, 2**32))
def test_where_there_is_a_placement_one_is_found_for_each_seed(small: tuple[Topology, Query], seed: int):
    """Whether there is one is known by trying all."""
    nodes, plan = small
    bound = check(plan, nodes)
    movable = [key for key in bound.operators if key not in bound.pins]
    assume(movable and len(nodes.nodes) ** len(movable) <= 20_000)
    if least(bound, nodes) is None:
        with pytest.raises(NoCapacity, match=r"; [a-z]+ .*node"):
            place(plan, nodes, seed)
        return
    for each in range(seed, seed + 5):
        assert_sound(place(plan, nodes, each), nodes)


def test_what_has_no_room_is_told_with_what_the_rule_met():
    nodes = topology({"A": "B", "B": ""}, {"s": "A", "s#2": "A"}, sink="B", capacity={"A": 1, "B": 0})
    with pytest.raises(NoCapacity) as caught:
        place(CHAIN, nodes)
    assert str(caught.value) == (
        "no placement has room: 2 operators need a slot each, on nodes from their sources to the "
        "sink; these nodes have A:1 (1), and links lead one way only: raise a capacity, or add a "
        "link; filter f: no path from A:1 to B:1 has a free slot; nodes: A:1 (1 of 1 used), B:1 (0 of 0 used)"
    )


def test_when_the_time_is_over_it_is_said_how_long_it_was_and_what_the_rule_met():
    nodes, plan = rivals(4)
    seed = next(seed for seed in SEEDS if not found_by_the_rule(nodes, plan, seed))
    with pytest.raises(NoCapacity, match=r"within 1e-09 s, though one may exist.*; (filter|union) "):
        place(plan, nodes, seed, time_limit_s=1e-9)


def test_a_model_that_would_take_too_much_memory_is_not_built(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("placement.strategies.exact._MOST_VARIABLES", 20)
    nodes, plan = rivals(4)
    seed = next(seed for seed in SEEDS if not found_by_the_rule(nodes, plan, seed))
    with pytest.raises(
        NoCapacity, match=r"though one may exist: there are \d+ pairs of operator and node, more than 20"
    ):
        place(plan, nodes, seed)


@pytest.mark.timed
@pytest.mark.long
def test_a_fleet_of_10_000_nodes_without_room_is_given_up_in_seconds():
    """PL-BIG-1, where the rule finds nothing: the time limit counts for the building of the model, too."""
    full, plan = case(10_000, 300, capacity=0)
    last = len(full.nodes) - 200
    nodes = [
        node.model_copy(update={"capacity": 1 if number >= last else 0})
        for number, node in enumerate(full.nodes)
    ]
    scarce = Topology(logical=full.logical, nodes=tuple(nodes))
    begun = time.process_time()
    with pytest.raises(NoCapacity, match=r"within 0\.5 s, though one may exist: "):
        place_bound(plan, scarce, time_limit_s=0.5)
    assert time.process_time() - begun < 30
