"""Offsets: what a batch reads is said by its end, and does not depend on what has become of the channel since."""

from __future__ import annotations

import json

import pytest

from netchannel.values import Heads
from spark_bridge import DataLost, OptionError
from spark_bridge.options import Source
from spark_bridge.reading.offsets import Entry, Range, cut, decode, encode, initial, ranges

A, B = Source("a", "h:1", "a"), Source("b", "h:1", "b")


def offset(**entries: Entry) -> dict:
    """As it comes back from Spark's checkpoint."""
    return json.loads(json.dumps(encode(entries)))


def test_the_text_of_an_offset_does_not_depend_on_how_it_was_made():
    one = encode({"b": Entry("s", 1), "a": Entry("s", 2, first=1, holder="h", ended=True)})
    other = encode(decode(json.loads(json.dumps(one))))
    assert json.dumps(one) == json.dumps(other)
    assert json.dumps(one) == (
        '{"a": {"stream": "s", "from": 1, "seq": 2, "holder": "h", "ended": 1}, "b": {"stream": "s", "seq": 1}}'
    )


def test_a_batch_reads_from_where_its_end_says_that_it_began():
    start = offset(a=Entry("s", 10, first=0), b=Entry("t", 5, first=5))
    end = offset(a=Entry("s", 30, first=10), b=Entry("t", 5, first=5))
    assert ranges(start, end, (A, B)) == [Range(A, "s", 10, 30)]


def test_nothing_is_read_between_equal_offsets():
    here = offset(a=Entry("s", 10, first=0))
    assert ranges(here, here, (A,)) == []


def test_a_first_batch_that_is_run_again_does_not_heed_a_new_beginning():
    """After a crash Spark asks for the initial offset again; with ``latest`` it would be another one by now."""
    end = offset(a=Entry("s", 10, first=5, holder="before"))
    again = offset(a=Entry("s", 10, holder="after"))
    assert ranges(again, end, (A,)) == [Range(A, "s", 5, 10)]


def test_a_batch_that_goes_over_to_the_next_stream_reads_that_one():
    start = offset(a=Entry("s", 10, first=0, ended=True))
    assert ranges(start, offset(a=Entry("t", 3, first=0)), (A,)) == [Range(A, "t", 0, 3)]


def test_an_end_is_no_range():
    start = offset(a=Entry("s", 10, first=0))
    assert ranges(start, offset(a=Entry("s", 10, first=10, ended=True)), (A,)) == []


def test_ends_without_a_beginning_go_on_from_the_start():
    """As PySpark 4.1 leaves them."""
    assert ranges(offset(a=Entry("s", 4)), offset(a=Entry("s", 9)), (A,)) == [Range(A, "s", 4, 9)]
    assert ranges(offset(a=Entry(None, 0)), offset(a=Entry("s", 9)), (A,)) == [Range(A, "s", 0, 9)]


def test_a_channel_that_is_gone_from_the_options_is_missed_only_while_it_has_rows_to_read():
    start, end = offset(a=Entry("s", 1)), offset(a=Entry("s", 2, first=1))
    with pytest.raises(DataLost, match="requires messages of 'a', but this run reads only the channels b"):
        ranges(start, end, (B,))
    assert ranges(end, offset(a=Entry("s", 2, first=2), b=Entry("t", 1, first=0)), (B,)) == [
        Range(B, "t", 0, 1)
    ]


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 7, 50, 1000])
def test_cutting_keeps_every_message_once_and_in_order(pieces):
    whole = [Range(A, "s", 5, 105), Range(B, "t", 0, 3)]
    parts = cut(whole, pieces)
    for source in (A, B):
        numbers = [n for part in parts if part.source == source for n in range(part.first, part.until)]
        (each,) = [each for each in whole if each.source == source]
        assert numbers == list(range(each.first, each.until))
    assert len(parts) >= min(pieces, 103)
    assert all(part.first < part.until for part in parts)


def test_where_a_query_begins():
    heads = Heads("s", 5, 9, 90, 900, False, None)
    assert initial("c", "earliest", heads, "h") == Entry("s", 5, holder="h")
    assert initial("c", "latest", heads, "h") == Entry("s", 9, holder="h")
    assert initial("c", 7, heads, "h") == Entry("s", 7, holder="h")
    assert initial("c", {"stream": "r", "seq": 3}, heads, "h") == Entry("r", 3, holder="h")
    assert initial("c", "earliest", None, "h") == Entry(None, 0, holder="h")


def test_what_progress_shows_is_taken_as_a_beginning():
    heads = Heads("s", 5, 9, 90, 900, False, None)
    assert initial("c", {"stream": None, "seq": 0, "holder": "x"}, heads, "h") == Entry("s", 0, holder="h")
    assert initial("c", {"stream": None, "seq": 0}, None, "h") == Entry(None, 0, holder="h")
    for stream in ("r", "s"):
        ended = {"stream": stream, "from": 2, "seq": 7, "ended": True}
        assert initial("c", ended, heads, "h") == Entry(stream, 7, holder="h", ended=True)


@pytest.mark.parametrize("starting", [10, {"stream": "s", "seq": 10}])
def test_a_beginning_that_the_stream_has_not_got_to_is_refused(starting):
    """SP-OPT-1."""
    heads = Heads("s", 5, 9, 90, 900, False, None)
    with pytest.raises(
        OptionError,
        match=r"startingOffsets' gives number 10 for channel 'c', which has only the messages from 5 to 9",
    ):
        initial("c", starting, heads, "h")
