"""What options may be: numbers and paths that mean something, and bounds of what is kept, of state and of output."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import click

from nebuli.limits import DEFAULT_KEEP_OUTPUT_BYTES, DEFAULT_MAX_STATE_BYTES

if TYPE_CHECKING:
    from typing import Any


class Finite(click.FloatRange):
    """A number of a range; nan is in every range for click, as nothing is below it, and inf in one without an end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


class FilePath(click.Path):
    """A path; an empty one would be the working directory, which an empty variable of a script does not mean."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("expected a path, got an empty text", param, ctx)
        return super().convert(value, param, ctx)


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
