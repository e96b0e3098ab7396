"""Small cases, in every order that their messages can be taken in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow import WEIGHT
from nebuli.dataflow.partial import (
    Base,
    Data,
    Eviction,
    Filled,
    PartialNode,
    Place,
    Response,
    Upquery,
    View,
)
from nebuli.dataflow.partial.graph_node import GraphNode, Waiting
from nebuli.dataflow.partial.grouping_node import _Groups
from nebuli.dataflow.partial.join_node import _HeldUp
from nebuli.dataflow.partial.key_sets import tuples_of
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.partial.shard_nodes import shards_of
from nebuli.dataflow.partial.union_node import _Gathering
from placement.plan import AggregateOperator, JoinOperator, ProjectOperator, UnionOperator
from tests.nebuli.dataflow.partial.drawn_graphs import COLUMNS, change
from tests.nebuli.dataflow.partial.reference import contents
from tests.nebuli.dataflow.partial.shadowed import Shadowed
from tests.nebuli.dataflow.partial.shapes import join
from tests.nebuli.dataflow.partial.sharded_shapes import in_shards, into

S, T = Base("s", COLUMNS), Base("t", COLUMNS)
Action = Callable[[Shadowed], object]


def writes(base: str, *rows: tuple[tuple[int, int, int], int]) -> Action:
    return lambda graph: graph.write(base, change(rows))


def reads(view: str, *key: int) -> Action:
    return lambda graph: graph.read(view, [key])


def evicts(place: Place) -> Action:
    """All that is there when it comes to it."""
    return lambda graph: graph.evict(place, graph.partial[place].present.all()[0])


def every_order(
    nodes: Sequence[PartialNode], before: Sequence[Action], actions: Sequence[Action]
) -> Iterator[tuple[Shadowed, list[Filled]]]:
    """Each end of a graph that is given ``actions`` in their order, between them any moves; all of it is scanned.

    Choices are numbers among what can be done next. Where a run comes to what another one has come to, it ends there.
    """
    choices: list[list[int]] = [[]]
    known: set[Any] = set()
    while choices:
        chosen = choices.pop()
        graph, taken, filled = _begun(nodes, before), 0, list[Filled]()
        for choice in chosen:
            moves = graph.moves()
            if choice == len(moves):
                actions[taken](graph)
                taken += 1
            else:
                filled += graph.step(moves[choice])
        graph.scan()
        now = (
            taken,
            seen(filled),
            *map(seen, (graph._up, graph._down, graph.nodes, graph.inputs, graph.ideal)),
        )
        if now in known:
            continue
        known.add(now)
        options = len(graph.moves()) + (taken < len(actions))
        choices += [[*chosen, choice] for choice in range(options)]
        if not options:
            graph.check_at_rest()
            yield graph, filled


def seen(value: Any) -> Any:
    """All that counts of a state, as something that can be compared."""
    match value:
        case pa.RecordBatch():
            return (
                frozenset(contents(value).items())
                if WEIGHT in value.schema.names
                else tuple(tuples_of(value))
            )
        case KeyedRows():
            return seen(value.all()), frozenset(tuples_of(value.present.all()[0]))
        case dict():
            return frozenset((key, seen(each)) for key, each in value.items() if each)
        case set():
            return frozenset(value)
        case list() | tuple() | deque():
            return tuple(map(seen, value))
        case GraphNode() | Waiting():
            fixed = ("paths", "schema", "_types", "_by", "_shards")
            own = {name: each for name, each in vars(value).items() if name not in fixed}
            return seen(own)
        case Data() | Response() | Eviction() | Upquery() | Filled():
            return type(value).__name__, *(seen(getattr(value, each.name)) for each in fields(value))
        case _Groups() | _Gathering() | _HeldUp():
            return seen({name: each for name, each in vars(value).items() if name != "operator"})
    return value if isinstance(value, int | str | None) else None


def _begun(nodes: Sequence[PartialNode], before: Sequence[Action]) -> Shadowed:
    graph = Shadowed(nodes)
    for action in before:
        action(graph)
        graph.drain()
    return graph


def test_changes_around_the_two_answers_of_a_union() -> None:
    """PS-MA-3: what comes of an input after its piece is added, and what comes before is in it: each counts once."""
    nodes = [S, T, UnionOperator(id="u", inputs=("s", "t")), View("v", "u", ("a",))]
    before = [writes("s", ((1, 0, 0), 1)), writes("t", ((1, 0, 1), 1))]
    actions = [reads("v", 1), writes("s", ((1, 1, 0), 1)), writes("t", ((1, 1, 1), 1), ((1, 0, 1), -1))]
    for graph, filled in every_order(nodes, before, actions):
        assert len(filled) == 1
        assert contents(graph.read("v", [(1,)]).rows) == {(1, 0, 0): 1, (1, 1, 0): 1, (1, 1, 1): 1}


def test_changes_around_a_response_on_one_edge() -> None:
    """PS-INV-3: all that was sent before a response is in it, and nothing that is sent after."""
    nodes = [S, View("v", "s", ("a",))]
    before = [writes("s", ((1, 0, 0), 1))]
    actions = [
        writes("s", ((1, 1, 1), 1)),
        reads("v", 1),
        writes("s", ((1, 2, 2), 1), ((1, 0, 0), -1)),
        writes("s", ((1, 1, 1), -1)),
    ]
    answers = set()
    for graph, filled in every_order(nodes, before, actions):
        answers.add(frozenset(contents(filled[0].rows)))
        assert contents(graph.read("v", [(1,)]).rows) == {(1, 2, 2): 1}
    one, two, three = (1, 0, 0), (1, 1, 1), (1, 2, 2)
    assert answers == {frozenset({one, two}), frozenset({two, three}), frozenset({three})}


def test_a_row_that_changes_its_join_key_while_it_is_read() -> None:
    """PS-ID-1, PS-DU-3: in whatever order, it is never seen with the other side of the key that it had."""
    nodes = [S, T, *join("j", "s", "t", "b", kept="c"), View("v", "j", ("a",))]
    before = [writes("s", ((7, 1, 0), 1)), writes("t", ((0, 1, 1), 1), ((0, 2, 2), 1)), reads("v", 7)]
    actions = [writes("s", ((7, 1, 0), -1), ((7, 2, 0), 1)), reads("v", 7)]
    for graph, _ in every_order(nodes, before, actions):
        graph.read("v", [(7,)])
        graph.drain()
        assert contents(graph.read("v", [(7,)]).rows) == {(7, 2, 2): 1}


def test_an_eviction_of_one_piece_of_a_union_while_the_other_is_waited_for() -> None:
    """PS-EV-1, PS-MA-2: the piece that was evicted is asked for again."""
    nodes = [
        S,
        T,
        AggregateOperator(id="n", input="s", by=("a", "b"), aggregates={"c": "count(*)"}),
        UnionOperator(id="u", inputs=("n", "t")),
        View("v", "u", ("a",)),
    ]
    before = [writes("s", ((1, 0, 0), 1)), writes("t", ((1, 5, 5), 1))]
    actions = [reads("v", 1), evicts(Place("n", ("a",))), writes("s", ((1, 0, 1), 1))]
    for graph, filled in every_order(nodes, before, actions):
        assert len(filled) == 1
        graph.read("v", [(1,)])
        graph.drain()
        assert contents(graph.read("v", [(1,)]).rows) == {(1, 0, 2): 1, (1, 5, 5): 1}


def test_one_base_on_both_sides_of_a_join() -> None:
    """PS-INV-1: a change comes to the join by two edges, at any two moments, and each counts once in the end."""
    nodes = [
        S,
        ProjectOperator(id="p", input="s", columns={"a": "b", "b": "a", "c": "c"}),
        JoinOperator(id="j", inputs=("s", "p"), on=("a",)),
        View("v", "j", ("s.b",)),
    ]
    before = [writes("s", ((1, 0, 0), 1), ((0, 1, 1), 1)), reads("v", 0)]
    actions = [writes("s", ((1, 0, 0), -1), ((1, 2, 2), 1), ((2, 1, 2), 1)), reads("v", 0)]
    for graph, _ in every_order(nodes, before, actions):
        graph.read("v", [(0,), (2,)])
        graph.drain()
        graph.check_at_rest()


def test_the_first_match_of_a_row_and_its_last_while_it_is_read() -> None:
    """PS-MA-5: in whatever order, the row is there once: with a match or without, and never with both."""
    nodes = [S, T, *join("j", "s", "t", "b", kept="c", how="left"), View("v", "j", ("a",))]
    alone, matched = (7, 1, None), (7, 1, 5)
    for there, comes, right in (([], 1, matched), ([((0, 1, 5), 1)], -1, alone)):
        before = [writes("s", ((7, 1, 0), 1)), writes("t", *there)]
        actions = [writes("t", ((0, 1, 5), comes)), reads("v", 7), evicts(Place("v", ("a",)))]
        for graph, filled in every_order(nodes, before, actions):
            for each in filled:
                assert contents(each.rows) in ({alone: 1}, {matched: 1})
            graph.read("v", [(7,)])
            graph.drain()
            assert contents(graph.read("v", [(7,)]).rows) == {right: 1}


@pytest.mark.long
def test_a_narrow_answer_between_changes_and_an_eviction() -> None:
    """PS-EX-2, PS-INV-3, PS-EV-1: it is a snapshot of its shard's edge, whatever comes of the other meanwhile."""
    nodes = in_shards(
        [
            S,
            AggregateOperator(
                id="n", input="s", by=("a", "b"), aggregates={"c": "count(*)"}, shard=into(2, "a")
            ),
            View("v", "n", ("a",)),
        ]
    )
    here, there = _two_keys_of_different_shards()
    before = [writes("s", ((here, 0, 0), 1), ((there, 0, 0), 1)), reads("v", there)]
    actions = [
        reads("v", here),
        writes("s", ((here, 0, 1), 1), ((there, 0, 1), 1)),
        evicts(Place(f"n>{_shard_of(here)}", ("a",))),
    ]
    for graph, filled in every_order(nodes, before, actions):
        assert len(filled) == 1
        graph.read("v", [(here,), (there,)])
        graph.drain()
        assert contents(graph.read("v", [(here,), (there,)]).rows) == {(here, 0, 2): 1, (there, 0, 2): 1}


def _shard_of(key: int) -> int:
    return int(shards_of([pa.array([key])], 1, 2)[0])


def _two_keys_of_different_shards() -> tuple[int, int]:
    return next((0, other) for other in range(100) if _shard_of(other) != _shard_of(0))
