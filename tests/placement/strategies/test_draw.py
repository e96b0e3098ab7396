"""Paths are drawn from those with room, all of them, and from no others."""

from __future__ import annotations

from random import Random

import networkx as nx
from hypothesis import assume, given
from hypothesis import strategies as st

from placement.strategies.paths import Paths


@st.composite
def graphs(draw: st.DrawFn) -> nx.DiGraph:
    count = draw(st.integers(2, 7))
    pairs = [(start, end) for start in range(count) for end in range(start + 1, count)]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)))
    return graph


def paths_with_room(graph: nx.DiGraph, room: list[int], need: int) -> set[tuple[int, ...]]:
    """By listing all paths, which the code under test does not do."""
    target = max(graph)
    return {
        tuple(path)
        for path in nx.all_simple_paths(graph, 0, target)
        if sum(room[node] for node in path[1:]) >= need
    }


@given(graphs(), st.lists(st.integers(0, 2), min_size=7, max_size=7), st.integers(0, 4), st.integers(0, 99))
def test_every_path_with_room_is_drawn_and_no_other(graph: nx.DiGraph, room: list[int], need: int, seed: int):
    """PL-UN-2: the path is chosen at random among those that have room."""
    expected = paths_with_room(graph, room, need)
    assume(len(expected) <= 6)
    assume(nx.has_path(graph, 0, max(graph)))
    paths = Paths(dict(graph.adjacency()), Random(seed))
    drawn = {
        paths.any_with_room(0, max(graph), room.__getitem__, need) for _ in range(200 * len(expected) or 1)
    }
    assert drawn == (expected or {None})


@given(graphs(), st.lists(st.integers(0, 2), min_size=7, max_size=7), st.integers(0, 4), st.integers(0, 99))
def test_shortest_paths_with_room_are_drawn_where_there_are_some(graph, room, need, seed):
    """PL-UN-2: among the shortest paths that have room."""
    assume(nx.has_path(graph, 0, max(graph)))
    hops = nx.shortest_path_length(graph, 0, max(graph))
    expected = {path for path in paths_with_room(graph, room, need) if len(path) == hops + 1}
    assume(len(expected) <= 6)
    paths = Paths(dict(graph.adjacency()), Random(seed))
    drawn = {
        paths.shortest_with_room(0, max(graph), room.__getitem__, need)
        for _ in range(200 * len(expected) or 1)
    }
    assert drawn == (expected or {None})


def test_more_paths_than_could_be_listed_are_no_obstacle():
    """2 ** 600 paths, of which those with room for 450 are drawn."""
    graph = nx.DiGraph()
    for layer in range(600):
        graph.add_edges_from((f"{layer}", f"{layer}{side}") for side in "ab")
        graph.add_edges_from((f"{layer}{side}", f"{layer + 1}") for side in "ab")
    path = Paths(dict(graph.adjacency()), Random(1)).any_with_room(
        "0", "600", lambda node: node.endswith("a"), 450
    )
    assert path is not None
    assert sum(node.endswith("a") for node in path) >= 450
