"""Queries on workers that run already: register, start, stop, unregister, status, list, logs."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nebuli.cli import saved
from nebuli.cli.commands import completion
from nebuli.cli.commands.watch import watching
from nebuli.cli.engine_option import engine_option
from nebuli.cli.exits import ExitCode, is_bad_input
from nebuli.cli.merged import Merged
from nebuli.cli.placing import seed_option, strategy_option, warn_of_endless

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable
    from nebuli.fleet.deployed import DeployedFragment, DeployedQuery, Workers
    from nebuli.rpc.log_lines import LogLine
    from nebuli.rpc.status import FragmentStatus
    from placement import Query, StrategyName
    from placement.stepped import AnyFragment
    from topology import EngineName, Topology

_on_loss = click.option(
    "--on-loss",
    type=click.Choice(["wait", "fail", "replace"]),
    default="wait",
    show_default=True,
    help="What whoever watches the query does when a node is lost: wait for it, fail, or place the query without it.",
)
_stepped = click.option(
    "--stepped", is_flag=True, help="Run in steps, with state that survives at the nodes: exactly once."
)
_members = click.option(
    "--members",
    type=click.IntRange(1, 64),
    help="In how many processes each step is worked on; one for each node with a source or a sink without it.",
)
_checkpoint_s = click.option(
    "--checkpoint-every",
    "checkpoint_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="How often the state of a query in steps is saved; 10 s without it.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_RENEWED_S = 0.5
"""How often whoever follows a query looks whether it has begun again."""
_STOPPED_S = 10.0
"""How long a stop waits for the end."""
_id = click.argument("id_", metavar="ID", shell_complete=completion.queries)


def _ran(work: Coroutine[Any, Any, int]) -> int:
    """Do what needs workers; who does not answer, or refuses, is said in a sentence."""
    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable

    try:
        return asyncio.run(work)
    except WorkerUnreachable as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.UNREACHABLE
    except WorkerRefused as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.FAILED


def _workers(query: DeployedQuery) -> Workers:
    from nebuli.fleet.deployed import Endpoint, Workers

    return Workers(Endpoint(each.node, each.grpc, each.access) for each in (*query.left, *query.fragments))


def _said(errors: Sequence[WorkerUnreachable | WorkerRefused]) -> int:
    from nebuli.fleet.client import WorkerUnreachable

    for text in dict.fromkeys(map(str, errors)):
        click.echo(f"Error: {text}", err=True)
    if any(isinstance(error, WorkerUnreachable) for error in errors):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if errors else ExitCode.DONE


class _Settings(NamedTuple):
    """How a query is placed and looked after."""

    seed: int
    strategy: StrategyName
    on_loss: str
    engine: EngineName | None
    stepped: bool
    members: int | None
    checkpoint_s: float | None

    def check(self) -> None:
        """Raise UsageError where they do not go together."""
        if not self.stepped and (self.members is not None or self.checkpoint_s is not None):
            raise click.UsageError("--members and --checkpoint-every are for queries in steps: add --stepped")
        if self.stepped and self.on_loss == "replace":
            raise click.UsageError(
                "--on-loss replace does not go with --stepped: what a member keeps is at its node, and is waited for"
            )
        if self.stepped and self.engine is not None:
            raise click.UsageError("--engine does not go with --stepped: members have their own")


async def _register(topology: str, query: str, settings: _Settings) -> DeployedQuery:
    from nebuli.cli.files import endpoints, given, load, parsed, refuse_stdin
    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable
    from nebuli.fleet.deployed import DeployedQuery, Workers
    from nebuli.fleet.deployment import Active, forget, register
    from nebuli.fleet.supervision import Policy
    from nebuli.rpc.ids import new_query

    refuse_stdin(topology, query, why="a query is registered with where its files are; save it to a file")
    load(topology, query, settings.engine)  # which says what is wrong with both
    files = given(topology), given(query)
    model, plan = parsed(*files, settings.engine)  # what is kept, and nothing that was written meanwhile
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
        saved.save(found)  # first: whatever ends this in the middle, what workers have been given has a name
        try:
            await register(active, workers)
        except (WorkerRefused, WorkerUnreachable):
            await forget(active.places, workers)
            saved.forget(found)
            raise
    return found


def _placed(plan: Query, model: Topology, id_: str, settings: _Settings) -> tuple[AnyFragment, ...]:
    from nebuli.cli.run_in_steps import CHECKPOINT_S
    from nebuli.fleet.deployment import fragments_of
    from nebuli.fleet.step_placement import step_fragments

    if settings.stepped:
        return step_fragments(plan, model, settings.members, id_, settings.checkpoint_s or CHECKPOINT_S)
    return fragments_of(
        plan,
        model,
        settings.seed,
        id_,
        strategy=settings.strategy,
        say=partial(click.echo, err=True),
    )


def _say_circuit(query: DeployedQuery) -> None:
    """Say where programs push rows into it, if they are to: nothing else brings some of its rows."""
    if query.external:
        names = ", ".join(query.external)
        click.echo(f"nothing is attached to {names}: programs push rows at {query.circuit}", err=True)


def _steps(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that may give a query to workers in steps."""
    for option in (_checkpoint_s, _members, _stepped):
        command = option(command)
    return command


