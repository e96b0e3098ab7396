"""Types of options: finite numbers, paths, stores, and sizes that bound state and output."""

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
    """A finite number in a range. click accepts nan in every range, and inf in a range without an upper bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class FilePath(click.Path):
    """A path that is not empty: an unset variable in a script must not stand for the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("expected a path, got an empty string", param, ctx)
        return super().convert(value, param, ctx)


DEFAULT_STORE = "./collections"
store_option = click.option(
    "--store",
    type=FilePath(),
    metavar="DIR|URL",
    default=DEFAULT_STORE,
    show_default=True,
    help="Store of the collections: a folder, or postgresql://USER@HOST/DATABASE?schema=NAME&blobs=s3://BUCKET/PREFIX.",
)


def state_place(given: str, option: str = "--state") -> StorePlace:
    """Parse the value of ``--state``, or of another option: a folder, or the URL of a store.

    Raises UsageError if it is neither, and ClickException if a package is not installed.
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
    """Parse a size into bytes. Raises BadParameter."""
    found = _SIZE.fullmatch(value)
    if found is None or found[2].upper() not in _UNITS:
        raise click.BadParameter(
            f"invalid size {value!r}: give bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 500MB"
        )
    return int(found[1]) * _UNITS[found[2].upper()]


def _read_bound(context: click.Context, option: click.Parameter, value: str) -> int:
    size = size_of(value)
    if size < 1:
        raise click.BadParameter(f"{value} is too small: give at least 1 byte")
    return size


max_state_bytes = click.option(
    "--max-state-bytes",
    callback=_read_bound,
    metavar="SIZE",
    default=f"{DEFAULT_MAX_STATE_BYTES >> 30}GiB",
    show_default=True,
    help="Maximum size of the state of each operator, unless the query sets one: a number of bytes, or a size such as "
    "500MB or 2GiB.",
)


class KeepOutput(NamedTuple):
    """A number of bytes; None: all."""

    max_bytes: int | None

    def __str__(self) -> str:
        """Format as the option's value."""
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
    help="When the inputs of a query in steps end, also end its event time, so that all windows close. By default, "
    "open windows wait for the rows of a later run.",
)
keep_output = click.option(
    "--keep-output",
    callback=_read_keep_output,
    metavar="SIZE|all",
    help="Amount of sink output that each member keeps on disk for programs to read: a size such as 500MB or 2GiB.  "
    "[default: 1GiB, or 0 if no program can connect]",
)
