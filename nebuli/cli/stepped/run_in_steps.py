"""``nebuli run --stepped``: the options, and the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from nebuli.cli.bounds import DEFAULT, NOTHING, FilePath, Finite, close, keep_output, state_place
from nebuli.cli.exits import ExitCode, end_on_termination
from nebuli.cli.placement_options import say_if_endless
from nebuli.cli.rows.view_rows import how_to_read
from nebuli.cli.who_may_call import http_server, trust_at
from nebuli.limits import MOST_MEMBERS
from nebuli.rpc.conventions import VIEWS_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from nebuli.cli.bounds import KeepOutput
    from nebuli.cli.stepped.progress_in_steps import ProgressInSteps
    from nebuli.rpc.trust import Trust
    from nebuli.steps.coordinator.member_homes import Home
    from nebuli.steps.local.local_run import LocalRun
    from nebuli.steps.stepped_query import SteppedQuery
    from nebuli.store.store_url import StorePlace
    from placement import Query
    from topology import Topology

CHECKPOINT_S = 10.0
_OF_FREE_QUERIES = {
    "on_loss": "a lost member is always started again, and all members return to the last checkpoint",
    "strategy": "all members run on this machine",
    "seed": "all members run on this machine",
    "engine": "members always use the embedded engine",
}
"""Options that do not apply to a query in steps, with the reason."""


class Steps(NamedTuple):
    """The options of a query in steps; None: not given."""

    stepped: bool
    members: int | None
    state: str | None
    checkpoint_s: float | None
    serve: str | None
    http: str | None
    keep_output: KeepOutput | None
    home: str | None
    skip_steps: tuple[int, ...]
    closes: bool

    @property
    def keep_output_bytes(self) -> int | None:
        """The bytes of output to keep for programs, if any can connect; None: all."""
        said = self.keep_output or (DEFAULT if self.is_served else NOTHING)
        return said.max_bytes

    @property
    def is_served(self) -> bool:
        """True if programs can connect to the query and shut it down."""
        return self.serve is not None or self.http is not None

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        others = {
            "--members": self.members,
            "--state": self.state,
            "--checkpoint-every": self.checkpoint_s,
            "--keep-output": self.keep_output,
            "--on": self.home,
            "--skip-step": self.skip_steps or None,
            "--close": self.closes or None,
        }
        given = [name for name, value in others.items() if value is not None]
        if given and not self.stepped:
            raise click.UsageError(
                f"{given[0]} applies to queries in steps only: add --stepped, or remove {given[0]}"
            )
        if self.stepped and self.state is None:
            raise click.UsageError(
                "--stepped requires --state, the place of the query's state: a folder on this "
                "machine, or the URL of a store; a new run with the same --state resumes the query"
            )
        if self.stepped:
            _refuse_options_of_free_queries()


def _refuse_options_of_free_queries() -> None:
    context = click.get_current_context()
    for name, why in _OF_FREE_QUERIES.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} does not apply with --stepped, because {why}: remove it")


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a query in steps to a command."""
    for option in reversed(
        (
            click.option(
                "--stepped",
                is_flag=True,
                help="Run in steps, with durable state: each row takes effect exactly once.",
            ),
            click.option(
                "--members",
                type=click.IntRange(1, MOST_MEMBERS),
                help="Number of member processes.  [default: 1, or the number in the saved state]",
            ),
            click.option(
                "--on",
                "home",
                type=click.Choice(["local", "spark"]),
                help="Place of the members: processes of this machine, or tasks of one Spark stage.  "
                "[default: local]",
            ),
            click.option(
                "--state",
                type=FilePath(),
                metavar="DIR|URL",
                help="Place of the state of a query in steps: a separate folder, empty or missing at the first "
                "run; or postgresql://USER@HOST/DATABASE?schema=NAME&blobs=s3://BUCKET/PREFIX.",
            ),
            click.option(
                "--checkpoint-every",
                "checkpoint_s",
                type=Finite(min=0.1),
                metavar="SECONDS",
                help=f"Time between two checkpoints of a query in steps.  [default: {CHECKPOINT_S:g}]",
            ),
            click.option(
                "--serve",
                metavar="HOST:PORT",
                help="Address to which programs connect: for a query in steps, to push rows, read outputs and shut it "
                f"down; for other queries, to read views.  [default for views: {VIEWS_AT}, or a free port]",
            ),
            click.option(
                "--http",
                metavar="HOST:PORT",
                help="Address to serve HTTP at: for a query in steps, the functions of --serve, SQL, statistics and "
                "profiles (see /openapi.json); for other queries, their views, which are read by key as JSON.",
            ),
            keep_output,
            click.option(
                "--skip-step",
                "skip_steps",
                type=click.IntRange(min=0),
                multiple=True,
                metavar="N",
                help="Skip the rows that make step N of a query in steps fail, and write the skipped rows to a file. "
                "Repeat the option for more steps.",
            ),
            close,
        )
    ):
        command = option(command)
    return command


