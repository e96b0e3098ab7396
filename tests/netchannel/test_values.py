"""What names may be."""

from __future__ import annotations

import sys
import unicodedata

from netchannel.values import is_channel_id, is_printable


def test_what_is_printable_is_what_unicode_says_of_assigned_characters() -> None:
    """And what no version of it has assigned may be assigned in another one: two peers must not differ there."""
    told = [chr(point) for point in range(sys.maxunicode + 1)]
    assigned = [each for each in told if unicodedata.category(each) != "Cn"]
    assert len(assigned) > 250_000
    assert [each for each in assigned if is_printable(each) != each.isprintable()] == []
    assert is_printable("\U0001fae9")  # of Unicode 16, and none of Python 3.11's


def test_an_id_has_255_bytes_and_not_characters() -> None:
    assert is_channel_id("é" * 127)
    assert not is_channel_id("é" * 128)
    assert not is_channel_id("")
    assert not is_channel_id("half of a pair: \ud800")
