"""``nebuli member``, which other commands start: a member of a query in steps on this machine."""

from __future__ import annotations

import click


@click.command(hidden=True)
@click.argument("number", type=int)
@click.argument("circuit")
def member(number: int, circuit: str) -> int:
    """Run member NUMBER of CIRCUIT by the order on standard input, until standard input closes."""
    from nebuli.steps.local.member_process import run_member

    return run_member()
