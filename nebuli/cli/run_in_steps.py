"""``nebuli run --stepped``: the options, and the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from nebuli.cli.bounds import DEFAULT, NOTHING, FilePath, Finite, keep_output
from nebuli.cli.exits import ExitCode, end_on_termination
from nebuli.cli.placing import say_if_endless

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nebuli.cli.bounds import KeepOutput
    from nebuli.cli.progress_in_steps import ProgressInSteps
    from nebuli.members.stepped_query import SteppedQuery
    from nebuli.rpc.trust import Trust
    from placement import Query
    from topology import Topology

CHECKPOINT_S = 10.0
_OF_FREE_QUERIES = {
    "on_loss": "a member that is lost is always started again, and all go on from their last checkpoint",
    "strategy": "nothing is placed, as all members run on this machine",
    "seed": "nothing is placed, as all members run on this machine",
    "engine": "members have one engine, the embedded one",
}
"""Options that say nothing of a query in steps, and why."""


class Steps(NamedTuple):
    """What the options say; None: not given."""

    stepped: bool
    members: int | None
    state: str | None
    checkpoint_s: float | None
    serve: str | None
    keep_output: KeepOutput | None

    @property
    def keep_output_bytes(self) -> int | None:
        """How much is kept for programs, where there can be any; None: all."""
        said = self.keep_output or (NOTHING if self.serve is None else DEFAULT)
        return said.max_bytes

    def check(self) -> None:
        """Raise UsageError where they do not go together."""
        others = {
            "--members": self.members,
            "--state": self.state,
            "--checkpoint-every": self.checkpoint_s,
            "--serve": self.serve,
            "--keep-output": self.keep_output,
        }
        given = [name for name, value in others.items() if value is not None]
        if given and not self.stepped:
            raise click.UsageError(f"{given[0]} is for queries in steps: add --stepped, or leave it out")
        if self.stepped and self.state is None:
            raise click.UsageError(
                "--stepped needs --state DIR, a folder of this machine for what the query keeps: run it again with "
                "the same one, and it goes on where it was"
            )
        if self.stepped:
            _refuse_options_of_free_queries()


def _refuse_options_of_free_queries() -> None:
    context = click.get_current_context()
    for name, why in _OF_FREE_QUERIES.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is for queries that run free: in steps {why}. Leave it out")


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that may run a query in steps."""
    for option in reversed(
        (
            click.option(
                "--stepped", is_flag=True, help="Run in steps, with state that survives: exactly once."
            ),
            click.option(
                "--members",
                type=click.IntRange(1, 64),
                help="In how many processes each step is worked on; 1 without it.",
            ),
            click.option(
                "--state",
                type=FilePath(),
                help="The folder for what a query in steps keeps: one of its own, empty or not there yet at first.",
            ),
            click.option(
                "--checkpoint-every",
                "checkpoint_s",
                type=Finite(min=0.1),
                metavar="SECONDS",
                help=f"How often the state of a query in steps is saved; {CHECKPOINT_S:g} s without it.",
            ),
            click.option(
                "--serve",
                metavar="HOST:PORT",
                help="Where programs push rows into a query in steps, read its outputs and end it: until then it runs.",
            ),
            keep_output,
        )
    ):
        command = option(command)
    return command


class _Run(NamedTuple):
    query: SteppedQuery
    state: Path
    directory: Path
    steps: Steps
    max_state_bytes: int
    fails_late: bool
    trust: Trust | None


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
    """Run the query to its end, or, if it is served, until it is shut down; the exit code.

    ``late`` is fail, warn or ignore.
    """
    from nebuli.cli.progress_in_steps import ProgressInSteps
    from nebuli.connectors.errors import InputError
    from nebuli.members.stepped_query import stepped_query
    from nebuli.without_pandas import hide_pandas

    assert steps.state is not None
    hide_pandas()
    directory = Path(file).resolve().parent
    try:
        in_steps = stepped_query(query, topology, steps.members or 1, directory)
    except InputError as none:
        raise click.ClickException(str(none)) from None
    trust = None
    if steps.serve is None:
        _refuse_without_sources(in_steps)
        say_if_endless([*(feed.source for feeds in in_steps.feeds for feed in feeds), *in_steps.plan.outputs])
    else:
        trust = _trust(topology, directory, steps.serve)
    if as_json:
        _refuse_print(in_steps)
    state = Path(steps.state).absolute()
    settings = _Run(in_steps, state, directory, steps, max_state_bytes, late == "fail", trust)
    progress = ProgressInSteps(in_steps.plan.members)
    progress.take_logs()
    code, error = _outcome(settings, progress)
    if late == "warn" and (warning := progress.warning()) is not None:
        click.echo(f"Warning: {warning}", err=True)
    if code == ExitCode.DONE:
        progress.say("done")
    if as_json:
        click.echo(json.dumps({"exit_code": int(code), "error": error, **progress.to_data()}, indent=2))
    return code


