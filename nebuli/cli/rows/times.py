"""Times of collections, in milliseconds since 1970: parsing and formatting."""

from __future__ import annotations

import datetime
from contextlib import suppress

import click

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_LAST = (1 << 63) - 1


def read_time(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Parse an option: milliseconds, or an ISO date and time, in UTC unless it has an offset. Raises BadParameter."""
    return None if value is None else time_of(value)


def time_of(value: str) -> int:
    """Parse a time into milliseconds. Raises BadParameter."""
    with suppress(ValueError, OverflowError):
        since = int(value) if value.isascii() and value.isdecimal() else _of_a_date(value)
        if 0 <= since <= _LAST:
            return since
    raise click.BadParameter(
        f"invalid time {value!r}: give milliseconds since 1970, or an ISO date and time, as in 2026-01-31T10:00:00.25Z"
    )


def _of_a_date(value: str) -> int:
    found = datetime.datetime.fromisoformat(value)
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return (found - _EPOCH) // datetime.timedelta(milliseconds=1)


def instant(at: int) -> str:
    """Format a time for people."""
    with suppress(ValueError, OverflowError, OSError):
        found = datetime.datetime.fromtimestamp(at // 1000, datetime.UTC)
        return f"{found:%Y-%m-%dT%H:%M:%S}.{at % 1000:03}Z"
    return str(at)
