"""What options may be: numbers and paths that mean something, and bounds of what is kept, of state and of output."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import click

from nebuli.limits import DEFAULT_KEEP_OUTPUT_BYTES, DEFAULT_MAX_STATE_BYTES

if TYPE_CHECKING:
    from typing import Any

    from nebuli.store.store_url import StorePlace


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


DEFAULT_STORE = "./collections"
store_option = click.option(
    "--store",
    type=FilePath(),
    metavar="DIR|URL",
    default=DEFAULT_STORE,
    show_default=True,
    help="Where the collections are: a folder, or postgresql://USER@HOST/DATABASE?schema=NAME&blobs=s3://BUCKET/PREFIX.",
)


def state_place(given: str, option: str = "--state") -> StorePlace:
    """What ``--state`` says, or another option: a folder, or the URL of a store.

    Raises UsageError for what is neither, and ClickException where something is not installed.
    """
    from nebuli.store.errors import ExtraMissing, StoreUrlInvalid
    from nebuli.store.store_url import store_place

    try:
        return store_place(given)
    except StoreUrlInvalid as error:
        raise click.UsageError(f"{option}: {error}") from None
    except ExtraMissing as error:
        raise click.ClickException(str(error)) from None


_UNITS = {
    "": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"(\d+) ?([a-z]*)", re.ASCII | re.IGNORECASE)


def size_of(value: str) -> int:
    """How many bytes a text stands for. Raises BadParameter."""
    found = _SIZE.fullmatch(value)
    if found is None or found[2].upper() not in _UNITS:
        raise click.BadParameter(
            f"{value!r} is no size: give bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 500MB"
        )
    return int(found[1]) * _UNITS[found[2].upper()]


def _read_bound(context: click.Context, option: click.Parameter, value: str) -> int:
    size = size_of(value)
    if size < 1:
        raise click.BadParameter(f"{value} is no bound: give one byte at least")
    return size


max_state_bytes = click.option(
    "--max-state-bytes",
    callback=_read_bound,
    metavar="SIZE",
    default=f"{DEFAULT_MAX_STATE_BYTES >> 30}GiB",
    show_default=True,
    help="What the state of an operator may hold, unless the query says so: bytes, or as in 500MB or 2GiB.",
)


class KeepOutput(NamedTuple):
    """So many bytes; None: all."""

    max_bytes: int | None

    def __str__(self) -> str:
        """As it may be given."""
        return "all" if self.max_bytes is None else str(self.max_bytes)


NOTHING = KeepOutput(0)
DEFAULT = KeepOutput(DEFAULT_KEEP_OUTPUT_BYTES)


def _read_keep_output(
    context: click.Context, option: click.Parameter, value: str | None
) -> KeepOutput | None:
    if value is None:
        return None
    return KeepOutput(None if value == "all" else size_of(value))


close = click.option(
    "--close",
    "closes",
    is_flag=True,
    help="Have event time of a query in steps end with its inputs: all windows close. Without it those that are open "
    "wait for rows that a later run finds in its files.",
)
keep_output = click.option(
    "--keep-output",
    callback=_read_keep_output,
    metavar="SIZE|all",
    help="How much of the output that sinks have had each member keeps on disk for programs that read it, as in 500MB "
    "or 2GiB; 1GiB without it, or nothing where no program can.",
)
