"""Random paths through the links, and lowest common ancestors."""

from __future__ import annotations

from functools import cache, cached_property
from graphlib import TopologicalSorter
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    Steps = Callable[[str], Iterable[str]]
    Room = Callable[[str], float]
    Hops = list[int]

FAR = 1 << 40
"""Hops to what is not reached: more than any sum of others."""


class Paths:
    """Paths in a directed acyclic graph, drawn with ``rng``; ``links`` has the nodes that each node leads to.

    Distances are lists by a node's place in the graph, computed once for each node that is asked about.
    """

    def __init__(self, links: Mapping[str, Sequence[str]], rng: Random) -> None:
        self._downstream = links
        self._names = list(links)
        self._ranks = {node: rank for rank, node in enumerate(self._names)}
        self._rng = rng
        onward = [[self._ranks[end] for end in ends] for ends in links.values()]
        back: list[list[int]] = [[] for _ in self._names]
        for rank, ends in enumerate(onward):
            for end in ends:
                back[end].append(rank)
        self._hops_from: Callable[[str], Hops] = cache(lambda node: _hops(onward, self._ranks[node]))
        self._hops_to: Callable[[str], Hops] = cache(lambda node: _hops(back, self._ranks[node]))
        self.hops_to: Callable[[str], Mapping[str, int]] = cache(self._named)
        """Over how many links, at least, each node reaches the given one."""

    def _named(self, node: str) -> dict[str, int]:
        pairs = zip(self._names, self._hops_to(node), strict=True)
        return {name: hops for name, hops in pairs if hops != FAR}

    @cached_property
    def _last_first(self) -> list[str]:
        """The nodes, each after all that it leads to."""
        return list(TopologicalSorter(self._downstream).static_order())

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

    def most_room(self, target: str, room: Room) -> dict[str, float]:
        """The most room that the nodes after each node have that reaches ``target``, over all ways there."""
        steps = self._onward(target)
        most: dict[str, float] = {}
        for node in self._last_first:
            if node in self.hops_to(target):
                most[node] = max((room(end) + most[end] for end in steps(node)), default=0)
        return most

    def between(self, start: str, target: str) -> list[str]:
        """The nodes on all paths, nearest to ``start`` first."""
        hops, onward = self._hops_from(start), self._hops_to(target)
        there = [rank for rank, count in enumerate(hops) if count < FAR and onward[rank] < FAR]
        return [self._names[rank] for rank in sorted(there, key=hops.__getitem__)]

    def lowest(self, nodes: Counter[str], target: str) -> list[str]:
        """The nodes that all of ``nodes`` reach or are, and that reach ``target``, with the fewest hops in total.

        A node that counts several times is as far as several nodes. In the topology's order; empty if there is none.
        """
        totals = self._totals(nodes, target)
        fewest = min(totals)
        return [self._names[rank] for rank, total in enumerate(totals) if total == fewest < FAR]

    def ancestors(self, nodes: Counter[str], target: str) -> list[str]:
        """All such nodes, those with the fewest hops first, and among equals in the topology's order."""
        totals = self._totals(nodes, target)
        return self._nearest_first(totals)

    def nearest(self, nodes: Counter[str]) -> str | None:
        """The first in the topology of those with the fewest hops in total that all of ``nodes`` reach, or are."""
        totals = self._added([0] * len(self._names), nodes)
        fewest = min(totals)
        return None if fewest >= FAR else self._names[totals.index(fewest)]

    def nearest_with_room(self, start: str, room: Room, need: float) -> str | None:
        """Return the nearest node on a way to which, after ``start``, ``need`` operators have room, itself included."""
        most: dict[str, float] = {start: 0}
        for node in reversed(self._last_first):
            if node in most:
                for end in self._downstream[node]:
                    most[end] = max(most.get(end, 0), most[node] + room(end))
        return next((node for node in self.downstream(start) if most[node] >= need), None)

    def downstream(self, start: str) -> list[str]:
        """The node, and those that it reaches, the nearest first."""
        return self._nearest_first(self._hops_from(start))

    def _nearest_first(self, hops: Hops) -> list[str]:
        there = [rank for rank, count in enumerate(hops) if count < FAR]
        return [self._names[rank] for rank in sorted(there, key=hops.__getitem__)]

    def meet(self, nodes: Iterable[str]) -> bool:
        """True if there is a node that all of ``nodes`` reach or are."""
        return min(self._added([0] * len(self._names), dict.fromkeys(nodes, 1))) < FAR

    def _totals(self, nodes: Counter[str], target: str) -> Hops:
        return self._added([0 if hops < FAR else FAR for hops in self._hops_to(target)], nodes)

    def _added(self, totals: Hops, nodes: Mapping[str, int]) -> Hops:
        """Add to each total the hops from all of ``nodes``, each as often as it counts."""
        for node, weight in nodes.items():
            hops = self._hops_from(node)
            totals = list(map(add, totals, hops if weight == 1 else [weight * count for count in hops]))
        return totals


def _hops(links: Sequence[Sequence[int]], start: int) -> Hops:
    """Over how many links each node is reached, at least; `FAR` where it is not."""
    hops = [FAR] * len(links)
    hops[start] = count = 0
    frontier = [start]
    while frontier:
        count += 1
        reached = []
        for node in frontier:
            for end in links[node]:
                if hops[end] == FAR:
                    hops[end] = count
                    reached.append(end)
        frontier = reached
    return hops


def draw_path(start: str, steps: Steps, room: Room, need: float, rng: Random) -> tuple[str, ...] | None:
    """Draw a path from ``start`` until there is no step on, whose nodes after the first have room for ``need``.

    ``steps`` gives the next nodes, and must not lead into a cycle. Each step is drawn from those after which there
    is still a way with enough room. None if no path has the room.
    """
    onward = _reachable(start, steps)
    most = _most_room(onward, room)
    if most[start] < need:
        return None
    path = [start]
    while ends := [end for end in onward[path[-1]] if room(end) + most[end] >= need]:
        path.append(rng.choice(ends))
        need -= room(path[-1])
    return tuple(path)


def _reachable(start: str, steps: Steps) -> dict[str, tuple[str, ...]]:
    """The nodes from ``start`` on with their next ones, each node after all that come after it on a path."""
    done: dict[str, tuple[str, ...]] = {}
    stack = [(start, tuple(steps(start)), 0)]
    while stack:
        node, ends, index = stack.pop()
        while index < len(ends) and ends[index] in done:
            index += 1
        if index == len(ends):
            done[node] = ends
        else:
            stack += [(node, ends, index), (ends[index], tuple(steps(ends[index])), 0)]
    return done


def _most_room(onward: Mapping[str, tuple[str, ...]], room: Room) -> dict[str, float]:
    """The most room that the nodes after each node have, over all ways on."""
    most: dict[str, float] = {}
    for node, ends in onward.items():
        most[node] = max((room(end) + most[end] for end in ends), default=0)
    return most
