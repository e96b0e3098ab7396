"""Circuits in steps: what comes out of a step is what brute force says, however rows are dealt out to members."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nebuli.dataflow.dealing import Change, Members, Rows, rows_of
from tests.nebuli.dataflow.graphs import (
    SOURCES,
    Graph,
    accumulated,
    difference,
    graphs,
    steps,
)
from tests.support.sizes import examples

SPREADS = st.sampled_from([SOURCES, SOURCES[:1], ()])


def check(
    graph: Graph, all_steps: list[dict[str, Change]], members: int, spread: tuple[str, ...], seed: int
) -> None:
    """Every step of so many members, and of one, is the difference that brute force makes."""
    several = Members(graph.plan(members, spread), seed, spread)
    alone = Members(graph.plan(1), seed, SOURCES)
    inputs: dict[str, Rows] = {source: Counter() for source in SOURCES}
    outputs: dict[str, Rows] = {sink: Counter() for sink in graph.sinks}
    for step in all_steps:
        inputs = accumulated(inputs, step)
        before, outputs = outputs, graph.outputs(inputs)
        wanted = {sink: difference(outputs[sink], before[sink]) for sink in outputs}
        for given_ in (several.step(step), alone.step(step)):
            assert {sink: rows_of(batch) for sink, batch in given_.items()} == wanted


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), steps(), st.integers(1, 4), SPREADS, st.integers(0, 1000))
def test_random_graphs_are_what_brute_force_says(
    graph: Graph, all_steps: list[dict[str, Change]], members: int, spread: tuple[str, ...], seed: int
) -> None:
    """DBSP-DIST-2, DBSP-DIST-4."""
    check(graph, all_steps, members, spread, seed)