def _refuse_without_sources(query: SteppedQuery) -> None:
    if query.external:
        raise click.UsageError(
            f"nothing is attached to {', '.join(query.external)}: give the topology a physical source for it, or "
            f"--serve HOST:PORT, where programs push rows into it"
        )


def _refuse_print(query: SteppedQuery) -> None:
    from topology import PrintSink

    for output, target in query.targets.items():
        if isinstance(target, PrintSink):
            raise click.UsageError(
                f"--json and the sink {output} (Print) both go to standard output: leave one of them out"
            )


def _outcome(settings: _Run, progress: ProgressInSteps) -> tuple[int, str | None]:
    """Run it; the exit code, and what was said of what went wrong."""
    from nebuli.connectors.errors import FragmentError
    from nebuli.coordinator.errors import CoordinationError
    from nebuli.members.errors import MembersFailed
    from nebuli.storage import StorageError

    again = (
        f"all members are stopped. Run it again with --state {settings.steps.state}, and it goes on there."
    )
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
    from nebuli.connectors.errors import InputError
    from nebuli.coordinator.errors import MemberFailed
    from nebuli.members.errors import FolderOfOthers, FolderUnusable

    match error:
        case InputError() | MemberFailed(of_input=True) | CannotServe() | FolderOfOthers() | FolderUnusable():
            return ExitCode.BAD_INPUT
    return ExitCode.FAILED


def _trust(topology: Topology, directory: Path, address: str) -> Trust:
    """What whoever calls the circuit is to show. Raises UsageError where nothing is asked for, and anybody can call."""
    from nebuli.rpc.trust import Trust
    from nebuli.worker.exposure import is_loopback
    from topology import Access
    from topology.address import check_address

    try:
        check_address(re.sub(r":0$", ":1", address))
    except ValueError as error:
        raise click.UsageError(f"--serve: {error}") from None
    trust = Trust.of(Access(tls=topology.tls, secret=topology.secret).below(directory))
    if trust.tls is None and trust.secret is None and not is_loopback(address):
        raise click.UsageError(
            f"--serve {address} can be reached from other machines, and without TLS and a secret whoever connects can "
            f"push rows and end the query: name tls or a secret in the topology"
        )
    return trust


async def _run(settings: _Run, progress: ProgressInSteps) -> None:
    from nebuli.coordinator.triggers import SPACING_S, TriggerSettings
    from nebuli.members.local_run import LocalRun
    from placement.plan import Late

    end_on_termination()
    triggers = TriggerSettings(checkpoint_s=settings.steps.checkpoint_s or CHECKPOINT_S, spacing_s=SPACING_S)
    with contextlib.chdir(settings.directory):
        async with LocalRun(
            settings.query,
            settings.state,
            settings.directory,
            triggers,
            observe=progress.hear,
            max_state_bytes=settings.max_state_bytes,
            late=Late.FAIL if settings.fails_late else Late.COUNT,
            keep_output_bytes=settings.steps.keep_output_bytes,
        ) as run:
            serve, trust = settings.steps.serve, settings.trust
            if serve is None or trust is None:
                await run.until_ended()
                return
            from nebuli.circuits.served_run import served

            async with served(run, serve, trust) as address:
                progress.say(f"serving at {address}, until a program shuts it down")
                await run.until_shut_down()
