"""``nebuli collection``: durable collections of rows over time, made, written, read and followed."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nebuli.cli.bounds import FilePath, Finite, state_place, store_option
from nebuli.cli.exits import ExitCode, code_of_storage, end_on_termination
from nebuli.cli.files import STDIN
from nebuli.cli.placement_text import table
from nebuli.cli.rows.collection_views import cells, columns_from, columns_of, shown
from nebuli.cli.rows.printed_rows import as_csv, as_json_line, echo_data, how_many, print_rows
from nebuli.cli.rows.times import instant, read_time
from nebuli.cli.who_may_call import http_server, trust_at
from nebuli.python_values import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pyarrow as pa

    from nebuli.store.collections.catalog import Timed
    from nebuli.store.collections.collections import Collections
    from nebuli.store.shards.shard import Span

_ENDINGS = (".csv", ".zip", ".parquet")
_Command = TypeVar("_Command", bound="Callable[..., int]")


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
    "--history",
    "history_s",
    type=Finite(min=0),
    metavar="SECONDS",
    default=600,
    show_default=True,
    help="How long it can be read back.",
)
@store_option
def create(name: str, schema: str, store: str, *, shards: int, timed: Timed, history_s: float) -> int:
    """Make a collection, which is empty; the store is made if it is not there."""
    from nebuli.dataflow.types import arrow_schema

    columns = arrow_schema(columns_from(schema))

    async def work(collections: Collections) -> None:
        await collections.create(name, columns, shards=shards, timed=timed, history_s=history_s)

    return _ran(store, work, makes=True)


@collection.command("list")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_(store: str, *, as_json: bool) -> int:
    """List all collections, each with the rendition that it is, and from when to when it can be read."""

    async def work(collections: Collections) -> None:
        found = []
        for name in await collections.names():
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
    """Insert the rows of FILE, CSV or Parquet by its ending, or CSV from standard input (-).

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
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="How rows are printed: for people, or, for programs, as JSON or CSV.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--into", type=FilePath(), metavar="FILE", help="Write them into this Parquet file instead.")
@store_option
def read(name: str, as_of: int | None, form: str, into: str | None, store: str, *, as_json: bool) -> int:
    """Print the rows of a collection at a time, or at the last one that is complete. A time to come is waited for."""
    if into is not None and Path(into).suffix.lower() != ".parquet":
        raise click.UsageError(f"--into {into}: give a name that ends in .parquet")

    async def work(collections: Collections) -> None:
        at = await collections.latest(name) if as_of is None else as_of
        rows = await collections.snapshot(name, at)
        if into is None:
            print_rows(rows, "json" if as_json else form)
        else:
            _write(rows, Path(into))
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
    type=click.Choice(["csv", "json"]),
    default="csv",
    show_default=True,
    help="How each change is printed: as a line of CSV, below a header, or as a JSON object.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@store_option
def follow(name: str, as_of: int | None, form: str, store: str, *, snapshot: bool, as_json: bool) -> int:
    """Print what changes behind a time, or from now on, a line for each row, until this is interrupted.

    A line has the time (_time), the row, and how many times it was added or, below zero, taken away (_weight).
    """

    async def work(collections: Collections) -> None:
        end_on_termination()
        columns = (await collections.describe(name)).schema.names
        names = ["_time", *columns, "_weight"]
        is_json = as_json or form == "json"
        if not is_json:
            echo_data(as_csv([names]))
        async with aclosing(collections.subscribe(name, as_of, snapshot=snapshot)) as spans:
            async for span in spans:
                lines = _changes(span)
                if is_json:
                    echo_data("".join(f"{as_json_line(names, line)}\n" for line in lines))
                else:
                    echo_data(as_csv(lines))

    return _ran(store, work)


@collection.command()
@click.argument("name")
@click.argument("rendition")
@_shards
@store_option
def rendition(name: str, rendition: str, shards: int, store: str) -> int:
    """Make another rendition of a collection, empty, which programs write from scratch."""

    async def work(collections: Collections) -> None:
        await collections.create_rendition(name, rendition, shards=shards)

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
@store_option
def handover(name: str, rendition: str, built_from: int | None, store: str) -> int:
    """Have a collection be another rendition from now on, and print the time; who follows it sees what differs."""

    async def work(collections: Collections) -> None:
        at = await collections.hand_over(name, rendition, built_from=built_from)
        await collections.keep_house([name])
        click.echo(at)
        click.echo(f"collection {name} is rendition {rendition} from {instant(at)} on", err=True)

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


def _changes(span: Span) -> list[tuple[Any, ...]]:
    return [
        (time, *line)
        for time, rows in span.updates
        for line in zip(*map(values_of, rows.columns), strict=True)
    ]


def _write(rows: pa.Table, into: Path) -> None:
    """Write a Parquet file that is there whole, or as it was. Raises OSError."""
    import pyarrow.parquet

    aside = into.with_name(f".{into.stem}.new")
    try:
        pyarrow.parquet.write_table(rows, aside)
        aside.replace(into)
    finally:
        aside.unlink(missing_ok=True)
