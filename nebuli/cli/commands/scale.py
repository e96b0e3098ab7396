"""``nebuli scale``: a query in steps gets another number of members."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from nebuli.cli import saved_queries
from nebuli.cli.bounds import FilePath
from nebuli.cli.exits import ExitCode
from nebuli.cli.stepped.circuit_access import reached, trust_of
from nebuli.cli.worker_answers import ran, workers_of
from nebuli.limits import MOST_MEMBERS

if TYPE_CHECKING:
    from nebuli.control.deployed_queries import DeployedQuery, Workers

_WITHIN_S = 10.0


@click.command()
@click.argument("circuit")
@click.option(
    "--members",
    type=click.IntRange(1, MOST_MEMBERS),
    required=True,
    help="New number of members.",
)
@click.option(
    "--topology",
    type=FilePath(),
    help="Topology with the certificates and the secret for CIRCUIT, if CIRCUIT is an address.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print as JSON the new number of members, and the step from which they run.",
)
def scale(circuit: str, members: int, topology: str | None, *, as_json: bool) -> int:
    """Scale a query in steps to another number of members.

    CIRCUIT is the id of a query in steps at workers, or the HOST:PORT of a served query (nebuli run --stepped
    --serve). Returns when the new members run. Until then, pushed rows wait.

    Exit codes: 0 done; 1 the query keeps its members; 3 CIRCUIT does not answer.
    """
    if circuit.startswith(("http://", "https://")):
        raise click.UsageError(f"{circuit} is a URL: give the HOST:PORT of the query's --serve")
    if ":" in circuit:
        return _at_an_address(circuit, members, topology, as_json=as_json)
    return ran(_at_workers(circuit, members, as_json=as_json))


def _say(members: int, step: int, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"members": members, "step": step}, indent=2))
    else:
        click.echo(f"{members} member{'' if members == 1 else 's'} from step {step:,} on", err=True)
    return ExitCode.DONE


def _at_an_address(circuit: str, members: int, topology: str | None, *, as_json: bool) -> int:
    from nebuli.circuits.errors import CircuitError, CircuitUnreachable

    try:
        step = asyncio.run(_scaled(circuit, members, topology))
    except CircuitError as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.UNREACHABLE if isinstance(error, CircuitUnreachable) else ExitCode.FAILED
    return _say(members, step, as_json=as_json)


async def _scaled(circuit: str, members: int, topology: str | None) -> int:
    async with reached(circuit, trust_of(topology), _WITHIN_S) as found:
        return await found.scale(members)


async def _at_workers(id_: str, members: int, *, as_json: bool) -> int:
    query = saved_queries.load(id_)
    if query.circuit is None:
        raise click.UsageError(f"query {query.id} does not run in steps, so it has no members")
    with saved_queries.scaled(query):
        return await _at_its_workers(saved_queries.again(query), members, as_json=as_json)


async def _at_its_workers(query: DeployedQuery, members: int, *, as_json: bool) -> int:
    from nebuli.control.scaling import settled

    async with workers_of(query) as workers:
        query = await settled(query, workers)
        saved_queries.save(query)
        if members == len(query.fragments) - 1:
            async with reached(query.id, trust_of(None), _WITHIN_S) as circuit:
                return _say(members, (await circuit.status()).next_step, as_json=as_json)
        return _say(members, await _asked(query, workers, members), as_json=as_json)


async def _asked(query: DeployedQuery, workers: Workers, members: int) -> int:
    """Hand the query over to new members, and return their first step. Retries after another client's scaling."""
    from nebuli.cli.files import parsed
    from nebuli.control.scaling import begun, settled, succession_of, taken_over
    from nebuli.rpc.worker_client import WorkerRefused

    model, plan = parsed(query.topology, query.query, query.engine)
    coordinator = query.fragments[-1]
    while True:
        query = begun(query, plan, model, members)
        saved_queries.save(query)  # first: if this is killed, the fragments at workers can still be named
        try:
            step = await workers.client(coordinator.node).succeed(coordinator.id, succession_of(query))
        except WorkerRefused:
            before, query = query, await settled(query, workers)
            saved_queries.save(query)
            if query.fragments == before.fragments:
                raise
        else:
            saved_queries.save(query := taken_over(query, query.coming[-1]))
            saved_queries.save(await settled(query, workers))
            return step
