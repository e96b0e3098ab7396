"""Bottom-up placement, after the source document's section on planning.

The rule
    Sources and the sink are pinned, and use no capacity; every other operator uses one slot of its node.
    Operators are placed from the sources to the sink, each after its inputs. A view that nothing reads stands for the
    sink where it has a pin (``roots``). If it has none, the plan is one chain from one source, and operators without
    room at its node move toward the nearest node on a way to which there is room for all of them.

    - A unary operator starts at the node of its input, an n-ary one at the lowest common ancestor of its inputs:
      of the nodes that all of them reach, and that reach the sink's, the one with the fewest hops in total.
    - Where the start has a free slot, the operator stays. Otherwise it moves to the next node with a free slot
      on a random path toward the next downstream operator that is placed. A chain of unary operators keeps to
      one path, and only a path with room for all of the chain that is left is taken: one of those shortest
      paths that have, else one of all paths that have.
    - The next downstream operator may be n-ary and not placed yet. Its meeting point then stands for it: the
      lowest common ancestor of the meeting points and pinned sources below it. So branches walk toward each
      other, and none beyond the node where it should meet its sibling; unless there is no room before, in which
      case the walk aims at the meeting point after that one, and at last at the sink.
    - Where neither the lowest common ancestor nor the way on from it has room, the next lowest is tried.
    - Where an operator finds no room because a chain before it took the slots, all is drawn again a few times,
      from all paths that have room, not the shortest only. If all draws fail, this is ``NoCapacity``: where slots
      are scarce, there may be a placement all the same, which ``placement.strategies.selection`` then asks for.

Why it does not run into a dead end
    Every node that is used reaches the sink's node: sources are checked first, and each walk ends at a node
    that does. So the sink's node is a common ancestor of all placed operators, however far a branch had to walk. Only
    capacity can run out.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from itertools import product
from random import Random
from typing import TYPE_CHECKING

from placement.errors import NoCapacity, NoCommonAncestor, NoPath
from placement.graph import bottom_up
from placement.plan import BoundSink, BoundSource, ViewOperator
from placement.strategies.paths import Paths
from placement.strategies.roots import rooted
from topology import CollectionSink
from topology.graph import downstream_links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placement.checking.binding import BoundPlan
    from placement.plan import FragmentOperator
    from topology import Topology

    Walk = tuple[str, ...]
    Draw = Callable[[str, str, Callable[[str], float], float], Walk | None]

_DETOURS = 8
"""Further draws where the rule runs out of capacity; on random small cases they find most that exist."""
_DETOUR_PAIRS = 2_000_000
"""How many operators and nodes all further draws may look at: a draw that fails looks at nearly all, in seconds."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every operator of a plan runs, and why.

    ``nodes`` and ``reasons`` are by operator, inputs first. ``paths`` is by operator too: the nodes that its
    output passes on the way to its reader, both ends included; one node where they are neighbours in a
    fragment. ``note`` is a sentence about how it was found, or None.
    """

    plan: BoundPlan
    nodes: Mapping[str, str]
    reasons: Mapping[str, str]
    paths: Mapping[str, tuple[str, ...]]
    note: str = ""

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: that of `nebuli place`, with nodes and reasons."""
        rows = [("operator", "type", "node", "why")]
        rows += [
            (key, each.type, self.nodes[key], self.reasons[key]) for key, each in self.plan.operators.items()
        ]
        head, *body = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
        head = head.replace("td>", "th>")
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def place_bottom_up(plan: BoundPlan, topology: Topology, seed: int = 0) -> Placement:
    """Give every operator a node by the rule alone. Equal arguments, equal placement.

    Raises ``NoPath``, ``NoCommonAncestor`` or ``NoCapacity``.
    """
    plan = rooted(plan, topology)
    rng = Random(seed)  # noqa: S311 - a seed that gives the same plan again is the purpose
    paths = Paths(downstream_links(topology), rng)
    meeting = Meeting(plan, paths, rng)
    try:
        draws = (paths.shortest_with_room, paths.any_with_room)
        return _Placer(plan, topology, meeting, paths, draws).place()
    except NoCapacity:
        pairs = len(plan.operators) * len(topology.nodes)
        for _ in range(min(_DETOURS, _DETOUR_PAIRS // pairs)):
            with suppress(NoCapacity):
                return _Placer(plan, topology, meeting, paths, draws[1:]).place()
        raise


def why_pinned(operator: FragmentOperator) -> str:
    """Return why no strategy chooses the place of a source or the root."""
    match operator:
        case BoundSource():
            return f"pinned: {operator.physical.reads} is attached here"
        case BoundSink(target=CollectionSink(mode="final")):
            return (
                f"pinned: sink {operator.sink} is attached here; it inserts the result once, under "
                f"the query's id"
            )
        case BoundSink(target=CollectionSink()):
            return (
                f"pinned: sink {operator.sink} is attached here; the query does not start over after a loss"
            )
        case BoundSink():
            return f"pinned: sink {operator.sink} is attached here"
        case ViewOperator(node=None):
            return "pinned: the node with the fewest hops among those that all sources reach"
    return "pinned: the view names this node"


class _Placer:
    """One attempt; ``draws`` are the ways to draw a walk, in order."""

    def __init__(
        self, plan: BoundPlan, topology: Topology, meeting: Meeting, paths: Paths, draws: tuple[Draw, ...]
    ) -> None:
        self._plan = plan
        self._meeting = meeting
        self._paths = paths
        self._draws = draws
        self._capacity = {
            node.address: math.inf if node.capacity is None else node.capacity for node in topology.nodes
        }
        self._used: Counter[str] = Counter()
        self._nodes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._walks: dict[str, Walk] = {}  # by operator: the walk of its chain, from its node on

    def place(self) -> Placement:
        paths: dict[str, Walk] = {}
        for operator in self._plan.operators.values():
            self._place(operator)
            for child in operator.children:
                paths[child] = self._path_between(child, operator.id)
        return Placement(self._plan, self._nodes, self._reasons, paths)

    def _place(self, operator: FragmentOperator) -> None:
        key = operator.id
        if key in self._plan.pins:
            self._put(key, self._plan.pins[key], why_pinned(operator))
        elif len(operator.children) == 1:
            self._place_unary(operator, operator.children[0])
        else:
            self._place_nary(operator)

    def _place_unary(self, operator: FragmentOperator, child: str) -> None:
        start = self._nodes[child]
        why = f"with its input {child}"
        walk = self._walks.get(child, (start,))
        if not self._room(start):
            if child not in self._walks:
                walk = self._walks[child] = self._draw_walk(operator, [start])
            why = f"{start} is full ({self._slots(start)}), next with room on the path to {walk[-1]}"
        self._take(operator.id, walk, why, walks=child in self._walks)

    def _place_nary(self, operator: FragmentOperator) -> None:
        nodes = [self._nodes[child] for child in operator.children]
        lowest = self._meeting.lowest(nodes, self._meeting.points[operator.id])
        why = f"lowest common ancestor of {' and '.join(operator.children)}"
        if self._room(lowest):
            self._take(operator.id, [lowest], why, walks=False)
            return
        walk = self._draw_walk(operator, self._meeting.ancestors(nodes, lowest))
        full = f"{lowest} is full ({self._slots(lowest)})"
        if walk[0] == lowest:
            why = f"{why}: {full}, next with room on the path to {walk[-1]}"
        else:
            why = (
                f"common ancestor of {' and '.join(operator.children)}: {full}, and so is the "
                f"path from {lowest}"
            )
        self._take(operator.id, walk, why, walks=True)

    def _take(self, key: str, walk: Sequence[str], why: str, *, walks: bool) -> None:
        """Put the operator on the first node of the walk that has room."""
        node = next(node for node in walk if self._room(node))
        if walks:
            self._walks[key] = tuple(walk[walk.index(node) :])
        self._used[node] += 1
        slots = "" if math.isinf(self._capacity[node]) else f", {self._slots(node)} slots used"
        self._put(key, node, why + slots)

    def _draw_walk(self, operator: FragmentOperator, starts: Sequence[str]) -> Walk:
        """A walk with room for the operator and the chain above it, from the first start that has one."""
        chain = self._chain_from(operator.id)
        targets = self._targets(operator.id, starts[0], len(chain))
        for start in self._promising(starts, targets, len(chain)):
            for target, draw in product(targets, self._draws):
                walk = draw(start, target, self._room, len(chain) - self._room(start))
                if walk is not None:
                    return walk
        raise NoCapacity(self._no_capacity(operator, chain, starts[0], targets))

    def _promising(self, starts: Sequence[str], targets: Sequence[str], need: int) -> Iterator[str]:
        """The first start, and of the others, which may be thousands, those with room for ``need`` on a way on."""
        yield starts[0]
        onward = [self._paths.most_room(target, self._room) for target in targets if len(starts) > 1]
        for start in starts[1:]:
            if any(self._room(start) + most.get(start, -math.inf) >= need for most in onward):
                yield start

    def _no_capacity(
        self, operator: FragmentOperator, chain: list[str], start: str, targets: Sequence[str]
    ) -> str:
        on_the_way = self._paths.between(start, targets[-1]) if targets else self._paths.downstream(start)
        what = "a free slot" if len(chain) == 1 else f"a free slot for each of {', '.join(chain)}"
        shown = ", ".join(f"{node} ({self._slots(node)} used)" for node in on_the_way[:8])
        more = f" and {len(on_the_way) - 8} more" if len(on_the_way) > 8 else ""
        elsewhere = ""
        if targets and isinstance(self._plan.operators[self._plan.root], ViewOperator):
            elsewhere = f"; raise a capacity, or give view {self._plan.root} another node"
        if len(on_the_way) == 1:
            only = f"{shown} is the only node left, but does not have {what}"
            return f"{operator.type} {operator.id}: {only}{elsewhere}"
        way = f"path from {start} to {targets[-1]}" if targets else f"path onward from {start}"
        return f"{operator.type} {operator.id}: no {way} has {what}; nodes: {shown}{more}{elsewhere}"

    def _chain_from(self, key: str) -> list[str]:
        """The operator and the unary ones above it, up to the next n-ary one or what is pinned."""
        chain = [key]
        while (reader := self._plan.readers.get(chain[-1])) is not None:
            if reader in self._plan.pins or reader in self._meeting.points:
                break
            chain.append(reader)
        return chain

    def _targets(self, key: str, start: str, need: int) -> list[str]:
        """Where to walk: the next meeting point downstream, else the one after it, at last the root.

        To a root without a pin: to where all that is left, which is ``need`` operators, has room.
        """
        if self._plan.root not in self._plan.pins:
            nearest = self._paths.nearest_with_room(start, self._room, need - self._room(start))
            return [] if nearest is None else [nearest]
        targets: dict[str, None] = {}
        while key != self._plan.root:
            key = self._plan.readers[key]
            if key in self._meeting.points:
                targets[self._meeting.points[key]] = None
        return list({**targets, self._plan.pins[key]: None})

    def _path_between(self, child: str, reader: str) -> Walk:
        """Along the walk of the child's chain, if that leads to the reader's node, else a shortest path."""
        start, end = self._nodes[child], self._nodes[reader]
        walk = self._walks.get(child, ())
        return walk[: walk.index(end) + 1] if end in walk else self._paths.shortest(start, end)

    def _put(self, key: str, node: str, reason: str) -> None:
        self._nodes[key] = node
        self._reasons[key] = reason

    def _room(self, node: str) -> float:
        return self._capacity[node] - self._used[node]

    def _slots(self, node: str) -> str:
        return f"{self._used[node]} of {self._capacity[node]:.0f}"


class Meeting:
    """The common ancestors of a plan's branches.

    ``points`` has, for each n-ary operator, the node where its branches should meet if all of them stayed
    where they begin: the lowest common ancestor of the meeting points and pinned sources below it.
    """

    def __init__(self, plan: BoundPlan, paths: Paths, rng: Random) -> None:
        self._plan = plan
        self._paths = paths
        self._rng = rng
        # A root without a pin is a view above one source: nothing meets, and anything after that will do.
        self._end = plan.pins.get(plan.root, next(iter(plan.pins.values())))
        self._check_ways()
        self.points = self._find_points()

    def lowest(self, nodes: Sequence[str], preferred: str | None = None) -> str:
        """The lowest of the nodes that all of ``nodes`` reach, or are, and that reach the root's.

        Lowest has the fewest hops in total; among several that have, it is the preferred one, or any.
        """
        lowest = self._paths.lowest(Counter(nodes), self._end)
        return preferred if preferred in lowest else self._rng.choice(lowest)

    def ancestors(self, nodes: Sequence[str], first: str) -> list[str]:
        """All of these nodes, the lowest first, and before all others ``first``."""
        ordered = self._paths.ancestors(Counter(nodes), self._end)
        return [first, *(node for node in ordered if node != first)]

    def _find_points(self) -> dict[str, str]:
        points: dict[str, str] = {}
        fronts: dict[str, str] = {}
        for key, operator in self._plan.operators.items():
            below = [fronts[child] for child in operator.children]
            if len(below) > 1:
                points[key] = fronts[key] = self.lowest(below)
            else:
                fronts[key] = below[0] if below else self._plan.pins[key]
        return points

    def _check_ways(self) -> None:
        """Raise the most helpful error if the sources cannot reach the root."""
        pins = self._plan.pins
        reaching = self._paths.hops_to(self._end)
        lost = next((key for key in pins if pins[key] not in reaching), None)
        if lost is None:
            return
        for operator in self._plan.operators.values():
            below = self._sources_below(operator.id) if len(operator.children) > 1 else []
            if below and not self._paths.meet(pins[source] for source in below):
                places = ", ".join(f"{source} at {pins[source]}" for source in below)
                raise NoCommonAncestor(
                    f"{operator.type} {operator.id}: no node is downstream of all of {places}; {self._remedy()}"
                )
        root = self._plan.operators[self._plan.root]
        source, end = f"source {lost} at {pins[lost]}", f"{root.type} {root.id} at {self._end}"
        raise NoPath(f"no links lead from {source} to {end}; {self._remedy()}")

    def _remedy(self) -> str:
        """Return the change of the topology, with which every source reaches the root."""
        end, root = self._end, self._plan.operators[self._plan.root].type
        reaching = self._paths.hops_to(end)
        lost = [node for node in dict.fromkeys(self._plan.pins.values()) if node not in reaching]
        below = [node for node in lost if end in self._paths.hops_to(node)]
        if below:  # a link back would close a cycle
            return f"links lead from {end} to {', '.join(below)}: reverse them, or move the {root} downstream"
        return (
            f"add links: {{downstream: [{end}]}} to {'nodes' if len(lost) > 1 else 'node'} {', '.join(lost)}"
        )

    def _sources_below(self, key: str) -> list[str]:
        children = {each: operator.children for each, operator in self._plan.operators.items()}
        return [each for each in bottom_up(children, key) if not children[each]]
