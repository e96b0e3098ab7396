from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.connectors.errors import FragmentError
from nebuli.connectors.positions import END, Span, as_note, of_note
from nebuli.dataflow import Progress

POSITIONS = st.integers(0, END)


@given(POSITIONS, POSITIONS, st.none() | st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans()))
def test_a_note_says_what_was_put_into_it(begin: int, end: int, progress: tuple[int, bool] | None) -> None:
    told = None if progress is None else Progress(*progress)
    assert of_note(as_note(Span(begin, end), told)) == (Span(begin, end), told)


def test_any_other_note_is_refused() -> None:
    with pytest.raises(FragmentError, match="a note has 3 bytes, but a worker's note has 16 or 25"):
        of_note(b"abc")
