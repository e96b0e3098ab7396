"""The links of a topology as a directed acyclic graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

    from topology.model import Topology


def downstream_links(topology: Topology) -> dict[str, tuple[str, ...]]:
    """By the address of each node, in file order, the addresses that its links lead to."""
    return {node.address: tuple(dict.fromkeys(node.links.downstream)) for node in topology.nodes}


def link_graph(topology: Topology) -> nx.DiGraph[str]:
    """The nodes by address, in file order, with an edge for each link, from upstream to downstream."""
    import networkx as nx  # takes as long to import as the rest of this package

    graph: nx.DiGraph[str] = nx.DiGraph()
    links = downstream_links(topology)
    graph.add_nodes_from(links)
    graph.add_edges_from((address, end) for address, ends in links.items() for end in ends)
    return graph
