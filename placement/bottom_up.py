"""Bottom-up placement, after the source document's section on planning.

The rule
    Sources and the sink are pinned, and use no capacity; every other operator uses one slot of its node. Operators
    are placed from the sources to the sink, each after its inputs.

    - A unary operator starts at the node of its input, an n-ary one at the lowest common ancestor of its inputs: of
      the nodes that all of them reach, and that reach the sink's, the one with the fewest hops in total.
    - Where the start has a free slot, the operator stays. Otherwise it moves to the next node with a free slot on a
      random path toward the next downstream operator that is placed. A chain of unary operators keeps to one path,
      and only a path with room for all of the chain that is left is taken: one of those shortest paths that have,
      else one of all paths that have.
    - The next downstream operator may be n-ary and not placed yet. Its meeting point then stands for it: the lowest
      common ancestor of the meeting points and pinned sources below it. So branches walk toward each other, and
      none beyond the node where it should meet its sibling; unless there is no room before, in which case the walk
      aims at the meeting point after that one, and at last at the sink.

Why it does not run into a dead end
    Every node that is used reaches the sink's node: sources are checked first, and each walk ends at a node that
    does. So the sink's node is a common ancestor of whatever is placed, however far a branch had to walk. What can
    run out is capacity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from placement.binding import BoundPlan, check
from placement.errors import NoCapacity, NoCommonAncestor, NoPath
from placement.paths import Paths
from placement.plan import BoundSink, BoundSource
from placement.tree import bottom_up
from topology.graph import link_graph

if TYPE_CHECKING:
    from placement.plan import FragmentOperator, Query
    from topology import Topology


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every operator of a plan runs, and why.

    ``nodes`` and ``reasons`` are by operator, inputs first. ``paths`` is by operator too: the nodes that its output
    passes on the way to its reader, both ends included; one node where they are neighbours in a fragment.
    """

    plan: BoundPlan
    nodes: Mapping[str, str]
    reasons: Mapping[str, str]
    paths: Mapping[str, tuple[str, ...]]


def place(query: Query, topology: Topology, seed: int = 0) -> Placement:
    """Check a query against a topology and give every operator a node. Equal arguments, equal placement.

    Raises ``InvalidQuery`` as ``check`` does, ``NoPath``, ``NoCommonAncestor`` or ``NoCapacity``.
    """
    return place_bound(check(query, topology), topology, seed)


def place_bound(plan: BoundPlan, topology: Topology, seed: int = 0) -> Placement:
    """``place`` for a query that is checked already."""
    rng = Random(seed)  # noqa: S311 - a seed that gives the same plan again is the purpose
    return _Placer(plan, topology, rng).place()


