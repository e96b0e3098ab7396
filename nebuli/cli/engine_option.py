"""The option ``--engine`` of commands that place queries."""

from __future__ import annotations

import click

engine_option = click.option(
    "--engine",
    type=click.Choice(["embedded", "spark"]),
    help="What computes at every node, whatever the topology says.",
)
