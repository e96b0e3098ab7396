"""The option that bounds what operators keep, the same for all commands that start workers."""

from __future__ import annotations

import click

from nebuli.limits import DEFAULT_MAX_STATE_BYTES

max_state_bytes = click.option(
    "--max-state-bytes",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_STATE_BYTES,
    show_default=True,
    help="What the state of an operator may hold, unless the query says so.",
)
