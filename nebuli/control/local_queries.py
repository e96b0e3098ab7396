"""Queries of a program from start to end, with a local worker process for each node."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from nebuli.connectors.sinks.sink_locks import check_query_files
from nebuli.control.deployment import Active, deploy, fragments_of
from nebuli.control.late_report import LateReport
from nebuli.control.local import LocalWorkers
from nebuli.control.selected_rows import (
    at_node,
    downstream,
    endless_source,
    kept_in,
    ordered,
    with_reached_sink,
)
from nebuli.control.supervision import Policy, Supervisor
from nebuli.limits import MOST_MEMBERS
from nebuli.rpc.ids import new_query
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from nebuli.store.store_url import StorePlace, store_place
from placement import InvalidQuery, Query, Statement, check, parse_query, read_statement
from placement.plan import ViewOperator
from placement.query_builder import Grouped, Relation
from placement.statements.statement import PRINTED
from topology import Mistake, Topology, load_topology
from topology.mistakes import read_text

__all__ = ["Given", "TopologyFile", "collect", "run"]

_CHECKPOINT_S = 10.0

_log = logging.getLogger(__name__)

TopologyFile = str | os.PathLike[str]
"""The name of a topology's file."""
Given = str | os.PathLike[str] | Relation | Query
"""A query: its text in SQL or JSON, the path of its file, or as it was built."""


async def collect(
    topology: TopologyFile,
    query: Given,
    *,
    state: str | os.PathLike[str] | None = None,
    members: int | None = None,
) -> pa.Table:
    """Run a query without a sink on local workers, one for each node, and return its rows.

    ``topology`` is the path of its file. ``query`` is a SELECT, the path of a file with one, or a `Relation`. Rows are
    in the order of ORDER BY; without ORDER BY, in any order.

    With ``state``, a folder or the URL of a store, the query runs in steps, on ``members`` local processes (default:
    the number in the saved state, or 1). The next call with the same state resumes the query: after an error or a
    cancelled call where it stopped, and otherwise with the rows that were added to its files.

    Raises TopologyError, InvalidQuery and PlacementError before anything runs, then QueryFailed, QueryLost, WorkerDied
    or WorkerNotStarted; in steps CoordinationError, FragmentError, MembersFailed or StorageError. ValueError for
    members without a state, or more than 64. A cancelled call ends all processes before it returns.
    """
    if members is not None and (members not in range(1, MOST_MEMBERS + 1) or state is None):
        raise ValueError(
            f"expected members from 1 to {MOST_MEMBERS}, together with state, "
            f"got members={members!r}, state={state!r}"
        )
    place = None if state is None else store_place(state)
    file, model = _loaded(topology)
    has_no_sink = isinstance(query, Relation) and not query.is_sink
    if isinstance(query, Relation) and has_no_sink:
        query = query.sink(PRINTED).named("output")
    statement = _statement(model, query)
    plan, ordering = statement.query, statement.ordering
    if statement.is_explained:
        statement.check_run(model)
    if ordering is None and not has_no_sink:
        check(plan, model)
        root = plan.operators[-1]
        raise InvalidQuery(
            [
                Mistake(
                    f"{root.type} {root.id} receives the rows of the query: remove this sink to "
                    f"get the rows here, or call nebuli.run",
                    _name(query),
                )
            ]
        )
    with TemporaryDirectory(prefix="nebuli-") as folder:
        rows = Path(folder) / "rows.parquet"
        if place is None:
            model = with_reached_sink(model, plan, kept_in(rows))
        else:
            model = at_node(model, downstream(model)[0], kept_in(rows))
        if endless := endless_source(model, plan):
            raise InvalidQuery(
                [
                    Mistake(
                        f"{endless} may not end, so the rows are never complete: write them to a sink",
                        _name(query),
                    )
                ]
            )
        if place is None:
            await _run(model, file, plan)
        else:
            await _run_in_steps(model, file, plan, place, members)
        table = pq.read_table(rows)
    return (
        table if ordering is None else ordered(table, ordering).select(table.column_names[: ordering.width])
    )


async def run(topology: TopologyFile, query: Given) -> None:
    """Run a query with a sink on local workers, one for each node; return when the sink has all rows.

    ``topology`` and ``query`` are as for `collect`, with a sink: an INSERT, a file, or a `Relation` whose `sink` was
    called. Paths in the topology are relative to its directory. Raises as `collect`, and OutputError if the query
    would overwrite a file that it reads.
    """
    file, model = _loaded(topology)
    statement = _statement(model, query)
    statement.check_run(model)
    for number, each in enumerate(statement.query.operators):
        if isinstance(each, ViewOperator):
            message = f"view {each.id}: views are served by nebuli run and by workers: run the query there"
            raise InvalidQuery([statement.query.mistake(("operators", number), message)])
    check_query_files(model, statement.query, file.parent, [str(file)])
    await _run(model, file, statement.query)


def _loaded(topology: TopologyFile) -> tuple[Path, Topology]:
    """Read a topology, and return its absolute path with it. Raises TopologyError."""
    return Path(topology).absolute(), load_topology(topology)


def _statement(topology: Topology, query: Given) -> Statement:
    """Read a query as the command line does. Raises InvalidQuery."""
    match query:
        case Query():
            return Statement(query)
        case Relation():
            return Statement(query.query())
        case Grouped():
            raise TypeError("grouped rows are not a query yet: call aggregate on them")
        case str() if Path(query).suffix.lower() in (".sql", ".json") and len(query.split()) == 1:
            raise InvalidQuery(
                [
                    Mistake(
                        f"{query} is the name of a file, but a str is read as a query: give "
                        f"pathlib.Path({query!r})"
                    )
                ]
            )
        case str():
            text, name, is_sql = query, "query", not query.lstrip().startswith("{")
        case _:
            found = read_text(Path(query))
            if isinstance(found, Mistake):
                raise InvalidQuery([found])
            text, name, is_sql = found, Path(query).stem, Path(query).suffix.lower() == ".sql"
    if is_sql:
        return read_statement(text, topology, name, _name(query))
    return Statement(parse_query(text, name, _name(query)))


def _name(query: Given) -> str | None:
    """The file that messages name."""
    return os.fspath(query) if isinstance(query, os.PathLike) else None


async def _run(topology: Topology, file: Path, query: Query) -> None:
    """Run a query to its end, and log late rows."""
    deployment = new_query()
    fragments = fragments_of(query, topology, 0, deployment, say=_log.info)
    active = Active(deployment, (), fragments)
    late = LateReport()
    async with LocalWorkers.of(topology, file, {each.node for each in fragments}) as workers:
        supervisor = Supervisor(
            active,
            query,
            topology,
            workers,
            seed=0,
            policy=Policy.FAIL,
            patience_s=0.0,
            say=_log.info,
            report=late.report,
            moved=lambda active: None,
        )

        async def work() -> None:
            await deploy(active, workers)
            await supervisor.watch()

        await workers.guard(work())
    for text in late.warnings():
        _log.warning(text)


async def _run_in_steps(
    topology: Topology, file: Path, query: Query, state: StorePlace, members: int | None
) -> None:
    """Run a query in steps to the end of its inputs."""
    run = LocalRun(
        stepped_query(query, topology, members or 1, file.parent),
        state,
        file.parent,
        TriggerSettings(checkpoint_s=_CHECKPOINT_S, spacing_s=SPACING_S),
        scales=members is not None,
        keep_output_bytes=0,
        keep_contents_bytes=0,
    )
    async with run:
        await run.until_ended()
