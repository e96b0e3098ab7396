"""``nebuli collection``: commands that create, fill, read and follow durable collections."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath, state_place, store_option
from nebuli.cli.exits import ExitCode, code_of_storage, end_on_termination
from nebuli.cli.files import STDIN
from nebuli.cli.placement_text import table
from nebuli.cli.row_progress import RowProgress
from nebuli.cli.rows.collection_views import cells, columns_from, columns_of, shown
from nebuli.cli.rows.printed_rows import how_many, print_rows
from nebuli.cli.rows.times import instant, read_time
from nebuli.cli.rows.written_files import check_ending, write_rows
from nebuli.cli.who_may_call import http_server, trust_at
from nebuli.limits import DEFAULT_KEEP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from nebuli.cli.rows.printed_changes import Changes
    from nebuli.store.collections.catalog import Timed
    from nebuli.store.collections.collections import Collections
    from nebuli.store.shards.shard import Span

_ENDINGS = (".csv", ".zip", ".parquet", ".jsonl", ".arrow")
_MOVE_S = 1.0
"""The time after which a named reader moves its hold; it also does at its end."""
_FOLLOWS = "follow/"
"""The prefix of a reader's name in the name of its hold."""


_shards = click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of parts that are written in parallel.",
)
_as_of = click.option(
    "--as-of",
    callback=read_time,
    metavar="TIME",
    help="Time in milliseconds since 1970, or as an ISO date and time, in UTC unless it has an offset.  "
    "[default: the last complete time]",
)


@click.group()
def collection() -> None:
    """Create, fill, read and follow durable collections.

    A collection is a named history of rows, which any number of programs insert into, read and follow.

    Exit codes: 0 done; 1 the store failed; 2 invalid input; 3 the store's server does not answer.
    """


def _into_is_meant(_context: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    """Raise UsageError if the option is given: click's own hint for it would be --format."""
    if given is not None:
        raise click.UsageError("No such option '--out'. Did you mean '--into'?")


@collection.command()
@click.argument("name")
@click.option(
    "--schema", required=True, help='Columns with their types, as in "shop: string, amount: int64".'
)
@_shards
@click.option(
    "--timed",
    type=click.Choice(["store", "writers"]),
    default="store",
    show_default=True,
    help="Origin of the rows' times: the store, which sets them at each insert, or the programs that write the rows.",
)
@click.option(
    "--keep",
    metavar="DURATION",
    default=DEFAULT_KEEP,
    show_default=True,
    help="Time for which the past stays readable: a number with ms, s, min, h or d, such as 1h; a bare number is in "
    "seconds.",
)
@store_option
def create(name: str, schema: str, store: str, *, shards: int, timed: Timed, keep: str) -> int:
    """Create an empty collection.

    Creates the store, too, if it does not exist.
    """
    from nebuli.dataflow.types import arrow_schema

    columns = arrow_schema(columns_from(schema))

    async def work(collections: Collections) -> None:
        await collections.create(name, columns, shards=shards, timed=timed, keep=keep)

    return _ran(store, work, makes=True)


@collection.command("list")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_(store: str, *, as_json: bool) -> int:
    """List all collections with their active renditions.

    Also prints the range of times at which each collection can be read.
    """

    async def work(collections: Collections) -> None:
        found = []
        for name in await collections.list():
            with suppress(_unknown()):  # another client has dropped it meanwhile
                found.append(await collections.describe(name))
        keys = ("name", "active", "since", "upper")
        lines = [(each.name, each.active, each.since, each.upper) for each in found]
        if as_json:
            click.echo(json.dumps([dict(zip(keys, line, strict=True)) for line in lines], indent=2))
        else:
            click.echo(table(keys, cells(lines)) if lines else "no collections")

    return _ran(store, work)


@collection.command()
@click.argument("name")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def show(name: str, store: str, *, as_json: bool) -> int:
    """Show a collection with its schema, renditions and holds.

    Prints the times at which each rendition can be read, and the expiry of the holds that keep the past readable.
    """

    async def work(collections: Collections) -> None:
        found = await collections.describe(name)
        click.echo(json.dumps(found.to_data(), indent=2) if as_json else shown(found))

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("file", type=FilePath())
@click.option(
    "--producer",
    help="Unique name for FILE. An insert that was interrupted continues if it is repeated with the same name.",
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the time and the number of rows as JSON.")
def insert(name: str, file: str, producer: str | None, store: str, *, as_json: bool) -> int:
    """Insert the rows of a file into a collection.

    FILE is CSV, Parquet, JSON Lines or Arrow by its extension, or - for CSV from standard input. Matches columns by
    name, and ignores unknown columns. FILE may have a column _weight: a row with the weight 2 is added twice, and a row
    with the weight -2 is removed twice. Rows become visible in batches of 100,000. Prints the time at which all rows
    are visible.
    """
    if file != STDIN and Path(file).suffix.lower() not in _ENDINGS:
        raise click.UsageError(
            f"{file} has an unknown format: expected a name that ends in {', '.join(_ENDINGS)}, or - for CSV"
        )

    async def work(collections: Collections) -> None:
        inserted = await _inserted(collections, name, file, producer)
        if inserted.rows:  # a command ends before the compaction that runs in long-lived programs
            await collections.keep_house([name])
        if as_json:
            counts = {"time": inserted.time, "rows": inserted.rows, "skipped": inserted.skipped}
            click.echo(json.dumps(counts, indent=2))
        elif inserted.time is not None:
            click.echo(inserted.time)
        click.echo(inserted.said(producer), err=True)

    return _ran(store, work)


@collection.command()
@click.argument("name")
@_as_of
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "jsonl", "csv", "arrow"]),
    default="table",
    show_default=True,
    help="Output format of the rows: a table, JSON, JSON Lines, CSV, or an Arrow stream.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "--into",
    type=FilePath(),
    metavar="FILE",
    help="Write the rows to this file instead: .parquet, .csv, .jsonl or .arrow.",
)
@click.option("--out", hidden=True, expose_value=False, callback=_into_is_meant)
@store_option
def read(name: str, as_of: int | None, form: str, into: str | None, store: str, *, as_json: bool) -> int:
    """Print the rows of a collection as of a time.

    If the time is in the future, waits for it.
    """
    if into is not None:
        check_ending(into)

    async def work(collections: Collections) -> None:
        at = await collections.latest(name) if as_of is None else as_of
        rows = await collections.snapshot(name, at)
        if into is None:
            print_rows(rows, "json" if as_json else form)
        else:
            write_rows(rows, Path(into))
        click.echo(f"{how_many(rows.num_rows)} at {at}, {instant(at)}", err=True)

    return _ran(store, work)


