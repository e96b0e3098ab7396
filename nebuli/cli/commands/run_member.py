"""``nebuli member``, which is no command for people: a member of a query in steps that runs on this machine."""

from __future__ import annotations

import click


@click.command(hidden=True)
@click.argument("number", type=int)
@click.argument("circuit")
def member(number: int, circuit: str) -> int:
    """Be the member NUMBER of CIRCUIT, with the order on standard input, whose end ends it."""
    from nebuli.steps.local.member_process import run_member

    return run_member()
