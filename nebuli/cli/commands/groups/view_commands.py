"""``nebuli view``: commands that read, watch, list and add views of running queries."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

import click

from nebuli.cli import saved_queries
from nebuli.cli.bounds import FilePath, Finite
from nebuli.cli.exits import ExitCode, end_on_termination
from nebuli.cli.placement_text import table
from nebuli.cli.rows.printed_rows import as_json_line, echo_data, format_option, how_many, print_rows
from nebuli.cli.rows.view_rows import HEADER, cells_of, data_of
from nebuli.cli.stepped.circuit_access import trust_of
from nebuli.cli.worker_answers import ran, settled, workers_of
from nebuli.python_values import values_of
from nebuli.rpc.conventions import VIEWS_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pyarrow import RecordBatch

    from nebuli.views import Views
    from placement.stepped_plan import AnyFragment

_Command = TypeVar("_Command", bound="Callable[..., int]")


def _checked(context: click.Context, parameter: click.Parameter, address: str) -> str:
    """Check an address. Raises BadParameter."""
    from topology.address import check_address

    try:
        return check_address(address)
    except ValueError as error:
        raise click.BadParameter(f"{error}") from None


_at = click.option(
    "--at",
    metavar="HOST:PORT",
    callback=_checked,
    default=VIEWS_AT,
    show_default=True,
    help="Address of the views, as 'nebuli run' prints it, or the data address of the worker that has the views.",
)
_topology = click.option(
    "--topology", type=FilePath(), help="Topology with the certificates and the secret for --at."
)


@click.group()
def view() -> None:
    """Read, watch and add views of running queries.

    Exit codes: 0 done; 1 the view could not answer; 2 unknown view, or invalid key; 3 no answer from --at, or no
    answer in time.
    """


@view.command()
@click.argument("name")
@click.argument("key", nargs=-1, required=True)
@_at
@_topology
@click.option(
    "--deadline",
    type=Finite(min=0, min_open=True),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="Time to wait for a missing key.",
)
@format_option
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
def get(
    name: str,
    key: tuple[str, ...],
    at: str,
    topology: str | None,
    form: str,
    *,
    deadline: float,
    as_json: bool,
) -> int:
    """Print the rows that a view has for a key.

    Give one KEY for each key column of the view NAME. Prints to standard error whether the key was a hit (in memory
    already) and, if the query runs in steps, the step of the rows.
    """
    import pyarrow as pa

    from nebuli.views.key_words import key_of_words
    from nebuli.views.shown_rows import in_order

    async def work(views: Views) -> None:
        description = await views.describe(name, deadline)
        found = await views.get(name, [key_of_words(key, name, description)], deadline)
        print_rows(pa.Table.from_batches([in_order(found.rows)]), "json" if as_json else form)
        where = "" if found.step is None else f", at step {found.step}"
        click.echo(
            f"{how_many(found.rows.num_rows)}, {'a hit' if found.hits[0] else 'a miss'}{where}", err=True
        )

    return _ran(at, topology, work)


@view.command()
@click.argument("name")
@click.argument("key", nargs=-1, required=True)
@_at
@_topology
def watch(name: str, key: tuple[str, ...], at: str, topology: str | None) -> int:
    """Print the rows that a view has for a key, at each change.

    Prints the rows with KEY in the view NAME now and after each change, as one line of JSON. The line is a list of all
    rows; if the query runs in steps, it is an object with the step and the rows.
    """
    from nebuli.views.key_words import key_of_words

    async def work(views: Views) -> None:
        end_on_termination()
        description = await views.describe(name)
        wanted = key_of_words(key, name, description)
        if description.in_steps:
            async with aclosing(views.watch_steps(name, wanted)) as steps:
                async for step, rows in steps:
                    echo_data(f'{{"step": {step}, "rows": {_as_json_list(rows)}}}\n')
            return
        async with aclosing(views.watch(name, wanted)) as changes:
            async for rows in changes:
                echo_data(f"{_as_json_list(rows)}\n")

    return _ran(at, topology, work)


def _as_json_list(rows: RecordBatch) -> str:
    from nebuli.views.shown_rows import in_order

    lines = zip(*map(values_of, in_order(rows).columns), strict=True)
    return f"[{', '.join(as_json_line(rows.schema.names, line) for line in lines)}]"


@view.command("list")
@_at
@_topology
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_(at: str, topology: str | None, *, as_json: bool) -> int:
    """List the views at an address with their statistics.

    Prints the key of each view, its size, and its counts of lookups, hits, upqueries and evictions.
    """

    async def work(views: Views) -> None:
        found = sorted(await views.statuses(), key=lambda each: each.name)
        if as_json:
            click.echo(json.dumps([*map(data_of, found)], indent=2))
        else:
            click.echo(table(HEADER, [*map(cells_of, found)]) if found else "no views")

    return _ran(at, topology, work)


@view.command()
@click.argument("file", type=FilePath())
@_at
@_topology
@click.option("--query", "id_", metavar="ID", help="Id of a query on workers, instead of the query at --at.")
@click.pass_context
def add(context: click.Context, file: str, at: str, topology: str | None, id_: str | None) -> int:
    """Add views to a running query.

    The query must already have a view, and keeps running. FILE is JSON with operators, as in a query. Each operator in
    FILE reads from operators of the query or from other operators in FILE. Each chain of operators must end in a view.
    """
    from nebuli.cli.files import text_of

    text, shown = text_of(file)
    if id_ is not None:
        for name in ("at", "topology"):
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"--{name} does not apply with --query, which names the query: remove one of them"
                )
        return ran(_add_to(id_, text, shown))

    async def work(views: Views) -> None:
        for name in await views.add(text, shown):
            click.echo(f"view {name} was added", err=True)

    return _ran(at, topology, work)


async def _add_to(id_: str, text: str, file: str) -> int:
    """Add views to a query on workers."""
    from nebuli.control.deployment import views_of
    from nebuli.control.view_addition import add_views

    query = saved_queries.load(id_)
    with saved_queries.added_to(query):
        query = await settled(saved_queries.again(query))
        async with workers_of(query) as workers:

            def keep(fragments: tuple[AnyFragment, ...]) -> None:
                now = saved_queries.again(query)
                if now.deployment != query.deployment:
                    raise click.ClickException(
                        f"query {query.id} was deployed again meanwhile: run this command again"
                    )
                saved_queries.save(now.model_copy(update={"plan": fragments}))

            addition = await add_views(text, file, query.active, workers, keep)
    added = {each.id for each in addition.operators}
    for name, (node, each) in views_of(saved_queries.again(query).plan).items():
        if each.id in added:
            click.echo(f"view {name} was added: read it at {node}", err=True)
    return ExitCode.DONE


def _ran(at: str, topology: str | None, work: Callable[[Views], Coroutine[Any, Any, None]]) -> int:
    from nebuli.views import (
        UnknownView,
        ViewDenied,
        ViewError,
        Views,
        ViewUnreachable,
        WrongKey,
        WrongView,
    )
    from nebuli.views.errors import LookupTimedOut

    trust = trust_of(topology)

    async def run() -> None:
        async with Views(at, tls=trust.tls, secret=trust.secret) as views:
            await work(views)

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except asyncio.CancelledError:
        return ExitCode.TERMINATED
    except ViewError as error:
        shows = ", and give that topology with --topology" if isinstance(error, ViewDenied) else ""
        click.echo(f"Error: {error}{shows}", err=True)
        match error:
            case UnknownView() | WrongKey() | WrongView():
                return ExitCode.BAD_INPUT
            case ViewUnreachable() | LookupTimedOut():
                return ExitCode.UNREACHABLE
        return ExitCode.FAILED
    return ExitCode.DONE
