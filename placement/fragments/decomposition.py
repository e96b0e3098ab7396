"""Cutting a placed plan into fragments, stitched by network channels.

An edge between operators on different nodes becomes one channel per link of its path. The node at each end of
a channel gets a ``NetworkSink`` or a ``NetworkSource``; a node that the path only crosses gets a fragment of
just these two, a bridge. A ``NetworkSource`` has the id of the operator whose output it brings, so that what
reads it reads the same input as before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from placement.fragments.engines import Engines
from placement.plan import Fragment, NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from placement.strategies.bottom_up import Placement
from placement.plan import FragmentOperator

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
    """Cut a placed plan at every edge between nodes. Equal placements give equal names.

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
        self._nodes = placement.nodes
        self._engines = Engines(placement)
        self._hops = {
            child: tuple(self._hops_of(child, path))
            for child, path in placement.paths.items()
            if len(path) > 1
        }

    def _hops_of(self, child: str, path: tuple[str, ...]) -> Iterator[Channel]:
        links = list(pairwise(path))
        for index, (start, end) in enumerate(links):
            suffix = f"#{index}" if len(links) > 1 else ""
            yield Channel(self._channel_name(child, suffix), child, start, end)

    def _channel_name(self, child: str, suffix: str) -> str:
        # No operator of a query has a '>' in its id, and an edge is known by its child: names cannot collide.
        name = f"{self._plan.name}/{child}>{self._plan.readers[child]}{suffix}"
        if len(name) <= _MAX_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return f"{name[: _MAX_NAME - 33]}~{digest}"

    def channels(self) -> Iterator[Channel]:
        for hops in self._hops.values():
            yield from hops

    def fragments(self) -> Iterator[Fragment]:
        """One fragment per connected group of operators on a node, each with the bridges behind it."""
        self._engines.check()
        groups: dict[
            str, list[FragmentOperator]
        ] = {}  # by root, while it is not known: by the latest operator
        for key, operator in self._plan.operators.items():
            group: list[FragmentOperator] = []
            for child in operator.children:
                group += [self._network_source(child)] if child in self._hops else groups.pop(child)
            groups[key] = [*group, operator]
            if key in self._hops:
                first, *others = self._hops[key]
                groups[key].append(self._network_sink(first))
                yield self._fragment(key, self._nodes[key], groups.pop(key))
                yield from (self._bridge(before, hop) for before, hop in pairwise((first, *others)))
        yield self._fragment(self._plan.sink, self._nodes[self._plan.sink], groups[self._plan.sink])

    def _fragment(self, root: str, node: str, operators: Iterable[FragmentOperator]) -> Fragment:
        operators = tuple(operators)
        inner = [operator.id for operator in operators if not isinstance(operator, NetworkSource)]
        return Fragment(
            id=f"{self._plan.name}/{root}",
            node=node,
            operators=operators,
            engine=self._engines.of(node, operators),
            watermarks=tuple(self._plan.watermarks[key] for key in inner if key in self._plan.watermarks),
            closings=tuple(self._plan.closings[key] for key in inner if key in self._plan.closings),
        )

    def _bridge(self, before: Channel, behind: Channel) -> Fragment:
        root = behind.id.removeprefix(f"{self._plan.name}/")
        return self._fragment(root, before.end, (self._source_of(before), self._network_sink(behind)))

    def _network_source(self, child: str) -> NetworkSource:
        return self._source_of(self._hops[child][-1])

    def _source_of(self, hop: Channel) -> NetworkSource:
        schema = self._plan.schemas[hop.operator]
        chosen = self._plan.policies.at(hop.end, hop.operator)
        sent = self._plan.policies.at(hop.start, hop.operator).buffer
        return NetworkSource(
            id=hop.operator,
            channel=hop.id,
            address=hop.end,
            schema=schema,
            buffer=chosen.buffer,
            fault=chosen.fault,
            lossy=sent is not None and sent.when_full == "drop_oldest",
        )

    def _network_sink(self, hop: Channel) -> NetworkSink:
        identity = f"{hop.operator}>"
        chosen = self._plan.policies.at(hop.start, hop.operator)
        return NetworkSink(
            id=identity,
            input=hop.operator,
            channel=hop.id,
            address=hop.end,
            buffer=chosen.buffer,
            fault=chosen.fault,
        )
