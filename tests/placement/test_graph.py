"""The shape of queries, beside a search that tries everything."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from placement.graph import Outline, bottom_up, shape_mistakes

IDS = "abcdef"
EDGES = st.fixed_dictionaries(dict.fromkeys(IDS, st.lists(st.sampled_from(IDS), max_size=3)))
"""By operator: its inputs."""


def outlines(inputs: Mapping[str, list[str]]) -> list[Outline]:
    """Unions of these, and a sink above each."""
    of_unions = [
        Outline(("u", key), key, "union", tuple((("i", n), child) for n, child in enumerate(children)))
        for key, children in inputs.items()
    ]
    return of_unions + [Outline(("s", key), f"s{key}", "sink", ((("i",), key),)) for key in inputs]


def below(inputs: Mapping[str, list[str]], start: str) -> set[str]:
    """All that an operator reads, however far down."""
    found: set[str] = set()
    while more := {child for key in (start, *found) for child in inputs[key]} - found:
        found |= more
    return found


@given(EDGES)
def test_exactly_cycles_are_refused_and_what_is_called_one_is_one(inputs: dict[str, list[str]]) -> None:
    said = [message for _, message in shape_mistakes(outlines(inputs))]
    assert bool(said) == any(key in below(inputs, key) for key in IDS)
    for message in said:
        assert message.startswith("operators form a cycle: ")
        path = message.split(": ")[1].split(";")[0].split(" -> ")
        assert path[0] == path[-1]
        assert all(child in inputs[key] for child, key in pairwise(path))


@given(EDGES, st.lists(st.sampled_from(IDS), min_size=1, max_size=3))
def test_each_operator_comes_once_and_after_its_inputs(
    inputs: dict[str, list[str]], roots: list[str]
) -> None:
    acyclic = {key: [child for child in children if child < key] for key, children in inputs.items()}
    order = bottom_up(acyclic, *roots)
    assert sorted(order) == sorted(set(roots).union(*(below(acyclic, root) for root in roots)))
    for index, key in enumerate(order):
        assert set(acyclic[key]) <= set(order[:index])
