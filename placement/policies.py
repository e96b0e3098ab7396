"""Which policies a channel has: the query's over the node's over the topology's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topology import ChannelPolicies
from topology.policies import first_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from placement.plan import Query
    from topology import Topology

_NONE = ChannelPolicies()


@dataclass(frozen=True, slots=True)
class Policies:
    """What the levels say; ``of_operators`` is by the operator whose output a channel carries."""

    of_operators: Mapping[str, ChannelPolicies] = field(default_factory=dict)
    of_query: ChannelPolicies = _NONE
    of_nodes: Mapping[str, ChannelPolicies] = field(default_factory=dict)
    of_all: ChannelPolicies = _NONE

    @classmethod
    def of(cls, query: Query, topology: Topology) -> Policies:
        """Of a query over a topology. What a query says of a source holds for its parts as well."""
        of_nodes = {node.address: node.channels for node in topology.nodes}
        return cls(query.channels.of, query.channels, of_nodes, topology.channels)

    def at(self, node: str, operator: str) -> ChannelPolicies:
        """Of the channel with the output of ``operator``, at its end on ``node``."""
        return first_of(self._levels(node, operator))

    def _levels(self, node: str, operator: str) -> Iterator[ChannelPolicies]:
        source, slash, _ = operator.rpartition("/")
        for name in (operator, source) if slash else (operator,):
            yield self.of_operators.get(name, _NONE)
        yield self.of_query
        yield self.of_nodes.get(node, _NONE)
        yield self.of_all
