"""``nebuli run``: a query from start to end, with a local worker process for each node."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from nebuli.cli.bounds import FilePath, max_state_bytes
from nebuli.cli.exits import ExitCode, end_on_termination
from nebuli.cli.placement_options import engine_option, seed_option, strategy_option, warn_of_endless
from nebuli.cli.query_argument import query_argument
from nebuli.cli.row_progress import RowProgress
from nebuli.cli.rows.view_rows import how_to_read
from nebuli.cli.stepped.run_in_steps import Steps, run_in_steps, step_options
from nebuli.control.late_report import LateReport, uncounted
from nebuli.log_output import is_quiet
from nebuli.rpc.conventions import VIEWS_AT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from nebuli.control.deployment import Active
    from nebuli.control.local import LocalWorkers
    from nebuli.control.supervision import Policy, Supervisor
    from nebuli.http.views.view_places import ViewPlaces
    from nebuli.rpc.status import FragmentStatus
    from nebuli.rpc.trust import Trust
    from placement import Query, StrategyName
    from placement.plan import Late, ViewOperator
    from placement.stepped_plan import AnyFragment
    from topology import EngineName, Topology

_PROGRESS_S = 5.0


@click.command()
@click.argument("topology", type=FilePath())
@query_argument
@seed_option
@strategy_option
@click.option(
    "--on-loss",
    type=click.Choice(["fail", "wait", "replace"]),
    default="fail",
    show_default=True,
    help="Action when a worker dies: fail the query, start the worker again, or continue without its node.",
)
@click.option(
    "--late",
    type=click.Choice(["fail", "warn", "ignore"]),
    default="warn",
    show_default=True,
    help="Action on rows that windows drop because they are late or have no time: fail at the first such row, print "
    "their number at the end, or ignore them.",
)
@engine_option
@max_state_bytes
@step_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the outcome as JSON; cannot be combined with a Print sink.",
)
def run(
    topology: str,
    query: str,
    *,
    seed: int,
    strategy: StrategyName,
    on_loss: str,
    late: str,
    engine: EngineName | None,
    max_state_bytes: int,
    as_json: bool,
    **of_steps: Any,
) -> int:
    """Run a query with a local worker process for each node.

    QUERY is a file in JSON or SQL, or a statement given with -e. A SELECT without a sink prints its rows: as a table
    on a terminal, otherwise as CSV. EXPLAIN prints the node of each operator, and why it was chosen.

    Writes the result to the query's sink; a Print sink prints to standard output. Prints progress to standard error.
    Paths in TOPOLOGY are relative to its directory.

    With --stepped the query runs in steps: --members sets the number of its processes, and --state is the place of
    their state. If processes are killed, no row is lost or duplicated, and a new run with the same --state resumes the
    query. With --on spark the members run as tasks of one Spark stage; the Spark master is that of TOPOLOGY's node with
    'engine: spark'. With --serve or --http, programs can push rows into logical sources that have no physical source,
    read outputs, and shut the query down.

    Exit codes: 0 all fragments finished; 1 the query failed; 2 invalid input, such as a query or a source's file; 3 a
    worker died or is unreachable; 130 interrupted; 143 terminated.
    """
    from nebuli.cli.local_template import forked_template

    steps = Steps(**of_steps)
    steps.check()
    shared = "nebuli.steps.local.member_process" if steps.stepped else "nebuli.cli.files"
    with nullcontext() if steps.home == "spark" else forked_template(shared):
        from nebuli.cli.files import load_statement
        from nebuli.cli.rows.printed_select import explained, print_rows, with_sink

        model, statement = load_statement(topology, query, engine)
        if statement.is_explained:
            click.echo(explained(model, statement, seed, strategy, steps.members, stepped=steps.stepped))
            return ExitCode.DONE
        options = _Options(
            topology, query, seed, strategy, on_loss, late, max_state_bytes, steps, as_json=as_json
        )
        if statement.ordering is None:
            return _run_to_end(model, statement.query, options)
        if as_json:
            raise click.UsageError(
                "--json and the rows of a SELECT would share standard output: remove --json, or give the SELECT a sink"
            )
        with TemporaryDirectory(prefix="nebuli-") as folder:
            rows = Path(folder) / "rows.parquet"
            model = with_sink(model, statement, rows, stepped=steps.stepped)
            code = _run_to_end(model, statement.query, options)
            if code == ExitCode.DONE and rows.is_file():
                print_rows(rows, statement.ordering)
            return code


class _Options(NamedTuple):
    """The options of a run."""

    topology: str
    query: str
    seed: int
    strategy: StrategyName
    on_loss: str
    late: str
    max_state_bytes: int
    steps: Steps
    as_json: bool


def _run_to_end(model: Topology, plan: Query, options: _Options) -> int:
    """Run a query in workers or in steps, and return the exit code."""
    from nebuli.cli.files import refuse_overwritten, refuse_unreadable
    from nebuli.cli.who_may_call import http_server, trust_at
    from nebuli.control.deployment import Active, fragments_of, views_of
    from nebuli.control.supervision import Policy
    from nebuli.rpc.ids import new_query
    from placement.plan import Late

    file, steps, late = Path(options.topology).resolve(), options.steps, options.late
    refuse_overwritten(model, plan, file.parent, given=(options.topology, options.query))
    if steps.stepped:
        return run_in_steps(
            model,
            options.topology,
            plan,
            steps,
            max_state_bytes=options.max_state_bytes,
            late=late,
            as_json=options.as_json,
        )
    refuse_unreadable(model, options.topology)
    deployment = new_query()
    of_late = Late.FAIL if late == "fail" else Late.COUNT
    fragments = fragments_of(
        plan,
        model,
        options.seed,
        deployment,
        strategy=options.strategy,
        late=of_late,
        say=partial(click.echo, err=True),
    )
    if of_late is Late.FAIL and (unknown := uncounted(fragments)):
        raise click.ClickException(
            f"--late fail is not supported for {unknown}: Spark does not report the rows that it drops because "
            f"they are late or have no time; use --engine embedded, or --late warn"
        )
    given = {
        name: address
        for name, address in (("--serve", steps.serve), ("--http", steps.http))
        if address is not None
    }
    if given and not views_of(fragments):
        option = next(iter(given))
        raise click.UsageError(
            f"{option} applies to queries in steps and queries with views only: add --stepped, or remove {option}"
        )
    trust_at(given, model, file.parent, "read its views")
    if steps.http is not None:
        http_server()
    warn_of_endless(fragments)
    active = Active(deployment, (), fragments)
    if options.as_json:
        _refuse_print(active)
    progress = _Progress(active.fragments, shows_rows=not (_prints(active) and sys.stdout.isatty()))
    settings = _Run(
        model,
        plan,
        file,
        active,
        options.seed,
        options.strategy,
        Policy(options.on_loss),
        options.max_state_bytes,
        of_late,
        steps.serve,
        steps.http,
        says_late=late == "warn",
    )
    code, error = _outcome(_run(settings, progress))
    if options.as_json:
        click.echo(json.dumps({"exit_code": int(code), "error": error, **progress.to_data()}, indent=2))
    return code


def _refuse_print(active: Active) -> None:
    if _prints(active):
        sink = active.root.operators[-1]
        raise click.UsageError(
            f"--json and the sink {sink.id} (Print) both write to standard output: remove one of them"
        )


def _prints(active: Active) -> bool:
    """True if a worker writes the rows to standard output."""
    from topology import PrintSink

    return isinstance(getattr(active.root.operators[-1], "target", None), PrintSink)


class _Run(NamedTuple):
    topology: Topology
    query: Query
    file: Path
    active: Active
    seed: int
    strategy: StrategyName
    policy: Policy
    max_state_bytes: int
    late: Late
    serve: str | None
    http: str | None
    says_late: bool


def ended(work: Coroutine[Any, Any, None]) -> int:
    """Run work that starts workers, and return the exit code. Prints an error in one sentence."""
    return _outcome(work)[0]


def _outcome(work: Coroutine[Any, Any, None]) -> tuple[int, str | None]:
    """Run work that starts workers, and return the exit code and the printed error."""
    from nebuli.control.errors import NodeUnreachable, QueryFailed, QueryLost
    from nebuli.control.local import WorkerDied, WorkerNotStarted
    from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable

    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        text = "Interrupted: all workers are stopped."
        click.echo(text, err=True)
        return ExitCode.INTERRUPTED, text
    except asyncio.CancelledError:
        return ExitCode.TERMINATED, "terminated"
    except (
        NodeUnreachable, QueryFailed, QueryLost, ServesNowhere, WorkerDied, WorkerNotStarted, WorkerRefused,
        WorkerUnreachable,
    ) as error:  # fmt: skip
        click.echo(f"Error: {error}", err=True)
        return _code_of(error), str(error)
    return ExitCode.DONE, None


def _code_of(error: Exception) -> int:
    from nebuli.control.errors import QueryFailed, QueryLost
    from nebuli.control.local import WorkerNotStarted
    from nebuli.rpc.status import Cause
    from nebuli.rpc.worker_client import WorkerRefused

    match error:
        case QueryFailed(cause=Cause.INPUT) | WorkerNotStarted(exit_code=ExitCode.BAD_INPUT):
            return ExitCode.BAD_INPUT
        case QueryFailed() | WorkerRefused() | QueryLost():
            return ExitCode.FAILED
    return ExitCode.UNREACHABLE


async def _run(settings: _Run, progress: _Progress) -> None:
    from nebuli.control.local import LocalWorkers
    from nebuli.control.supervision import Policy

    end_on_termination()
    used = {fragment.node for fragment in settings.active.fragments}
    async with LocalWorkers.of(
        settings.topology,
        settings.file,
        used,
        max_state_bytes=settings.max_state_bytes,
    ) as workers:
        progress.say(f"{_count(len(used), 'worker')} ready")
        work = _deploy(settings, workers, progress)
        # With policy FAIL the guard ends the query on a worker's death; else the supervisor finds workers that do not
        # answer.
        with progress.rows:
            await (workers.guard(work) if settings.policy is Policy.FAIL else work)
    if settings.says_late:
        for text in progress.late.warnings():
            click.echo(f"Warning: {text}", err=True)
    progress.say("done")


async def _deploy(settings: _Run, workers: LocalWorkers, progress: _Progress) -> None:
    from nebuli.control.deployment import deploy

    await deploy(settings.active, workers)
    supervisor = _supervisor(settings, workers, progress)
    async with _served(settings, workers, supervisor, progress):
        await supervisor.watch()


def _supervisor(settings: _Run, workers: LocalWorkers, progress: _Progress) -> Supervisor:
    from nebuli.control.supervision import Supervisor

    return Supervisor(
        settings.active,
        settings.query,
        settings.topology,
        workers,
        seed=settings.seed,
        strategy=settings.strategy,
        policy=settings.policy,
        patience_s=0.0,
        say=progress.say,
        report=progress.report,
        moved=progress.follow,
        late=settings.late,
    )


@asynccontextmanager
async def _served(
    settings: _Run, workers: LocalWorkers, supervisor: Supervisor, progress: _Progress
) -> AsyncIterator[None]:
    """Serve the query's views, if it has some, and print their addresses."""
    from nebuli.control.deployment import views_of
    from nebuli.rpc.trust import Trust
    from topology import Access

    views = views_of(settings.active.fragments)
    if not views:
        yield
        return
    from nebuli.control.served_views import served_views  # only here, as it is large
    from nebuli.control.view_addition import add_views

    async def add(text: str, file: str | None) -> Mapping[str, tuple[str, ViewOperator]]:
        active = supervisor.active

        def keep(fragments: tuple[AnyFragment, ...]) -> None:
            if supervisor.active.deployment == active.deployment:
                supervisor.keep(replace(supervisor.active, fragments=fragments))

        addition = await add_views(text, file, active, workers, keep)
        found = {each.id for each in addition.operators}
        views = {
            name: (node, view)
            for name, (node, view) in views_of(supervisor.active.fragments).items()
            if view.id in found
        }
        if over_http is not None:
            await over_http.serve(views)
        for name, (_, view) in views.items():
            progress.say(f"view {name} was added: nebuli view get {name} {_key(view)}{at}")
        return views

    access = Access(tls=settings.topology.tls, secret=settings.topology.secret).below(settings.file.parent)
    trust = Trust.of(access)
    async with AsyncExitStack() as stack:
        over_http = await stack.enter_async_context(_over_http(settings, trust, workers.trusts))
        if over_http is not None:
            await over_http.serve(views)
        where = await _bound(
            stack, settings.serve, lambda address: served_views(address, trust, views, workers.trusts, add)
        )
        at = "" if where == VIEWS_AT else f" --at {where}"
        for name, (_, view) in views.items():
            progress.say(how_to_read(name, view.key, where))
            if over_http is not None:
                progress.say(f"view {name} at {over_http.url_of(name, view)}")
        yield


