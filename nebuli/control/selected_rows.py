"""The rows of a query that has no sink of its own: where they are kept, and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placement import InvalidQuery, PlacementError, place
from placement.graph import bottom_up
from placement.plan import SourceOperator
from placement.statements.statement import PRINTED
from topology import ParquetSink

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from placement import Query
    from placement.statements.ordering import Ordering
    from topology import Sink, Topology

__all__ = [
    "at_node",
    "downstream",
    "endless_source",
    "kept_in",
    "ordered",
    "sort_indices",
    "with_reached_sink",
]


def kept_in(file: Path) -> Sink:
    """Return the sink that keeps the rows in a file, which is there once the query has finished."""
    return ParquetSink(type="Parquet", name=PRINTED, path=str(file), mode="final")


def with_reached_sink(topology: Topology, query: Query, sink: Sink) -> Topology:
    """Return the topology with a sink at the first node downstream that the rows of a query can reach.

    Raises InvalidQuery, PlacementError.
    """
    failed: PlacementError | None = None
    for address in downstream(topology):
        found = at_node(topology, address, sink)
        try:
            place(query, found)
        except InvalidQuery:
            raise  # every node has the same mistake
        except PlacementError as error:
            failed = failed or error
        else:
            return found
    assert failed is not None, "a topology has nodes"
    raise failed


def at_node(topology: Topology, address: str, sink: Sink) -> Topology:
    """Return the topology with one more sink at a node."""
    nodes = tuple(
        node.model_copy(update={"sinks": (*node.sinks, sink)}) if node.address == address else node
        for node in topology.nodes
    )
    return topology.model_copy(update={"nodes": nodes})


def endless_source(topology: Topology, query: Query) -> str | None:
    """Return a source of the query that may not end, as messages name it; one that programs push into does not."""
    for name in [each.logical for each in query.operators if isinstance(each, SourceOperator)]:
        attached = [each for node in topology.nodes for each in node.physical if each.logical == name]
        for each in attached:
            if each.ends != "always":
                return f"{name} ({each.reads})"
        if not attached:
            return f"{name}, which has no physical source,"
    return None


def ordered(rows: pa.Table, ordering: Ordering) -> pa.Table:
    """Sort the rows, and apply OFFSET and LIMIT."""
    end = None if ordering.limit is None else ordering.offset + ordering.limit
    if ordering.keys:
        rows = rows.take(sort_indices(rows, ordering)[:end])
    return rows.slice(ordering.offset, ordering.limit)


def sort_indices(rows: pa.Table, ordering: Ordering) -> pa.Array:
    """Return the row numbers in sorted order: NaN is greater than other numbers; each key sets the order of nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: list[Any] = []
    directions: list[str] = []
    for key in ordering.keys:
        values = rows.column(key.column)
        direction = "descending" if key.is_descending else "ascending"
        columns.append(pc.cast(pc.is_null(values), pa.int8()))
        directions.append("descending" if key.nulls_first else "ascending")
        if pa.types.is_floating(values.type):
            columns.append(pc.cast(pc.fill_null(pc.is_nan(values), fill_value=False), pa.int8()))
            directions.append(direction)
            values = pc.if_else(pc.is_nan(values), pa.scalar(0, values.type), values)
        elif pa.types.is_boolean(values.type):
            values = pc.cast(values, pa.int8())
        columns.append(values)
        directions.append(direction)
    names = [str(number) for number in range(len(columns))]
    return pc.sort_indices(pa.table(columns, names=names), sort_keys=[*zip(names, directions, strict=True)])


def downstream(topology: Topology) -> list[str]:
    """Return the nodes in the order of links, each before its downstream nodes."""
    links = {node.address: [*node.links.downstream] for node in topology.nodes}
    return bottom_up(links, *links)[::-1]
