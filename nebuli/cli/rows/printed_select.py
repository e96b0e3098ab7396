"""The sink and the printed rows of a SELECT that has no sink of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from placement import Statement, StrategyName
    from placement.statements.ordering import Ordering
    from topology import Sink, Topology


def with_sink(topology: Topology, statement: Statement, file: Path, *, stepped: bool) -> Topology:
    """Return the topology with a sink for the rows of a SELECT, at the first node downstream that they can reach.

    If all sources end, the sink is ``file``, for `print_rows`. Otherwise it is standard output: for appended rows or,
    if the query retracts rows, for all changes. Raises InvalidQuery, PlacementError.
    """
    from nebuli.control.selected_rows import at_node, downstream, with_reached_sink

    sink = _sink(topology, statement, file, stepped=stepped)
    if stepped:
        return at_node(topology, downstream(topology)[0], sink)
    return with_reached_sink(topology, statement.query, sink)


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


def _sink(topology: Topology, statement: Statement, file: Path, *, stepped: bool) -> Sink:
    from nebuli.control.selected_rows import at_node, endless_source, kept_in
    from placement import InvalidQuery, RetractingPlan, check, check_stepped
    from placement.statements.statement import PRINTED
    from topology import PrintSink

    ordering = statement.ordering
    assert ordering is not None
    endless = endless_source(topology, statement.query)
    if not endless:
        return kept_in(file)
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
        checked(statement.query, at_node(topology, topology.nodes[0].address, appended))
    except RetractingPlan:
        return appended.model_copy(update={"mode": "changes"})
    return appended


def print_rows(file: Path, ordering: Ordering) -> None:
    """Print the rows of a file: as a table on a terminal, otherwise as CSV."""
    import pyarrow.parquet as pq

    from nebuli.control.selected_rows import ordered

    with pq.ParquetFile(file) as rows:
        schema = rows.schema_arrow
        batches = rows.iter_batches()
        if ordering.needs_all:
            batches = iter(ordered(rows.read(), ordering).to_batches())
        names = schema.names[: ordering.width]
        _print((batch.select(names) for batch in batches), _first(schema, ordering.width))


def _first(schema: pa.Schema, width: int) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*schema][:width])


def _print(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    from nebuli.connectors.errors import OutputError
    from nebuli.connectors.sinks.outputs import printed
    from placement.statements.statement import PRINTED
    from topology import PrintSink

    form: Any = "table" if sys.stdout.isatty() else "CSV"
    output = printed(PrintSink(type="Print", name=PRINTED, mode="append", format=form))
    try:
        output.open(schema)
        for batch in batches:
            output.write(batch)
        output.publish()
    except OutputError as error:
        # Not of a sink's process: `exit_code` handles errors of a command's own output.
        if isinstance(error.__cause__, BrokenPipeError):
            raise error.__cause__ from None
        raise OSError(str(error)) from error
