"""The links of a topology as a directed acyclic graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

    from topology.model import Topology


def link_graph(topology: Topology) -> nx.DiGraph[str]:
    """The nodes by address, in file order, with an edge for each link, from upstream to downstream."""
    import networkx as nx  # takes as long to import as the rest of this package

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(node.address for node in topology.nodes)
    graph.add_edges_from((node.address, end) for node in topology.nodes for end in node.links.downstream)
    return graph
