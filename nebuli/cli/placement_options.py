"""Options and warnings shared by all commands that place a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placement import Placement
    from placement.plan import FragmentOperator
    from placement.stepped_plan import AnyFragment

engine_option = click.option(
    "--engine",
    type=click.Choice(["embedded", "spark"]),
    help="Engine of every node.  [default: as in the topology]",
)


seed_option = click.option(
    "--seed", default=0, show_default=True, help="Seed of the choice among equally short paths."
)
strategy_option = click.option(
    "--strategy",
    type=click.Choice(["bottom-up", "optimal"]),
    default="bottom-up",
    show_default=True,
    help=(
        "Placement strategy. 'bottom-up' follows a rule, and falls back to 'optimal' if it finds no free "
        "slot; 'optimal' causes the least traffic over links."
    ),
)


def say_note(placement: Placement) -> None:
    """Print the placement's note, if it has one, to standard error."""
    if placement.note:
        click.echo(placement.note, err=True)


def warn_of_endless(fragments: Iterable[AnyFragment]) -> None:
    """Print a warning to standard error if the query never returns its result."""
    from placement.stepped_plan import MemberFragment

    operators: list[FragmentOperator] = []
    for each in fragments:
        if isinstance(each, MemberFragment):
            operators += [feed.source for feed in each.feeds]
            operators += [output for output in each.plan.outputs if output.id in each.targets]
        else:
            operators += each.operators
    say_if_endless(operators)


def say_if_endless(operators: Iterable[FragmentOperator]) -> None:
    """Print a warning to standard error if a sink waits forever for the end of its sources."""
    from placement.checking.endless import waits_for_ever

    why = waits_for_ever(operators)
    if why is not None:
        click.echo(f"Warning: {why}", err=True)
