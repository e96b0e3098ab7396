"""Commands that show queries on workers: status, list, logs."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nebuli.cli import saved_queries
from nebuli.cli.commands import completion
from nebuli.cli.exits import ExitCode, is_bad_input
from nebuli.cli.line_merge import Merged
from nebuli.cli.worker_answers import ran, said, settled, workers_of

if TYPE_CHECKING:
    from nebuli.control.deployed_queries import DeployedFragment, DeployedQuery, Workers
    from nebuli.rpc.log_lines import LogLine
    from nebuli.rpc.status import FragmentStatus
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_RENEWED_S = 0.5
"""The interval at which a follower of logs checks for a new deployment of the query."""
_id = click.argument("id_", metavar="ID", shell_complete=completion.queries)


@click.command()
@_id
@_as_json
def status(id_: str, as_json: bool) -> int:
    """Show the state of a query and of each fragment.

    Exit codes: 1 the query ID has failed, 3 a worker does not answer.
    """

    async def work() -> int:
        from nebuli.control.deployed_queries import global_state
        from nebuli.control.deployment import statuses_of
        from nebuli.control.global_state import GlobalState

        query = await settled(saved_queries.load(id_))
        async with workers_of(query) as workers:
            statuses = await statuses_of(query.fragments, workers)
        state = global_state(statuses)
        pairs = list(zip(query.fragments, statuses, strict=True))
        click.echo(
            json.dumps(_data(query, state, pairs), indent=2) if as_json else _text(query, state, pairs)
        )
        codes = {GlobalState.FAILED: ExitCode.FAILED, GlobalState.UNREACHABLE: ExitCode.UNREACHABLE}
        return codes.get(state, ExitCode.DONE)

    return ran(work())


_NUMBERS = ("rows_in", "rows_out", "late_rows", "rows_without_time", "state_bytes", "watermark")
_ERROR_WIDTH = 60
"""The maximum length of an error in a table; a longer one is printed in full below it."""
_Pairs = list[tuple["DeployedFragment", "FragmentStatus | WorkerUnreachable"]]


def _data(query: DeployedQuery, state: str, pairs: _Pairs) -> dict[str, Any]:
    return {
        "id": query.id,
        "name": query.name,
        "state": str(state),
        "registered": query.registered,
        "circuit": query.circuit,
        "checkpoint": _checkpoint(pairs),
        "fragments": [_fragment(each, status) for each, status in pairs],
    }


def _checkpoint(pairs: _Pairs) -> int | None:
    """Return the step of the last checkpoint, from the coordinator of a query in steps, which is its last fragment."""
    from nebuli.rpc.status import FragmentStatus

    _, status = pairs[-1]
    return status.checkpoint if isinstance(status, FragmentStatus) else None


def _fragment(each: DeployedFragment, status: FragmentStatus | WorkerUnreachable) -> dict[str, Any]:
    from nebuli.rpc.status import FragmentStatus

    where = {"fragment": each.fragment, "node": each.node, "id": each.id}
    if not isinstance(status, FragmentStatus):
        return {
            **where,
            "state": "unreachable",
            **dict.fromkeys(_NUMBERS),
            "late": None,
            "without_time": None,
            "error": str(status),
        }
    return {
        **where,
        "state": str(status.state),
        **{name: getattr(status, name) for name in _NUMBERS},
        "late": dict(status.late),
        "without_time": dict(status.without_time),
        "error": status.error,
    }


def _text(query: DeployedQuery, state: str, pairs: _Pairs) -> str:
    from nebuli.cli.placement_text import table
    from nebuli.connectors.errors import short

    fragments = [_fragment(fragment, status) for fragment, status in pairs]
    rows = [
        (
            each["fragment"],
            each["node"],
            each["state"],
            "" if each["rows_in"] is None else f"{each['rows_in']:,}",
            "" if each["rows_out"] is None else f"{each['rows_out']:,}",
            *(f"{each[name]:,}" if each[name] else "" for name in ("late_rows", "rows_without_time")),
            short(each["error"], _ERROR_WIDTH),
        )
        for each in fragments
    ]
    head = f"query {query.id} ({query.name}) is {state}; registered {query.registered}"
    if query.circuit is not None:
        head += f"\nprograms reach it at {query.circuit}"
    if (step := _checkpoint(pairs)) is not None:
        head += f"\nits last checkpoint is at step {step:,}" if step else "\nit has no checkpoint yet"
    shown = table(("fragment", "node", "state", "rows in", "rows out", "late", "without time", "error"), rows)
    long = [f"{each['fragment']}: {each['error']}" for each in fragments if len(each["error"]) > _ERROR_WIDTH]
    return "\n\n".join([head, shown, *long])


@click.command(name="list")
@_as_json
def list_(as_json: bool) -> int:
    """List the registered queries with their states.

    Lists the queries that were registered from this account.
    """

    async def state_of(query: DeployedQuery) -> str:
        from nebuli.control.deployed_queries import global_state
        from nebuli.control.deployment import statuses_of
        from nebuli.control.global_state import GlobalState

        try:
            query = await settled(query)
            async with workers_of(query) as workers:
                return str(global_state(await statuses_of(query.fragments, workers)))
        except Exception as error:
            if not is_bad_input(error):
                raise
            # A missing certificate or secret of one query must not hide the others.
            click.echo(f"query {query.id}: {error}", err=True)
            return str(GlobalState.UNREACHABLE)

    async def work() -> int:
        from nebuli.cli.placement_text import table

        queries = saved_queries.load_all()
        states = await asyncio.gather(*map(state_of, queries))
        rows = [
            (each.id, each.name, state, each.registered) for each, state in zip(queries, states, strict=True)
        ]
        if as_json:
            keys = ("id", "name", "state", "registered")
            click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        elif rows:
            click.echo(table(("id", "name", "state", "registered"), rows))
        else:
            click.echo(f"no query is registered (in {saved_queries.directory()})", err=True)
        return ExitCode.DONE

    return ran(work())


@click.command()
@_id
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "--level",
    type=click.Choice(["info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="Lowest level of the lines to show; most lines are info.",
)
@_as_json
def logs(id_: str, follow: bool, level: str, as_json: bool) -> int:
    """Show the log lines of a query from all its workers.

    Merges the lines that the workers logged for the query ID, in the order of the workers' clocks.
    """
    shown = _Shown(level, as_json)

    async def work() -> int:
        query = await settled(saved_queries.load(id_))
        if follow:
            return await _follow(query, shown)
        async with workers_of(query) as workers:
            found = await asyncio.gather(*(_kept(workers, each) for each in query.fragments))
        told = [
            (each, line)
            for each, (lines, _) in zip(query.fragments, found, strict=True)
            for line in lines
            if shown.has(line)
        ]
        for each, line in sorted(told, key=lambda pair: pair[1].time):
            click.echo(shown.text(each, line))
        return said([error for _, error in found if error is not None])

    return ran(work())


async def _kept(
    workers: Workers, each: DeployedFragment
) -> tuple[list[LogLine], WorkerUnreachable | WorkerRefused | None]:
    """Read a fragment's lines, and return them with the error that ended them, if any."""
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

    lines: list[LogLine] = []
    try:
        async for line in workers.logs(each, follow=False):
            lines.append(line)  # noqa: PERF401 - a comprehension would lose those before an error
    except (WorkerUnreachable, WorkerRefused) as error:
        return lines, error
    return lines, None


