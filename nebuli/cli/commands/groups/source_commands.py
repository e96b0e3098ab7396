"""``nebuli source``: commands that create, run, show, rebuild and drop ingested sources."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import DEFAULT_STORE, FilePath, state_place, store_option
from nebuli.cli.exits import ExitCode, code_of_storage, end_on_termination
from nebuli.cli.rows.source_views import listed, shown, undecoded
from nebuli.cli.saved_queries import state_directory
from nebuli.log_output import log_to_stderr

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
    """Create, run and inspect ingested sources.

    A source is external data, such as files, a channel, a stream or tables. It is ingested into the collection with the
    same name.

    Exit codes: 0 done; 1 the source failed, or does not run; 2 invalid input; 3 a server does not answer.
    """


@source.command()
@click.argument("file", type=FilePath())
@click.option(
    "--replicas",
    type=click.IntRange(1, _MOST),
    default=1,
    show_default=True,
    help=(
        "Number of parallel instances of the source. With more than one, the source continues if an instance "
        "ends."
    ),
)
@click.option(
    "--no-start",
    is_flag=True,
    help="Do not start a supervisor; start one later with 'nebuli source serve'.",
)
@store_option
def create(file: str, replicas: int, store: str, *, no_start: bool) -> int:
    """Create a source and run it in the background.

    FILE (YAML) defines the source; paths in FILE are relative to its folder. Creates the store if it does not exist,
    and starts a supervisor of the store's sources if none runs on this host.
    """

    async def work(sources: Sources) -> int:
        definition = _definition(file)
        made = await sources.create(definition, replicas=replicas)
        look = f"show it with: {_command('show', made.name, store)}"
        if no_start:
            click.echo(f"created source {made.name}; run it with: {_command('serve', store)}")
            return ExitCode.DONE
        begun = await _started(sources, made.name, store, replicas)
        if begun.error is not None:
            click.echo(f"created source {made.name}, which does not run yet: {begun.error}", err=True)
            click.echo(f"its log is {_files(store).log(made.name)}; {look}", err=True)
            return ExitCode.FAILED
        click.echo(
            f"source {made.name} is ingested into the collection of its name by {_instances(replicas)} of process "
            f"{begun.supervisor}"
        )
        found = await sources.describe(made.name)
        if found.undecoded:
            click.echo(undecoded(found), err=True)
        for raw in found.raw_sources.values():
            if raw.ends == {}:
                click.echo(f"{raw.reads} is empty: rows are ingested when they arrive there", err=True)
        click.echo(look)
        return ExitCode.DONE

    return _ran(store, work, makes=True)


@source.command("list")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_(store: str, *, as_json: bool) -> int:
    """List all sources with their progress and state.

    Prints for each source the time up to which it is complete, its lag, and its state or the error that blocks it.
    """

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
    """Show a source with its progress, errors and instances.

    Prints how much of each raw source is available and how much was read, and the time up to which the source is
    complete.
    """

    async def work(sources: Sources) -> None:
        from nebuli.store.collections.clock import now_ms

        found = await sources.describe(name)
        start = _command("scale", name, str(max(found.replicas, 1)), store)
        click.echo(json.dumps(found.to_data(), indent=2) if as_json else shown(found, now_ms(), start))

    return _ran(store, work)


@source.command()
@click.option("--until-idle", is_flag=True, help="Exit once no source needs an instance.")
@store_option
def serve(store: str, *, until_idle: bool) -> int:
    """Run all sources of a store in the foreground.

    Runs each source in as many instances as it was scaled to, each in its own process, and restarts instances that
    end. Sources can be created, scaled and dropped meanwhile. Only one such supervisor can run on a host. If it is
    interrupted or terminated, it ends its instances. If it is killed, its instances keep running, and the next
    supervisor adopts them.
    """
    log_to_stderr("%(asctime)s %(message)s")

    async def work(sources: Sources) -> None:
        from nebuli.ingestion.running.supervisor import Supervisor

        end_on_termination()
        files = _files(store)
        with files.supervisor.held():
            click.echo(f"running the sources of store {store} until interrupted", err=True)
            why = await Supervisor(sources, state_place(store, "--store"), files).run(until_idle=until_idle)
        match why:
            case "idle":
                again = _command("scale", "NAME", "N", store)
                click.echo(f"no source needs an instance; run one again with: {again}", err=True)
            case "store deleted":
                click.echo("all sources have stopped, because their store was deleted", err=True)

    return _ran(store, work, makes=True)


@source.command()
@click.argument("name")
@click.option(
    "--instance",
    metavar="K",
    default="1",
    show_default=True,
    help="Name of the instance, unique on this host; a supervisor numbers its instances from 1.",
)
@store_option
def run(name: str, instance: str, store: str) -> int:
    """Run one instance of a source in the foreground.

    Needs no supervisor. If a supervisor runs, this instance runs in addition to the supervisor's instances. Runs until
    the source is dropped, or the command is interrupted.
    """
    log_to_stderr("%(asctime)s %(message)s")

    async def work(sources: Sources) -> None:
        end_on_termination()
        await sources.entry(name)
        with _files(store).instance(name, instance).held():
            click.echo(f"running instance {instance} of source {name} until interrupted", err=True)
            await sources.ingest(name, instance=instance)
        click.echo(f"source {name} was dropped", err=True)

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.argument("replicas", type=click.IntRange(0, _MOST))
@store_option
def scale(name: str, replicas: int, store: str) -> int:
    """Scale a source to another number of instances.

    Sets the number of instances to REPLICAS, and starts a supervisor if none runs on this host; 0 stops the source.
    """

    async def work(sources: Sources) -> int:
        await sources.scale(name, replicas)
        if not replicas:
            if code := await _stopped(store, name):
                return code
            click.echo(f"source {name} has stopped on this host")
            return ExitCode.DONE
        begun = await _started(sources, name, store, replicas)
        if begun.error is not None:
            click.echo(
                f"scaled source {name} to {_instances(replicas)}, not all of which run yet: {begun.error}",
                err=True,
            )
            click.echo(f"its log is {_files(store).log(name)}", err=True)
            return ExitCode.FAILED
        click.echo(f"source {name} has {_instances(replicas)} of process {begun.supervisor}")
        return ExitCode.DONE

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.argument("file", type=FilePath(), required=False)
@store_option
def rebuild(name: str, file: str | None, store: str) -> int:
    """Rebuild a source from its first message.

    Uses the definition in FILE, or the current definition if FILE is omitted. The instances write another rendition of
    the collection. When this rendition has caught up, it replaces the current rendition.
    """

    async def work(sources: Sources) -> None:
        made = await sources.rebuild(name, None if file is None else _definition(file))
        click.echo(f"rebuilding source {name} as version {made.version}, rendition {made.rendition}")
        click.echo(f"show its progress with: {_command('show', name, store)}")

    return _ran(store, work)


@source.command()
@click.argument("name")
@click.argument("address", type=click.IntRange(0))
@click.option(
    "--part",
    default="",
    help="Part of the raw source that contains the message; the error of the source names this part.",
)
@click.option(
    "--of", "raw_source", default="data", show_default=True, help="Raw source that contains the message."
)
@store_option
def skip(name: str, address: int, part: str, raw_source: str, store: str) -> int:
    """Skip a message that cannot be ingested.

    Skips the blocking message at ADDRESS. The skip stays in effect until the source is rebuilt. 'nebuli source show'
    prints the address.
    """

    async def work(sources: Sources) -> None:
        await sources.skip(name, address, part=part, raw_source=raw_source)
        click.echo(f"source {name} skips the message at {address}, if that message cannot be ingested")

    return _ran(store, work)


@source.command()
@click.argument("name")
@store_option
def drop(name: str, store: str) -> int:
    """Drop a source with its collections.

    Ends the instances of the source.
    """

    async def work(sources: Sources) -> int:
        untold = await sources.drop(name)
        click.echo(f"dropped source {name} with its collections")
        if untold is not None:
            click.echo(untold, err=True)
        if code := await _stopped(store, name):
            return code
        _files(store).remove(name)
        return ExitCode.DONE

    return _ran(store, work)


# -- parts shared by the commands


def _ran(store: str, work: Callable[[Sources], Awaitable[int | None]], *, makes: bool = False) -> int:
    """Open the store, run the work, and return the exit code. Only a command that ``makes`` a store creates it."""
    place = state_place(store, "--store")
    if not makes and isinstance(place, Path) and not (place / "ordering.db").exists():
        raise click.ClickException(
            f"no store at {store}: give the right one with --store, or create a source, which creates the store"
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
    """Read the definition of a source from a file. Raises DefinitionInvalid."""
    from nebuli.ingestion.definition import parse_definition
    from nebuli.ingestion.errors import DefinitionInvalid
    from topology.mistakes import Mistake, read_text

    text = read_text(Path(file))
    if isinstance(text, Mistake):
        raise DefinitionInvalid(str(text))
    return parse_definition(text, file)


def _files(store: str) -> SupervisorFiles:
    from nebuli.ingestion.running.supervisor_files import SupervisorFiles

    return SupervisorFiles.at(state_place(store, "--store"), state_directory())


async def _started(sources: Sources, name: str, store: str, replicas: int) -> Started:
    from nebuli.ingestion.running.supervisor_start import started

    place = state_place(store, "--store")
    where = str(place.absolute()) if isinstance(place, Path) else store
    # -P, as files in the user's working directory must not be imported as modules.
    command = [sys.executable, "-P", "-m", "nebuli", "source", "serve", "--until-idle", "--store", where]
    return await started(
        sources, _files(store), name, command, replicas=replicas, say=partial(click.echo, err=True)
    )


async def _stopped(store: str, name: str) -> int:
    """Wait until no supervised instance runs on this host; returns the exit code."""
    from nebuli.ingestion.running.supervisor_start import ended

    files = _files(store)
    left = await ended(files, name)
    if left is not None:
        click.echo(
            f"process {left}, which ingests source {name}, has not ended yet; its log is {files.log(name)}",
            err=True,
        )
        return ExitCode.FAILED
    return ExitCode.DONE


def _instances(number: int) -> str:
    return f"{number} instance{'s' * (number != 1)}"


def _command(*words: str) -> str:
    """Quote a command of this group for a shell; the last of ``words`` is the store."""
    *given, store = words
    return shlex.join(["nebuli", "source", *given, *([] if store == DEFAULT_STORE else ["--store", store])])
