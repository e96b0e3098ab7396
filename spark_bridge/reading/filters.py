"""The part of a channel that filters on the metadata columns leave, so that the rest is not read at all.

Spark gives filters to a source in Python where ``spark.sql.python.filterPushdown.enabled`` is true, and refuses one
that would take them where it is not. Spark filters what is read all the same: a range is wide enough if it has all
rows that pass.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from .range_reader import SEQUENCE, TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"


def are_pushed() -> bool:
    """True if this process of Spark plans a read with filters: it does not get the setting, but has another main."""
    return _PLANNER in sys.modules


@dataclass(frozen=True, slots=True)
class Window:
    """Messages from number ``first`` on, below ``until``; sent from ``since`` on, earlier than ``before``."""

    first: int = 0
    until: int | None = None
    since: datetime | None = None
    before: datetime | None = None


def window(filters: Iterable[Filter]) -> Window:
    """Return the range that all of ``filters`` leave; those on other columns, and of other kinds, leave everything."""
    first: list[int] = [0]
    until: list[int] = []
    since: list[datetime] = []
    before: list[datetime] = []
    for each in filters:
        low: Any
        high: Any
        match getattr(each, "attribute", ()):
            case (column,) if column == SEQUENCE:
                low, high = _bounds(each, 1)
                first += [low] * isinstance(low, int)
                until += [high] * isinstance(high, int)
            case (column,) if column == TIMESTAMP:
                low, high = _bounds(each, timedelta(microseconds=1))
                since += [low] * _is_instant(low)
                before += [high] * _is_instant(high)
    return Window(max(first), min(until, default=None), max(since, default=None), min(before, default=None))


def _is_instant(value: Any) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


def _bounds(each: Filter, step: Any) -> tuple[Any, Any]:
    """The least value that passes, and the one above the greatest; None where there is no bound."""
    low = high = None
    match each:
        case EqualTo():
            low, high = each.value, each.value + step
        case In() if each.value:
            low, high = min(each.value), max(each.value) + step
        case GreaterThan():
            low = each.value + step
        case GreaterThanOrEqual():
            low = each.value
        case LessThan():
            high = each.value
        case LessThanOrEqual():
            high = each.value + step
    return low, high
