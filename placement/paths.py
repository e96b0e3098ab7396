"""Random paths through the links, and lowest common ancestors."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from placement.draw import draw_path

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping
    from random import Random

    import networkx as nx

    from placement.draw import Room, Steps


class Paths:
    """Paths in a directed acyclic graph, drawn with ``rng``."""

    def __init__(self, graph: nx.DiGraph[str], rng: Random) -> None:
        self._downstream = {node: tuple(graph.successors(node)) for node in graph}
        self._upstream = {node: tuple(graph.predecessors(node)) for node in graph}
        self._rank = {node: rank for rank, node in enumerate(graph)}
        self._rng = rng
        self.hops_to: Callable[[str], Mapping[str, int]] = cache(lambda node: _hops(self._upstream, node))
        """For each node that reaches the given one: over how many links, at least."""

    def shortest(self, start: str, target: str) -> tuple[str, ...]:
        """One of the shortest paths; ``start`` must reach ``target``."""
        return draw_path(start, self._nearer(target), lambda _: 0, 0, self._rng) or ()

    def shortest_with_room(self, start: str, target: str, room: Room, need: float) -> tuple[str, ...] | None:
        """One of those shortest paths whose nodes after ``start`` have room for ``need`` operators in all."""
        if start not in self.hops_to(target):
            return None
        return draw_path(start, self._nearer(target), room, need, self._rng)

    def any_with_room(self, start: str, target: str, room: Room, need: float) -> tuple[str, ...] | None:
        """One of all paths, shortest or not, whose nodes after ``start`` have room for ``need`` operators."""
        if start not in self.hops_to(target):
            return None
        return draw_path(start, self._onward(target), room, need, self._rng)

    def _nearer(self, target: str) -> Steps:
        """The steps that the shortest paths to ``target`` take."""
        hops = self.hops_to(target)
        return lambda node: [end for end in self._downstream[node] if hops.get(end) == hops[node] - 1]

    def _onward(self, target: str) -> Steps:
        """The steps that any path to ``target`` takes."""
        hops = self.hops_to(target)
        return lambda node: [end for end in self._downstream[node] if end in hops]

    def between(self, start: str, target: str) -> list[str]:
        """The nodes on all paths, nearest to ``start`` first."""
        hops = self.hops_to(target)
        return [node for node in _hops(self._downstream, start) if node in hops]

    def common_ancestors(self, nodes: Counter[str]) -> dict[str, int]:
        """The nodes that all of ``nodes`` reach or are, with their hops in total, fewest first.

        A node that counts several times is as far as several nodes. Among equals, the topology's order.
        """
        totals: dict[str, int] | None = None
        for node, weight in nodes.items():
            hops = _hops(self._downstream, node)
            if totals is None:
                totals = {end: weight * count for end, count in hops.items()}
            else:
                totals = {end: count + weight * hops[end] for end, count in totals.items() if end in hops}
        ordered = sorted((totals or {}).items(), key=lambda item: (item[1], self._rank[item[0]]))
        return dict(ordered)


def _hops(links: Mapping[str, tuple[str, ...]], start: str) -> dict[str, int]:
    hops = {start: 0}
    frontier = [start]
    while frontier:
        reached = []
        for node in frontier:
            for end in links[node]:
                if end not in hops:
                    hops[end] = hops[node] + 1
                    reached.append(end)
        frontier = reached
    return hops
