"""Quotes are followed as Arrow reads them, however a stream is cut."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv
from hypothesis import given
from hypothesis import strategies as st

from nebuli.connectors.formats.csv_lines import Quotes, row_ends

TEXTS = st.lists(
    st.sampled_from(['"', '""', ",", "\n", "\r", "\r\n", "a", '"a"', "\ufeff"]), max_size=12
).map("".join)


def rows_of(text: bytes) -> int:
    """How many rows Arrow finds: each that has not so many values as the first is one, too."""
    odd: list[object] = []

    def count(row: object) -> str:
        odd.append(row)
        return "skip"

    try:
        rows = pa.csv.read_csv(
            io.BytesIO(text),
            read_options=pa.csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            parse_options=pa.csv.ParseOptions(
                newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=count
            ),
        )
    except pa.ArrowInvalid:
        return 0
    return rows.num_rows + len(odd)


@given(before=TEXTS, mark=st.sampled_from(["", "\ufeff"]))
def test_a_line_feed_ends_a_row_where_it_does_for_arrow(before: str, mark: str) -> None:
    """Behind it Arrow finds one row more, if it does."""
    text = (mark + "a" + before).encode() + b"a"
    quotes = Quotes()
    quotes.feed(text)
    assert rows_of(text + b"\nb\n") == rows_of(text + b"\n") + (not quotes.is_open)
    assert ((len(text) + 1) in row_ends(text + b"\n")) == (not quotes.is_open)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 40), max_size=4), mark=st.sampled_from(["", "\ufeff"]))
def test_cuts_make_no_difference(text: str, cuts: list[int], mark: str) -> None:
    data = (mark + text).encode()
    whole, cut = Quotes(), Quotes()
    ends = [end for end in row_ends(data) if end]
    last = whole.feed(data).last_row_end(data)
    found, at = 0, 0
    for end in [*sorted(min(each, len(data)) for each in cuts), len(data)]:
        piece = data[at:end]
        place = cut.feed(piece).last_row_end(piece)
        found = at + place if place else found
        at = end
    assert (cut.is_open, found) == (whole.is_open, last)
    assert last == (ends[-1] if ends else 0)
    assert not cut.is_open or cut.opened_at == whole.opened_at