@click.command()
@click.argument("topology", type=click.Path())
@click.argument("query", type=click.Path())
@seed_option
@strategy_option
@_on_loss
@engine_option
@_steps
def register(
    topology: str,
    query: str,
    *,
    seed: int,
    strategy: StrategyName,
    on_loss: str,
    engine: EngineName | None,
    stepped: bool,
    members: int | None,
    checkpoint_s: float | None,
) -> int:
    """Place QUERY on TOPOLOGY, and give its fragments to the workers of its nodes. Prints the query's id.

    Nothing is started. Relative paths of sources and sinks start where each worker was started.
    """

    async def work() -> int:
        settings = _Settings(seed, strategy, on_loss, engine, stepped, members, checkpoint_s)
        settings.check()
        found = await _register(topology, query, settings)
        click.echo(found.id)
        _say_circuit(found)
        return ExitCode.DONE

    return _ran(work())


@click.command()
@click.argument(
    "files",
    metavar="ID | TOPOLOGY QUERY",
    nargs=-1,
    required=True,
    shell_complete=completion.queries_or_files,
)
@seed_option
@strategy_option
@_on_loss
@engine_option
@_steps
@click.option("--watch", "watched", is_flag=True, help="Then watch it to its end, as 'nebuli watch' does.")
def start(
    files: tuple[str, ...],
    *,
    seed: int,
    strategy: StrategyName,
    on_loss: str,
    engine: EngineName | None,
    stepped: bool,
    members: int | None,
    checkpoint_s: float | None,
    watched: bool,
) -> int:
    """Start a registered query by its ID, or register QUERY on TOPOLOGY and start it. Prints the query's id."""
    if len(files) > 2:
        raise click.UsageError("expected the id of a query, or a topology and a query")
    if len(files) == 1 and Path(files[0]).is_file():
        raise click.UsageError(f"{files[0]} is a file, and no id: give a query as well, TOPOLOGY QUERY")
    if len(files) == 1 and engine is not None:
        raise click.UsageError("--engine is for a topology and a query: what is registered has its engines")
    settings = _Settings(seed, strategy, on_loss, engine, stepped, members, checkpoint_s)
    settings.check()
    if len(files) == 1 and stepped:
        raise click.UsageError(
            "--stepped is for a topology and a query: what is registered runs as it was registered"
        )

    async def work() -> int:
        from nebuli.fleet.deployment import start as start_fragments

        query = await _query(files)
        click.echo(query.id)  # first: what is registered has a name, also where it cannot be started
        _say_circuit(query)
        async with _workers(query) as workers:
            await start_fragments(query.fragments, workers)
        return await watching(query) if watched else ExitCode.DONE

    async def _query(files: tuple[str, ...]) -> DeployedQuery:
        from nebuli.cli.files import say_changed

        if len(files) == 1:
            query = saved.load(files[0])
            if not watched:  # which says it
                say_changed(query)
            return query
        return await _register(files[0], files[1], settings)

    return _ran(work())


@click.command()
@_id
def checkpoint(id_: str) -> int:
    """Save the state of the query ID, which runs in steps, now. Prints the step that comes behind it."""
    query = saved.load(id_)
    coordinator = query.fragments[-1]
    if query.plan[-1].operators:
        raise click.UsageError(f"query {query.id} does not run in steps: it has no state that could be saved")

    async def work() -> int:
        async with _workers(query) as workers:
            click.echo(await workers.client(coordinator.node).checkpoint(coordinator.id))
        return ExitCode.DONE

    return _ran(work())


@click.command()
@_id
@click.option(
    "--now", is_flag=True, help="End the fragments' processes at once; else each has 3 s to end in order."
)
def stop(id_: str, *, now: bool) -> int:
    """Stop the query ID, and wait until it has ended; harmless when it has."""
    query = saved.load(id_)

    async def work() -> int:
        known = query
        while True:
            code = await _stop_deployment(known, at_once=now)
            before, known = known, saved.again(known)
            if known.deployment == before.deployment:  # else whoever watches it has begun again meanwhile
                return code

    return _ran(work())


