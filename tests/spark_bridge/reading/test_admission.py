"""How far a batch goes. SP-RD-2, without Spark."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netchannel import Position
from netchannel.values import Heads, Located
from spark_bridge.reading.admission import Limits, advance, failed, waiting
from spark_bridge.reading.offsets import Entry


def heads(stream="s", oldest=0, head=10, ended=False, failure=None) -> Heads:
    return Heads(stream, oldest, head, head * 10, head * 1000, ended, failure)


def test_nothing_new_is_nothing_to_plan():
    assert waiting(Entry("s", 10, first=3), heads()) is None
    assert waiting(Entry(None, 0), heads(head=0)) is None


def test_what_lies_beyond_is_waiting():
    assert waiting(Entry("s", 4), heads()).first == 4
    assert waiting(Entry(None, 0), heads(oldest=2)).first == 2
    assert waiting(Entry(None, 0), heads(oldest=2), kept=True).lost is None


@pytest.mark.parametrize("entry", [Entry(None, 0), Entry("s", 0)])
def test_a_beginning_that_was_freed_is_missed_with_what_to_do(entry):
    found = waiting(entry, heads(oldest=2))
    assert "messages 0 to 1 of s were freed" in found.lost
    assert "startingOffsets=earliest, which begins with message 2" in found.lost
    assert "RetainPolicy(consumers=...)" in found.lost


def test_an_end_is_news_once():
    assert waiting(Entry("s", 10), heads(ended=True)).first == 10
    assert waiting(Entry("s", 10, ended=True), heads(ended=True)) is None


def test_the_next_stream_is_read_from_its_beginning_after_an_end():
    found = waiting(Entry("s", 10, ended=True), heads("t", head=3))
    assert (found.first, found.lost) == (0, None)


@pytest.mark.parametrize(
    ("entry", "now", "says", "first"),
    [
        (Entry("s", 4), heads(oldest=6), "messages 4 to 5 of s", 6),
        (Entry("s", 14), heads(), "read stream s up to 14, but the server has this stream only up to 10", 10),
        (Entry("s", 4), heads("t"), "the server now has stream t", 0),
        (Entry("s", 4, ended=True), heads("t", oldest=2), "messages 0 to 1", 2),
    ],
)
def test_what_is_missing_is_said_with_both_numbers(entry, now, says, first):
    found = waiting(entry, now)
    assert says in found.lost
    assert found.first == first


def test_a_failed_producer_is_news_when_all_before_it_was_read():
    now = heads(ended=True, failure="the sensor is broken")
    assert failed(Entry("s", 9), now) is None
    said = failed(Entry("s", 10), now)
    assert (
        said == "its producer failed after message 10: the sensor is broken; all earlier messages were read"
    )


class Channels:
    """An oracle: messages with so many rows each, of which `locate` counts by hand."""

    def __init__(self, rows: dict[str, list[int]]) -> None:
        self.rows = rows
        self.asked = 0

    def heads(self) -> dict[str, Heads]:
        return {
            key: Heads("s", 0, len(rows), sum(rows), 8 * sum(rows), False, None)
            for key, rows in self.rows.items()
        }

    def locate(self, key: str, place: Position, limits: Limits) -> Located:
        self.asked += 1
        first = place.sequence
        total = [0, *accumulate(self.rows[key][first:])]
        count = len(total) - 1
        if limits.rows is not None:
            count = min(count, bisect_right(total, limits.rows) - 1)
        if limits.bytes is not None:
            count = min(count, bisect_right([8 * each for each in total], limits.bytes) - 1)
        count = max(count, min(1, len(total) - 1))
        return Located(first + count, total[count], 8 * total[count])


def plan(channels: Channels, start: dict[str, Entry], limits: Limits) -> dict[str, Entry]:
    now = channels.heads()
    found = {key: each for key, entry in start.items() if (each := waiting(entry, now[key])) is not None}
    return advance(start, found, limits, channels.locate) if found else start


def test_without_a_limit_nobody_is_asked():
    channels = Channels({"a": [1] * 5, "b": [1] * 7})
    ends = plan(channels, {"a": Entry("s", 2), "b": Entry("s", 7, first=0)}, Limits())
    assert ends == {"a": Entry("s", 5, first=2), "b": Entry("s", 7, first=7)}
    assert channels.asked == 0


def test_one_message_is_taken_however_large():
    channels = Channels({"a": [1000, 1000]})
    assert plan(channels, {"a": Entry("s", 0)}, Limits(rows=10))["a"].sequence == 1
    assert plan(channels, {"a": Entry("s", 0)}, Limits(bytes=10))["a"].sequence == 1


@given(
    rows=st.dictionaries(
        st.sampled_from("abc"), st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=3
    ),
    limit=st.integers(1, 60),
    by_bytes=st.booleans(),
)
def test_batches_stay_within_the_limit_and_read_everything_once(rows, limit, by_bytes):
    """SP-RD-2: at most the limit, or one message above it; every message in one batch, in order; an end comes."""
    channels = Channels(rows)
    limits = Limits(bytes=8 * limit) if by_bytes else Limits(rows=limit)
    now = {key: Entry("s", 0) for key in rows}
    read = {key: [] for key in rows}
    for _ in range(1 + sum(map(len, rows.values()))):
        ends = plan(channels, now, limits)
        if ends == now:
            break
        taken = 0
        largest = 0
        for key, end in ends.items():
            read[key] += range(end.first, end.sequence)
            parts = rows[key][end.first : end.sequence]
            taken, largest = taken + sum(parts), max([largest, *parts])
        assert taken <= limit or taken <= limit - 1 + largest
        assert any(end.sequence > now[key].sequence for key, end in ends.items())
        now = ends
    assert read == {key: list(range(len(each))) for key, each in rows.items()}


def test_no_channel_starves():
    channels = Channels({"big": [100] * 50, "small": [1] * 50})
    now = {"big": Entry("s", 0), "small": Entry("s", 0)}
    for _ in range(6):
        now = plan(channels, now, Limits(rows=100))
    assert now["small"].sequence > 0
    assert now["big"].sequence > 0


def test_an_end_is_told_where_the_batch_reaches_it():
    start = {"a": Entry("s", 0)}
    found = {"a": waiting(start["a"], heads(ended=True))}
    assert advance(start, found, Limits(), lambda *_: None)["a"] == Entry("s", 10, first=0, ended=True)
    part = advance(start, found, Limits(rows=5), lambda *_: Located(5, 5, 40))["a"]
    assert part == Entry("s", 5, first=0)