class _Run(NamedTuple):
    query: SteppedQuery
    state: StorePlace
    directory: Path
    steps: Steps
    max_state_bytes: int
    fails_late: bool
    trust: Trust | None
    stores: Mapping[str, StorePlace]
    home: Home


def run_in_steps(
    topology: Topology,
    file: str,
    query: Query,
    steps: Steps,
    *,
    max_state_bytes: int,
    late: str,
    as_json: bool,
) -> int:
    """Run the query to its end, or until it is shut down if it is served, and return the exit code.

    ``late`` is fail, warn or ignore.
    """
    from nebuli.cli.stepped.progress_in_steps import ProgressInSteps
    from nebuli.connectors.errors import InputError
    from nebuli.steps.stepped_query import stepped_query
    from nebuli.without_pandas import hide_pandas

    assert steps.state is not None
    hide_pandas()
    directory = Path(file).resolve().parent
    try:
        in_steps = stepped_query(query, topology, steps.members or 1, directory)
    except InputError as none:
        raise click.ClickException(str(none)) from None
    trust = None
    if not steps.is_served:
        _refuse_without_sources(in_steps)
    if steps.is_served or any(in_steps.plan.views):
        addresses = {"--serve": steps.serve, "--http": steps.http}
        trust = trust_at(addresses, topology, directory, "push rows and end the query")
    else:
        say_if_endless([*(feed.source for feeds in in_steps.feeds for feed in feeds), *in_steps.plan.outputs])
    if as_json:
        _refuse_print(in_steps)
    state = state_place(steps.state)
    if isinstance(state, Path):
        state = state.absolute()
    settings = _Run(
        in_steps,
        state,
        directory,
        steps,
        max_state_bytes,
        late == "fail",
        trust,
        {} if steps.http is None else _stores_of(topology, directory),
        _home(steps, topology, state, directory),
    )
    shows_rows = not (_printing(in_steps) and sys.stdout.isatty())
    progress = ProgressInSteps(in_steps.plan.members, shows_rows=shows_rows)
    progress.take_logs()
    code, error = _outcome(settings, progress)
    _warn(progress, late=late == "warn")
    if code == ExitCode.DONE:
        progress.say(progress.done())
    if as_json:
        click.echo(json.dumps({"exit_code": int(code), "error": error, **progress.to_data()}, indent=2))
    return code


def _warn(progress: ProgressInSteps, *, late: bool) -> None:
    """Print the rows that are missing from the result."""
    for text in (*progress.skipped_rows(), *(progress.warnings() if late else ())):
        click.echo(f"Warning: {text}", err=True)


def _home(steps: Steps, topology: Topology, state: StorePlace, directory: Path) -> Home:
    """Return the home of the members. Raises ClickException."""
    from nebuli.connectors.errors import FragmentError
    from nebuli.steps.errors import HomeUnfit
    from nebuli.steps.local.local_members import ThisMachine

    if steps.home != "spark":
        return ThisMachine(directory)
    from nebuli.steps.spark.spark_home import SparkHome, master_of

    try:
        return SparkHome(master_of(topology), state, directory)
    except (FragmentError, HomeUnfit) as error:
        raise click.ClickException(str(error)) from None


def _refuse_without_sources(query: SteppedQuery) -> None:
    if query.external:
        raise click.UsageError(
            f"no physical source is attached to {', '.join(query.external)}: add one to the "
            f"topology, or give --serve HOST:PORT, at which programs push the rows"
        )


def _refuse_print(query: SteppedQuery) -> None:
    for output in _printing(query):
        raise click.UsageError(
            f"--json and the sink {output} (Print) both write to standard output: remove one of them"
        )


def _printing(query: SteppedQuery) -> list[str]:
    """Return the outputs that members write to standard output."""
    from topology import PrintSink

    return [output for output, target in query.targets.items() if isinstance(target, PrintSink)]


