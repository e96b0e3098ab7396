"""The two files that commands read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement import InvalidQuery, load_query
from topology import TopologyError, load_topology

if TYPE_CHECKING:
    from placement import Query
    from topology import Topology


def load(topology: str, query: str) -> tuple[Topology, Query]:
    """Read both files; if the topology is wrong, what is wrong with the query is said as well."""
    try:
        model = load_topology(topology)
    except TopologyError as error:
        try:
            load_query(query)
        except InvalidQuery as other:
            raise TopologyError((*error.mistakes, *other.mistakes)) from None
        raise
    return model, load_query(query)