@collection.command()
@click.argument("name")
@_as_of
@click.option("--snapshot", is_flag=True, help="First print the rows at --as-of, then the changes after it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "arrow"]),
    default="csv",
    show_default=True,
    help="Output format of the changes: CSV with a header line, one JSON object per line, or an Arrow stream.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "--name",
    "reader",
    metavar="NAME",
    help="Name of this reader. The collection keeps a hold for the reader after the command ends, so that the next "
    "run with this name continues after the last printed change.",
)
@store_option
def follow(
    name: str, as_of: int | None, form: str, reader: str | None, store: str, *, snapshot: bool, as_json: bool
) -> int:
    """Print the changes of a collection as they happen.

    Begins with the first change after the time --as-of. Runs until interrupted. Each line has the time (_time), the
    row, and the number of times that it was added or, if negative, removed (_weight).
    """
    from nebuli.cli.rows.printed_changes import changes_as

    async def work(collections: Collections) -> None:
        end_on_termination()
        schema = (await collections.describe(name)).schema
        changes = changes_as("json" if as_json else form, schema)
        named = None if reader is None else _NamedReader(collections, name, reader)
        known = None if named is None else await named.known()
        if known is not None:
            if snapshot or as_of is not None:
                click.echo(
                    f"reader {reader} continues after {instant(known)}: --as-of and --snapshot apply to the first run "
                    f"of a name; to begin again, run 'nebuli collection release {name} {_FOLLOWS}{reader}'",
                    err=True,
                )
            subscribed = collections.subscribe(name, known)
        else:
            begin = as_of if named is None or snapshot else await named.begin(as_of)
            subscribed = collections.subscribe(name, begin, snapshot=snapshot)
            changes.begin()
        async with aclosing(subscribed) as spans:
            try:
                if named is None:
                    async for span in spans:
                        changes.print(span)
                else:
                    await named.print(spans, changes)
            finally:
                changes.end()

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("hold")
@store_option
def release(name: str, hold: str, store: str) -> int:
    """Release a hold of a reader that does not return.

    'nebuli collection show' lists the holds of a collection.
    """

    async def work(collections: Collections) -> None:
        if hold not in (await collections.describe(name)).holds:
            raise click.ClickException(
                f"collection {name} has no hold {hold}: 'nebuli collection show {name}' lists all"
            )
        await collections.release(name, hold)

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("rendition", required=False)
@_shards
@store_option
def rendition(name: str, rendition: str | None, shards: int, store: str) -> int:
    """Create another rendition of a collection.

    The rendition is empty until programs write rows into it. Prints the rendition's name.
    """

    async def work(collections: Collections) -> None:
        click.echo(await collections.new_rendition(name, shards, rendition=rendition))

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("rendition")
@click.option(
    "--built-from",
    callback=read_time,
    metavar="TIME",
    help="Time of the rows from which the rendition was built; rows inserted since that time are added to it.",
)
@click.option(
    "--at",
    callback=read_time,
    metavar="TIME",
    help="Time of the switch to the rendition. If it is in the future, the command waits for it.  [default: the "
    "earliest possible time]",
)
@store_option
def handover(name: str, rendition: str, built_from: int | None, at: int | None, store: str) -> int:
    """Hand a collection over to another rendition.

    Prints the time of the switch. Programs that follow the collection receive the differences between the two
    renditions as changes.
    """

    async def work(collections: Collections) -> None:
        begin = await collections.handover(name, rendition, at, built_from=built_from)
        await collections.keep_house([name])
        click.echo(begin)
        click.echo(
            f"rendition {rendition} of collection {name} is current from {instant(begin)} on", err=True
        )

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.option(
    "--rendition",
    help="Drop only this rendition. No readable time of the collection may have it as its current rendition.",
)
@store_option
def drop(name: str, rendition: str | None, store: str) -> int:
    """Drop a collection with all its rows.

    Programs that read or follow the collection then fail.
    """

    async def work(collections: Collections) -> None:
        if rendition is None:
            await collections.drop(name)
        else:
            await collections.drop_rendition(name, rendition)

    return _ran(store, work)


