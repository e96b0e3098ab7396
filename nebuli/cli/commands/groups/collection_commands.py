"""``nebuli collection``: durable collections of rows over time, made, written, read and followed."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath, state_place, store_option
from nebuli.cli.exits import ExitCode, code_of_storage, end_on_termination
from nebuli.cli.files import STDIN
from nebuli.cli.placement_text import table
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
"""A named reader says how far it is so often, and when it ends."""
_FOLLOWS = "follow/"
"""Before the name of a reader, in that of its hold."""


_shards = click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Parts that are written side by side.",
)
_as_of = click.option(
    "--as-of",
    callback=read_time,
    metavar="TIME",
    help="A time: milliseconds since 1970, or an ISO date and time, in UTC unless it says where.",
)


@click.group()
def collection() -> None:
    """Durable collections of rows over time, which any number of programs insert into, read and follow.

    Exit codes: 0 done; 1 the store failed; 2 what was asked for cannot be; 3 the store's server does not answer.
    """


@collection.command()
@click.argument("name")
@click.option(
    "--schema", required=True, help='Its columns with their types, as in "shop: string, amount: int64".'
)
@_shards
@click.option(
    "--timed",
    type=click.Choice(["store", "writers"]),
    default="store",
    show_default=True,
    help="Who gives times to rows: the store, to what is inserted; or programs, to what they write.",
)
@click.option(
    "--keep",
    metavar="DURATION",
    default=DEFAULT_KEEP,
    show_default=True,
    help="How long it can be read back: a number with ms, s, min, h or d, as in 1h; alone, of seconds.",
)
@store_option
def create(name: str, schema: str, store: str, *, shards: int, timed: Timed, keep: str) -> int:
    """Make a collection, which is empty; the store is made if it is not there."""
    from nebuli.dataflow.types import arrow_schema

    columns = arrow_schema(columns_from(schema))

    async def work(collections: Collections) -> None:
        await collections.create(name, columns, shards=shards, timed=timed, keep=keep)

    return _ran(store, work, makes=True)


@collection.command("list")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_(store: str, *, as_json: bool) -> int:
    """List all collections, each with the rendition that it is, and from when to when it can be read."""

    async def work(collections: Collections) -> None:
        found = []
        for name in await collections.list():
            with suppress(_unknown()):  # it was dropped meanwhile
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
    """Show a collection: its schema, its renditions with their frontiers, and the holds that keep its past."""

    async def work(collections: Collections) -> None:
        found = await collections.describe(name)
        click.echo(json.dumps(found.to_data(), indent=2) if as_json else shown(found))

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("file", type=FilePath())
@click.option(
    "--producer",
    help="A name of FILE's own, by which rows that were inserted are known: done again, it goes on where it was.",
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the time and the number of rows as JSON.")
def insert(name: str, file: str, producer: str | None, store: str, *, as_json: bool) -> int:
    """Insert the rows of FILE, CSV, Parquet, JSON Lines or Arrow by its ending, or CSV from standard input (-).

    Columns are found by name, others are passed over; one named _weight says how often each row is added or, below
    zero, taken away. Each 100,000 rows are there at once. Prints the time at which all are.
    """
    if file != STDIN and Path(file).suffix.lower() not in _ENDINGS:
        raise click.UsageError(
            f"{file} is none of {', '.join(_ENDINGS)}: what is in a file is told by its ending"
        )

    async def work(collections: Collections) -> None:
        at, rows = await _inserted(collections, name, file, producer)
        if rows:  # a command does not live for as long as what it wrote is looked after in a program
            await collections.keep_house([name])
        if as_json:
            click.echo(json.dumps({"time": at, "rows": rows}, indent=2))
        elif at is not None:
            click.echo(at)
        click.echo(
            how_many(rows) if at is None else f"{how_many(rows)}, all there at {instant(at)}", err=True
        )

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
    help="How rows are printed: for people, or, for programs, as JSON, JSON Lines, CSV or an Arrow stream.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--into",
    type=FilePath(),
    metavar="FILE",
    help="Write them into this file instead: .parquet, .csv, .jsonl or .arrow.",
)
@store_option
def read(name: str, as_of: int | None, form: str, into: str | None, store: str, *, as_json: bool) -> int:
    """Print the rows of a collection at a time, or at the last one that is complete. A time to come is waited for."""
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
@click.option(
    "--snapshot", is_flag=True, help="Print the rows of the time first, behind which changes follow."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "arrow"]),
    default="csv",
    show_default=True,
    help="How changes are printed: lines of CSV below a header, a JSON object in a line, or an Arrow stream.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--name",
    "reader",
    metavar="NAME",
    help="A name of this reader: its hold stays when it ends, and it goes on from there when it is run again.",
)
@store_option
def follow(
    name: str, as_of: int | None, form: str, reader: str | None, store: str, *, snapshot: bool, as_json: bool
) -> int:
    """Print what changes behind a time, or from now on, a line for each row, until this is interrupted.

    A line has the time (_time), the row, and how many times it was added or, below zero, taken away (_weight).
    """
    from nebuli.cli.rows.printed_changes import changes_as

    async def work(collections: Collections) -> None:
        end_on_termination()
        status = await collections.describe(name)
        hold = None if reader is None else f"{_FOLLOWS}{reader}"
        known = None if hold is None else status.holds.get(hold)
        changes = changes_as("json" if as_json else form, status.schema)
        if known is not None:
            subscribed = collections.subscribe(name, known.time)
        else:
            begin = as_of if hold is None or snapshot else await _held(collections, name, hold, as_of)
            subscribed = collections.subscribe(name, begin, snapshot=snapshot)
            changes.begin()
        async with aclosing(subscribed) as spans:
            try:
                if hold is None:
                    async for span in spans:
                        changes.print(span)
                else:
                    await _print_and_hold(collections, (name, hold), spans, changes)
            finally:
                changes.end()

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("hold")
@store_option
def release(name: str, hold: str, store: str) -> int:
    """Let go of a hold, as `show` names it: of a reader that does not come back."""

    async def work(collections: Collections) -> None:
        if hold not in (await collections.describe(name)).holds:
            raise click.ClickException(
                f"collection {name} has no hold {hold}: nebuli collection show {name} names all"
            )
        await collections.release(name, hold)

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("rendition", required=False)
@_shards
@store_option
def rendition(name: str, rendition: str | None, shards: int, store: str) -> int:
    """Make another rendition of a collection, empty, which programs write from scratch, and print its name."""

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
    help="The time whose rows the rendition was made of: what was inserted since is added to it.",
)
@click.option(
    "--at",
    callback=read_time,
    metavar="TIME",
    help="The time from which it is; one to come is waited for. Without it, as soon as it can be.",
)
@store_option
def handover(name: str, rendition: str, built_from: int | None, at: int | None, store: str) -> int:
    """Have a collection be another rendition, and print from when on; who follows it sees what differs."""

    async def work(collections: Collections) -> None:
        begin = await collections.handover(name, rendition, at, built_from=built_from)
        await collections.keep_house([name])
        click.echo(begin)
        click.echo(f"collection {name} is rendition {rendition} from {instant(begin)} on", err=True)

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.option("--rendition", help="Drop this rendition only, which the collection is not and was not.")
@store_option
def drop(name: str, rendition: str | None, store: str) -> int:
    """Drop a collection, with all that is in it, also for whoever reads it."""

    async def work(collections: Collections) -> None:
        if rendition is None:
            await collections.drop(name)
        else:
            await collections.drop_rendition(name, rendition)

    return _ran(store, work)


@collection.command()
@click.option("--http", "address", required=True, metavar="HOST:PORT", help="Where it is served.")
@click.option(
    "--topology",
    type=FilePath(),
    metavar="FILE",
    help="Whose certificates and secret are asked for; without them only this machine is let in.",
)
@store_option
def serve(address: str, topology: str | None, store: str) -> int:
    """Serve a store over HTTP, which is made if it is not there, until this is interrupted; see /openapi.json."""
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
            click.echo(f"serving at {url}, until it is interrupted", err=True)
            await asyncio.Event().wait()

    try:
        return _ended(work())
    except CannotServe as error:
        raise click.ClickException(str(error)) from None


# -- what they have in common


def _ran(store: str, work: Callable[[Collections], Coroutine[Any, Any, None]], *, makes: bool = False) -> int:
    """Open the store and do it; the exit code. Only what ``makes`` a store does so where none is."""
    place = state_place(store, "--store")
    if not makes and isinstance(place, Path) and not (place / "ordering.db").exists():
        raise click.ClickException(
            f"there is no store at {store}: name the right one with --store, or make a collection, which makes it"
        )
    return _ended(_opened(place, work))


def _ended(work: Coroutine[Any, Any, None]) -> int:
    """Do it; the exit code."""
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


async def _inserted(
    collections: Collections, name: str, file: str, producer: str | None
) -> tuple[int | None, int]:
    """The time at which all rows of a file are there, and how many they are."""
    from nebuli.cli.rows.file_rows import rows_of
    from nebuli.store.errors import SequencePassed

    columns = columns_of(name, (await collections.describe(name)).schema)
    at, rows = None, 0
    with rows_of(file, columns) as batches:
        for number, batch in enumerate(batches):
            rows += batch.num_rows
            try:
                at = await collections.insert(
                    name, batch, producer=producer, sequence=None if producer is None else number
                )
            except SequencePassed:  # it was inserted before, and more of the file
                at = None
    if rows and at is None:
        raise click.ClickException(
            f"producer {producer} has inserted more into collection {name} than {file} has: give each file a producer "
            f"of its own"
        )
    return at, rows


async def _held(collections: Collections, name: str, hold: str, as_of: int | None) -> int:
    """Set a reader's hold where it begins: at a time, or the last one, which others may forget before it is held."""
    from nebuli.store.collections.errors import TooLate

    while True:
        at = await collections.latest(name) if as_of is None else as_of
        try:
            await collections.hold(name, hold, at)
        except TooLate:
            if as_of is not None:
                raise
        else:
            return at


async def _print_and_hold(
    collections: Collections, place: tuple[str, str], spans: AsyncIterator[Span], changes: Changes
) -> None:
    """Print what comes, and keep the hold at what was printed; also at the end, in whatever way it comes."""
    name, hold = place
    held: int | None = None
    printed: int | None = None
    at = 0.0
    try:
        async for span in spans:
            changes.print(span)
            printed = span.upper - 1
            if held is None or time.monotonic() - at >= _MOVE_S:
                await collections.hold(name, hold, printed)
                held, at = printed, time.monotonic()
    finally:
        if printed is not None and printed != held:
            with suppress(_unknown()):  # it was dropped
                await collections.hold(name, hold, printed)
