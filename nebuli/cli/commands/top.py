"""``nebuli top``: the channels and views of queries, live."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from nebuli.cli import saved_queries
from nebuli.cli.bounds import Finite
from nebuli.cli.commands import completion
from nebuli.cli.exits import ExitCode
from nebuli.cli.rows.view_rows import HEADER, cells_of, data_of
from nebuli.cli.terminal import moves_cursor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from rich.console import RenderableType

    from nebuli.cli.rates import Row
    from nebuli.control.deployed_queries import DeployedQuery, Workers
    from nebuli.rpc import worker_pb2 as wire
    from nebuli.rpc.status import ViewStatus

_HEADER = ("channel", "from", "to", "state", "msg/s", "bytes/s", "buffered", "lag", "reconnects", "dropped")
_FIRST_NUMBER = 4
_MISSED_FIRST = ("reconnects", "dropped", "from", "to", "bytes/s", "lag", "buffered", "msg/s", "state")
"""The columns that a narrow terminal hides, in this order."""
_BETWEEN = 3
"""The width of a column without its text: its rule, and a space at either side."""


@dataclass(slots=True)
class _Watched:
    """A query, and the last replies of its workers."""

    query: DeployedQuery
    workers: Workers | None = None
    before: dict[str, wire.ChannelsReply] = field(default_factory=dict)

    async def look(self) -> _Seen:
        """Ask all current workers of the query: a lost one may have been replaced."""
        from nebuli.cli.rates import rows
        from nebuli.control.deployed_queries import global_state
        from nebuli.control.deployment import statuses_of
        from nebuli.rpc.worker_client import WorkerUnreachable

        workers = await self._workers()
        answers, statuses = await asyncio.gather(
            workers.channels(_prefix(self.query)), statuses_of(self.query.fragments, workers)
        )
        now = {node: each for node, each in answers.items() if not isinstance(each, WorkerUnreachable)}
        found = rows(now, self.before)
        self.before = now
        silent = [str(each) for each in answers.values() if isinstance(each, WorkerUnreachable)]
        known = [each for each in statuses if not isinstance(each, WorkerUnreachable)]
        views = [view for status in known if not status.state.is_final for view in status.views]
        return _Seen(self.query, str(global_state(statuses)), found, views, silent)

    async def _workers(self) -> Workers:
        from nebuli.control.deployed_queries import Endpoint, Workers

        query = saved_queries.again(self.query)
        if self.workers is None or query.fragments != self.query.fragments:
            await self.close()
            endpoints = (Endpoint(each.node, each.grpc, each.access) for each in query.fragments)
            self.workers = await Workers(endpoints).__aenter__()
        self.query = query
        return self.workers

    async def close(self) -> None:
        """Close the connections to workers."""
        if self.workers is not None:
            workers, self.workers = self.workers, None
            await workers.__aexit__(None, None, None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A query at one moment."""

    query: DeployedQuery
    state: str
    rows: Sequence[Row]
    views: Sequence[ViewStatus]
    unreachable: Sequence[str]

    def to_data(self) -> dict[str, Any]:
        """Return the query for JSON."""
        channels = []
        for row in self.rows:
            data = asdict(row)
            nodes = {"from": data.pop("start"), "to": data.pop("end")}
            channels.append({"channel": self.short(data.pop("channel")), **nodes, **data})
        return {
            "id": self.query.id,
            "name": self.query.name,
            "state": self.state,
            "channels": channels,
            "views": [*map(data_of, self.views)],
            "unreachable": list(self.unreachable),
        }

    def title(self) -> str:
        """Return the heading above its channels."""
        return f"query {self.query.id} ({self.query.name}) is {self.state}"

    def short(self, channel: str) -> str:
        """Return a channel's id without the query's."""
        return channel.removeprefix(_prefix(self.query))

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows of a table under `_HEADER`."""
        return [
            (
                self.short(row.channel),
                row.start or "?",
                row.end or "?",
                f"{row.state}, starved" if row.starved else row.state,
                "" if row.messages_per_s is None else f"{row.messages_per_s:,.0f}",
                "" if row.bytes_per_s is None else _size(row.bytes_per_s),
                f"{row.buffered_messages:,} ({_size(row.buffered_bytes + row.disk_bytes)})",
                f"{row.lag:,}",
                f"{row.reconnects:,}",
                f"{row.dropped:,}",
            )
            for row in self.rows
        ]


def _prefix(query: DeployedQuery) -> str:
    """Return the prefix of its channels' ids."""
    return f"{query.deployment or query.id}/"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=completion.queries)