def _outcome(settings: _Run, progress: ProgressInSteps) -> tuple[int, str | None]:
    """Run the query, and return the exit code and the printed error."""
    from nebuli.connectors.errors import FragmentError
    from nebuli.steps.errors import MembersFailed
    from nebuli.steps.protocol.errors import CoordinationError
    from nebuli.store import StorageError

    state = settings.steps.state if isinstance(settings.state, Path) else settings.state
    again = f"all members are stopped. Run the query again with --state {state} to resume it."
    try:
        asyncio.run(_run(settings, progress))
    except KeyboardInterrupt:
        text = f"Interrupted: {again}"
        click.echo(text, err=True)
        return ExitCode.INTERRUPTED, text
    except asyncio.CancelledError:
        text = f"Terminated: {again}"
        click.echo(text, err=True)
        return ExitCode.TERMINATED, text
    except (CoordinationError, FragmentError, MembersFailed, StorageError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        return _code_of(error), str(error)
    return ExitCode.DONE, None


def _code_of(error: Exception) -> int:
    from nebuli.circuits.served_run import CannotServe
    from nebuli.connectors.errors import InputError, RowsUnfit
    from nebuli.steps.errors import FolderOfOthers, FolderUnusable, StepNotSkipped
    from nebuli.steps.protocol.errors import MemberFailed

    match error:
        case InputError() | MemberFailed(of_input=True) | RowsUnfit() | StepNotSkipped():
            return ExitCode.BAD_INPUT
        case CannotServe() | FolderOfOthers() | FolderUnusable():
            return ExitCode.BAD_INPUT
    return ExitCode.FAILED


async def _run(settings: _Run, progress: ProgressInSteps) -> None:
    from nebuli.steps.local.local_run import LocalRun
    from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
    from placement.plan import Late

    end_on_termination()
    triggers = TriggerSettings(checkpoint_s=settings.steps.checkpoint_s or CHECKPOINT_S, spacing_s=SPACING_S)
    with contextlib.chdir(settings.directory):
        async with LocalRun(
            settings.query,
            settings.state,
            settings.directory,
            triggers,
            home=settings.home,
            observe=progress.hear,
            scaled=progress.scaled,
            scales=settings.steps.members is not None,
            max_state_bytes=settings.max_state_bytes,
            late=Late.FAIL if settings.fails_late else Late.COUNT,
            keep_output_bytes=settings.steps.keep_output_bytes,
            keep_contents_bytes=None if settings.steps.is_served else 0,
            skip_steps=settings.steps.skip_steps,
            closes=settings.steps.closes,
        ) as run:
            progress.leave_out(run.skipped)
            async with progress.rows_of(run), contextlib.AsyncExitStack() as stack:
                if settings.trust is None:
                    await run.until_ended()
                    return
                await _serve_views(run, settings, progress, stack)
                if settings.steps.serve is not None:
                    from nebuli.circuits.served_run import served

                    address = await stack.enter_async_context(
                        served(run, settings.steps.serve, settings.trust)
                    )
                    progress.say(f"serving at {address} until a program shuts the query down")
                if settings.steps.http is not None:
                    url = await stack.enter_async_context(
                        http_server().served_over_http(
                            run, settings.steps.http, settings.trust, settings.stores
                        )
                    )
                    progress.say(f"serving at {url} until a client shuts the query down")
                await run.until_shut_down()


async def _serve_views(
    run: LocalRun, settings: _Run, progress: ProgressInSteps, stack: contextlib.AsyncExitStack
) -> None:
    """Serve the query's views, if it has some, on the host of --serve, and print their addresses."""
    views = [*settings.query.plan.views]
    if not views:
        return
    from nebuli.circuits.served_run import CannotServe
    from nebuli.circuits.views.served_lookups import served_lookups  # only here, as it is large

    assert settings.trust is not None, "a query with views is served"
    host, _, port = VIEWS_AT.rpartition(":")
    if settings.steps.serve is not None:
        host = settings.steps.serve.rpartition(":")[0]
    try:
        where = await stack.enter_async_context(served_lookups(run, f"{host}:{port}", settings.trust))
    except OSError:  # another process serves at that port
        try:
            where = await stack.enter_async_context(served_lookups(run, f"{host}:0", settings.trust))
        except OSError as error:
            raise CannotServe(f"cannot serve views at {host}: {error}") from error
    for view in views:
        progress.say(how_to_read(view.name or view.id, view.key, where))


def _stores_of(topology: Topology, directory: Path) -> Mapping[str, StorePlace]:
    """Return the stores of collections in a topology, by their names without passwords. Raises StorageError."""
    from nebuli.store.store_url import store_place
    from topology import CollectionSink, CollectionSource

    named = [each for node in topology.nodes for each in (*node.physical, *node.sinks)]
    places = [
        store_place(each.store) for each in named if isinstance(each, CollectionSource | CollectionSink)
    ]
    return {str(each): directory / each if isinstance(each, Path) else each for each in places}
