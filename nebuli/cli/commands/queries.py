"""Commands for queries on running workers: register, start, checkpoint, stop, unregister."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nebuli.cli import saved_queries
from nebuli.cli.bounds import DEFAULT, FilePath, Finite, close, keep_output
from nebuli.cli.commands import completion
from nebuli.cli.commands.watch import watching
from nebuli.cli.exits import ExitCode
from nebuli.cli.placement_options import engine_option, seed_option, strategy_option, warn_of_endless
from nebuli.cli.query_argument import InlineStatement, inline_option, query_argument
from nebuli.cli.worker_answers import (
    after_refusal,
    after_silence,
    ran,
    refuse_options,
    said,
    settled,
    workers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nebuli.cli.bounds import KeepOutput
    from nebuli.control.deployed_queries import DeployedQuery, Workers
    from nebuli.rpc.status import FragmentStatus
    from nebuli.rpc.worker_client import WorkerUnreachable
    from placement import Query, StrategyName
    from placement.stepped_plan import AnyFragment
    from topology import EngineName, Topology

_on_loss = click.option(
    "--on-loss",
    type=click.Choice(["wait", "fail", "replace"]),
    default="wait",
    show_default=True,
    help="Action of the watcher when a node is lost: wait for it, fail the query, or place the query without it.",
)
_stepped = click.option(
    "--stepped",
    is_flag=True,
    help="Run in steps, with durable state at the nodes: each row takes effect exactly once.",
)
_members = click.option(
    "--members",
    type=click.IntRange(1, 64),
    help="Number of members.  [default: one for each sink and each node with a source]",
)
_checkpoint_s = click.option(
    "--checkpoint-every",
    "checkpoint_s",
    type=Finite(min=0.1),
    metavar="SECONDS",
    help="Time between two checkpoints of a query in steps.  [default: 10]",
)
_STOPPED_S = 10.0
"""The time that a stop waits for the end."""
_id = click.argument("id_", metavar="ID", shell_complete=completion.queries)


class _Settings(NamedTuple):
    """The options of a query's placement and supervision."""

    seed: int
    strategy: StrategyName
    on_loss: str
    engine: EngineName | None
    stepped: bool
    members: int | None
    checkpoint_s: float | None
    keep_output: KeepOutput | None
    closes: bool

    @property
    def of_steps(self) -> list[str]:
        """The given options of queries in steps other than ``--stepped``, as command-line arguments."""
        given: list[str] = []
        if self.members is not None:
            given += ["--members", str(self.members)]
        if self.checkpoint_s is not None:
            given += ["--checkpoint-every", f"{self.checkpoint_s:g}"]
        if self.keep_output is not None:
            given += ["--keep-output", str(self.keep_output)]
        if self.closes:
            given.append("--close")
        return given

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if not self.stepped and self.of_steps:
            raise click.UsageError(
                "--members, --checkpoint-every, --keep-output and --close apply to queries in steps only: add --stepped"
            )
        if self.stepped and self.on_loss == "replace":
            raise click.UsageError(
                "--on-loss replace does not apply with --stepped, because a member's state is at "
                "its node: use wait or fail"
            )
        if self.stepped and self.engine is not None:
            raise click.UsageError(
                "--engine does not apply with --stepped, because members always use the embedded "
                "engine: remove it"
            )


async def _register(topology: str, query: str, settings: _Settings) -> DeployedQuery:
    from nebuli.cli.files import endpoints, given, load, parsed, refuse_stdin
    from nebuli.control.deployed_queries import DeployedQuery, Workers
    from nebuli.control.deployment import Active, forget, register
    from nebuli.control.supervision import Policy
    from nebuli.rpc.ids import new_query
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

    refuse_stdin(topology, query, why="a query is registered with the paths of its files; save it to a file")
    load(topology, query, settings.engine)  # reports the mistakes of both
    files = given(topology), given(query)
    model, plan = parsed(*files, settings.engine)  # the saved texts, whatever was written meanwhile
    id_ = new_query()
    fragments = _placed(plan, model, id_, settings)
    warn_of_endless(fragments)
    active = Active(id_, (), fragments)
    used = dict.fromkeys(fragment.node for fragment in active.fragments)
    async with Workers(endpoints(topology, model, used)) as workers:
        found = DeployedQuery(
            id=id_,
            name=plan.name,
            topology=files[0],
            query=files[1],
            registered=datetime.now(UTC).isoformat(timespec="seconds"),
            deployment=id_,
            seed=settings.seed,
            strategy=settings.strategy,
            policy=Policy(settings.on_loss),
            engine=settings.engine,
            fragments=tuple(map(workers.located, active.places)),
            plan=active.fragments,
        )
        saved_queries.save(found)  # first: if this is killed, the fragments at workers can still be named
        try:
            await register(active, workers)
        except (WorkerRefused, WorkerUnreachable):
            await forget(active.places, workers)
            saved_queries.forget(found)
            raise
    return found


