"""``nebuli run``: a query from start to end, with a worker process per node on this machine."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nebuli.cli.bounds import FilePath, max_state_bytes
from nebuli.cli.engine_option import engine_option
from nebuli.cli.exits import ExitCode, end_on_termination
from nebuli.cli.late import LateRows, uncounted
from nebuli.cli.placing import seed_option, strategy_option, warn_of_endless
from nebuli.cli.run_in_steps import Steps, run_in_steps, step_options

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from nebuli.cli.bounds import KeepOutput
    from nebuli.fleet.deployment import Active
    from nebuli.fleet.local import LocalWorkers
    from nebuli.fleet.supervision import Policy
    from nebuli.rpc.status import FragmentStatus
    from placement import Query, StrategyName
    from placement.plan import Late
    from placement.stepped import AnyFragment
    from topology import EngineName, Topology

_PROGRESS_S = 5.0


@click.command()
@click.argument("topology", type=FilePath())
@click.argument("query", type=FilePath())
@seed_option
@strategy_option
@click.option(
    "--on-loss",
    type=click.Choice(["fail", "wait", "replace"]),
    default="fail",
    show_default=True,
    help="What the query does when a worker dies: it fails, starts it again, or goes on without its node.",
)
@click.option(
    "--late",
    type=click.Choice(["fail", "warn", "ignore"]),
    default="warn",
    show_default=True,
    help="What it does about rows that come when their window is over: it fails at the first, counts them and says how "
    "many at its end, or says nothing.",
)
@engine_option
@max_state_bytes
@step_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print how it ended as JSON, for programs; not with a Print sink."
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
    stepped: bool,
    members: int | None,
    state: str | None,
    checkpoint_s: float | None,
    serve: str | None,
    keep_output: KeepOutput | None,
) -> int:
    """Run QUERY over TOPOLOGY, with a worker process for each node on this machine.

    The result goes where the query's sink says; a Print sink prints on standard output. Progress goes to
    standard error. Paths in TOPOLOGY start at its directory.

    With --stepped it runs in steps instead, in --members processes that keep what they know in --state: whatever
    is killed, nothing is lost or doubled, and run again it goes on where it was. With --serve programs push rows
    into logical sources that nothing is attached to, and read outputs, until one of them shuts it down.

    Exit codes: 0 all fragments finished; 1 the query failed; 2 bad input, be it the query's or a source's
    file; 3 a worker died or does not answer; 130 interrupted; 143 terminated.
    """
    from nebuli.cli.files import load, refuse_unreadable
    from nebuli.fleet.deployment import Active, fragments_of
    from nebuli.fleet.supervision import Policy
    from nebuli.rpc.ids import new_query
    from placement.plan import Late

    steps = Steps(stepped, members, state, checkpoint_s, serve, keep_output)
    steps.check()
    model, plan = load(topology, query, engine)
    if stepped:
        return run_in_steps(
            model, topology, plan, steps, max_state_bytes=max_state_bytes, late=late, as_json=as_json
        )
    refuse_unreadable(model, topology)
    deployment = new_query()
    of_late = Late.FAIL if late == "fail" else Late.COUNT
    fragments = fragments_of(
        plan, model, seed, deployment, strategy=strategy, late=of_late, say=partial(click.echo, err=True)
    )
    if of_late is Late.FAIL and (unknown := uncounted(fragments)):
        raise click.ClickException(
            f"--late fail: at {unknown} nobody would know, since Spark drops late rows and does not say how many; "
            f"take --engine embedded, or --late warn"
        )
    warn_of_endless(fragments)
    active = Active(deployment, (), fragments)
    file = Path(topology).resolve()
    if as_json:
        _refuse_print(active)
    progress = _Progress(active.fragments)
    settings = _Run(
        model,
        plan,
        file,
        active,
        seed,
        strategy,
        Policy(on_loss),
        max_state_bytes,
        of_late,
        says_late=late == "warn",
    )
    code, error = _outcome(_run(settings, progress))
    if as_json:
        click.echo(json.dumps({"exit_code": int(code), "error": error, **progress.to_data()}, indent=2))
    return code


def _refuse_print(active: Active) -> None:
    from topology import PrintSink

    sink = active.root.operators[-1]
    if isinstance(getattr(sink, "target", None), PrintSink):
        raise click.UsageError(
            f"--json and the sink {sink.id} (Print) both go to standard output: leave one of them out"
        )


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
    says_late: bool


def ended(work: Coroutine[Any, Any, None]) -> int:
    """Do what starts workers; the exit code. What went wrong is said in one sentence."""
    return _outcome(work)[0]


def _outcome(work: Coroutine[Any, Any, None]) -> tuple[int, str | None]:
    """Do what starts workers; the exit code, and what was said of what went wrong."""
    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable
    from nebuli.fleet.errors import NodeUnreachable, QueryFailed, QueryLost
    from nebuli.fleet.local import WorkerDied, WorkerNotStarted

    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        text = "Interrupted: all workers are stopped."
        click.echo(text, err=True)
        return ExitCode.INTERRUPTED, text
    except asyncio.CancelledError:
        return ExitCode.TERMINATED, "terminated"
    except (
        NodeUnreachable, QueryFailed, QueryLost, WorkerDied, WorkerNotStarted, WorkerRefused, WorkerUnreachable
    ) as error:  # fmt: skip
        click.echo(f"Error: {error}", err=True)
        return _code_of(error), str(error)
    return ExitCode.DONE, None


def _code_of(error: Exception) -> int:
    from nebuli.fleet.client import WorkerRefused
    from nebuli.fleet.errors import QueryFailed, QueryLost
    from nebuli.fleet.local import WorkerNotStarted
    from nebuli.rpc.status import Cause

    match error:
        case QueryFailed(cause=Cause.INPUT) | WorkerNotStarted(exit_code=ExitCode.BAD_INPUT):
            return ExitCode.BAD_INPUT
        case QueryFailed() | WorkerRefused() | QueryLost():
            return ExitCode.FAILED
    return ExitCode.UNREACHABLE


async def _run(settings: _Run, progress: _Progress) -> None:
    from nebuli.fleet.local import LocalWorkers
    from nebuli.fleet.supervision import Policy

    end_on_termination()
    used = {fragment.node for fragment in settings.active.fragments}
    async with LocalWorkers.of(
        settings.topology, settings.file, used, max_state_bytes=settings.max_state_bytes
    ) as workers:
        progress.say(f"{_count(len(used), 'worker')} ready")
        work = _deploy(settings, workers, progress)
        # Where a death is an end, it is noticed by itself; else by whoever does not answer any more.
        await (workers.guard(work) if settings.policy is Policy.FAIL else work)
    if settings.says_late:
        for text in progress.late.warnings():
            click.echo(f"Warning: {text}", err=True)
    progress.say("done")


async def _deploy(settings: _Run, workers: LocalWorkers, progress: _Progress) -> None:
    from nebuli.fleet.deployment import deploy
    from nebuli.fleet.supervision import Supervisor

    await deploy(settings.active, workers)
    supervisor = Supervisor(
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
    await supervisor.watch()


class _Progress:
    """One line on standard error for each change of a fragment, and one now and then for a long run."""

    def __init__(self, fragments: Sequence[AnyFragment]) -> None:
        self._began = time.monotonic()
        self._statuses: dict[str, tuple[str, FragmentStatus]] = {}
        self.late = LateRows()
        self._begin(fragments)

    def _begin(self, fragments: Sequence[AnyFragment]) -> None:
        self._said: dict[str, tuple[tuple[str, str], float]] = {}
        self._widths = tuple(
            max(map(len, column)) for column in zip(*((f.id, f.node) for f in fragments), strict=True)
        )

    def follow(self, active: Active) -> None:
        """The query has begun again."""
        self._statuses = {}
        self.late.forget()
        self._begin(active.fragments)

    def to_data(self) -> dict[str, Any]:
        """How long it took, and how each fragment was at last, as JSON shows it."""
        numbers = ("rows_in", "rows_out", "late_rows", "error")
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
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=True)

    def report(self, fragment: AnyFragment, status: FragmentStatus) -> None:
        """Say how a fragment is, if that is news."""
        self._statuses[fragment.id] = fragment.node, status
        self.late.report(fragment, status)
        now = time.monotonic()
        said, when = self._said.get(fragment.id, (("", ""), 0.0))
        news = (status.state, status.phase or said[1])  # between two phases there is nothing to say
        if news == said and (status.state.is_final or now - when < _PROGRESS_S):
            return
        self._said[fragment.id] = (news, now)
        id_width, node_width = self._widths
        counts = f"{status.rows_in:,} rows in, {status.rows_out:,} out" if status.rows_in else ""
        what = ", ".join(filter(None, (status.phase, counts)))
        self.say(
            f"{fragment.id:<{id_width}}  {fragment.node:<{node_width}}  {status.state:<8}  {what}".rstrip()
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
