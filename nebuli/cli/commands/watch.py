"""``nebuli watch``: supervision of a started query to its end, by its policy for lost nodes."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from nebuli.cli import saved_queries
from nebuli.cli.bounds import Finite
from nebuli.cli.commands import completion
from nebuli.cli.exits import ExitCode
from nebuli.cli.worker_answers import settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from nebuli.control.deployed_queries import DeployedQuery, Endpoint, Workers
    from nebuli.control.deployment import Active
    from topology import Topology


@click.command()
@click.argument("id_", metavar="ID", shell_complete=completion.queries)
@click.option(
    "--on-loss",
    type=click.Choice(["wait", "fail", "replace"]),
    help="New policy for lost nodes, which replaces the registered one.  [default: as registered]",
)
@click.option(
    "--patience",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    type=Finite(min=0),
    help="Time without an answer from a node after which the query is placed without the node.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object per event, on one line.")
def watch(id_: str, on_loss: str | None, patience: float, *, as_json: bool) -> int:
    """Watch a query to its end and handle lost nodes.

    When a node is lost, applies the policy of the query. Without a watcher, the other workers only wait for the node;
    fragments that can resume do so automatically. A query has at most one watcher. Ctrl-C ends the watcher, not the
    query.

    Exit codes: 0 the query has finished, 1 it has failed, 3 a worker does not answer and the policy is fail.
    """
    from nebuli.control.supervision import Policy

    query = asyncio.run(settled(saved_queries.load(id_)))
    if on_loss is not None:
        query = query.model_copy(update={"policy": Policy(on_loss)})
        saved_queries.save(query)
    return asyncio.run(watching(query, patience, as_json=as_json))


async def watching(query: DeployedQuery, patience_s: float = 10.0, *, as_json: bool = False) -> int:
    """Watch a query, and return the exit code. Raises ClickException if another process watches it.

    Prints events to standard error; or with ``as_json`` to standard output, an object on a line each.
    """
    with saved_queries.watched(query):
        return await _watching(query, patience_s, _tell_data if as_json else _tell)


_PREFIXES = {"warned": "Warning: ", "failed": "Error: "}


def _tell(event: str, text: str) -> None:
    click.echo(_PREFIXES.get(event, "") + text, err=True)


def _tell_data(event: str, text: str) -> None:
    click.echo(json.dumps({"event": event, "text": text}))
    sys.stdout.flush()


async def _watching(query: DeployedQuery, patience_s: float, tell: Callable[[str, str], None]) -> int:
    from nebuli.cli.files import parsed, say_changed
    from nebuli.control.deployed_queries import Workers
    from nebuli.control.errors import NodeUnreachable, QueryFailed, QueryLost
    from nebuli.control.late_report import LateReport
    from nebuli.control.supervision import Supervisor
    from nebuli.rpc.worker_client import WorkerRefused

    say_changed(query)
    model, plan = parsed(query.topology, query.query, query.engine)
    late = LateReport()
    async with Workers(_endpoints(query, model).values()) as workers:

        def moved(active: Active) -> None:
            late.forget()
            saved_queries.save(_moved(query, active, workers))

        async def followed() -> Active:
            return (await settled(saved_queries.again(query))).active

        supervisor = Supervisor(
            query.active,
            plan,
            model,
            workers,
            seed=query.seed,
            strategy=query.strategy,
            policy=query.policy,
            patience_s=patience_s,
            say=partial(tell, "said"),
            report=late.report,
            moved=moved,
            first=query.id,
            followed=followed,
        )
        try:
            await supervisor.watch()
        except (QueryFailed, QueryLost, WorkerRefused, NodeUnreachable) as error:
            tell("failed", str(error))
            return ExitCode.UNREACHABLE if isinstance(error, NodeUnreachable) else ExitCode.FAILED
    for text in late.warnings():
        tell("warned", text)
    tell("finished", f"query {query.id} has finished")
    return ExitCode.DONE


def _endpoints(query: DeployedQuery, model: Topology) -> dict[str, Endpoint]:
    """Return the endpoints of nodes: the registered ones, and those of the topology to which the query may move."""
    from nebuli.cli.files import endpoints
    from nebuli.control.deployed_queries import Endpoint

    reachable = [node.address for node in model.nodes if node.grpc is not None]
    known = {each.node: each for each in endpoints(query.topology.path, model, reachable)}
    registered = (*query.left, *query.fragments)
    return {**known, **{each.node: Endpoint(each.node, each.grpc, each.access) for each in registered}}


def _moved(query: DeployedQuery, active: Active, workers: Workers) -> DeployedQuery:
    """Return the query with its new deployment."""
    update = {
        "deployment": active.deployment,
        "without": active.without,
        "fragments": tuple(map(workers.located, active.places)),
        "left": tuple(map(workers.located, active.left)),
        "plan": active.fragments,
    }
    return query.model_copy(update=update)
