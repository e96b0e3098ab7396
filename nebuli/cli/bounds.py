"""The options that bound what is kept: the state of operators, and what came out of a query in steps."""

from __future__ import annotations

import re
from typing import NamedTuple

import click

from nebuli.limits import DEFAULT_KEEP_OUTPUT_BYTES, DEFAULT_MAX_STATE_BYTES

max_state_bytes = click.option(
    "--max-state-bytes",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_STATE_BYTES,
    show_default=True,
    help="What the state of an operator may hold, unless the query says so.",
)

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(rf"(\d+) ?({'|'.join(_UNITS)})")


class KeepOutput(NamedTuple):
    """So many bytes; None: all."""

    max_bytes: int | None


NOTHING = KeepOutput(0)
DEFAULT = KeepOutput(DEFAULT_KEEP_OUTPUT_BYTES)


def _read(context: click.Context, option: click.Parameter, value: str | None) -> KeepOutput | None:
    if value is None:
        return None
    if value == "all":
        return KeepOutput(None)
    found = _SIZE.fullmatch(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no size: give bytes, or a number with KiB, MiB, GiB or TiB, or all"
        )
    return KeepOutput(int(found[1]) * _UNITS[found[2]])


keep_output = click.option(
    "--keep-output",
    callback=_read,
    metavar="SIZE|all",
    help="How much of the output that sinks have had each member keeps on disk for programs that read it; 1GiB without "
    "it, or nothing where no program can.",
)
