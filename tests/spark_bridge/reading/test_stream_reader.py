"""The streaming source without Spark: what its driver side answers, and what it acknowledges."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from netchannel import Position
from netchannel.values import Heads, Located
from spark_bridge import CheckpointReplaced, DataLost
from spark_bridge.options import read_options
from spark_bridge.reading.offsets import Entry
from spark_bridge.reading.stream_reader import StreamReader
from spark_bridge.versions import limits

SCHEMA = pa.schema({"id": pa.int64()})
ALL = limits.ReadAllAvailable()


class Channels:
    """A server that has channels with one row of ten bytes in every message."""

    def __init__(self) -> None:
        self.now: dict[str, Heads] = {}
        self.held: dict[str, str] = {}
        self.acknowledged: dict[str, Position] = {}

    def has(self, key, stream, oldest, head, ended=False, failure=None) -> None:
        self.now[key] = Heads(stream, oldest, head, head, 10 * head, ended, failure)

    def latest(self) -> dict[str, Heads]:
        return dict(self.now)

    def hold(self, key, holder, *, fresh) -> None:
        self.held[key] = holder

    hold_soon = hold

    def settle(self, timeout_s) -> None:
        pass

    def locate(self, key, first, limit) -> Located:
        count = min(
            self.now[key].head - first.sequence,
            limit.rows or 1 << 60,
            (limit.bytes or 1 << 60) // 10,
        )
        return Located(first.sequence + max(1, count), count, 10 * count)

    def since(self, key, at, heads) -> int:
        return 4

    def acknowledge(self, entries, heads) -> None:
        for key, entry in entries.items():
            if entry.first is not None and key in heads:
                self.acknowledged[key] = Position(entry.stream, entry.sequence)


@pytest.fixture
def channels() -> Channels:
    return Channels()


def made(channels, names="a,b", **options) -> StreamReader:
    given = {"endpoint": "h:1", "channels": names, **options}
    reader = StreamReader(read_options(given, "streaming read"), SCHEMA)
    reader._channels = channels
    return reader


def step(reader, start, limit=ALL) -> dict:
    """As Spark asks: by text, there and back."""
    return json.loads(json.dumps(reader.latestOffset(start, limit)))


def read(reader, start, end) -> list[tuple]:
    wanted = [partition.value for partition in reader.partitions(start, end)]
    return [(each.source.key, each.stream, each.first, each.until) for each in wanted]


def test_a_query_may_begin_before_its_channels(channels):
    reader = made(channels)
    start = reader.initialOffset()
    assert step(reader, start) == start
    channels.has("a", "s", 0, 3)
    end = step(reader, start)
    assert read(reader, start, end) == [("a", "s", 0, 3)]
    assert set(channels.held) == {"a", "b"}
    assert len(set(channels.held.values())) == 1
    assert channels.acknowledged == {}


def test_nothing_new_is_the_same_text_and_what_was_committed_is_acknowledged(channels):
    """SP-RD-4."""
    channels.has("a", "s", 0, 3)
    reader = made(channels)
    end = step(reader, reader.initialOffset())
    assert channels.acknowledged == {}
    assert step(reader, end) == end
    assert channels.acknowledged == {"a": Position("s", 3)}


def test_limits_of_the_options_hold_unless_spark_says_all(channels):
    """SP-RD-2."""
    channels.has("a", "s", 0, 100)
    reader = made(channels, maxRowsPerTrigger="30", maxBytesPerTrigger="200")
    assert reader.getDefaultReadLimit() == limits.ReadMaxRows(30)
    start = reader.initialOffset()
    assert read(reader, start, step(reader, start, limits.ReadMaxRows(30))) == [("a", "s", 0, 20)]
    assert reader.reportLatestOffset()["a"] == {
        "stream": "s",
        "seq": 100,
        "backlogRows": 80,
        "backlogBytes": 800,
    }
    assert read(reader, start, step(reader, start, ALL)) == [("a", "s", 0, 100)]
    assert reader.reportLatestOffset()["a"]["backlogRows"] == 0


def test_available_now_ends_at_what_was_there_when_it_began(channels):
    """SP-RD-2."""
    channels.has("a", "s", 0, 10)
    reader = made(channels, maxRowsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    now, ranges = reader.initialOffset(), []
    while (end := step(reader, now, limits.ReadMaxRows(6))) != now:
        ranges += read(reader, now, end)
        channels.has("a", "s", 0, 50)
        now = end
    assert ranges == [("a", "s", 0, 6), ("a", "s", 6, 10)]


def test_what_comes_behind_the_end_of_available_now_is_its_backlog(channels):
    channels.has("a", "s", 0, 10)
    reader = made(channels)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    reader._begin({key: Entry(None, 0, holder="me") for key in "ab"})
    reader._first = False
    channels.has("a", "s", 0, 50)
    assert read(reader, start, step(reader, start)) == [("a", "s", 0, 10)]
    now = reader.reportLatestOffset()["a"]
    assert (now["backlogRows"], now["backlogBytes"]) == (40, 400)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"endpoint": "h:1"}, {"endpoint": "h:1,h:2"}),
        ({"endpoint": "h:1,h:2"}, {"endpoint": "h:1,h:3"}),
        ({"endpoint": "h:1,h:2"}, {"endpoint": "h:2"}),
    ],
)
def test_a_channel_that_is_called_otherwise_than_in_the_checkpoint_is_not_read_again(channels, before, after):
    """It would be read from its beginning."""
    for key in ("a", "a@h:1", "a@h:2", "a@h:3"):
        channels.has(key, "s", 0, 5)
    reader = made(channels, "a", **before)
    now = step(reader, reader.initialOffset())
    with pytest.raises(
        DataLost, match=r"channel 'a' has the name .*start the query with the same endpoints as before"
    ):
        step(made(channels, "a", **after), now)


@pytest.mark.parametrize("planned", [False, True], ids=["committed", "planned"])
def test_a_channel_that_is_left_out_is_said_or_passed_over(channels, caplog, planned):
    """Also where the last batch of the run before has messages of it, and is run again."""
    for key in ("a", "b"):
        channels.has(key, "s", 0, 5)
    reader = made(channels)
    first = reader.initialOffset()
    now = step(reader, first)
    channels.has("a", "s", 0, 7)
    said = r"'b': .* up to message 5, but this run reads a: .*failOnDataLoss=false"
    for options in ({}, {"failOnDataLoss": "true"}):
        there = made(channels, "a", **options)
        with pytest.raises(DataLost, match=said):
            there.partitions(first, now) if planned else there.latestOffset(now, ALL)
    there = made(channels, "a", failOnDataLoss="false")
    if planned:
        assert read(there, first, now) == [("a", "s", 0, 5)]
    end = step(there, now)
    assert read(there, now, end) == [("a", "s", 5, 7)]
    assert step(there, end) == end
    there.commit(end)
    assert channels.acknowledged["a"] == Position("s", 7)
    assert len(caplog.records) == 1
    assert "reads a: start the query with all the channels and endpoints that it had" in caplog.text


def test_a_channel_without_a_stream_may_be_left_out(channels):
    """Nothing of it was read, so nothing is lost."""
    channels.has("a", "s", 0, 5)
    now = step(reader := made(channels), reader.initialOffset())
    assert step(made(channels, "a"), now) == now


@pytest.mark.parametrize("offset", [{"step": 5}, {"time": 5, "made": 1}, {"a": {"0": 12}}, {"a": None}, 12])
def test_a_checkpoint_of_another_source_is_said(channels, offset):
    with pytest.raises(
        CheckpointReplaced, match="which is not one of channels: another source has written it"
    ):
        made(channels).latestOffset(offset, ALL)


def test_an_endpoint_may_be_added_to_several(channels):
    for key in ("a@h:1", "a@h:2", "a@h:3"):
        channels.has(key, "s", 0, 5)
    reader = made(channels, "a", endpoint="h:1,h:2")
    now = step(reader, reader.initialOffset())
    more = made(channels, "a", endpoint="h:1,h:2,h:3")
    assert read(more, now, step(more, now)) == [("a@h:3", "s", 0, 5)]


def test_an_end_is_noted_once_and_the_next_stream_follows(channels):
    channels.has("a", "s", 0, 2, ended=True)
    reader = made(channels)
    start = reader.initialOffset()
    one = step(reader, start)
    assert one["a"]["ended"]
    assert step(reader, one) == one
    channels.has("a", "t", 0, 4)
    two = step(made(channels), one)  # also in another process
    assert read(reader, one, two) == [("a", "t", 0, 4)]
    channels.has("a", "u", 0, 1)
    with pytest.raises(DataLost, match="read stream t up to 4, but the server now has stream u"):
        step(made(channels), two)


def test_what_is_lost_is_passed_over_where_that_is_wanted(channels, caplog):
    channels.has("a", "s", 0, 5)
    reader = made(channels, failOnDataLoss="false")
    now = step(reader, reader.initialOffset())
    channels.has("a", "s", 8, 20)
    end = step(reader, now)
    assert read(reader, now, end) == [("a", "s", 8, 20)]
    assert step(reader, now) == end
    assert len(caplog.records) == 1
    assert "messages 5 to 7 of s" in caplog.text


def test_a_channel_that_is_added_is_read_from_its_beginning(channels):
    channels.has("a", "s", 0, 5)
    reader = made(channels, "a")
    now = step(reader, reader.initialOffset())
    channels.has("b", "t", 2, 7)
    with pytest.raises(DataLost, match="'b': messages 0 to 1 of t were freed"):
        step(made(channels), now)
    more = made(channels, startingOffsets="earliest")
    end = step(more, now)
    assert read(more, now, end) == [("b", "t", 2, 7)]
    assert end["b"]["holder"] == now["a"]["holder"] == channels.held["b"]


def test_two_queries_have_two_holders_and_a_query_that_comes_back_its_own(channels):
    channels.has("a", "s", 0, 5)
    one, other = made(channels).initialOffset(), made(channels).initialOffset()
    assert one["a"]["holder"] != other["a"]["holder"]
    end = step(made(channels), one)
    assert end["a"]["holder"] == channels.held["a"] == one["a"]["holder"]


def test_latest_begins_at_the_heads(channels):
    channels.has("a", "s", 0, 5)
    start = made(channels, startingOffsets="latest").initialOffset()
    assert (start["a"]["stream"], start["a"]["seq"], start["b"]["stream"]) == ("s", 5, None)


def test_pyspark_4_1_asks_without_a_start(channels):
    channels.has("a", "s", 0, 5)
    reader = made(channels)
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert read(reader, start, end) == [("a", "s", 0, 5)]
    channels.has("a", "s", 0, 9)
    later = made(channels)  # the query comes back
    assert read(later, end, later.latestOffset()) == [("a", "s", 5, 9)]
    later.commit(later.latestOffset())
    assert channels.acknowledged["a"] == Position("s", 9)


def test_it_travels_to_the_tasks_without_its_connections(channels):
    there = pickle.loads(pickle.dumps(made(channels, columns="id")))
    assert there._channels is None
    assert there._read.schema == SCHEMA


def test_a_run_that_begins_at_the_end_says_so_once_by_a_batch_of_nothing(channels):
    """Spark shows no offset that no batch had; and who waits for the end looks at what Spark shows."""
    channels.has("a", "s", 0, 5, ended=True)
    reader = made(channels, "a")
    end = step(reader, reader.initialOffset())
    assert end["a"]["ended"]
    assert step(reader, end) == end
    for _ in range(2):
        again = made(channels, "a")
        told = step(again, end)
        assert told != end
        assert told["a"] | {"from": 0, "ended": 0} == end["a"] | {"from": 0, "ended": 0}
        assert told["a"]["ended"]
        assert read(again, end, told) == []
        assert step(again, told) == told
        end = told
    once = made(channels, "a")
    once.prepareForTriggerAvailableNow()
    assert step(once, end) == end


def test_a_query_begins_where_the_first_message_of_a_time_is(channels):
    channels.has("a", "s", 2, 7)
    reader = made(channels, startingTimestamp="2026-01-01T00:00:00Z")
    start = reader.initialOffset()
    assert read(reader, start, step(reader, start)) == [("a", "s", 4, 7)]
    assert start["b"]["stream"] is None
