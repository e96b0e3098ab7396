"""Shards below a view: which are asked, who gets the answer, and how many messages that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nebuli.dataflow.partial import Edge, PartialNode, Place, View, planned
from nebuli.dataflow.partial.graph_node import GraphNode
from nebuli.dataflow.partial.shard_nodes import MergerNode, SharderNode
from nebuli.dataflow.partial.union_node import UnionNode
from placement.errors import UnfitNodes
from placement.plan import AggregateOperator, FilterOperator, MergerOperator, SharderOperator
from tests.nebuli.dataflow.partial.library import Library
from tests.nebuli.dataflow.partial.reference import from_scratch
from tests.nebuli.dataflow.partial.shadowed import Shadowed
from tests.nebuli.dataflow.partial.shapes import run
from tests.nebuli.dataflow.partial.sharded_shapes import SHARDED, WHOLE, S, distinct, in_shards, into

MESSAGES = ("Upquery", "Response", "Eviction")
ROWS = [(a, b, c) for a in range(6) for b in range(4) for c in range(2)]


def sums(id_: str, input_: str, *by: str, **shard: Any) -> AggregateOperator:
    return AggregateOperator(id=id_, input=input_, by=by, aggregates={"n": "count(*)"}, **shard)


def filled(nodes: list[PartialNode]) -> Library:
    graph = Library(*nodes)
    graph.give("s", *ROWS)
    graph.drain()
    graph.sent.clear()
    return graph


def through(graph: Library, *nodes: str) -> Counter[tuple[str, str]]:
    """How many upqueries, responses and evictions came into, or went out of, each of some nodes."""
    found: Counter[tuple[str, str]] = Counter()
    for (edge, kind), count in graph.sent.items():
        if kind in MESSAGES:
            found.update({(id_, kind): count for id_ in {edge.producer, edge.consumer} & set(nodes)})
    return found


def in_three() -> list[PartialNode]:
    """Groups by a and b, divided into three shards by a."""
    return in_shards(
        [
            S,
            sums("n", "s", "a", "b", shard=into(3, "a")),
            View("by_a", "n", ("a",)),
            View("by_ab", "n", ("b", "a")),
            View("by_b", "n", ("b",)),
        ]
    )


def one_shard_is_asked() -> None:
    shards = ("n>0", "n>1", "n>2")
    asked = Counter[str]()
    for view, key, rows in (
        *(("by_a", a, {(a, b, 2): 1 for b in range(4)}) for a in range(6)),
        *(("by_ab", (b, a), {(a, b, 2): 1}) for a in range(6) for b in range(4)),
    ):
        graph = filled(in_three())
        assert graph.rows(view, key) == rows
        found = through(graph, *shards)
        (shard,) = {id_ for id_, _ in found}
        assert found == {(shard, "Upquery"): 2, (shard, "Response"): 2}, "in and out of one shard alone"
        asked[shard] += 1
        graph.sent.clear()
        assert graph.rows(view, key) == rows
        assert not graph.sent
    assert set(asked) == set(shards)


def test_who_asks_by_what_divides_shards_asks_one_of_them() -> None:
    """PS-EX-2: one upquery and one response, also where more columns are asked for; the others hear nothing."""
    one_shard_is_asked()


def test_keys_that_are_asked_for_together_go_each_to_its_shard() -> None:
    """PS-EX-2, PS-UQ-3: an upquery for each shard with its own keys, and all of them are answered."""
    graph = filled(in_three())
    assert graph.rows("by_a", *range(6)) == {(a, b, 2): 1 for a in range(6) for b in range(4)}
    assert graph.sent_as("Upquery", *(Edge(f"n>{shard}", "n", shard) for shard in range(3))) == 3
    held = [{row[0] for row in from_each(graph, f"n>{shard}")} for shard in range(3)]
    assert sorted(a for some in held for a in some) == list(range(6))


def from_each(graph: Library, node: str) -> list[tuple[int, ...]]:
    rows = next(iter(graph.nodes[node].kept.values())).all()
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def test_an_answer_of_one_shard_does_not_wait_for_others() -> None:
    """PS-EX-2: the merger keeps nothing of it, while it keeps the pieces of a key that may be in any shard."""
    graph = filled(in_three())
    reading = [graph.read("by_b", [(1,)]), graph.read("by_a", [(4,)])]
    assert all(each.missing.num_rows for each in reading)
    edges = {Edge(f"n>{shard}", "n", shard) for shard in range(3)}
    stuck = {edge for edge in edges if not _asks(edge, "by_a")}
    told = []
    while moves := [move for move in graph.moves() if getattr(move, "edge", None) not in stuck]:
        told += graph.step(moves[0])
    assert [each.view for each in told] == ["by_a"]
    merger = graph.nodes["n"]
    assert isinstance(merger, MergerNode)
    assert merger.state_bytes > 0  # of b = 1, the pieces that are there
    assert [each.view for each in graph.drain()] == ["by_b"]


def _asks(edge: Edge, view: str) -> bool:
    """Whether the key that a view is read for is asked for on an edge, in a graph beside this one."""
    other = filled(in_three())
    other.read(view, [(4,)])
    other.drain()
    return other.sent_as("Upquery", edge) == 1


def test_who_asks_by_other_columns_asks_all_shards() -> None:
    """PS-EX-2, PS-MA-1: each once, and their pieces are one response."""
    graph = filled(in_three())
    assert graph.rows("by_b", 3) == {(a, 3, 2): 1 for a in range(6)}
    found = through(graph, "n>0", "n>1", "n>2")
    assert found == {(f"n>{shard}", kind): 2 for shard in range(3) for kind in ("Upquery", "Response")}
    assert graph.sent_as("Response", Edge("n", "by_b", 0)) == 1


def the_others_hear_nothing() -> None:
    """By c, which divides no shard: each shard of e asks for it, and gets its own rows of it."""
    nodes = in_shards(
        [S, distinct("d", "s", into(2, "a")), distinct("e", "d", into(3, "b")), View("v", "e", ("c",))]
    )
    graph = filled(nodes)
    alone = Place("e>1", ("c",))
    graph.read("v", [(0,)])
    graph.drain()
    graph.forget(alone, 0)
    graph.sent.clear()
    assert graph.rows("v", 0) == {row: 1 for row in ROWS if row[2] == 0}
    for shard in range(2):
        assert graph.sent_as("Response", Edge(f"d>{shard}>shard", "d>to>1", shard)) == 1
        for other in (0, 2):
            assert graph.sent_as("Response", Edge(f"d>{shard}>shard", f"d>to>{other}", shard)) == 0
    assert {row[1] for row in from_each(graph, "e>1")}.isdisjoint(row[1] for row in from_each(graph, "e>0"))


def test_an_answer_goes_to_the_shard_that_has_asked() -> None:
    """PS-EX-2: the last sharder gives it its rows, and the others neither wait for it nor get anything."""
    the_others_hear_nothing()


def test_an_eviction_goes_to_the_shard_that_can_have_the_key() -> None:
    """PS-EX-2, PS-EV-1."""
    nodes = in_shards(
        [S, sums("n", "s", "a", "b"), sums("m", "n", "a", shard=into(3)), View("v", "m", ("a",))]
    )
    graph = filled(nodes)
    graph.rows("v", 0, 1, 2, 3, 4, 5)
    graph.sent.clear()
    graph.forget(Place("n", ("a",)), 4)
    assert graph.sent_as("Eviction", *(Edge("n>shard", f"m>{shard}", 0) for shard in range(3))) == 1
    assert [graph.has("v", key) for key in range(6)] == [True, True, True, True, False, True]


def test_operators_that_are_divided_alike_ask_within_their_shard() -> None:
    """PS-EX-2: same sharding, so there is nothing between; of two levels each has one upquery for a key."""
    nodes = in_shards(
        [
            S,
            sums("n", "s", "a", "b", shard=into(3, "a")),
            sums("m", "n", "a", shard=into(3)),
            View("v", "m", ("a",)),
        ]
    )
    assert [each.id for each in nodes if isinstance(each, SharderOperator | MergerOperator)] == [
        "s>shard",
        "m",
    ]
    graph = filled(nodes)
    assert graph.rows("v", 2) == {(2, 4): 1}
    (shard,) = {id_[-1] for id_, _ in through(graph, *(f"{op}>{n}" for op in "nm" for n in range(3)))}
    asked = {edge: count for (edge, kind), count in graph.sent.items() if kind == "Upquery"}
    assert asked == {
        Edge("m", "v", 0): 1,
        Edge(f"m>{shard}", "m", int(shard)): 1,
        Edge(f"n>{shard}", f"m>{shard}", 0): 1,
        Edge("s>shard", f"n>{shard}", 0): 1,
        Edge("s", "s>shard", 0): 1,
    }


def test_an_upquery_across_many_reshuffles_is_answered_once() -> None:
    """PS-EX-1: by a column that divides none of them: on each edge one message of each path, and one answer at the end.

    Four levels of three shards have 81 ways from the base to the view, and 9 edges from each level to the next.
    """
    nodes: list[PartialNode] = [S]
    for level, by in enumerate("abab"):
        nodes.append(distinct(f"d{level}", nodes[-1].id, into(3, by)))
    graph = filled(in_shards([*nodes, View("v", "d3", ("c",))]))
    assert graph.rows("v", 1) == {row: 1 for row in ROWS if row[2] == 1}
    for kind in ("Upquery", "Response"):
        into_level = [
            graph.sent_as(
                kind, *(edge for edge in graph.plan.edges if edge.consumer.startswith(f"d{level}>to>"))
            )
            for level in range(3)
        ]
        assert into_level == [9, 9, 9]
        assert graph.sent_as(kind, Edge("d3", "v", 0)) == 1
        assert graph.sent_as(kind) <= 3 * len(graph.plan.edges)


def test_narrow_upqueries_cross_reshuffles_by_the_columns_of_each() -> None:
    """PS-EX-1, PS-EX-2: the one shard of e that has the key asks all of d; by both columns it asks one there, too."""
    nodes = in_shards(
        [
            S,
            distinct("d", "s", into(3, "a")),
            distinct("e", "d", into(2, "b")),
            View("by_b", "e", ("b",)),
            View("by_ab", "e", ("a", "b")),
        ]
    )
    graph = filled(nodes)
    assert graph.rows("by_b", 1) == {row: 1 for row in ROWS if row[1] == 1}
    assert len(through(graph, "e>0", "e>1")) == 2
    assert len(through(graph, "d>0", "d>1", "d>2")) == 6
    graph = filled(nodes)
    assert graph.rows("by_ab", (5, 2)) == {row: 1 for row in ROWS if row[:2] == (5, 2)}
    assert len(through(graph, "e>0", "e>1")) == len(through(graph, "d>0", "d>1", "d>2")) == 2


@pytest.mark.parametrize("name", SHARDED)
def test_a_query_in_shards_says_what_it_says_without(name: str) -> None:
    """PS-INV-1, PS-EX-2: whatever is written, read and evicted, and in whatever order it moves; all is scanned."""
    for seed in range(6):
        graphs: list[Shadowed] = []

        def begun(nodes: list[PartialNode], graphs: list[Shadowed] = graphs) -> Shadowed:
            graphs.append(Shadowed(nodes))
            return graphs[0]

        run(SHARDED[name], seed, actions=80, graph=begun)
        right = from_scratch(planned(WHOLE[name]), graphs[0].bases)
        for view in (node.id for node in WHOLE[name] if isinstance(node, View)):
            assert graphs[0].outputs[view] == right[view]


def test_what_needs_all_rows_and_is_added_below_shards_gets_them() -> None:
    """PS-UQ-6: each row once, though what the shards have given is told from what is above the sharder."""
    nodes: list[PartialNode] = [
        S,
        sums("n", "s", "a", "b"),
        View("full", "n", ("n",)),
        SharderOperator(id="n>shard", input="n", by=("a",), shards=("f>0", "f>1")),
        *(FilterOperator(id=f"f>{shard}", input="n>shard", predicate="b <> 1") for shard in (0, 1)),
        MergerOperator(id="f", inputs=("f>0", "f>1"), by=("a",)),
    ]
    graph = filled(nodes)
    graph.add([View("later", "f", ("n",))])
    graph.drain()
    assert graph.rows("later", 2) == {(a, b, 2): 1 for a in range(6) for b in (0, 2, 3)}


def ask_all_shards(patch: pytest.MonkeyPatch) -> None:
    """A merger that is no more than a union."""
    patch.setattr(MergerNode, "add", UnionNode.add)


def answer_all_shards(patch: pytest.MonkeyPatch) -> None:
    """A sharder that lets all shards know."""
    respond = SharderNode.respond

    def everywhere(node: SharderNode, port: int, response: Any) -> Any:
        sent = list(respond(node, port, response))
        (own,) = sent
        others = [edge for edge in node.outputs if edge != own.edge]
        return [*sent, *(type(own)(edge, own.message) for edge in others)]

    patch.setattr(SharderNode, "respond", everywhere)
    taken = GraphNode.receive

    def receive(node: GraphNode, port: int, message: Any) -> Any:
        """What is for somebody else is dropped."""
        number = getattr(message, "path", None)
        if number is not None and all(edge.consumer != node.id for edge in node.paths[number].edges):
            return iter(())
        return taken(node, port, message)

    patch.setattr(GraphNode, "receive", receive)


@pytest.mark.parametrize(
    ("take_out", "is_narrow"),
    [(ask_all_shards, one_shard_is_asked), (answer_all_shards, the_others_hear_nothing)],
)
def test_without_narrow_upqueries_the_rows_are_right_and_the_messages_too_many(
    take_out: Callable[[pytest.MonkeyPatch], None], is_narrow: Callable[[], None]
) -> None:
    """What the counts above are worth."""
    with pytest.MonkeyPatch.context() as patch:
        take_out(patch)
        run(SHARDED["rows divided anew again and again"], 1)
        with pytest.raises((AssertionError, ValueError)):
            is_narrow()


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            [S, SharderOperator(id="x", input="s", by=("z",), shards=("p", "q"))],
            "divided by the unknown column 'z'; expected one of a, b, c",
        ),
        (
            [S, SharderOperator(id="x", input="s", by=("a",), shards=("p", "q")), View("v", "x", ("a",))],
            "which sends rows only to p, q",
        ),
        (
            [S, sums("n", "s", "a"), MergerOperator(id="m", inputs=("s", "n"))],
            "different columns; expected shards of one operator",
        ),
    ],
)
def test_shards_that_do_not_fit(nodes: list[PartialNode], said: str) -> None:
    with pytest.raises(UnfitNodes, match=said):
        planned(nodes)
