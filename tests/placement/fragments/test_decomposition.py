"""Fragments and channels: the source document's example, and the way back to the plan."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from placement import NoCapacity, Placement, Query, decompose, place, with_deployment
from placement.plan import Fragment, NetworkSink, NetworkSource
from tests.support.cases import cases
from tests.support.documents import CHAIN, JOIN, op, query, topology
from topology import Topology
from topology.graph import link_graph


def shape(fragments: tuple[Fragment, ...]) -> list[tuple[str, str]]:
    return [(f.node, " ".join(f"{each.type}:{each.id}" for each in f.operators)) for f in fragments]


def test_the_documents_join_is_three_fragments_and_two_channels():
    """PL-DEC-1"""
    nodes = topology({"1": "3", "2": "3", "3": ""}, {"one": "1", "two": "2"}, sink="3")
    cut = decompose(place(JOIN, nodes))
    assert shape(cut.fragments) == [
        ("1:1", "source:source1 filter:filter1 network_sink:filter1>"),
        ("2:1", "source:source2 filter:filter2 network_sink:filter2>"),
        ("3:1", "network_source:filter1 network_source:filter2 join:join sink:sink"),
    ]
    assert [(c.id, c.operator, c.start, c.end) for c in cut.channels] == [
        ("q/filter1>join", "filter1", "1:1", "3:1"),
        ("q/filter2>join", "filter2", "2:1", "3:1"),
    ]
    sink, source = cut.fragments[0].operators[-1], cut.fragments[2].operators[0]
    assert isinstance(sink, NetworkSink)
    assert isinstance(source, NetworkSource)
    assert (sink.channel, sink.address) == (source.channel, source.address) == ("q/filter1>join", "3:1")
    assert [column.name for column in source.columns] == ["k", "v"]


def test_crossed_nodes_forward_the_stream_in_bridges_of_no_capacity():
    """PL-DEC-2: one bridge per channel, and a channel of its own for each link."""
    links = {"A": "B", "B": "C", "C": "D", "D": ""}
    nodes = topology(links, {"s": "A"}, sink="D", capacity={"A": 1, "B": 0, "C": 0, "D": 0})
    cut = decompose(place(CHAIN, nodes))
    assert shape(cut.fragments) == [
        ("A:1", "source:s filter:f network_sink:f>"),
        ("B:1", "network_source:f network_sink:f>"),
        ("C:1", "network_source:f network_sink:f>"),
        ("D:1", "network_source:f sink:out"),
    ]
    assert [(c.id, c.start, c.end) for c in cut.channels] == [
        ("q/f>out#0", "A:1", "B:1"),
        ("q/f>out#1", "B:1", "C:1"),
        ("q/f>out#2", "C:1", "D:1"),
    ]
    assert len({fragment.id for fragment in cut.fragments}) == 4


def test_placing_twice_gives_the_same_text_and_deploying_twice_shares_no_channel():
    """PL-DEC-3"""
    nodes = topology({"1": "3", "2": "3", "3": ""}, {"one": "1", "two": "2"}, sink="3")
    cut = decompose(place(JOIN, nodes, seed=3))
    assert cut == decompose(place(JOIN, nodes, seed=3))

    first, second = (with_deployment(cut.fragments, deployment) for deployment in ("d1", "d2"))
    assert channel_ids(first) == {"d1/q/filter1>join", "d1/q/filter2>join"}
    assert not channel_ids(first) & channel_ids(second)
    assert [fragment.id for fragment in first] == [fragment.id for fragment in cut.fragments]


def test_long_ids_make_channel_names_that_still_differ_and_leave_room_for_a_deployment():
    long = "f" * 199
    chain = query(
        op("source", "s", logical="s"),
        op("filter", f"{long}1", input="s", predicate="k > 0"),
        op("filter", f"{long}2", input=f"{long}1", predicate="k > 0"),
        op("sink", "out", input=f"{long}2", sink="out"),
    )
    nodes = topology({"A": "B", "B": "C", "C": ""}, {"s": "A"}, sink="C", capacity={"A": 1, "B": 1})
    ids = [channel.id for channel in decompose(place(chain, nodes)).channels]
    assert len(set(ids)) == 2
    assert max(map(len, ids)) <= 200


def channel_ids(fragments: tuple[Fragment, ...]) -> set[str]:
    network = (
        each for f in fragments for each in f.operators if isinstance(each, NetworkSink | NetworkSource)
    )
    return {each.channel for each in network}


@given(cases(), st.integers(0, 2**32))
def test_without_the_network_pairs_the_fragments_are_the_placed_plan(case: tuple[Topology, Query], seed: int):
    """PL-DEC-1, PL-DEC-2, PL-DEC-4: over random trees and topologies."""
    nodes, plan = case
    placement = placed(plan, nodes, seed)
    cut = decompose(placement)
    bridges = [
        f for f in cut.fragments if all(isinstance(e, NetworkSource | NetworkSink) for e in f.operators)
    ]

    assert joined(cut.fragments) == dict(placement.plan.operators)
    assert {
        operator.id: fragment.node
        for fragment in cut.fragments
        for operator in fragment.operators
        if not isinstance(operator, NetworkSource | NetworkSink)
    } == placement.nodes
    crossing = [path for path in placement.paths.values() if len(path) > 1]
    assert len(cut.fragments) - len(bridges) == len(crossing) + 1
    assert len(bridges) == sum(len(path) - 2 for path in crossing)
    assert len({fragment.id for fragment in cut.fragments}) == len(cut.fragments)


@given(cases(), st.integers(0, 2**32))
def test_every_channel_is_one_link_with_a_sink_and_a_source_at_its_ends(case, seed):
    """PL-DEC-1, PL-DEC-2"""
    nodes, plan = case
    cut = decompose(placed(plan, nodes, seed))
    links = set(link_graph(nodes).edges)
    ends = [
        (type(operator), operator.channel, fragment.node, operator.address)
        for fragment in cut.fragments
        for operator in fragment.operators
        if isinstance(operator, NetworkSource | NetworkSink)
    ]
    expected = [(NetworkSink, c.id, c.start, c.end) for c in cut.channels]
    expected += [(NetworkSource, c.id, c.end, c.end) for c in cut.channels]
    assert Counter(ends) == Counter(expected)
    assert len({channel.id for channel in cut.channels}) == len(cut.channels)
    assert all((channel.start, channel.end) in links for channel in cut.channels)


@given(cases(), st.integers(0, 2**32))
def test_fragments_are_complete_plans_that_survive_json(case, seed):
    """Every input is in the fragment, before what reads it, and read once; only the root is not read."""
    nodes, plan = case
    for fragment in decompose(placed(plan, nodes, seed)).fragments:
        *inner, root = [operator.id for operator in fragment.operators]
        read = [child for operator in fragment.operators for child in operator.children]
        assert sorted(read) == sorted(inner)
        assert root not in read
        for index, operator in enumerate(fragment.operators):
            assert set(operator.children) <= {before.id for before in fragment.operators[:index]}
        assert Fragment.model_validate_json(fragment.model_dump_json(by_alias=True)) == fragment


def placed(plan: Query, nodes: Topology, seed: int) -> Placement:
    try:
        return place(plan, nodes, seed)
    except NoCapacity:
        assume(False)
        raise


def joined(fragments: tuple[Fragment, ...]) -> dict[str, object]:
    """The operators, with each network source replaced by what its channel, or chain of channels, comes from."""
    writers = {e.channel: (f, e.input) for f in fragments for e in f.operators if isinstance(e, NetworkSink)}

    def origin(fragment: Fragment, key: str) -> str:
        operator = next(each for each in fragment.operators if each.id == key)
        return origin(*writers[operator.channel]) if isinstance(operator, NetworkSource) else key

    plan: dict[str, object] = {}
    for fragment in fragments:
        for operator in fragment.operators:
            if isinstance(operator, NetworkSource | NetworkSink):
                continue
            children = tuple(origin(fragment, child) for child in operator.children)
            field = {"inputs": children} if hasattr(operator, "inputs") else {"input": "".join(children)}
            plan[operator.id] = operator.model_copy(update=field if children else {})
    return plan
