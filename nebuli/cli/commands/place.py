"""``nebuli place``: the nodes of a query's operators, with reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from nebuli.cli.bounds import FilePath, Finite
from nebuli.cli.placement_options import (
    engine_option,
    say_note,
    seed_option,
    strategy_option,
    warn_of_endless,
)
from nebuli.cli.query_argument import query_argument
from nebuli.limits import MOST_MEMBERS

if TYPE_CHECKING:
    from placement import BoundPlan, Decomposition, Placement, Query, StrategyName
    from topology import EngineName, Topology

_OF_FREE_QUERIES = ("seed", "engine", "strategy", "time_limit", "compare")
"""Options that do not apply to members."""


@click.command()
@click.argument("topology", type=FilePath())
@query_argument
@seed_option
@engine_option
@strategy_option
@click.option(
    "--time-limit",
    type=Finite(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Time limit of the optimal strategy, in seconds.",
)
@click.option("--compare", is_flag=True, help="Compare the costs of both strategies.")
@click.option("--stepped", is_flag=True, help="Show the members of the query in steps, with their nodes.")
@click.option(
    "--members",
    type=click.IntRange(1, MOST_MEMBERS),
    help="Number of members; requires --stepped.  [default: one for each sink and each node with a source]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sql", "mermaid", "dot"]),
    default="text",
    show_default=True,
    help="Output format: tables with reasons, JSON, the query (without its placement) as a statement in SQL, a mermaid "
    "flowchart, or a Graphviz graph.",
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
    stepped: bool,
    members: int | None,
    form: str,
) -> None:
    """Show the placement of a query and its fragments.

    Places the operators of QUERY on the nodes of TOPOLOGY, and cuts the query into fragments. Deploys nothing, and
    opens no source file. The same files and seed give the same output.
    """
    import placement
    from nebuli.cli.files import load_statement
    from nebuli.cli.rows.printed_select import explained

    model, statement = load_statement(topology, query, engine)
    if statement.is_explained:
        click.echo(explained(model, statement, seed, strategy, members, stepped=stepped))
        return
    statement.check_run(model)
    plan = statement.query
    if form == "sql":
        click.echo(_as_statement(plan, model), nl=False)
        return
    if stepped:
        click.echo(_in_steps(plan, model, members, form))
        return
    if members is not None:
        raise click.UsageError(
            "--members applies to queries in steps only: add --stepped, or remove --members"
        )
    bound = placement.check(plan, model)
    if compare:
        click.echo(_compared(bound, model, seed, time_limit, form))
        return
    placed = placement.place_bound(bound, model, seed, strategy, time_limit)
    say_note(placed)
    cut = placement.decompose(placed)
    warn_of_endless(cut.fragments)
    click.echo(_shown(plan, placed, cut, model, form))


def _as_statement(query: Query, model: Topology) -> str:
    from placement.statements.plan_text import statement_of

    return statement_of(query, model)


def _shown(query: Query, placed: Placement, cut: Decomposition, model: Topology, form: str) -> str:
    from nebuli.cli import placement_diagram, placement_text

    match form:
        case "json":
            return placement_text.as_json(query, placed, cut)
        case "mermaid":
            return placement_diagram.as_mermaid(placed, cut, model)
        case "dot":
            return placement_diagram.as_dot(placed, cut, model)
    return placement_text.as_text(placed, cut)


def _in_steps(query: Query, model: Topology, members: int | None, form: str) -> str:
    import placement
    from nebuli.cli import placement_text
    from nebuli.control.step_placement import step_fragments

    context = click.get_current_context()
    for name in _OF_FREE_QUERIES:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} does not apply with --stepped, because members run at the nodes of "
                f"sources and sinks: remove it"
            )
    if form not in ("text", "json"):
        raise click.UsageError(f"--stepped has no {form} output: use --format text or json")
    fragments = step_fragments(query, model, members, query.name, 1.0)
    warn_of_endless(fragments)
    kept = placement.kept_in_steps(placement.check_stepped(query, model))
    if form == "json":
        return placement_text.steps_as_json(query, fragments, kept)
    return placement_text.steps_as_text(fragments, kept)


def _compared(plan: BoundPlan, model: Topology, seed: int, time_limit: float, form: str) -> str:
    import placement
    from nebuli.cli import placement_text

    if form not in ("text", "json"):
        raise click.UsageError(f"--compare has no {form} output: use --format text or json")
    exact = placement.place_exactly(plan, model, seed, time_limit)
    try:
        first = placement.place_bottom_up(plan, model, seed)
    except placement.NoCapacity:
        first = None
    return placement_text.comparison(first, exact, as_json=form == "json")