def _placed(plan: Query, model: Topology, id_: str, settings: _Settings) -> tuple[AnyFragment, ...]:
    from nebuli.cli.stepped.run_in_steps import CHECKPOINT_S
    from nebuli.control.deployment import fragments_of
    from nebuli.control.step_placement import step_fragments

    if settings.stepped:
        return step_fragments(
            plan,
            model,
            settings.members,
            id_,
            settings.checkpoint_s or CHECKPOINT_S,
            keep_output_bytes=(settings.keep_output or DEFAULT).max_bytes,
            closes=settings.closes,
        )
    return fragments_of(
        plan,
        model,
        settings.seed,
        id_,
        strategy=settings.strategy,
        say=partial(click.echo, err=True),
    )


def _say_circuit(query: DeployedQuery) -> None:
    """Print the address at which programs push rows, if inputs have no physical source."""
    if query.external:
        names = ", ".join(query.external)
        click.echo(
            f"no physical source is attached to {names}: programs push rows at {query.circuit}", err=True
        )


def _settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that register a query; the command gets them as ``settings``."""

    @wraps(command)
    def given(**options: Any) -> Any:
        settings = _Settings(**{name: options.pop(name) for name in _Settings._fields})
        return command(settings=settings, **options)

    for option in (
        close, keep_output, _checkpoint_s, _members, _stepped, engine_option, _on_loss, strategy_option, seed_option
    ):  # fmt: skip
        given = option(given)
    return given


@click.command()
@click.argument("topology", type=FilePath())
@query_argument
@_settings
def register(topology: str, query: str, settings: _Settings) -> int:
    """Place a query and register its fragments at workers.

    Places QUERY on TOPOLOGY, registers the fragments at the workers of its nodes, and prints the query's id. Starts
    no fragment. Paths of sources and sinks are relative to each worker's working directory.
    """

    async def work() -> int:
        settings.check()
        found = await _register(topology, query, settings)
        click.echo(found.id)
        _say_circuit(found)
        return ExitCode.DONE

    return ran(work())


@click.command()
@click.argument(
    "files",
    metavar="ID | TOPOLOGY QUERY",
    nargs=-1,
    required=True,
    shell_complete=completion.queries_or_files,
)
@inline_option
@_settings
@click.option("--watch", "watched", is_flag=True, help="Watch the query to its end, as 'nebuli watch' does.")
@click.option(
    "--skip-step",
    type=click.IntRange(min=0),
    metavar="N",
    help="Skip the rows of step N, at which the query in steps has failed, and write the skipped rows to files.",
)
def start(
    files: tuple[str, ...],
    settings: _Settings,
    *,
    statement: str | None,
    watched: bool,
    skip_step: int | None,
) -> int:
    """Start a query on running workers.

    Starts a registered query by its ID, or registers QUERY on TOPOLOGY and starts it. Prints the query's id.
    """
    files = _with_statement(files, statement)
    if skip_step is not None and len(files) != 1:
        raise click.UsageError("--skip-step applies to a failed query only: give its ID")
    if len(files) == 1:
        _check_registered(files[0], settings)
    else:
        settings.check()

    async def work() -> int:
        query = await _query(files)
        click.echo(query.id)  # first: a registered query can be named even if it cannot be started
        _say_circuit(query)
        async with workers_of(query) as workers:
            code = await _begun(query, workers, closes=settings.closes, skip_step=skip_step)
        if code != ExitCode.DONE:
            return code
        if watched:
            return await watching(query)
        _say_where_to_look(query)
        return ExitCode.DONE

    async def _query(files: tuple[str, ...]) -> DeployedQuery:
        from nebuli.cli.files import say_changed

        if len(files) == 1:
            query = await settled(saved_queries.load(files[0]))
            if not watched:  # the watcher prints it, too
                say_changed(query)
            return query
        return await _register(files[0], files[1], settings)

    return ran(work())


def _with_statement(files: tuple[str, ...], statement: str | None) -> tuple[str, ...]:
    """Return an id, or a topology and its query. Raises UsageError."""
    if statement is not None and len(files) != 1:
        raise click.UsageError(f"expected only TOPOLOGY with -e STATEMENT, got {len(files)} arguments")
    if len(files) > 2:
        raise click.UsageError(f"expected ID or TOPOLOGY QUERY, got {len(files)} arguments")
    return files if statement is None else (files[0], InlineStatement(statement))


def _check_registered(id_: str, settings: _Settings) -> None:
    """Raise UsageError if the id is a file's name, or the options do not apply to a registered query."""
    if Path(id_).is_file():
        raise click.UsageError(f"{id_} is a file, not a query's id: give TOPOLOGY QUERY")
    if settings.engine is not None:
        raise click.UsageError(
            "--engine applies to TOPOLOGY QUERY only, because a registered query keeps its engines: remove it"
        )
    query = saved_queries.load(id_)
    of_each_run = ("--close",) if query.circuit is not None else ()
    given = [option for option in settings.of_steps if option not in of_each_run]
    refuse_options(query, given, stepped=settings.stepped)