@collection.command()
@click.option("--http", "address", required=True, metavar="HOST:PORT", help="Address of the server.")
@click.option(
    "--topology",
    type=FilePath(),
    metavar="FILE",
    help="Topology with the certificates and the secret of clients; without it, --http must be a loopback address.",
)
@store_option
def serve(address: str, topology: str | None, store: str) -> int:
    """Serve a store of collections over HTTP.

    Runs until interrupted. Creates the store if it does not exist. The API is described at /openapi.json.
    """
    from nebuli.circuits.served_run import CannotServe
    from nebuli.cli.files import load_topology

    model = None if topology is None else load_topology(topology)
    directory = Path(topology or ".").resolve().parent
    trust = trust_at({"--http": address}, model, directory, "insert rows and drop collections")
    server = http_server()

    place = state_place(store, "--store")

    async def work() -> None:
        end_on_termination()
        async with server.collections_over_http({str(place): place}, address, trust) as url:
            click.echo(f"serving at {url} until interrupted", err=True)
            await asyncio.Event().wait()

    try:
        return _ended(work())
    except CannotServe as error:
        raise click.ClickException(str(error)) from None


# -- parts shared by the commands


def _ran(store: str, work: Callable[[Collections], Coroutine[Any, Any, None]], *, makes: bool = False) -> int:
    """Open the store, run the work, and return the exit code. Only a command that ``makes`` a store creates it."""
    place = state_place(store, "--store")
    if not makes and isinstance(place, Path) and not (place / "ordering.db").exists():
        raise click.ClickException(
            f"no store at {store}: give the right one with --store, or create a collection, which creates the store"
        )
    return _ended(_opened(place, work))


def _ended(work: Coroutine[Any, Any, None]) -> int:
    """Run the work, and return the exit code."""
    from nebuli.store.errors import StorageError

    try:
        asyncio.run(work)
    except StorageError as error:
        click.echo(f"Error: {error}", err=True)
        return code_of_storage(error)
    except asyncio.CancelledError:
        return ExitCode.TERMINATED
    return ExitCode.DONE


async def _opened(place: Any, work: Callable[[Collections], Coroutine[Any, Any, None]]) -> None:
    from nebuli.store.collections.collections import Collections

    async with Collections(place) as collections:
        await work(collections)


