"""``nebuli source``: what comes from outside into collections, made, run, looked at and made anew."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import DEFAULT_STORE, FilePath, state_place, store_option
from nebuli.cli.exits import ExitCode, code_of_storage, end_on_termination
from nebuli.cli.rows.source_views import listed, shown, undecoded
from nebuli.cli.saved_queries import state_directory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from nebuli.ingestion.definition import Definition
    from nebuli.ingestion.errors import IngestionError
    from nebuli.ingestion.running.supervisor_files import SupervisorFiles
    from nebuli.ingestion.running.supervisor_start import Started
    from nebuli.ingestion.source_client import Sources
    from nebuli.store.store_url import StorePlace

_MOST = 100


@click.group()
def source() -> None:
    """Sources: files, channels, streams, tables, which are ingested into collections of their names.

    Exit codes: 0 done; 1 it failed, or does not run; 2 what was asked for cannot be; 3 what is needed does not answer.
    """


@source.command()
@click.argument("file", type=FilePath())
@click.option(
    "--replicas",
    type=click.IntRange(1, _MOST),
    default=1,
    show_default=True,
    help="How many instances ingest it at once: one goes on when another one is killed.",
)
@click.option("--no-start", is_flag=True, help="Do not run it: 'nebuli source run' does, here or elsewhere.")
@store_option
def create(file: str, replicas: int, store: str, *, no_start: bool) -> int:
    """Make the source that FILE (YAML) defines, and run it apart from this command; the store is made, too.

    Relative paths in FILE start at its folder.
    """

    async def work(sources: Sources) -> int:
        definition = _definition(file)
        made = await sources.create(definition, replicas=replicas)
        look = f"look at it with: {_command('show', made.name, store)}"
        if no_start:
            click.echo(f"source {made.name} is made; run it with: {_command('run', made.name, store)}")
            return ExitCode.DONE
        files = _files(store, made.name)
        begun = await _started(sources, files, store, replicas)
        if begun.error is not None:
            click.echo(f"source {made.name} is made, and does not run yet: {begun.error}", err=True)
            click.echo(f"its log is {files.log}; {look}", err=True)
            return ExitCode.FAILED
        click.echo(
            f"source {made.name} is ingested into the collection of its name, by process {begun.supervisor} and its "
            f"{_instances(replicas)}"
        )
        found = await sources.describe(made.name)
        if found.undecoded:
            click.echo(undecoded(found), err=True)
        for raw in found.raw_sources.values():
            if raw.ends == {}:
                click.echo(f"{raw.reads} has nothing yet: what comes there is ingested then", err=True)
        click.echo(look)
        return ExitCode.DONE

    return _ran(store, work, makes=True)


@source.command("list")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_(store: str, *, as_json: bool) -> int:
    """List all sources: how far each is complete, how much it lags, and whether it runs, or what holds it up."""

    async def work(sources: Sources) -> None:
        from nebuli.store.collections.clock import now_ms

        found = await sources.describe_all()
        if as_json:
            click.echo(json.dumps([each.to_data() for each in found], indent=2))
        else:
            click.echo(listed(found, now_ms()))

    return _ran(store, work)


@source.command()
@click.argument("name")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def show(name: str, store: str, *, as_json: bool) -> int:
    """Show a source: what it has and what was read of it, up to when it is complete, and how its instances are."""

    async def work(sources: Sources) -> None:
        from nebuli.store.collections.clock import now_ms

        found = await sources.describe(name)
        start = _command("scale", name, str(max(found.replicas, 1)), store)
        click.echo(json.dumps(found.to_data(), indent=2) if as_json else shown(found, now_ms(), start))

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.option(
    "--instance",
    metavar="K",
    help="Be an instance, under a name that no other one on this host has, and not the supervisor of several.",
)
@store_option
def run(name: str, instance: str | None, store: str) -> int:
    """Run a source here, until it is dropped, scaled to 0, or this is interrupted.

    It keeps as many instances, processes of their own, as it was scaled to, and starts those again that end.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)

    async def work(sources: Sources) -> None:
        end_on_termination()
        if instance is not None:
            await sources.ingest(name, instance=instance)
            click.echo(f"source {name} was dropped", err=True)
            return
        from nebuli.ingestion.running.supervisor import Supervisor

        await sources.entry(name)
        files = _files(store, name)
        with files.held():
            click.echo(f"source {name} is run, until this is interrupted", err=True)
            why = await Supervisor(sources, state_place(store, "--store"), name).run()
        match why:
            case "dropped":
                files.remove()
                click.echo(f"source {name} was dropped", err=True)
            case "scaled to 0":
                again = _command("scale", name, "N", store)
                click.echo(f"source {name} was scaled to 0; have it run again with: {again}", err=True)
            case "store deleted":
                click.echo(f"source {name} is not run any more, as its store was deleted", err=True)

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.argument("replicas", type=click.IntRange(0, _MOST))
@store_option
def scale(name: str, replicas: int, store: str) -> int:
    """Have a source ingested by REPLICAS instances, which are started if none runs here; 0 stops it."""

    async def work(sources: Sources) -> int:
        await sources.scale(name, replicas)
        files = _files(store, name)
        if not replicas:
            return await _stopped(files, name)
        begun = await _started(sources, files, store, replicas)
        if begun.error is not None:
            click.echo(
                f"source {name} is to have {_instances(replicas)}, and they do not all run yet: {begun.error}",
                err=True,
            )
            click.echo(f"its log is {files.log}", err=True)
            return ExitCode.FAILED
        click.echo(f"source {name} has {_instances(replicas)}, kept by process {begun.supervisor}")
        return ExitCode.DONE

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.argument("file", type=FilePath(), required=False)
@store_option
def rebuild(name: str, file: str | None, store: str) -> int:
    """Have a source made anew from its first message on, as FILE now defines it, or as it is.

    Its instances write another rendition of its collection, which takes the place of the one before once it is as far.
    """

    async def work(sources: Sources) -> None:
        made = await sources.rebuild(name, None if file is None else _definition(file))
        click.echo(f"source {name} is made anew, as version {made.version} and rendition {made.rendition}")
        click.echo(f"look how far it is with: {_command('show', name, store)}")

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.argument("address", type=click.IntRange(0))
@click.option("--part", default="", help="The part of the source that it is in, as the error says it.")
@click.option("--of", "raw_source", default="data", show_default=True, help="The raw source that it is of.")
@store_option
def skip(name: str, address: int, part: str, raw_source: str, store: str) -> int:
    """Pass over the message at ADDRESS, which cannot be ingested and holds up those behind it.

    'nebuli source show' says which one that is. It is passed over until the source is made anew.
    """

    async def work(sources: Sources) -> None:
        await sources.skip(name, address, part=part, raw_source=raw_source)
        click.echo(f"source {name} goes on without the message at {address}, if that cannot be ingested")

    return _ran(store, work)


