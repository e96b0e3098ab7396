"""The parts of a topology.

Logical sources, nodes, links, the sources and sinks attached to nodes, and the connections of nodes.

The models are the topology file: the same keys, the same defaults. A ``Topology`` is consistent whether it
was read from a file or made in code: its names are unique, its references lead somewhere, its links form no
cycle.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from topology.access import Access, Secret, TlsFiles
from topology.base import Address, Model, Text
from topology.built_in import SINKS, SOURCES
from topology.connectors import SinkConnector, SourceConnector
from topology.consistency import inconsistencies
from topology.mistakes import Marks, TopologyError
from topology.policies import ChannelPolicies
from topology.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Collection


class LogicalSource(Model):
    """A name and a schema that physical sources provide."""

    name: Text
    columns: Schema = Field(alias="schema", min_length=1)
    materialized: bool = False
    """True if a query in steps keeps all of its rows, so that they can be queried."""


PhysicalSource = Annotated[SourceConnector, SOURCES]
Sink = Annotated[SinkConnector, SINKS]


class LinkLimits(Model):
    """The capacity of a link, as far as it is known."""

    bandwidth: Annotated[float, Field(gt=0)] | None = None
    """Bytes per second."""
    latency_ms: Annotated[float, Field(ge=0)] | None = None
    """Milliseconds one way."""


class Links(Model):
    """The nodes that a node can send data to; ``limits`` are by address, of links that have any."""

    downstream: tuple[Address, ...] = ()
    limits: dict[Address, LinkLimits] = Field(default_factory=dict)


EngineName = Literal["embedded", "spark"]
LOCAL_MASTER = "local[*]"
_MASTERS = re.compile(
    r"local(\[(\*|[1-9][0-9]*)(,[1-9][0-9]*)?\])?|local-cluster\[[1-9][0-9]*(,[1-9][0-9]*){2}\]|(spark|sc)://\S+"
)


def _check_master(master: str) -> str:
    if not _MASTERS.fullmatch(master):
        raise ValueError(
            f"expected local[N], local[*], local-cluster[EXECUTORS,CORES,MIB], spark://host:port or, for Spark "
            f"Connect, sc://host:port as master, got {master!r}"
        )
    return master


def _check_data_ports(ports: str) -> str:
    low, dash, high = ports.partition("-")
    is_range = dash and low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) < 1 << 16
    if not (is_range or ports == "ephemeral"):
        raise ValueError(f"data_ports is {ports!r}: expected 'ephemeral' or a range such as '40000-40999'")
    return ports


class Node(Model):
    """A worker: where others reach it, what it holds, and what is attached to it."""

    address: Address
    """The address at which others reach its ReceiverServer; names the node."""
    listen: Address | None = None
    """The address that its ReceiverServer binds, if that differs from ``address``."""
    data_ports: Annotated[str, AfterValidator(_check_data_ports)] | None = None
    """Separate ports for data connections, where these do not go to its fragments' ports."""
    grpc: Address | None = None
    """The address at which it takes queries; deploying needs it, planning does not."""
    capacity: Annotated[int, Field(strict=True, ge=0)] | None = None
    """How many operators it can hold; absent: unbounded."""
    engine: EngineName = "embedded"
    """The engine of its fragments."""
    master: Annotated[str, AfterValidator(_check_master)] | None = None
    """The master of the engine ``spark``; absent: Spark runs in processes of this node, with all its cores."""
    tls: TlsFiles | None = None
    """Its own certificate, if it has one instead of that for all."""
    secret: Secret | None = None
    """The place of its own secret, if it has one instead of that for all."""
    channels: ChannelPolicies = ChannelPolicies()
    """Policies of its channels, over those for all."""
    links: Links = Links()
    physical: tuple[PhysicalSource, ...] = ()
    sinks: tuple[Sink, ...] = ()

    @property
    def spark_master(self) -> str | None:
        """The master of the Spark that runs this node's fragments; None with the embedded engine."""
        return (self.master or LOCAL_MASTER) if self.engine == "spark" else None


class Topology(Model):
    """Logical sources and nodes. Making an inconsistent one raises ``TopologyError`` with every mistake."""

    logical: tuple[LogicalSource, ...] = ()
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    tls: TlsFiles | None = None
    """Certificate, key and authority of every worker, and of commands that ask them."""
    secret: Secret | None = None
    """The place of the secret that workers, and commands that ask them, share."""
    channels: ChannelPolicies = ChannelPolicies()
    """Policies of all channels, below those of nodes and of queries."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Topology:
        found = list(inconsistencies(self.to_data()))
        if found:
            raise TopologyError(Marks().mistake(path, message) for path, message in found)
        return self

    def node(self, address: str) -> Node:
        """Return the node with this address; ``KeyError`` if there is none."""
        for node in self.nodes:
            if node.address == address:
                return node
        raise KeyError(address)

    def access(self, node: Node) -> Access:
        """Return the credentials of the worker of ``node``, its own before those for all."""
        return Access(tls=node.tls or self.tls, secret=node.secret or self.secret)

    def access_to(self, node: Node) -> Access:
        """Return the credentials that a command shows to that worker: those for all, or else the worker's own."""
        return Access(tls=self.tls or node.tls, secret=self.secret or node.secret)

    def with_engine(self, engine: EngineName) -> Topology:
        """The same, with this engine at every node."""
        nodes = [
            {**node.model_dump(exclude_unset=True, exclude={"master"}), "engine": engine}
            | ({"master": node.master} if engine == "spark" and node.master else {})
            for node in self.nodes
        ]
        return Topology.model_validate({**self.model_dump(exclude_unset=True), "nodes": nodes})

    def to_data(self) -> dict[str, Any]:
        """The topology as plain lists, mappings, strings and numbers, without what was left to its default."""
        return self.model_dump(mode="json", exclude_unset=True)

    def without(self, addresses: Collection[str]) -> Topology:
        """The topology as if these nodes, and the links to them, were not there."""
        nodes = []
        for node in self.nodes:
            if node.address not in addresses:
                downstream = tuple(each for each in node.links.downstream if each not in addresses)
                limits = {each: limit for each, limit in node.links.limits.items() if each not in addresses}
                links = node.links.model_copy(update={"downstream": downstream, "limits": limits})
                nodes.append(node.model_copy(update={"links": links}))
        return self.model_copy(update={"nodes": tuple(nodes)})

    def to_yaml(self) -> str:
        """The text of a file that loads as an equal topology."""
        import yaml

        return yaml.safe_dump(self.to_data(), sort_keys=False, allow_unicode=True, width=110)
