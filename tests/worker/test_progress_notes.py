from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow import Progress
from nebuli.worker.errors import FragmentError
from nebuli.worker.progress_notes import as_note, of_note


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())
def test_a_note_says_what_was_put_into_it(watermark: int, idle: bool) -> None:
    assert of_note(as_note(Progress(watermark, idle))) == Progress(watermark, idle)


def test_any_other_note_is_refused() -> None:
    with pytest.raises(FragmentError, match="a note has 3 bytes, and a watermark 9"):
        of_note(b"abc")
