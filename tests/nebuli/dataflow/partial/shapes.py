"""Graphs in which what is hard happens often, and random runs of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from nebuli.dataflow.partial import Base, PartialNode, View
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    How,
    JoinOperator,
    ProjectOperator,
    UnionOperator,
)
from tests.nebuli.dataflow.partial.drawn_graphs import COLUMNS, change
from tests.nebuli.dataflow.partial.shadowed import Shadowed
from tests.nebuli.dataflow.partial.sharded_shapes import FULL, SHARDED

S, T = Base("s", COLUMNS), Base("t", COLUMNS)
SAME = {name: name for name in "abc"}


def join(id_: str, left: str, right: str, *on: str, kept: str = "", how: How = "inner") -> list[PartialNode]:
    """A join, and a project that gives of its columns a, b and c: those of ``left``, but for ``kept`` of ``right``."""
    columns = {n: n if n in on else f'"{right if n in kept else left}.{n}"' for n in "abc"}
    return [
        JoinOperator(id=f"{id_}j", inputs=(left, right), on=on, how=how),
        ProjectOperator(id=id_, input=f"{id_}j", columns=columns),
    ]


SHAPES: dict[str, list[PartialNode]] = {
    "join read by other columns": [
        S,
        T,
        *join("j", "s", "t", "b", kept="c"),
        View("by_a", "j", ("a",)),
        View("by_b", "j", ("b",)),
        View("by_c", "j", ("c",)),
    ],
    "outer joins": [
        S,
        T,
        *join("l", "s", "t", "b", kept="c", how="left"),
        *join("r", "s", "t", "c", kept="a", how="right"),
        *join("f", "s", "t", "a", kept="c", how="full"),
        View("by_a", "l", ("a",)),
        View("by_b", "l", ("b",)),
        View("right_a", "r", ("a",)),
        View("full_a", "f", ("a",)),
    ],
    "outer joins on outer joins": [
        S,
        T,
        *join("l", "s", "t", "b", kept="c", how="left"),
        *join("k", "l", "t", "a", kept="c", how="left"),
        AggregateOperator(id="n", input="k", by=("b",), aggregates={"m": "count(*)", "c": "max(c)"}),
        View("by_b", "k", ("b",)),
        View("counted", "n", ("b",)),
    ],
    "joins on joins": [
        S,
        T,
        *join("j", "s", "t", "b", kept="c"),
        *join("k", "j", "t", "c", kept="b"),
        View("by_a", "k", ("a",)),
        View("by_c", "k", ("c",)),
    ],
    "views on views": [
        S,
        T,
        View("by_b", "s", ("b",)),
        *join("j", "by_b", "t", "b", kept="c"),
        View("by_ab", "j", ("a", "b")),
        FilterOperator(id="f", input="by_ab", predicate="a > 0"),
        View("by_c", "f", ("c",)),
        View("by_a", "by_c", ("a",)),
    ],
    "unions of unions": [
        S,
        T,
        FilterOperator(id="f", input="s", predicate="a > 0"),
        ProjectOperator(id="p", input="t", columns={"a": "b", "b": "a", "c": "c"}),
        UnionOperator(id="u", inputs=("f", "p")),
        DistinctOperator(id="d", input="s"),
        UnionOperator(id="w", inputs=("u", "d", "s")),
        View("by_a", "w", ("a",)),
        View("by_ab", "w", ("b", "a")),
    ],
    "groups by some of their columns": [
        S,
        T,
        AggregateOperator(id="n", input="s", by=("a", "b"), aggregates={"c": "count(*)"}),
        *join("j", "n", "t", "b", kept="c"),
        View("by_a", "n", ("a",)),
        View("by_b", "n", ("b",)),
        View("joined_a", "j", ("a",)),
    ],
    "one base on both sides of a join": [
        S,
        FilterOperator(id="f", input="s", predicate="b <> 1"),
        ProjectOperator(id="p", input="s", columns={"a": "b", "b": "a", "c": "c"}),
        *join("j", "f", "p", "a", kept="b"),
        AggregateOperator(id="n", input="j", by=("b",), aggregates={"m": "max(c)", "l": "count(DISTINCT c)"}),
        View("by_a", "j", ("a",)),
        View("by_b", "n", ("b",)),
        View("by_c", "j", ("c",)),
    ],
    "one join on both sides of a union": [
        S,
        T,
        *join("j", "s", "t", "b"),
        ProjectOperator(id="p", input="j", columns=SAME),
        UnionOperator(id="u", inputs=("j", "p", "j")),
        AggregateOperator(id="n", input="u", by=("a", "c"), aggregates={"m": "count(*)"}),
        View("by_a", "u", ("a",)),
        View("by_ca", "n", ("c", "a")),
    ],
    **{name: nodes for name, nodes in SHARDED.items() if name != FULL},
}


def run(
    nodes: list[PartialNode], seed: int, actions: int = 60, graph: Callable[..., Shadowed] = Shadowed
) -> None:
    """Write, read, evict and move at random; every state is scanned after each of it, and all is right at the end."""
    draw = random.Random(seed)
    running = graph(nodes)
    views = [node for node in nodes if isinstance(node, View)]
    for _ in range(actions):
        action = draw.choices(["write", "read", "evict", "move", "rest"], [3, 3, 1, 8, 0.3])[0]
        if action == "write":
            base = draw.choice(sorted(running.bases))
            there = sorted(running.bases[base], key=str)
            rows = [
                ((draw.randrange(3), draw.randrange(3), draw.randrange(3)), 1)
                for _ in range(draw.randrange(3))
            ]
            if there and draw.random() < 0.6:
                rows.append((draw.choice(there), -1))
            running.write(base, change(rows))
        elif action == "read":
            view = draw.choice(views)
            running.read(view.id, [tuple(draw.randrange(3) for _ in view.key)])
        elif action == "evict":
            there = [
                (place, rows.present.all()[0]) for place, rows in running.partial.items() if len(rows.present)
            ]
            if there:
                place, keys = draw.choice(there)
                running.evict(place, keys.slice(draw.randrange(keys.num_rows), 1))
        elif action == "rest":
            running.drain()
            running.check_at_rest()
        elif moves := running.moves():
            running.step(draw.choice(moves))
        running.scan()
    running.drain()
    running.check_at_rest()
