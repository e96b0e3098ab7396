"""The checksum of rows: what it depends on, and what not."""

from __future__ import annotations

import datetime
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.steps.member.inputs.row_positions import checksum
from tests.support.sizes import examples

SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("number", pa.int64()),
        ("ratio", pa.float32()),
        ("word", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
VALUES = (
    st.booleans(),
    st.integers(-128, 127),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(timezones=st.just(datetime.UTC)),
)
ROWS = st.lists(st.tuples(*(st.none() | each for each in VALUES)), max_size=12)


def batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(SCHEMA)]
    return pa.record_batch(columns, schema=SCHEMA)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, st.lists(st.integers(0, 12)))
def test_rows_have_one_checksum_however_they_are_cut(rows: list[tuple[object, ...]], cuts: list[int]) -> None:
    places = sorted({0, len(rows), *(cut for cut in cuts if cut <= len(rows))})
    whole = batch(rows)
    pieces = [whole.slice(first, until - first) for first, until in pairwise(places)]
    assert checksum(pieces) == checksum([whole] if rows else [])


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, ROWS)
def test_other_rows_have_another(some: list[tuple[object, ...]], others: list[tuple[object, ...]]) -> None:
    """Also where nulls stand for values, texts share their bytes in another way, or rows are in another order."""
    alike = batch(some).equals(batch(others))  # by its bits, for which 0.0 is not -0.0
    same_bits = [str(row) for row in some] == [str(row) for row in others]
    if some and others:
        assert (checksum([batch(some)]) == checksum([batch(others)])) == (alike and same_bits)


def test_small_changes_change_it() -> None:
    row = (
        True,
        1,
        2,
        0.5,
        "ab",
        b"c",
        datetime.date(2024, 1, 1),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    )
    others = [
        [(*row[:4], "a", b"bc", *row[6:])],
        [(*row[:4], None, *row[5:])],
        [(*row[:4], "", *row[5:])],
        [(None, *row[1:])],
        [row, row],
    ]  # fmt: skip
    pairs = [[(*row[:4], word, *row[5:]) for word in words] for words in (("x", "yz"), ("xy", "z"))]
    sums = [checksum([batch(rows)]) for rows in ([row], *others, *pairs, pairs[0][::-1])]
    assert len(set(sums)) == len(sums)