async def _bound(
    stack: AsyncExitStack, given: str | None, served: Callable[[str], AbstractAsyncContextManager[str]]
) -> str:
    """Serve at the given address, else at the default one, else at a free port; return the address."""
    try:
        return await stack.enter_async_context(served(given or VIEWS_AT))
    except OSError as error:
        if given is None:
            return await _bound(stack, "127.0.0.1:0", served)
        raise ServesNowhere(f"cannot serve views at {given}: {error}") from error


def _key(view: ViewOperator) -> str:
    return " ".join(column.upper() for column in view.key)


class _OverHttp(NamedTuple):
    """The HTTP server of views, added ones included; ``trusts`` has the certificates and secrets for their nodes."""

    url: str
    places: ViewPlaces
    trusts: Mapping[str, Trust]

    async def serve(self, views: Mapping[str, tuple[str, ViewOperator]]) -> None:
        from nebuli.http.views.view_places import ViewPlace

        await self.places.add({name: ViewPlace(node, self.trusts[node]) for name, (node, _) in views.items()})

    def url_of(self, name: str, view: ViewOperator) -> str:
        keys = "&".join(f"key={quote(column.upper())}" for column in view.key)
        return f"{self.url}/views/{quote(name, safe='')}?{keys}"


@asynccontextmanager
async def _over_http(
    settings: _Run, trust: Trust, trusts: Mapping[str, Trust]
) -> AsyncIterator[_OverHttp | None]:
    if settings.http is None:
        yield None
        return
    from nebuli.circuits.served_run import CannotServe
    from nebuli.http.http_server import views_over_http
    from nebuli.http.views.view_places import ViewPlaces

    places = ViewPlaces()
    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(views_over_http(places, settings.http, trust))
        except CannotServe as error:
            raise ServesNowhere(str(error)) from error
        yield _OverHttp(url, places, trusts)


