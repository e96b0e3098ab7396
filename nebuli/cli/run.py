"""``nebuli run``: a query from start to end, with a worker process per node on this machine."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from nebuli.cli.bounds import max_state_bytes
from nebuli.cli.engine import engine_option
from nebuli.cli.exits import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.worker.deployment import Deployment
    from nebuli.worker.status import FragmentStatus
    from placement import Fragment
    from topology import EngineName, Topology

_TERMINATED = 128 + signal.SIGTERM
_PROGRESS_S = 5.0


@click.command()
@click.argument("topology")
@click.argument("query")
@click.option("--seed", default=0, show_default=True, help="Which of several equal paths is taken.")
@engine_option
@max_state_bytes
def run(topology: str, query: str, seed: int, engine: EngineName | None, max_state_bytes: int) -> int:
    """Run QUERY over TOPOLOGY, with a worker process for each node on this machine.

    The result goes where the query's sink says; a Print sink prints on standard output. Progress goes to
    standard error. Paths in TOPOLOGY start at its directory.

    Exit codes: 0 all fragments finished; 1 the query failed; 2 bad input, be it the query's or a source's
    file; 3 a worker died or does not answer; 130 interrupted.
    """
    import placement
    from nebuli.cli.files import load

    model, plan = load(topology, query, engine)
    fragments = placement.decompose(placement.place(plan, model, seed)).fragments
    deployed = placement.with_deployment(fragments, uuid4().hex[:12])
    return _run_to_end(model, Path(topology).resolve().parent, deployed, max_state_bytes)


def _run_to_end(
    topology: Topology, directory: Path, fragments: Sequence[Fragment], max_state_bytes: int
) -> int:
    """Run the fragments; the exit code. What went wrong is said in one sentence."""
    from nebuli.worker.client import WorkerRefused, WorkerUnreachable
    from nebuli.worker.deployment import QueryFailed
    from nebuli.worker.local import WorkerDied, WorkerNotStarted
    from nebuli.worker.status import Cause

    try:
        asyncio.run(_run(topology, directory, fragments, max_state_bytes))
    except KeyboardInterrupt:
        click.echo("Interrupted: all workers are stopped.", err=True)
        return ExitCode.INTERRUPTED
    except asyncio.CancelledError:
        return _TERMINATED
    except (QueryFailed, WorkerDied, WorkerNotStarted, WorkerRefused, WorkerUnreachable) as error:
        click.echo(f"Error: {error}", err=True)
        match error:
            case QueryFailed(cause=Cause.INPUT) | WorkerNotStarted(exit_code=ExitCode.BAD_INPUT):
                return ExitCode.BAD_INPUT
            case QueryFailed() | WorkerRefused():
                return ExitCode.FAILED
            case _:
                return ExitCode.UNREACHABLE
    return ExitCode.DONE


async def _run(
    topology: Topology, directory: Path, fragments: Sequence[Fragment], max_state_bytes: int
) -> None:
    from nebuli.worker.deployment import Deployment
    from nebuli.worker.local import LocalWorkers

    _end_on_termination()
    used = {fragment.node for fragment in fragments}
    nodes = [node for node in topology.nodes if node.address in used]
    progress = _Progress(fragments)
    async with LocalWorkers(nodes, directory, max_state_bytes=max_state_bytes) as workers:
        progress.say(f"{_count(len(nodes), 'worker')} ready")
        deployment = Deployment(fragments, workers.clients)
        await workers.guard(_deploy(deployment, progress))
    progress.say("done")


async def _deploy(deployment: Deployment, progress: _Progress) -> None:
    await deployment.register()
    await deployment.start()
    await deployment.finish(progress.report)


def _end_on_termination() -> None:
    """SIGTERM and a lost terminal end the query as Ctrl-C does, for which asyncio sees itself."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


class _Progress:
    """One line on standard error for each change of a fragment, and one now and then for a long run."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._began = time.monotonic()
        self._said: dict[str, tuple[str, float]] = {}
        self._widths = tuple(
            max(map(len, column)) for column in zip(*((f.id, f.node) for f in fragments), strict=True)
        )

    def say(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=True)

    def report(self, fragment: Fragment, status: FragmentStatus) -> None:
        """Say how a fragment is, if that is news."""
        now = time.monotonic()
        state, when = self._said.get(fragment.id, ("", 0.0))
        if status.state == state and (status.state.is_final or now - when < _PROGRESS_S):
            return
        self._said[fragment.id] = (status.state, now)
        id_width, node_width = self._widths
        counts = f"{status.rows_in:,} rows in, {status.rows_out:,} out" if status.rows_in else ""
        self.say(
            f"{fragment.id:<{id_width}}  {fragment.node:<{node_width}}  {status.state:<8}  {counts}".rstrip()
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