@source.command()
@click.argument("name")
@store_option
def drop(name: str, store: str) -> int:
    """Drop a source with its collections; its instances end."""

    async def work(sources: Sources) -> int:
        untold = await sources.drop(name)
        click.echo(f"source {name} is dropped, with what was ingested")
        if untold is not None:
            click.echo(untold, err=True)
        files = _files(store, name)
        if code := await _stopped(files, name, says=False):
            return code
        files.remove()
        return ExitCode.DONE

    return _ran(store, work)


# -- what they have in common


def _ran(store: str, work: Callable[[Sources], Awaitable[int | None]], *, makes: bool = False) -> int:
    """Open the store and do it; the exit code. Only what ``makes`` a store does so where none is."""
    place = state_place(store, "--store")
    if not makes and isinstance(place, Path) and not (place / "ordering.db").exists():
        raise click.ClickException(
            f"there is no store at {store}: name the right one with --store, or create a source, which makes it"
        )
    return _ended(_opened(place, work))


def _ended(work: Coroutine[Any, Any, int | None]) -> int:
    from nebuli.ingestion.errors import DefinitionInvalid, IngestionError
    from nebuli.store.errors import StorageError

    try:
        return asyncio.run(work) or ExitCode.DONE
    except DefinitionInvalid as error:
        click.echo(str(error), err=True)  # each line with its place
        return ExitCode.BAD_INPUT
    except IngestionError as error:
        click.echo(f"Error: {error}", err=True)
        return _code_of(error)
    except StorageError as error:
        click.echo(f"Error: {error}", err=True)
        return code_of_storage(error)
    except asyncio.CancelledError:
        return ExitCode.TERMINATED


async def _opened(place: StorePlace, work: Callable[[Sources], Awaitable[int | None]]) -> int | None:
    from nebuli.ingestion.source_client import Sources

    async with Sources(place) as sources:
        return await work(sources)


def _code_of(error: IngestionError) -> int:
    from nebuli.ingestion import errors

    match error:
        case errors.SourceAway():
            return ExitCode.UNREACHABLE
        case (
            errors.SourceUnknown() | errors.SourceExists() | errors.SourceRefused() | errors.SourceUnusable()
        ):  # fmt: skip
            return ExitCode.BAD_INPUT
    return ExitCode.FAILED


def _definition(file: str) -> Definition:
    """What a file says. Raises DefinitionInvalid."""
    from nebuli.ingestion.definition import parse_definition
    from nebuli.ingestion.errors import DefinitionInvalid
    from topology.mistakes import Mistake, read_text

    text = read_text(Path(file))
    if isinstance(text, Mistake):
        raise DefinitionInvalid(str(text))
    return parse_definition(text, file)


def _files(store: str, name: str) -> SupervisorFiles:
    from nebuli.ingestion.running.supervisor_files import SupervisorFiles

    return SupervisorFiles.at(state_place(store, "--store"), name, state_directory())


async def _started(sources: Sources, files: SupervisorFiles, store: str, replicas: int) -> Started:
    from nebuli.ingestion.running.supervisor_start import started

    place = state_place(store, "--store")
    where = str(place.absolute()) if isinstance(place, Path) else store
    # -P, because the working directory is the user's, and its files are no modules of ours.
    command = [sys.executable, "-P", "-m", "nebuli", "source", "run", files.source, "--store", where]
    return await started(sources, files, command, replicas, partial(click.echo, err=True))


async def _stopped(files: SupervisorFiles, name: str, *, says: bool = True) -> int:
    from nebuli.ingestion.running.supervisor_start import ended

    if not await ended(files):
        with suppress(OSError):
            click.echo(
                f"process {files.holder()}, which runs source {name}, has not ended yet; its log is {files.log}",
                err=True,
            )
        return ExitCode.FAILED
    if says:
        click.echo(f"source {name} is not run on this host any more")
    return ExitCode.DONE


def _instances(number: int) -> str:
    return f"{number} instance{'s' * (number != 1)}"


def _command(*words: str) -> str:
    """A command of this group that may be pasted; the last of ``words`` is the store."""
    *given, store = words
    return shlex.join(["nebuli", "source", *given, *([] if store == DEFAULT_STORE else ["--store", store])])
