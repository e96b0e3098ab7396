"""How much the partial state of a graph, and each view of it, may hold, and which keys go where it is more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.partial.key_sets import reordered
from placement.partial.places import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from nebuli.dataflow.partial.graph_node import GraphNode
    from nebuli.dataflow.partial.key_sets import KeySet, Times
    from nebuli.dataflow.partial.partial_graph import PartialGraph

Pick = Callable[["KeySet", int], pa.RecordBatch]
"""Chooses so many of the keys that are there, or all if they are fewer."""
_AT_LEAST = 64
"""One in so many keys of a place goes at once: to find the oldest all are looked at."""
_LIVE = 15 / 16
"""So much of what may be held is held for keys that are there; the rest is for what evictions leave for a while."""
_LOOKS = 4
"""How often more keys are looked at, where those that seemed the oldest are used below."""


def least_recently_used(keys: KeySet, count: int) -> pa.RecordBatch:
    """The keys whose last use is the longest ago."""
    there, used = keys.all()
    return there.take(pa.array(_oldest(used, count)))


def at_random(seed: int) -> Pick:
    """Any keys: what another choice has to be better than."""
    generator = np.random.default_rng(seed)

    def pick(keys: KeySet, count: int) -> pa.RecordBatch:
        there, _ = keys.all()
        return there.take(pa.array(generator.permutation(there.num_rows)[:count]))

    return pick


@dataclass(frozen=True, slots=True)
class ViewBudget:
    """How many of its own keys a view keeps, None: as many as there is room for; and which of them are evicted."""

    max_bytes: int | None = None
    pick: Pick = least_recently_used


class Budget:
    """Bounds a graph's partial state by ``max_bytes``, and each of its ``views``, by id, by its own bound.

    It is to be enforced after keys were filled. A view's surplus keys are evicted there, and stay where it was filled
    from. Where all of the graph holds too much, keys go from the place that holds most; what depends on them below
    goes when the evictions have arrived there, and comes again with the next read. So a key was used when it was used
    below: reads do not come further than to where a key is there. A view's key that is waited for does not get lost:
    readers get its rows when they come, even if they are evicted then.

    At a view its own choice is made of which keys go; above that of the views that are made of it, if all of them make
    the same. Else the least recently used go.
    """

    def __init__(self, max_bytes: int, views: Mapping[str, ViewBudget] | None = None) -> None:
        self.max_bytes = max_bytes
        self._views = views or {}

    def enforce(self, graph: PartialGraph) -> int:
        """Evict until the state is small enough, or nothing is left that could go; gives how many keys have gone."""
        gone = 0
        for id_, view in self._views.items():
            if view.max_bytes is not None and id_ in graph.nodes:
                gone += self._hold(graph, [graph.nodes[id_]], view.max_bytes)
        return gone + self._hold(graph, graph.nodes.values(), self.max_bytes)

    def _hold(self, graph: PartialGraph, nodes: Collection[GraphNode], max_bytes: int) -> int:
        gone = 0
        while (held := sum(node.partial_bytes for node in nodes)) > _LIVE * max_bytes:
            too_much = held - sum(node.gone_bytes for node in nodes) - _LIVE * max_bytes
            sizes = {place: size for node in nodes for place, size in _sizes(node)}
            if too_much <= 0 or not sizes:
                break
            place = max(sizes, key=sizes.__getitem__)
            present = graph.nodes[place.node].kept[place].present
            part = max(too_much / max(held, 1), 1 / _AT_LEAST)
            count = min(len(present), int(len(present) * part) + 1)
            _learn_uses(graph, place, present, count)
            keys = self._pick_at(graph, place.node)(present, count)
            graph.evict(place, keys)
            gone += keys.num_rows
        return gone

    def _pick_at(self, graph: PartialGraph, node: str) -> Pick:
        """Which keys go at a node."""
        if node in self._views:
            return self._views[node].pick
        below = graph.plan.below(node)
        picks = {view.pick for id_, view in self._views.items() if id_ in below}
        return picks.pop() if len(picks) == 1 else least_recently_used


def _sizes(node: GraphNode) -> Iterator[tuple[Place, float]]:
    """The places of a node that have keys which can go, and what the node holds for each."""
    partial = {place: rows for place, rows in node.kept.items() if not rows.full}
    kept = max(sum(rows.nbytes for rows in partial.values()), 1)
    for place, rows in partial.items():
        if len(rows.present):
            yield place, node.partial_bytes * rows.nbytes / kept


def _learn_uses(graph: PartialGraph, place: Place, present: KeySet, count: int) -> None:
    """Have the keys that seem to be the oldest be as young as they are below, until enough of them are as old."""
    for _ in range(_LOOKS):
        there, used = present.all()
        oldest = _oldest(used, 2 * count)
        keys = there.take(pa.array(oldest))
        latest = _last_use(graph, place, keys)
        present.used_at(keys, latest)
        if (latest <= used[oldest]).sum() >= count:
            return


def _last_use(graph: PartialGraph, place: Place, keys: pa.RecordBatch) -> Times:
    """When keys of a place were used last, there or below; of what other parts of the graph have nothing is known."""
    kept = graph.nodes[place.node].kept.get(place) if graph.is_here(place.node) else None
    times = np.zeros(keys.num_rows, dtype=np.int64) if kept is None else kept.present.times(keys)
    given = place if place.port is None else Place(place.node, place.columns)
    for path in graph.paths.beginning(given):
        times = np.maximum(times, _last_use(graph, path.target, reordered(keys, path.from_source)))
    return times


def _oldest(used: Times, count: int) -> Times:
    """The places of the lowest numbers."""
    if count >= len(used):
        return np.argsort(used, kind="stable")
    return np.argpartition(used, count)[:count]
