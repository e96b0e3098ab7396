"""Cutting a placed plan into fragments, stitched by network channels.

An edge between operators on different nodes becomes one channel per link of its path. The node at each end of
a channel gets a ``NetworkSink`` or a ``NetworkSource``; a node that the path only crosses gets a fragment of
just these two, a bridge. A ``NetworkSource`` has the id of the operator whose output it brings, so that what
reads it reads the same input as before.

An operator in shards is a fragment for each of them (``partial.sharding``). Edges to and from shards are
channels also where both ends are on one node.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from placement.fragments.engines import Engines
from placement.partial.node_plan import nodes_of
from placement.partial.sharding import spread
from placement.plan import Fragment, NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from placement.plan import FragmentOperator
    from placement.strategies.bottom_up import Placement

_MAX_NAME = 200
"""Bytes of a channel's name before a deployment's prefix; the limit of a channel id is 255."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One link that the output of ``operator`` crosses: from the node ``start`` to the node ``end``."""

    id: str
    operator: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The fragments of a placed plan, upstream before downstream, and the channels between them."""

    fragments: tuple[Fragment, ...]
    channels: tuple[Channel, ...]


def decompose(placement: Placement) -> Decomposition:
    """Cut a placed plan at every edge between nodes, and between shards. Equal placements give equal names.

    Raises ``NotOnEngine`` for what the engine of its node cannot compute.
    """
    cutter = _Cutter(placement)
    return Decomposition(tuple(cutter.fragments()), tuple(cutter.channels()))


def with_deployment(fragments: Iterable[Fragment], deployment: str) -> tuple[Fragment, ...]:
    """The fragments, with ``deployment`` before every channel id: no two deployments share a channel."""
    return tuple(
        fragment.model_copy(
            update={"operators": tuple(_prefixed(operator, deployment) for operator in fragment.operators)}
        )
        for fragment in fragments
    )


def _prefixed(operator: FragmentOperator, deployment: str) -> FragmentOperator:
    if isinstance(operator, NetworkSource | NetworkSink):
        return operator.model_copy(update={"channel": f"{deployment}/{operator.channel}"})
    return operator


class _Cutter:
    def __init__(self, placement: Placement) -> None:
        self._plan = placement.plan
        self._paths = placement.paths
        self._engines = Engines(placement)
        self._views = nodes_of(placement.plan)
        spreading = spread(placement.plan.operators, placement.plan.schemas)
        self._operators = spreading.operators
        self._homes, self._shards = spreading.homes, spreading.shards
        self._nodes = {key: placement.nodes[home] for key, home in self._homes.items()}
        self._hops = {
            (child, key): tuple(self._hops_of(child, key))
            for key, operator in self._operators.items()
            for child in operator.children
            if self._nodes[child] != self._nodes[key] or self._shards.get(child) != self._shards.get(key)
        }

    def _hops_of(self, child: str, reader: str) -> Iterator[Channel]:
        path = self._paths[self._homes[child]] if self._nodes[child] != self._nodes[reader] else ()
        links = list(pairwise(path)) or [(self._nodes[child], self._nodes[reader])]
        for index, (start, end) in enumerate(links):
            suffix = f"#{index}" if len(links) > 1 else ""
            yield Channel(self._channel_name(child, reader, suffix), child, start, end)

    def _channel_name(self, child: str, reader: str, suffix: str) -> str:
        # No operator of a query has a '>' in its id, and has one reader, so an edge is known by its ends without what
        # divides and merges rows there: names cannot collide.
        shard = self._shards.get(reader)
        ends = (
            child.removesuffix(">shard"),
            self._homes[reader],
            *([] if shard is None else [str(shard[1])]),
        )
        name = f"{self._plan.name}/{'>'.join(ends)}{suffix}"
        if len(name) <= _MAX_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return f"{name[: _MAX_NAME - 33]}~{digest}"

    def channels(self) -> Iterator[Channel]:
        for hops in self._hops.values():
            yield from hops

    def fragments(self) -> Iterator[Fragment]:
        """One fragment per connected group of operators on a node, and in a shard, each with the bridges after it."""
        self._engines.check()
        groups: dict[
            str, list[FragmentOperator]
        ] = {}  # by root, while it is not known: by the latest operator
        for key, operator in self._operators.items():
            group: list[FragmentOperator] = []
            for child in operator.children:
                hops = self._hops.get((child, key))
                group += groups.pop(child) if hops is None else [self._source_of(hops[-1])]
            groups[key] = [*group, operator]
            if ways := [hops for (child, _), hops in self._hops.items() if child == key]:
                sinks = [self._network_sink(hops[0], number, len(ways)) for number, hops in enumerate(ways)]
                yield self._fragment(key, self._nodes[key], [*groups.pop(key), *sinks])
                for number, hops in enumerate(ways):
                    for before, behind in pairwise(hops):
                        yield self._bridge(before, behind, number, len(ways))
        yield self._fragment(self._plan.root, self._nodes[self._plan.root], groups[self._plan.root])

    def _fragment(self, root: str, node: str, operators: Iterable[FragmentOperator]) -> Fragment:
        operators = tuple(operators)
        inner = [operator.id for operator in operators if not isinstance(operator, NetworkSource)]
        return Fragment(
            id=f"{self._plan.name}/{root.removesuffix('>shard')}",
            node=node,
            operators=operators,
            engine=self._engines.of(node, operators),
            watermarks=tuple(self._plan.watermarks[key] for key in inner if key in self._plan.watermarks),
            closings=tuple(self._plan.closings[key] for key in inner if key in self._plan.closings),
            only_growing=tuple(key for key in inner if key in self._plan.only_growing),
            views=self._views,
        )

    def _bridge(self, before: Channel, behind: Channel, number: int, ways: int) -> Fragment:
        root = behind.id.removeprefix(f"{self._plan.name}/")
        sink = self._network_sink(behind, number, ways)
        return self._fragment(root, before.end, (self._source_of(before), sink))

    def _source_of(self, hop: Channel) -> NetworkSource:
        home = self._homes[hop.operator]
        chosen = self._plan.policies.at(hop.end, home)
        sent = self._plan.policies.at(hop.start, home).buffer
        return NetworkSource(
            id=hop.operator,
            channel=hop.id,
            address=hop.end,
            schema=self._plan.schemas[home],
            buffer=chosen.buffer,
            fault=chosen.fault,
            lossy=sent is not None and sent.when_full == "drop_oldest",
        )

    def _network_sink(self, hop: Channel, number: int, ways: int) -> NetworkSink:
        """Return the sink for the first link of one of the ways from an operator.

        For a sharder it includes the shard.
        """
        chosen = self._plan.policies.at(hop.start, self._homes[hop.operator])
        return NetworkSink(
            id=f"{hop.operator}>{number}" if ways > 1 else f"{hop.operator}>",
            input=hop.operator,
            channel=hop.id,
            address=hop.end,
            buffer=chosen.buffer,
            fault=chosen.fault,
        )