class _Placer:
    def __init__(self, plan: BoundPlan, topology: Topology, rng: Random) -> None:
        self._plan = plan
        self._rng = rng
        self._paths = Paths(link_graph(topology), rng)
        self._capacity = {
            node.address: math.inf if node.capacity is None else node.capacity for node in topology.nodes
        }
        self._rank = {node.address: rank for rank, node in enumerate(topology.nodes)}
        self._used: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._walks: dict[str, tuple[str, ...]] = {}  # by operator: the path of its chain, from its node on
        self._sink_node = plan.pins[plan.sink]
        self._meeting: dict[str, str] = {}  # by n-ary operator

    def place(self) -> Placement:
        self._check_ways()
        self._find_meeting_points()
        paths: dict[str, tuple[str, ...]] = {}
        for operator in self._plan.operators.values():
            self._place(operator)
            for child in operator.children:
                paths[child] = self._path_between(child, operator.id)
        return Placement(self._plan, self._nodes, self._reasons, paths)

    def _check_ways(self) -> None:
        reaching = self._paths.hops_to(self._sink_node)
        sources = [key for key in self._plan.pins if key != self._plan.sink]
        lost = next((source for source in sources if self._plan.pins[source] not in reaching), None)
        if lost is None:
            return
        for operator in self._plan.operators.values():
            below = {source: self._plan.pins[source] for source in self._sources_below(operator.id)}
            if len(operator.children) > 1 and not self._paths.common_ancestors(Counter(below.values())):
                inputs = ", ".join(f"{source} at {node}" for source, node in below.items())
                raise NoCommonAncestor(
                    f"{operator.type} {operator.id}: no node is downstream of all: {inputs}"
                )
        raise NoPath(
            f"source {lost}: no links lead from {self._plan.pins[lost]}"
            f" to {self._sink_node}, where sink {self._plan.sink} is"
        )

    def _sources_below(self, identity: str) -> list[str]:
        children = {key: operator.children for key, operator in self._plan.operators.items()}
        return [key for key in bottom_up(children, identity) if not children[key]]

    def _find_meeting_points(self) -> None:
        fronts: dict[str, str] = {}
        for key, operator in self._plan.operators.items():
            if len(operator.children) > 1:
                self._meeting[key] = self._lowest_common_ancestor(
                    [fronts[child] for child in operator.children]
                )
                fronts[key] = self._meeting[key]
            else:
                fronts[key] = fronts[operator.children[0]] if operator.children else self._plan.pins[key]

    def _lowest_common_ancestor(self, nodes: list[str], preferred: str | None = None) -> str:
        hops = self._paths.common_ancestors(Counter(nodes))
        hops = {node: total for node, total in hops.items() if node in self._paths.hops_to(self._sink_node)}
        fewest = min(hops.values())
        nearest = sorted(
            (node for node, total in hops.items() if total == fewest), key=self._rank.__getitem__
        )
        return preferred if preferred in nearest else self._rng.choice(nearest)

    def _place(self, operator: FragmentOperator) -> None:
        key = operator.id
        match operator:
            case BoundSource():
                self._put(key, self._plan.pins[key], f"pinned: {operator.physical.path} is attached here")
            case BoundSink():
                self._put(key, self._plan.pins[key], f"pinned: sink {operator.sink} is attached here")
            case _ if len(operator.children) == 1:
                child = operator.children[0]
                self._settle(operator, self._nodes[child], f"with its input {child}")
            case _:
                nodes = [self._nodes[child] for child in operator.children]
                start = self._lowest_common_ancestor(nodes, self._meeting[key])
                self._settle(operator, start, f"lowest common ancestor of {' and '.join(operator.children)}")

    def _settle(self, operator: FragmentOperator, start: str, why: str) -> None:
        """Give the operator ``start``, or the next node with room on its chain's path."""
        key = operator.id
        walk = self._walks.get(operator.children[0]) if len(operator.children) == 1 else None
        node = start
        if not self._room(start):
            walk = walk or self._draw_walk(operator, start)
            if len(operator.children) == 1:
                self._walks[operator.children[0]] = walk
            node = next(node for node in walk if self._room(node))
            why = f"{why}: {start} is full ({self._slots(start)}), next with room on the path to {walk[-1]}"
        self._used[node] += 1
        if walk is not None:
            self._walks[key] = walk[walk.index(node) :]
        slots = "" if math.isinf(self._capacity[node]) else f", {self._slots(node)} slots used"
        self._put(key, node, why + slots)

    def _draw_walk(self, operator: FragmentOperator, start: str) -> tuple[str, ...]:
        chain = self._chain_from(operator.id)
        for target in self._targets(operator.id):
            walk = self._paths.with_room(start, target, self._room, len(chain))
            if walk is not None:
                return walk
        on_the_way = self._paths.between(start, self._sink_node)
        raise NoCapacity(
            f"{operator.type} {operator.id}: no path from {start} to {self._sink_node} has"
            f" {len(chain)} free slots for {', '.join(chain)};"
            f" on the way are {', '.join(f'{node} ({self._slots(node)} used)' for node in on_the_way[:8])}"
        )

    def _chain_from(self, key: str) -> list[str]:
        """The operator and the unary ones above it, up to the next n-ary one or the sink."""
        chain = [key]
        reader = self._plan.readers[key]
        while reader != self._plan.sink and reader not in self._meeting:
            chain.append(reader)
            reader = self._plan.readers[reader]
        return chain

    def _targets(self, key: str) -> list[str]:
        """Where to walk: the next meeting point downstream, else the one after it, and at last the sink's node."""
        targets: dict[str, None] = {}
        while key != self._plan.sink:
            key = self._plan.readers[key]
            if key in self._meeting:
                targets[self._meeting[key]] = None
        return [*targets, self._sink_node]

    def _path_between(self, child: str, reader: str) -> tuple[str, ...]:
        start, end = self._nodes[child], self._nodes[reader]
        walk = self._walks.get(child, ())
        if end in walk:
            return walk[: walk.index(end) + 1]
        return self._paths.shortest(start, end)

    def _put(self, key: str, node: str, reason: str) -> None:
        self._nodes[key] = node
        self._reasons[key] = reason

    def _room(self, node: str) -> float:
        return self._capacity[node] - self._used[node]

    def _slots(self, node: str) -> str:
        return f"{self._used[node]} of {self._capacity[node]:.0f}"
