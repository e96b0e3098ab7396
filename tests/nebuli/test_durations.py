"""Lengths of time as people give them."""

from __future__ import annotations

import pytest

from nebuli.durations import seconds_of


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("1h", 3600),
        ("90 min", 5400),
        ("250ms", 0.25),
        ("1.5d", 129_600),
        (" 7 ", 7),
        ("0s", 0),
        (2, 2),
        (0.5, 0.5),
    ],
)
def test_a_number_has_a_unit_or_is_of_seconds(given: str | float, seconds: float) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize(
    "given", ["", "h", "1 week", "-1s", "1e3", "1h30min", "\N{ARABIC-INDIC DIGIT ONE}h", "inf"]
)
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(
        ValueError, match="is not a length of time: give a number with one of ms, s, min, h, d"
    ):
        seconds_of(given)
