"""``nebuli place``: where a query's operators run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nebuli.cli.bounds import FilePath, Finite
from nebuli.cli.engine_option import engine_option
from nebuli.cli.placing import say_note, seed_option, strategy_option, warn_of_endless

if TYPE_CHECKING:
    from placement import BoundPlan, Decomposition, Placement, StrategyName
    from topology import EngineName, Topology


@click.command()
@click.argument("topology", type=FilePath())
@click.argument("query", type=FilePath())
@seed_option
@engine_option
@strategy_option
@click.option(
    "--time-limit",
    type=Finite(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that the optimal strategy may take.",
)
@click.option("--compare", is_flag=True, help="Show what both strategies cost, and how far apart they are.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "mermaid", "dot"]),
    default="text",
    show_default=True,
    help="How to show it: a table with reasons, JSON for programs, a mermaid flowchart, or a graph for Graphviz.",
)
def place(
    *,
    topology: str,
    query: str,
    seed: int,
    engine: EngineName | None,
    strategy: StrategyName,
    time_limit: float,
    compare: bool,
    form: str,
) -> None:
    """Place the operators of QUERY on the nodes of TOPOLOGY, and cut it into fragments.

    Nothing is deployed, and no source file is opened. The same files and the same seed give the same text.
    """
    import placement
    from nebuli.cli.files import load

    model, plan = load(topology, query, engine)
    bound = placement.check(plan, model)
    if compare:
        click.echo(_compared(bound, model, seed, time_limit, form))
        return
    placed = placement.place_bound(bound, model, seed, strategy, time_limit)
    say_note(placed)
    cut = placement.decompose(placed)
    warn_of_endless(cut.fragments)
    click.echo(_shown(placed, cut, model, form))


def _shown(placed: Placement, cut: Decomposition, model: Topology, form: str) -> str:
    from nebuli.cli import drawing, render

    match form:
        case "json":
            return render.as_json(placed, cut)
        case "mermaid":
            return drawing.as_mermaid(placed, cut, model)
        case "dot":
            return drawing.as_dot(placed, cut, model)
    return render.as_text(placed, cut)


def _compared(plan: BoundPlan, model: Topology, seed: int, time_limit: float, form: str) -> str:
    import placement
    from nebuli.cli import render

    if form not in ("text", "json"):
        raise click.UsageError(f"--compare has no picture: use --format text or json, not {form}")
    exact = placement.place_exactly(plan, model, seed, time_limit)
    try:
        first = placement.place_bottom_up(plan, model, seed)
    except placement.NoCapacity:
        first = None
    return render.comparison(first, exact, as_json=form == "json")