async def _stop_deployment(query: DeployedQuery, *, at_once: bool) -> int:
    """Stop the query as it is deployed; the exit code."""
    from nebuli.fleet.deployment import running_after
    from nebuli.fleet.deployment import stop as stop_fragments

    async with _workers(query) as workers:
        errors, gone = await asyncio.gather(
            stop_fragments(query.fragments, workers, at_once=at_once),
            stop_fragments(query.left, workers, at_once=at_once),
        )
        running = await running_after((*query.fragments, *query.left), workers, _STOPPED_S)
    for text in dict.fromkeys(map(str, gone)):  # the query does without it
        click.echo(
            f"{text}. The query was placed without it: what it may still have of an earlier deployment ends when "
            f"'nebuli stop {query.id}' is given again once it is back",
            err=True,
        )
    if running:
        names = ", ".join(each.fragment for each in running)
        click.echo(f"Error: {names}: still running after {_STOPPED_S:.0f} s: stop it with --now", err=True)
    return _said(errors) or (ExitCode.FAILED if running else ExitCode.DONE)


@click.command()
@_id
@click.option("--force", is_flag=True, help="Forget it here, though a worker does not answer.")
def unregister(id_: str, force: bool) -> int:
    """Have the workers forget the query ID, which must not run, and forget it here."""
    query = saved.load(id_)

    async def work() -> int:
        from nebuli.fleet.client import WorkerRefused, WorkerUnreachable
        from nebuli.fleet.deployment import forget, statuses_of
        from nebuli.rpc.status import FragmentState, FragmentStatus

        all_of_it = (*query.fragments, *query.left)
        async with _workers(query) as workers:
            statuses = await statuses_of(all_of_it, workers)
            running = [
                each.fragment
                for each in statuses
                if isinstance(each, FragmentStatus) and each.state is FragmentState.RUNNING
            ]
            if running:  # all or nothing: what is forgotten cannot be asked any more
                click.echo(
                    f"Error: {', '.join(running)}: running: stop it first (nebuli stop {query.id})", err=True
                )
                return ExitCode.FAILED
            errors = await forget(all_of_it, workers)
        for error in errors:
            if isinstance(error, WorkerRefused):
                raise error
        code = _said([error for error in errors if isinstance(error, WorkerUnreachable)])
        if code == ExitCode.DONE or force:
            saved.forget(query)
            return ExitCode.DONE
        return code

    return _ran(work())


@click.command()
@_id
@_as_json
def status(id_: str, as_json: bool) -> int:
    """Show how the query ID is, and each of its fragments.

    Exit codes: 1 if it has failed, 3 if a worker does not answer.
    """
    query = saved.load(id_)

    async def work() -> int:
        from nebuli.fleet.deployed import global_state
        from nebuli.fleet.deployment import statuses_of
        from nebuli.fleet.global_state import GlobalState

        async with _workers(query) as workers:
            statuses = await statuses_of(query.fragments, workers)
        state = global_state(statuses)
        pairs = list(zip(query.fragments, statuses, strict=True))
        click.echo(
            json.dumps(_data(query, state, pairs), indent=2) if as_json else _text(query, state, pairs)
        )
        codes = {GlobalState.FAILED: ExitCode.FAILED, GlobalState.UNREACHABLE: ExitCode.UNREACHABLE}
        return codes.get(state, ExitCode.DONE)

    return _ran(work())


_NUMBERS = ("rows_in", "rows_out", "late_rows", "state_bytes", "watermark")
_Pairs = list[tuple["DeployedFragment", "FragmentStatus | WorkerUnreachable"]]


def _data(query: DeployedQuery, state: str, pairs: _Pairs) -> dict[str, Any]:
    return {
        "id": query.id,
        "name": query.name,
        "state": str(state),
        "registered": query.registered,
        "circuit": query.circuit,
        "fragments": [_fragment(each, status) for each, status in pairs],
    }


def _fragment(each: DeployedFragment, status: FragmentStatus | WorkerUnreachable) -> dict[str, Any]:
    from nebuli.rpc.status import FragmentStatus

    where = {"fragment": each.fragment, "node": each.node, "id": each.id}
    if not isinstance(status, FragmentStatus):
        return {
            **where,
            "state": "unreachable",
            **dict.fromkeys(_NUMBERS),
            "late": None,
            "error": str(status),
        }
    return {
        **where,
        "state": str(status.state),
        **{name: getattr(status, name) for name in _NUMBERS},
        "late": dict(status.late),
        "error": status.error,
    }


