"""The sink and the printed rows of a SELECT that has no sink of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from placement import Query, Statement, StrategyName
    from placement.statements.ordering import Ordering
    from topology import Sink, Topology


def with_sink(topology: Topology, statement: Statement, file: Path, *, stepped: bool) -> Topology:
    """Return the topology with a sink for the rows of a SELECT, at the first node downstream that they can reach.

    If all sources end, the sink is ``file``, for `print_rows`. Otherwise it is standard output: for appended rows or,
    if the query retracts rows, for all changes. Raises InvalidQuery, PlacementError.
    """
    from placement import InvalidQuery, PlacementError, place

    sink = _sink(topology, statement, file, stepped=stepped)
    failed: PlacementError | None = None
    for address in _downstream(topology):
        found = _at(topology, address, sink)
        if stepped:
            return found
        try:
            place(statement.query, found)
        except InvalidQuery:
            raise  # every node has the same mistake
        except PlacementError as error:
            failed = failed or error
        else:
            return found
    assert failed is not None, "a topology has nodes"
    raise failed


def explained(
    topology: Topology,
    statement: Statement,
    seed: int,
    strategy: StrategyName,
    members: int | None,
    *,
    stepped: bool,
) -> str:
    """Format the placement of a statement: each operator with its reason and its SQL. Raises PlacementError."""
    import placement
    from nebuli.cli import placement_text

    if statement.ordering is not None:
        topology = with_sink(topology, statement, Path("rows.parquet"), stepped=stepped)
    query = statement.query
    if stepped:
        from nebuli.control.step_placement import step_fragments

        plan = placement.check_stepped(query, topology)
        fragments = step_fragments(query, topology, members, query.name, 1.0)
        return placement_text.explained_in_steps(plan, fragments, placement.kept_in_steps(plan))
    placed = placement.place(query, topology, seed, strategy)
    return placement_text.explained(placed, placement.decompose(placed))


def _at(topology: Topology, address: str, sink: Sink) -> Topology:
    nodes = tuple(
        node.model_copy(update={"sinks": (*node.sinks, sink)}) if node.address == address else node
        for node in topology.nodes
    )
    return topology.model_copy(update={"nodes": nodes})


def _downstream(topology: Topology) -> list[str]:
    """Return the nodes in the order of links, each before its downstream nodes."""
    from placement.graph import bottom_up

    links = {node.address: [*node.links.downstream] for node in topology.nodes}
    return bottom_up(links, *links)[::-1]


def _sink(topology: Topology, statement: Statement, file: Path, *, stepped: bool) -> Sink:
    from placement import InvalidQuery, RetractingPlan, check, check_stepped
    from placement.statements.statement import PRINTED
    from topology import ParquetSink, PrintSink

    ordering = statement.ordering
    assert ordering is not None
    endless = _endless(topology, statement.query)
    if not endless:
        return ParquetSink(type="Parquet", name=PRINTED, path=str(file), mode="final")
    if ordering.needs_all:
        message = (
            f"ORDER BY and LIMIT require all rows, and {endless} may not end: remove them, and rows are printed as "
            f"they arrive"
        )
        raise InvalidQuery([statement.mistake_at_order(message)])
    form: Any = "table" if sys.stdout.isatty() else "CSV"
    appended = PrintSink(type="Print", name=PRINTED, mode="append", format=form)
    try:
        checked = check_stepped if stepped else check
        checked(statement.query, _at(topology, topology.nodes[0].address, appended))
    except RetractingPlan:
        return appended.model_copy(update={"mode": "changes"})
    return appended


def _endless(topology: Topology, query: Query) -> str | None:
    """Return a source of the query that may not end, as messages name it; one that programs push into does not."""
    from placement.plan import SourceOperator

    for name in [each.logical for each in query.operators if isinstance(each, SourceOperator)]:
        attached = [each for node in topology.nodes for each in node.physical if each.logical == name]
        for each in attached:
            if each.ends != "always":
                return f"{name} ({each.reads})"
        if not attached:
            return f"{name}, which has no physical source,"
    return None


def print_rows(file: Path, ordering: Ordering) -> None:
    """Print the rows of a file: as a table on a terminal, otherwise as CSV."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as rows:
        schema = rows.schema_arrow
        batches = rows.iter_batches()
        if ordering.needs_all:
            batches = _ordered(rows.read(), ordering)
        names = schema.names[: ordering.width]
        _print((batch.select(names) for batch in batches), _first(schema, ordering.width))


def _first(schema: pa.Schema, width: int) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*schema][:width])


def _print(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    from nebuli.connectors.sinks.outputs import printed
    from placement.statements.statement import PRINTED
    from topology import PrintSink

    form: Any = "table" if sys.stdout.isatty() else "CSV"
    output = printed(PrintSink(type="Print", name=PRINTED, mode="append", format=form))
    output.open(schema)
    for batch in batches:
        output.write(batch)
    output.publish()


def _ordered(rows: pa.Table, ordering: Ordering) -> Iterator[pa.RecordBatch]:
    """Sort the rows, and apply OFFSET and LIMIT."""
    end = None if ordering.limit is None else ordering.offset + ordering.limit
    if ordering.keys:
        rows = rows.take(sort_indices(rows, ordering)[:end])
    return iter(rows.slice(ordering.offset, ordering.limit).to_batches())


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