def _unknown() -> type[Exception]:
    from nebuli.store.collections.errors import CollectionUnknown

    return CollectionUnknown


@dataclass(frozen=True, slots=True)
class _Inserted:
    """The rows of a file: ``skipped`` ones are in the ``batches`` that their producer had inserted before."""

    time: int | None
    rows: int
    skipped: int
    batches: int

    def said(self, producer: str | None) -> str:
        """Return the sentence for people. Batches are known by their numbers only: the file may be another one."""
        if self.time is None:
            return how_many(self.rows)
        if not self.skipped:
            return f"{how_many(self.rows)}, all visible at {instant(self.time)}"
        before = "batch 1" if self.batches == 1 else f"batches 1 to {self.batches}"
        when = f", the last at {instant(self.time)}"
        new = f"{how_many(self.rows)} inserted{when if self.rows else ''}; {how_many(self.skipped)} skipped"
        return (
            f"{new}, because producer {producer} had inserted {before} "
            f"before{'' if self.rows else when}: give each file its own producer"
        )


async def _inserted(collections: Collections, name: str, file: str, producer: str | None) -> _Inserted:
    """Insert the rows of a file, except those of the batches that its producer has inserted."""
    from nebuli.cli.rows.file_rows import row_count, rows_of
    from nebuli.store.errors import SequencePassed

    columns = columns_of(name, (await collections.describe(name)).schema)
    known = 0 if producer is None else await collections.next_sequence(name, producer)
    at, rows, skipped = None, 0, 0
    with rows_of(file, columns) as batches, RowProgress("inserted", row_count(file)) as progress:
        for number, batch in enumerate(batches):
            rows += batch.num_rows
            skipped += batch.num_rows if number < known else 0
            try:
                at = await collections.insert(
                    name, batch, producer=producer, sequence=None if producer is None else number
                )
            except SequencePassed:  # this batch and later ones were inserted before
                at = None
            progress.update(rows)
    if rows and at is None:
        raise click.ClickException(
            f"producer {producer} has inserted more rows into collection {name} than {file} has: "
            f"give each file its own producer"
        )
    return _Inserted(at, rows - skipped, skipped, known)


class _NamedReader:
    """A reader whose hold stays at its last printed change, so that a later command continues there."""

    def __init__(self, collections: Collections, name: str, reader: str) -> None:
        self._collections = collections
        self._name = name
        self._reader = reader
        self._hold = f"{_FOLLOWS}{reader}"
        self._held: set[int] = set()
        """Times at which its hold can be: two, if a command was stopped while it moved it."""

    async def known(self) -> int | None:
        """Return the time at which an earlier command has left the hold."""
        hold = (await self._collections.describe(self._name)).holds.get(self._hold)
        self._held = set() if hold is None else {hold.time}
        return None if hold is None else hold.time

    async def begin(self, as_of: int | None) -> int:
        """Set the hold for the first time. The last time may be forgotten before it is held: then it tries again."""
        from nebuli.store.collections.errors import TooLate

        while True:
            at = await self._collections.latest(self._name) if as_of is None else as_of
            try:
                await self._collections.hold(self._name, self._hold, at)
            except TooLate:
                if as_of is not None:
                    raise
            else:
                return at

    async def print(self, spans: AsyncIterator[Span], changes: Changes) -> None:
        """Print changes as they arrive, and keep the hold at the last printed one, however the stream ends."""
        held: int | None = None
        printed: int | None = None
        at = 0.0
        try:
            async for span in spans:
                changes.print(span)
                printed = span.upper - 1
                if held is None or time.monotonic() - at >= _MOVE_S:
                    await self._move(printed)
                    held, at = printed, time.monotonic()
        finally:
            if printed is not None and printed != held:
                with suppress(_unknown()):  # another client has dropped it
                    await self._move(printed)

    async def _move(self, at: int) -> None:
        """Move the hold. Raises ClickException if it is not where this command has left it."""
        hold = (await self._collections.describe(self._name)).holds.get(self._hold)
        if self._held and (hold is None or hold.time not in self._held):
            done = "released" if hold is None else "moved"
            raise click.ClickException(
                f"another command has {done} the hold {self._hold} of collection {self._name}: give each command its "
                f"own --name, because the next run of {self._reader} continues where the hold is then, and its output "
                f"can lack rows"
            )
        self._held.add(at)
        await self._collections.hold(self._name, self._hold, at)
        self._held = {at}
