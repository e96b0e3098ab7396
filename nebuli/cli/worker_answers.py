"""Calls to the workers of a query, and the messages if they do not answer or refuse."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli import saved_queries
from nebuli.cli.exits import ExitCode

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from nebuli.control.deployed_queries import DeployedQuery, Workers
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable


def ran(work: Coroutine[Any, Any, int]) -> int:
    """Run calls to workers, and return the exit code. Prints a sentence if a worker does not answer or refuses."""
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

    try:
        return asyncio.run(work)
    except WorkerUnreachable as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.UNREACHABLE
    except WorkerRefused as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.FAILED


def workers_of(query: DeployedQuery) -> Workers:
    """Return the workers that have a fragment of the query, or may still have one of an earlier deployment."""
    from nebuli.control.deployed_queries import Endpoint, Workers

    return Workers(Endpoint(each.node, each.grpc, each.access) for each in (*query.others, *query.fragments))


async def settled(query: DeployedQuery) -> DeployedQuery:
    """Return the query with its actual members, also after a scaling that was killed or got no answer."""
    from nebuli.control.scaling import settled as found_settled

    if not query.coming:
        return query
    async with workers_of(query) as workers:
        found = await found_settled(query, workers)
    if found.fragments != query.fragments:
        saved_queries.save(found)
    return found


def said(errors: Sequence[WorkerUnreachable | WorkerRefused]) -> int:
    """Print each error once, and return the exit code."""
    from nebuli.rpc.worker_client import WorkerUnreachable

    for text in dict.fromkeys(map(str, errors)):
        click.echo(f"Error: {text}", err=True)
    if any(isinstance(error, WorkerUnreachable) for error in errors):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if errors else ExitCode.DONE


def restart_commands(query: DeployedQuery, *options: str) -> str:
    """Return commands that run the query from scratch in any state; each is harmless if it has nothing to do."""
    files = shlex.join([*options, query.topology.path, query.query.path])
    return f"'nebuli stop {query.id} && nebuli unregister {query.id} && nebuli start {files}'"


def refuse_options(query: DeployedQuery, given: Sequence[str], *, stepped: bool) -> None:
    """Raise UsageError if the options to start a query differ from those that it was registered with.

    ``given`` are options of queries in steps other than ``--stepped``.
    """
    in_steps = restart_commands(query, "--stepped", *given)
    if query.circuit is None and (stepped or given):
        raise click.UsageError(
            f"query {query.id} was registered without --stepped: {in_steps} runs it in steps"
        )
    if given:
        raise click.UsageError(
            f"query {query.id} keeps the options that it was registered with: 'nebuli start "
            f"{query.id}' starts it with them, and {in_steps} runs it from scratch with the new options"
        )


def after_silence(query: DeployedQuery) -> str:
    """Return the remedy if a worker does not answer a start, to append to the error."""
    from nebuli.control.supervision import Policy

    back = f"; run 'nebuli start {query.id}' again once it is back"
    if query.circuit is not None:  # a member's state is at its node
        return back
    option = "" if query.policy is Policy.REPLACE else " --on-loss replace"
    return f"{back}, or 'nebuli watch {query.id}{option}', which places the query without it"


def after_refusal(query: DeployedQuery, error: WorkerRefused) -> str:
    """Return the remedy for a worker's refusal to start the query, to append to the error."""
    from nebuli.rpc.worker_pb2 import Refusal

    again = restart_commands(query) if query.circuit is None else restart_commands(query, "--stepped")
    match error.refusal.reason:
        case Refusal.REASON_ALREADY_STARTED if query.circuit is not None:  # and runs, or it would be started
            return f"; 'nebuli status {query.id}' shows its state, and 'nebuli stop {query.id}' stops it"
        case Refusal.REASON_ALREADY_STARTED:
            return (
                f"; 'nebuli status {query.id}' shows its state, 'nebuli watch {query.id}' resumes it if a worker was "
                f"lost, and {again} runs it from scratch"
            )
        case Refusal.REASON_UNKNOWN_ID:
            return (
                f": its worker was restarted without its state, or another client has unregistered it; {again} runs it "
                f"from scratch"
            )
    return ""