async def _follow(query: DeployedQuery, shown: _Shown) -> int:
    """Follow a query until all its workers have ended; follow the new fragments if it is deployed again."""
    while True:
        async with workers_of(query) as workers:
            telling = asyncio.create_task(_tell_all(query, workers, shown))
            renewed = asyncio.create_task(_renewed(query))
            try:
                await asyncio.wait([telling, renewed], return_when=asyncio.FIRST_COMPLETED)
                if not renewed.done():
                    return telling.result()
                query = renewed.result()
            finally:
                telling.cancel()
                renewed.cancel()
                await asyncio.gather(telling, renewed, return_exceptions=True)


async def _tell_all(query: DeployedQuery, workers: Workers, shown: _Shown) -> int:
    merged = Merged(click.echo)
    try:
        telling = (_tell(workers, each, merged, shown) for each in query.fragments)
        return max(await asyncio.gather(*telling))
    finally:
        await merged.close()


async def _tell(workers: Workers, each: DeployedFragment, merged: Merged, shown: _Shown) -> int:
    """Print the lines of a fragment as they arrive, and the error that ends them at once."""
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

    try:
        async for line in workers.logs(each, follow=True):
            if shown.has(line):
                merged.put(line.time, shown.text(each, line))
    except (WorkerUnreachable, WorkerRefused) as error:
        return said([error])
    return ExitCode.DONE


async def _renewed(query: DeployedQuery) -> DeployedQuery:
    """Wait until a watcher has deployed the query again, or its members have changed, and return it."""
    while (now := saved_queries.again(query)).fragments == query.fragments:  # noqa: ASYNC110 - by another process
        await asyncio.sleep(_RENEWED_S)
    return now


class _Shown(NamedTuple):
    """The level and the format of the lines to show."""

    level: str
    as_json: bool

    def has(self, line: LogLine) -> bool:
        """Return whether a line has at least the level."""
        levels = logging.getLevelNamesMapping()
        return levels.get(line.level, logging.CRITICAL) >= levels[self.level.upper()]

    def text(self, each: DeployedFragment, line: LogLine) -> str:
        """Format a line of a fragment."""
        when = datetime.fromtimestamp(line.time / 1e6, UTC).isoformat(timespec="milliseconds")
        if self.as_json:
            data = {
                "time": when,
                "level": line.level,
                "fragment": each.fragment,
                "node": each.node,
                "text": line.text,
            }
            return json.dumps(data)
        return f"{when}  {line.level:<7}  {each.fragment}  {line.text}"