class ServesNowhere(Exception):
    """An address for views cannot be bound."""


class _Progress:
    """The progress on standard error: a line for each change of a fragment, and one every few seconds.

    On a terminal, ``rows`` is the line below them: the rows that were read, instead of a line every few seconds.
    """

    def __init__(self, fragments: Sequence[AnyFragment], *, shows_rows: bool) -> None:
        self.rows = RowProgress("starting", shown=shows_rows)
        self._began = time.monotonic()
        self._statuses: dict[str, tuple[str, FragmentStatus]] = {}
        self.late = LateReport()
        self._begin(fragments)

    def _begin(self, fragments: Sequence[AnyFragment]) -> None:
        from placement.plan import BoundSource

        self._fragments = len(fragments)
        self._reading = {
            each.id for each in fragments if any(isinstance(one, BoundSource) for one in each.operators)
        }
        self._said: dict[str, tuple[tuple[str, str], float]] = {}
        self._widths = tuple(
            max(map(len, column)) for column in zip(*((f.id, f.node) for f in fragments), strict=True)
        )

    def follow(self, active: Active) -> None:
        """Start over with the fragments of a new deployment."""
        self._statuses = {}
        self.late.forget()
        self._begin(active.fragments)

    def to_data(self) -> dict[str, Any]:
        """Return the duration and the last status of each fragment, for JSON."""
        numbers = ("rows_in", "rows_out", "late_rows", "rows_without_time", "error")
        return {
            "seconds": round(time.monotonic() - self._began, 3),
            "fragments": [
                {
                    "fragment": id_,
                    "node": node,
                    "state": str(status.state),
                    **{name: getattr(status, name) for name in numbers},
                }
                for id_, (node, status) in self._statuses.items()
            ],
        }

    def say(self, text: str) -> None:
        if not is_quiet():
            click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=True)

    def report(self, fragment: AnyFragment, status: FragmentStatus) -> None:
        """Print a fragment's status if it has changed."""
        self._statuses[fragment.id] = fragment.node, status
        self.late.report(fragment, status)
        self._show_rows()
        now = time.monotonic()
        said, when = self._said.get(fragment.id, (("", ""), 0.0))
        news = (status.state, status.phase or said[1])  # nothing changes between two phases
        if news == said and (status.state.is_final or self.rows.is_shown or now - when < _PROGRESS_S):
            return
        self._said[fragment.id] = (news, now)
        id_width, node_width = self._widths
        counts = f"{status.rows_in:,} rows in, {status.rows_out:,} out" if status.rows_in else ""
        what = ", ".join(filter(None, (status.phase, counts)))
        self.say(
            f"{fragment.id:<{id_width}}  {fragment.node:<{node_width}}  {status.state:<8}  {what}".rstrip()
        )

    def _show_rows(self) -> None:
        """Show the rows that the sources have given, and how many fragments have finished."""
        statuses = [status for _, status in self._statuses.values()]
        finished = sum(status.state.is_final for status in statuses)
        rows = sum(status.rows_in for id_, (_, status) in self._statuses.items() if id_ in self._reading)
        self.rows.update(rows, f"{finished} of {_count(self._fragments, 'fragment')} finished, read")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