@click.option("--once", is_flag=True, help="Measure over one --interval, print the result, and exit.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Finite(0.1, 3600),
    help="Seconds between two updates, over which rates are measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object per update, on one line.")
def top(ids: tuple[str, ...], once: bool, interval: float, as_json: bool) -> int:
    """Show the channels and views of queries, live.

    Shows the channels and views of each query ID, or of all queries registered from this account, until Ctrl-C.

    Exit code of --once: 3 if a worker does not answer.
    """
    queries = [saved_queries.load(id_) for id_ in ids] or saved_queries.load_all()
    if not queries:
        raise click.ClickException(
            f"no query is registered (in {saved_queries.directory()}): register one with 'nebuli start TOPOLOGY QUERY'"
        )
    if not (once or as_json or sys.stdout.isatty()):
        raise click.UsageError("standard output is not a terminal: give --once or --json")
    return asyncio.run(_watch(queries, interval, once=once, as_json=as_json))


async def _watch(queries: Sequence[DeployedQuery], interval: float, *, once: bool, as_json: bool) -> int:
    looks = _looks(queries, interval)
    if once:
        await anext(looks)
        seen = await anext(looks)
        await looks.aclose()
        _print(seen, as_json=as_json)
        return ExitCode.UNREACHABLE if any(each.unreachable for each in seen) else ExitCode.DONE
    if as_json or not moves_cursor():
        async for seen in looks:
            _print(seen, as_json=as_json)
        return ExitCode.DONE
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        async for seen in looks:
            live.update(_shown(seen, live.console.width), refresh=True)
    return ExitCode.DONE


async def _looks(queries: Sequence[DeployedQuery], interval: float) -> AsyncGenerator[list[_Seen], None]:
    """Yield one observation after the other, ``interval`` apart."""
    async with AsyncExitStack() as stack:
        watched = [_Watched(query) for query in queries]
        for each in watched:
            stack.push_async_callback(each.close)
        while True:
            yield list(await asyncio.gather(*(each.look() for each in watched)))
            await asyncio.sleep(interval)


def _print(seen: Sequence[_Seen], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"queries": [each.to_data() for each in seen]}))
        sys.stdout.flush()
        return
    from nebuli.cli.placement_text import table

    texts = []
    for each in seen:
        texts.append(f"{each.title()}\n\n{table(_HEADER, each.cells())}")
        if each.views:
            texts.append(table(HEADER, [*map(cells_of, each.views)]))
    click.echo("\n\n".join(texts))
    for text in dict.fromkeys(text for each in seen for text in each.unreachable):
        click.echo(f"Error: {text}", err=True)


def _shown(seen: Sequence[_Seen], width: int) -> RenderableType:
    """Render the screen: a line for each channel, with as many columns as fit."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def line(text: str, style: str = "") -> Text:
        return Text(text, style=style, no_wrap=True, overflow="ellipsis")

    columns = _fitting([cells for each in seen for cells in each.cells()], width)
    parts: list[RenderableType] = []
    for each in seen:
        parts.append(line(each.title()))
        table = Table(expand=True)
        for index in columns:
            justify: Literal["left", "right"] = "right" if index >= _FIRST_NUMBER else "left"
            table.add_column(line(_HEADER[index]), justify=justify, no_wrap=True, overflow="ellipsis")
        for cells in each.cells():
            table.add_row(*(line(cells[index]) for index in columns))  # a channel's id is not markup
        parts.append(table)
        if each.views:
            parts.append(_views(each.views))
        parts += [Text(text, style="red") for text in each.unreachable]
    if hidden := [name for index, name in enumerate(_HEADER) if index not in columns]:
        parts.append(line(f"no room for {', '.join(hidden)}", "dim"))
    return Group(*parts)


def _views(views: Sequence[ViewStatus]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(*HEADER, expand=True)
    for view in views:
        table.add_row(*map(Text, cells_of(view)))
    return table


def _fitting(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Choose the columns to show: hide columns of `_MISSED_FIRST` until the others fit."""
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    shown = list(range(len(_HEADER)))
    for name in _MISSED_FIRST:
        if sum(widths[index] + _BETWEEN for index in shown) + 1 <= width:
            break
        shown.remove(_HEADER.index(name))
    return shown