async def _begun(query: DeployedQuery, workers: Workers, *, closes: bool, skip_step: int | None) -> int:
    """Start the query, or print the error with its remedy; return the exit code. Raises WorkerDenied."""
    from nebuli.rpc.worker_client import WorkerDenied, WorkerRefused, WorkerUnreachable

    try:
        await _begin(query, workers, closes=closes, skip_step=skip_step)
    except WorkerRefused as error:
        click.echo(f"Error: {error}{after_refusal(query, error)}", err=True)
        return ExitCode.FAILED
    except WorkerDenied:
        raise
    except WorkerUnreachable as error:
        click.echo(f"Error: {error}{after_silence(query)}", err=True)
        return ExitCode.UNREACHABLE
    return ExitCode.DONE


async def _begin(query: DeployedQuery, workers: Workers, *, closes: bool, skip_step: int | None) -> None:
    """Start all fragments. Stops those of a query in steps that still run first, as all members resume together."""
    from nebuli.control.deployment import end_what_runs_on, start

    left_out = "" if skip_step is None else await _left_out(query, workers, skip_step)
    if query.circuit is not None:
        _say_what_was(query, await end_what_runs_on(query.fragments, workers, _STOPPED_S))
    await start(query.fragments, workers, closes=closes, left_out=left_out)


async def _left_out(query: DeployedQuery, workers: Workers, step: int) -> str:
    """Return the rules for a step at which the query has failed, as JSON. Raises UsageError, WorkerUnreachable."""
    from nebuli.control.deployment import statuses_of
    from nebuli.rpc.worker_client import WorkerUnreachable
    from nebuli.steps.errors import failed_step_in
    from nebuli.steps.member.inputs.step_inputs import rules_for
    from placement.stepped_plan import CoordinatorPlacement

    coordinator = query.plan[-1]
    if not isinstance(coordinator, CoordinatorPlacement):
        raise click.UsageError(
            f"--skip-step applies to queries in steps only, but query {query.id} is free-running: remove it"
        )
    for status in await statuses_of(query.fragments, workers):
        if isinstance(status, WorkerUnreachable):
            raise status
        failed = failed_step_in(status.error)
        if failed is not None and failed.step == step:
            return json.dumps(rules_for(coordinator.plan, failed))
    raise click.UsageError(
        f"--skip-step {step}: query {query.id} has not failed at that step; 'nebuli status {query.id}' shows its state"
    )


def _say_what_was(query: DeployedQuery, statuses: Sequence[FragmentStatus]) -> None:
    """Print the fragments that had failed, or were stopped first, and the step from which the query resumes."""
    from nebuli.control.deployment import suspect
    from nebuli.rpc.status import FragmentState

    failed = suspect(statuses)
    running = ", ".join(each.fragment for each in statuses if each.state is FragmentState.RUNNING)
    steps = [each.checkpoint for each in statuses if each.id == query.fragments[-1].id]
    match steps:
        case [0]:
            then = "starts from the beginning, because it has no checkpoint yet"
        case [int(step)]:
            then = f"resumes from its last checkpoint, at step {step:,}"
        case _:  # the coordinator has not reported it
            then = "resumes from its last checkpoint, if it has one"
    if failed is not None:
        click.echo(f"the query had failed (fragment {failed.fragment}: {failed.error}), and {then}", err=True)
    elif running:
        click.echo(f"stopped the fragments that still ran ({running}); the query {then}", err=True)


def _say_where_to_look(query: DeployedQuery) -> None:
    """Print how to follow the query: a source can fail after all fragments were started."""
    click.echo(
        f"started: 'nebuli status {query.id}' shows its state, and the error if it has failed; "
        f"'nebuli watch {query.id}' waits for its end",
        err=True,
    )


@click.command()
@_id
def checkpoint(id_: str) -> int:
    """Make a checkpoint now of a query that runs in steps.

    Prints the step of the checkpoint. The state that is saved for the query ID includes all steps below this step.
    """
    query = saved_queries.load(id_)
    coordinator = query.fragments[-1]
    if query.plan[-1].operators:
        raise click.UsageError(f"query {query.id} does not run in steps, so it has no state to save")

    async def work() -> int:
        async with workers_of(query) as workers:
            click.echo(await workers.client(coordinator.node).checkpoint(coordinator.id))
        return ExitCode.DONE

    return ran(work())


