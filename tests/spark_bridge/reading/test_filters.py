"""What filters leave of a channel: whatever passes them must be within."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_bridge.reading.filters import Window, window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TESTS = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
}
NUMBERS = st.integers(-2, 12)
COMPARISONS = st.one_of(
    st.tuples(st.sampled_from([kind for kind in TESTS if kind is not In]), NUMBERS),
    st.tuples(st.just(In), st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
)


@given(st.lists(COMPARISONS, max_size=3))
def test_a_window_is_as_narrow_as_its_filters_and_no_narrower(comparisons):
    """Against all numbers; a list leaves what is between its least and its greatest."""
    passing = [n for n in range(10) if all(TESTS[kind](n, value) for kind, value in comparisons)]
    found = window([kind(("_sequence",), value) for kind, value in comparisons])
    within = [n for n in range(10) if n >= found.first and (found.until is None or n < found.until)]
    assert set(passing) <= set(within)
    if all(kind is not In for kind, _ in comparisons):
        assert passing == within

    times = [
        kind(("_timestamp",), tuple(map(_time, value)) if kind is In else _time(value))
        for kind, value in comparisons
    ]
    found = window(times)
    within = [
        n
        for n in range(10)
        if (found.since is None or _time(n) >= found.since)
        and (found.before is None or _time(n) < found.before)
    ]
    assert set(passing) <= set(within)
    if all(kind is not In for kind, _ in comparisons):
        assert passing == within


def _time(number: int) -> datetime:
    return NOON + timedelta(microseconds=number)


def test_other_columns_other_filters_and_times_without_a_zone_leave_everything():
    others = [
        EqualTo(("id",), 3),
        EqualTo(("_sequence", "_timestamp"), 3),
        Not(EqualTo(("_sequence",), 3)),
        IsNotNull(("_sequence",)),
        In(("_sequence",), ()),
        GreaterThan(("_timestamp",), NOON.replace(tzinfo=None)),
    ]
    assert window(others) == Window()