def _text(query: DeployedQuery, state: str, pairs: _Pairs) -> str:
    from nebuli.cli.render import table

    rows = [
        (
            each["fragment"],
            each["node"],
            each["state"],
            "" if each["rows_in"] is None else f"{each['rows_in']:,}",
            "" if each["rows_out"] is None else f"{each['rows_out']:,}",
            f"{each['late_rows']:,}" if each["late_rows"] else "",
            each["error"],
        )
        for each in (_fragment(fragment, status) for fragment, status in pairs)
    ]
    head = f"query {query.id} ({query.name}) is {state}; registered {query.registered}"
    if query.circuit is not None:
        head += f"\nprograms reach it at {query.circuit}"
    return f"{head}\n\n{table(('fragment', 'node', 'state', 'rows in', 'rows out', 'late', 'error'), rows)}"


@click.command(name="list")
@_as_json
def list_(as_json: bool) -> int:
    """List the queries that were registered from this account, with their states."""

    async def state_of(query: DeployedQuery) -> str:
        from nebuli.fleet.deployed import global_state
        from nebuli.fleet.deployment import statuses_of
        from nebuli.fleet.global_state import GlobalState

        try:
            async with _workers(query) as workers:
                return str(global_state(await statuses_of(query.fragments, workers)))
        except Exception as error:
            if not is_bad_input(error):
                raise
            # Certificates or a secret that cannot be had are no reason not to show the others.
            click.echo(f"query {query.id}: {error}", err=True)
            return str(GlobalState.UNREACHABLE)

    async def work() -> int:
        from nebuli.cli.render import table

        queries = saved.load_all()
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
            click.echo(f"no query is registered (in {saved.directory()})", err=True)
        return ExitCode.DONE

    return _ran(work())


@click.command()
@_id
@click.option("--follow", "-f", is_flag=True, help="Go on with what will be logged, until Ctrl-C.")
@_as_json
def logs(id_: str, follow: bool, as_json: bool) -> int:
    """Show what the workers have logged about the query ID, all of them together, in the order of their clocks."""
    query = saved.load(id_)

    async def work() -> int:
        if follow:
            return await _follow(query, as_json=as_json)
        async with _workers(query) as workers:
            found = await asyncio.gather(*(_kept(workers, each) for each in query.fragments))
        told = [
            (each, line) for each, (lines, _) in zip(query.fragments, found, strict=True) for line in lines
        ]
        for each, line in sorted(told, key=lambda pair: pair[1].time):
            click.echo(_line(each, line, as_json=as_json))
        return _said([error for _, error in found if error is not None])

    return _ran(work())


async def _kept(
    workers: Workers, each: DeployedFragment
) -> tuple[list[LogLine], WorkerUnreachable | WorkerRefused | None]:
    """The lines that can be had, and why there are not more: that of one worker keeps no other's from being shown."""
    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable

    lines: list[LogLine] = []
    try:
        async for line in workers.logs(each, follow=False):
            lines.append(line)  # noqa: PERF401 - a comprehension would lose those before an error
    except (WorkerUnreachable, WorkerRefused) as error:
        return lines, error
    return lines, None


async def _follow(query: DeployedQuery, *, as_json: bool) -> int:
    """Follow a query until none of its workers tells more. When it begins again, its new fragments are followed."""
    while True:
        async with _workers(query) as workers:
            telling = asyncio.create_task(_tell_all(query, workers, as_json=as_json))
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


async def _tell_all(query: DeployedQuery, workers: Workers, *, as_json: bool) -> int:
    merged = Merged(click.echo)
    try:
        telling = (_tell(workers, each, merged, as_json=as_json) for each in query.fragments)
        return max(await asyncio.gather(*telling))
    finally:
        await merged.close()


async def _tell(workers: Workers, each: DeployedFragment, merged: Merged, *, as_json: bool) -> int:
    """The lines of a fragment as they come; why they end is said at once, while others go on."""
    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable

    try:
        async for line in workers.logs(each, follow=True):
            merged.put(line.time, _line(each, line, as_json=as_json))
    except (WorkerUnreachable, WorkerRefused) as error:
        return _said([error])
    return ExitCode.DONE


async def _renewed(query: DeployedQuery) -> DeployedQuery:
    """The query, once a watcher has deployed it anew."""
    while (now := saved.again(query)).deployment == query.deployment:  # noqa: ASYNC110 - by another process
        await asyncio.sleep(_RENEWED_S)
    return now


def _line(each: DeployedFragment, line: LogLine, *, as_json: bool) -> str:
    when = datetime.fromtimestamp(line.time / 1e6, UTC).isoformat(timespec="milliseconds")
    if as_json:
        data = {
            "time": when,
            "level": line.level,
            "fragment": each.fragment,
            "node": each.node,
            "text": line.text,
        }
        return json.dumps(data)
    return f"{when}  {line.level:<7}  {each.fragment}  {line.text}"
