"""Which transaction must have come before which, and cycles of that.

``ww``: both append to a key, one's element stands behind the other's. ``wr``: one has read what the other has appended
last. ``rw``: one has not read what the other has appended. ``rt``: one had ended before the other began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import networkx as nx

from .anomalies import Anomaly
from .history import Append, Transaction

_KINDS = (
    ("G0", {"ww"}, 0),
    ("G1c", {"ww", "wr"}, 0),
    ("G-single", {"ww", "wr"}, 1),
    ("G2", {"ww", "wr", "rw"}, 0),
)
"""Names of cycles, the gravest first: of which dependencies they are, and how many ``rw`` there are besides."""
_TRIED = 1000
"""Dependencies from which a cycle is looked for, so that a history that is all wrong is told of in time."""


def cycles(
    history: Sequence[Transaction],
    orders: Mapping[int, tuple[int, ...]],
    writers: Mapping[Append, Transaction],
) -> list[Anomaly]:
    """A short cycle of each component that has one, as grave as there is. ``orders``: the longest list of each key."""
    graph = _Graph(history, orders, writers)
    return [graph.gravest(component) for component in graph.components()]


class _Graph:
    def __init__(
        self,
        history: Sequence[Transaction],
        orders: Mapping[int, tuple[int, ...]],
        writers: Mapping[Append, Transaction],
    ) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        seen = {writers[Append(key, element)].name for key, order in orders.items() for element in order}
        # Whose element was read has happened, whatever its client was told.
        happened = [each for each in history if each.outcome == "ok" or each.name in seen]
        self._transactions = {each.name: each for each in happened}
        for key, order in orders.items():
            self._add_key(key, order, [writers[Append(key, element)].name for element in order])
        for earlier, later in _real_time(happened):
            self._add(earlier.name, later.name, "rt", f"had ended before {later.name} began")

    def _add(self, earlier: str, later: str, kind: str, why: str) -> None:
        if earlier != later:
            if not self._graph.has_edge(earlier, later):
                self._graph.add_edge(earlier, later, why={})
            self._graph.edges[earlier, later]["why"].setdefault(kind, why)

    def _add_key(self, key: int, order: Sequence[int], writers: Sequence[str]) -> None:
        """``order``: the key's elements, ``writers``: whose each of them is."""
        unseen = [
            (append.element, each.name)
            for each in self._transactions.values()
            for append in each.appends()
            if append.key == key and each.name not in writers
        ]
        written = list(zip(order, writers, strict=True))
        for (element, earlier), (next_, later) in pairwise(written):
            self._add(earlier, later, "ww", f"appended {element} to {key} before {later} appended {next_}")
        for each in self._transactions.values():
            for read, elements in each.reads():
                if read.key != key:
                    continue
                if elements:
                    last, earlier = written[len(elements) - 1]
                    self._add(
                        earlier, each.name, "wr", f"appended {last} to {key}, which {each.name} has read"
                    )
                # All that is not in the longest list stands behind it.
                for element, later in written[len(elements) : len(elements) + 1] or unseen:
                    told = f"has not read {element} in {key}, which {later} appended"
                    self._add(each.name, later, "rw", told)

    def components(self) -> Iterator[Collection[str]]:
        """The transactions that are in a cycle, by cycles that share some."""
        return (each for each in nx.strongly_connected_components(self._graph) if len(each) > 1)

    def gravest(self, component: Collection[str]) -> Anomaly:
        """A cycle of the component."""
        for suffix, more in (("", set()), (", real time", {"rt"})):
            for name, kinds, rw in _KINDS:
                found = self._cycle(component, kinds | more, rw)
                if found is not None:
                    return Anomaly(f"{name}{suffix}", self._told(found))
        raise AssertionError(f"there is no cycle in {component}")

    def _cycle(
        self, component: Collection[str], kinds: set[str], rw: int
    ) -> list[tuple[str, str, str]] | None:
        """A shortest one of these kinds, with an ``rw`` besides if there has to be one: from, to, and kind."""
        allowed: nx.DiGraph[str] = nx.DiGraph()
        begins: list[tuple[str, str, str]] = []
        for earlier, later, edge in self._graph.subgraph(component).edges(data=True):
            kind = next(
                (each for each in ("ww", "wr", "rw", "rt") if each in edge["why"] and each in kinds), None
            )
            if kind is not None:
                allowed.add_edge(earlier, later, kind=kind)
            if rw and "rw" in edge["why"]:
                begins.append((earlier, later, "rw"))
            elif not rw and kind is not None:
                begins.append((earlier, later, kind))
        shortest: list[tuple[str, str, str]] | None = None
        for begin in begins[:_TRIED]:
            earlier, later, _ = begin
            if not (allowed.has_node(earlier) and allowed.has_node(later)):
                continue
            try:
                way = nx.shortest_path(allowed, later, earlier)
            except nx.NetworkXNoPath:
                continue
            if shortest is None or len(way) < len(shortest):
                shortest = [begin, *((*pair, allowed.edges[pair]["kind"]) for pair in pairwise(way))]
        return shortest

    def _told(self, cycle: Sequence[tuple[str, str, str]]) -> str:
        lines = [
            f"    {self._transactions[earlier]}\n        {self._graph.edges[earlier, later]['why'][kind]} ({kind})"
            for earlier, later, kind in cycle
        ]
        return "\n".join([f"a cycle of {len(cycle)} transactions:", *lines])


def _real_time(history: Sequence[Transaction]) -> Iterator[tuple[Transaction, Transaction]]:
    """Pairs of which one had ended before the other began; those that follow from others are left out."""
    ended = sorted(
        ((each.ended, each) for each in history if each.outcome == "ok" and each.ended is not None),
        key=lambda each: each[0],
    )
    ends = [at for at, _ in ended]
    # The latest beginning of all that had ended so far: what ended before that one is before it.
    latest: list[int] = []
    for _, each in ended:
        latest.append(max(each.began, latest[-1]) if latest else each.began)
    for later in history:
        before = bisect_left(ends, later.began)
        if before:
            since = bisect_left(ends, latest[before - 1])
            for _, earlier in ended[since:before]:
                yield earlier, later


__all__ = ["cycles"]