@click.command()
@_id
@click.option(
    "--now", is_flag=True, help="Kill the fragments' processes at once, without the 3 s to shut down."
)
def stop(id_: str, *, now: bool) -> int:
    """Stop a query and wait until it has ended.

    Does nothing if the query ID has ended already.
    """
    query = saved_queries.load(id_)

    async def work() -> int:
        known = query
        while True:
            code = await _stop_deployment(known, at_once=now)
            before, known = known, saved_queries.again(known)
            if known.deployment == before.deployment:  # else a watcher has deployed it again meanwhile
                return code

    return ran(work())


async def _stop_deployment(query: DeployedQuery, *, at_once: bool) -> int:
    """Stop the current deployment of a query, and return the exit code."""
    from nebuli.control.deployment import running_after
    from nebuli.control.deployment import stop as stop_fragments

    async with workers_of(query) as workers:
        errors, gone = await asyncio.gather(
            stop_fragments(query.fragments, workers, at_once=at_once),
            stop_fragments(query.others, workers, at_once=at_once),
        )
        running = await running_after((*query.fragments, *query.others), workers, _STOPPED_S)
    for text in dict.fromkeys(map(str, gone)):  # the query runs without this worker
        click.echo(
            f"{text}. The query was placed without this worker: run 'nebuli stop {query.id}' "
            f"again once the worker is back, to stop fragments of an earlier deployment there",
            err=True,
        )
    if running:
        names = ", ".join(each.fragment for each in running)
        click.echo(
            f"Error: {names} still running after {_STOPPED_S:.0f} s: run 'nebuli stop --now {query.id}'",
            err=True,
        )
    return said(errors) or (ExitCode.FAILED if running else ExitCode.DONE)


@click.command()
@_id
@click.option(
    "--force",
    is_flag=True,
    help="Remove the query from the workers that answer, even if others do not. Repeat the command to remove the query "
    "from this account.",
)
def unregister(id_: str, force: bool) -> int:
    """Remove a query from its workers.

    Removes the query ID from all its workers and from this account. Removes nothing if the query still runs, or if a
    worker does not answer (unless --force is given).
    """
    query = saved_queries.load(id_)

    async def work() -> int:
        from nebuli.control.deployment import forget, is_forgotten, statuses_of
        from nebuli.rpc.status import FragmentState, FragmentStatus
        from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

        all_of_it = (*query.fragments, *query.others)
        async with workers_of(query) as workers:
            statuses = await statuses_of(all_of_it, workers)
            running = [
                each.fragment
                for each in statuses
                if isinstance(each, FragmentStatus) and each.state is FragmentState.RUNNING
            ]
            if running:  # all or nothing: the status of a removed fragment is lost
                click.echo(
                    f"Error: {', '.join(running)} still running: stop it first (nebuli stop {query.id})",
                    err=True,
                )
                return ExitCode.FAILED
            away = [each for each in statuses if isinstance(each, WorkerUnreachable)]
            if away and not force:
                return _said_that_all_is_kept(query, away)
            errors = await forget(all_of_it, workers)
        for error in errors:
            if isinstance(error, WorkerRefused):
                raise error
        code = said([error for error in errors if isinstance(error, WorkerUnreachable)])
        answered = [each for each in statuses if isinstance(each, FragmentStatus)]
        if code == ExitCode.DONE or (force and all(map(is_forgotten, answered))):
            saved_queries.forget(query)
            if code != ExitCode.DONE:
                click.echo(
                    "removed the query from this account; its fragments at workers that do not "
                    "answer may resume when these workers are back, unless they start with "
                    "another --state",
                    err=True,
                )
            return ExitCode.DONE
        _say_what_is_left(query)
        return ExitCode.DONE if force else code

    return ran(work())


def _say_what_is_left(query: DeployedQuery) -> None:
    """Print what to do about fragments at a worker that does not answer, which may resume there."""
    click.echo(
        f"removed the query from the workers that answer; its fragments at the other workers may "
        f"resume when these are back: run 'nebuli stop {query.id}' and 'nebuli unregister "
        f"{query.id}' then. If they never come back, run 'nebuli unregister --force {query.id}' "
        f"again, which removes the query from this account",
        err=True,
    )


def _said_that_all_is_kept(query: DeployedQuery, away: Sequence[WorkerUnreachable]) -> int:
    """Print the workers that do not answer, and the remedy; return the exit code."""
    code = said(away)
    click.echo(
        f"nothing was removed: run 'nebuli unregister {query.id}' again once all workers answer; "
        f"with --force, the workers that answer remove the query now, and its fragments at the "
        f"other workers stay there",
        err=True,
    )
    return code
