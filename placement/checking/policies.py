"""Which policies a channel has: the query's over the node's over the topology's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from topology import ChannelPolicies
from topology.policies import first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from placement.plan import Query
    from topology import Topology

_NONE = ChannelPolicies()


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of all levels; ``of_operators`` is by the operator whose output a channel carries.

    ``operators`` are all of the query's, which distinguishes its own from the parts of its sources.
    """

    of_operators: Mapping[str, ChannelPolicies] = field(default_factory=dict)
    of_query: ChannelPolicies = _NONE
    of_nodes: Mapping[str, ChannelPolicies] = field(default_factory=dict)
    of_all: ChannelPolicies = _NONE
    operators: Collection[str] = ()

    @classmethod
    def of(cls, query: Query, topology: Topology) -> Policies:
        """The policies of a query over a topology. A query's policy for a source also holds for its parts."""
        of_nodes = {node.address: node.channels for node in topology.nodes}
        operators = frozenset(operator.id for operator in query.operators)
        return cls(query.channels.of, query.channels, of_nodes, topology.channels, operators)

    def repeated(self, origins: Mapping[str, str]) -> Policies:
        """The policies where operators are repeated: each has those of the one that it repeats."""
        of = {key: self.of_operators[each] for key, each in origins.items() if each in self.of_operators}
        return replace(self, of_operators=of, operators=frozenset(origins))

    def at(self, node: str, operator: str) -> ChannelPolicies:
        """The policies of the channel with the output of ``operator``, at its end on ``node``."""
        return first_of(self._levels(node, operator))

    def _levels(self, node: str, operator: str) -> Iterator[ChannelPolicies]:
        source = operator if operator in self.operators else operator.rpartition("/")[0]
        yield self.of_operators.get(source, _NONE)
        yield self.of_query
        yield self.of_nodes.get(node, _NONE)
        yield self.of_all
