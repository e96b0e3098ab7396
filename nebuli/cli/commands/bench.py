"""``nebuli bench``: a query's throughput over a topology, with workers on this machine."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath
from nebuli.cli.placement_options import say_note, seed_option, strategy_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.control.local import LocalWorkers
    from nebuli.rpc.status import FragmentStatus
    from placement import Fragment, Query, StrategyName
    from placement.plan import FragmentOperator
    from placement.stepped_plan import AnyFragment
    from topology import Topology


@dataclass(frozen=True, slots=True)
class _Run:
    """One run. ``rows`` entered the fragments of the query's sources; ``fragments`` are by id."""

    seconds: float
    rows: int
    fragments: dict[str, dict[str, Any]]

    @property
    def rows_per_s(self) -> float:
        """Rows per second of the whole query."""
        return self.rows / self.seconds


@click.command()
@click.argument("topology", type=FilePath())
@click.argument("query", type=FilePath())
@seed_option
@strategy_option
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 1000), help="Number of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(topology: str, query: str, *, seed: int, strategy: StrategyName, runs: int, as_json: bool) -> int:
    """Measure a query's throughput with local workers.

    Runs QUERY over TOPOLOGY several times, as 'nebuli run' does, and prints the rows per second. Drops the results.
    Starts the workers once, so the first run is the slowest. All sources must end.
    """
    from nebuli.cli.local_template import forked_template

    with forked_template("nebuli.cli.files"):
        import placement
        from nebuli.cli.commands.run import ended
        from nebuli.cli.files import load, refuse_unreadable

        model, plan = load(topology, query)
        refuse_unreadable(model, topology)
        placed = placement.place(plan, model, seed, strategy)
        say_note(placed)
        fragments = placement.decompose(placed).fragments
        _refuse_endless(fragments)
        kept = [_without_result(fragment) for fragment in fragments]
        return ended(_bench(model, Path(topology).resolve(), plan, kept, runs=runs, as_json=as_json))


def _refuse_endless(fragments: Sequence[Fragment]) -> None:
    from placement.checking.endless import endless_sources

    for source in endless_sources(each for fragment in fragments for each in fragment.operators):
        raise click.ClickException(
            f"source {source.id} has no end, but each run must end: give a generator a 'count', "
            f"or use another source"
        )


def _without_result(fragment: Fragment) -> Fragment:
    """Return the fragment with a sink that does the same work and drops the rows, and no file of late rows."""
    return fragment.model_copy(update={"operators": tuple(map(_dropping, fragment.operators))})


def _dropping(operator: FragmentOperator) -> FragmentOperator:
    from placement.plan import BoundSink, WindowOperator
    from topology import NullSink

    match operator:
        case BoundSink(target=target):
            return operator.model_copy(
                update={"target": NullSink(name=target.name, type="Null", mode=target.mode)}
            )
        case WindowOperator():
            return operator.model_copy(update={"late": None})
    return operator


async def _bench(
    topology: Topology,
    file: Path,
    plan: Query,
    fragments: Sequence[Fragment],
    *,
    runs: int,
    as_json: bool,
) -> None:
    from nebuli.cli.exits import end_on_termination
    from nebuli.control.local import LocalWorkers

    end_on_termination()
    used = {fragment.node for fragment in fragments}
    measured: list[_Run] = []

    async def all_runs() -> None:
        for number in range(1, runs + 1):
            measured.append(await _measured(workers, topology, plan, fragments))
            last = measured[-1]
            click.echo(
                f"run {number} of {runs}: {last.seconds:.2f} s, {last.rows_per_s:,.0f} rows/s", err=True
            )

    async with LocalWorkers.of(topology, file, used) as workers:
        await workers.guard(all_runs())
    click.echo(json.dumps(_data(measured), indent=2) if as_json else _text(measured))


async def _measured(
    workers: LocalWorkers, topology: Topology, plan: Query, fragments: Sequence[Fragment]
) -> _Run:
    import placement
    from nebuli.control.deployment import Active, deploy, forget
    from nebuli.control.supervision import Policy, Supervisor
    from nebuli.rpc.ids import new_query
    from placement.plan import BoundSource

    found: dict[str, FragmentStatus] = {}
    nodes = {fragment.id: fragment.node for fragment in fragments}
    reading = {
        fragment.id
        for fragment in fragments
        if any(isinstance(operator, BoundSource) for operator in fragment.operators)
    }

    def report(fragment: AnyFragment, status: FragmentStatus) -> None:
        found[fragment.id] = status

    deployment = new_query()
    deployed = tuple(placement.with_deployment(fragments, deployment))
    began = time.monotonic()
    active = Active(deployment, (), deployed)
    await deploy(active, workers)
    supervisor = Supervisor(
        active,
        plan,
        topology,
        workers,
        seed=0,
        policy=Policy.FAIL,
        patience_s=0.0,
        say=lambda text: None,
        report=report,
        moved=lambda active: None,
    )
    await supervisor.watch()
    seconds = time.monotonic() - began
    await forget(active.places, workers)
    numbers = {
        id_: {
            "node": nodes[id_],
            "rows_in": status.rows_in,
            "rows_out": status.rows_out,
            "bytes_in": status.bytes_in,
            "bytes_out": status.bytes_out,
        }
        for id_, status in found.items()
    }
    return _Run(seconds, sum(found[id_].rows_in for id_ in reading), numbers)


def _data(runs: Sequence[_Run]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(run.seconds for run in runs),
        "rows_per_s": statistics.median(run.rows_per_s for run in runs),
        "runs": [{**asdict(run), "rows_per_s": run.rows_per_s} for run in runs],
    }


def _text(runs: Sequence[_Run]) -> str:
    from nebuli.cli.placement_text import table

    rates = [run.rows_per_s for run in runs]
    best, worst = max(rates), min(rates)
    last = runs[-1]
    rows = [
        (id_, each["node"], f"{each['rows_in']:,}", f"{each['rows_out']:,}", f"{each['bytes_in'] / 1e6:,.1f}")
        for id_, each in last.fragments.items()
    ]
    spread = f"{worst:,.0f} to {best:,.0f} in {len(runs)} runs of {last.rows:,} rows"
    shown = table(("fragment", "node", "rows in", "rows out", "MB in"), rows)
    return f"{statistics.median(rates):,.0f} rows/s ({spread})\n\n{shown}"
