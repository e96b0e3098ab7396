"""The options that say how a query is placed, of all commands that place one."""

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
    help="What computes at every node, whatever the topology says.",
)


seed_option = click.option(
    "--seed", default=0, show_default=True, help="Which of several equal paths is taken."
)
strategy_option = click.option(
    "--strategy",
    type=click.Choice(["bottom-up", "optimal"]),
    default="bottom-up",
    show_default=True,
    help="The bottom-up rule, and where that finds no room the other one; or the least traffic over links.",
)


def say_note(placement: Placement) -> None:
    """Say on standard error how a placement was found, where there is something to say."""
    if placement.note:
        click.echo(placement.note, err=True)


def warn_of_endless(fragments: Iterable[AnyFragment]) -> None:
    """Say on standard error if the query never gives its result."""
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
    """Say on standard error if the result of these sources and sinks never comes."""
    from placement.checking.endless import waits_for_ever

    why = waits_for_ever(operators)
    if why is not None:
        click.echo(f"Warning: {why}", err=True)
