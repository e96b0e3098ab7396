"""What a batch read plans, from a real server and without Spark."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

from netchannel import ChannelReader, RetainPolicy, SenderServer
from spark_bridge import DataLost, OptionError
from spark_bridge.options import read_options
from spark_bridge.reading.batch_reader import BatchReader, FilteringBatchReader
from tests.support.waiting import until_async

SCHEMA = pa.schema({"id": pa.int64()})
NOT_THERE = {"stream": "old", "seq": 3}


@pytest.fixture
async def server():
    """Messages 2 to 5 of the stream ``new`` are kept, each with a row of its number."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy(), stream="new")
        await outbox.send_many([pa.RecordBatch.from_pydict({"id": [n]}, schema=SCHEMA) for n in range(6)])
        async with ChannelReader(sender.address, "rows") as reader:
            await reader.ack("other", 2)
        yield sender


async def ids(server, start="earliest", end="latest", *, fail=True) -> list[int]:
    """The rows of a batch read."""
    given = {"endpoint": server.address, "channels": "rows", "connectTimeout": "5"}
    given |= {"failOnDataLoss": str(fail).lower()}
    for name, value in (("startingOffsets", start), ("endingOffsets", end)):
        given[name] = value if isinstance(value, str) else json.dumps({"rows": value})

    def read() -> list[int]:
        reader = BatchReader(read_options(given, "batch read"), SCHEMA)
        return [
            n for part in reader.partitions() for each in reader.read(part) for n in each["id"].to_pylist()
        ]

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("earliest", "latest", [2, 3, 4, 5]),
        (3, 5, [3, 4]),
        ({"stream": "new", "seq": 4}, "latest", [4, 5]),
        ({"stream": "old", "seq": 9, "ended": True}, "latest", [2, 3, 4, 5]),
    ],
)
async def test_a_batch_is_what_its_offsets_say(server, start, end, found):
    """SP-RD-1."""
    assert await ids(server, start, end) == found


@pytest.mark.parametrize(
    ("start", "end", "said", "found"),
    [
        (
            NOT_THERE,
            "latest",
            "startingOffsets names stream old, but the server has stream new",
            [2, 3, 4, 5],
        ),
        ({"stream": "old", "seq": 99}, "latest", "startingOffsets names stream old", [2, 3, 4, 5]),
        (
            "earliest",
            NOT_THERE,
            "endingOffsets names stream old, but the server has stream new",
            [2, 3, 4, 5],
        ),
        ("beginning", "latest", "messages 0 to 1 of new were freed", [2, 3, 4, 5]),
        ({"stream": None, "seq": 0}, "latest", "messages 0 to 1 of new were freed", [2, 3, 4, 5]),
        (1, "latest", "startingOffsets has message 1, but the server has messages 2 to 6", [2, 3, 4, 5]),
    ],
)
async def test_what_is_lost_is_an_error_or_the_read_goes_on_with_all_that_is_kept(
    server, caplog, start, end, said, found
):
    """SP-RD-1: numbers of one stream say nothing about another one."""
    with pytest.raises(DataLost, match=f"channel 'rows': {said}.*failOnDataLoss=false"):
        await ids(server, start, end)
    assert await ids(server, start, end, fail=False) == found
    assert said in caplog.text
    assert "failOnDataLoss" not in caplog.text


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (
            7,
            "latest",
            "startingOffsets' gives number 7 for channel 'rows', which has only the messages from 2 to 6",
        ),
        (
            "earliest",
            7,
            "endingOffsets' gives number 7 for channel 'rows', which has only the messages from 2 to 6",
        ),
        (5, 3, "endingOffsets has 3 for channel 'rows', but startingOffsets has 5"),
    ],
)
async def test_what_cannot_be_a_range_is_refused(server, start, end, said):
    """SP-OPT-1."""
    with pytest.raises(OptionError, match=said):
        await ids(server, start, end, fail=False)


async def test_filters_and_a_time_to_start_at_become_ranges(server):
    """And what may be gone is missed, unless the filters want none of it."""
    async with ChannelReader(server.address, "rows") as reader:
        sent = [each async for each in reader.read_messages(2, 6)]
        await until_async(lambda: _later(sent[-1]), "the clock goes on")
        between = datetime.now(UTC)
        outbox = server.retain_channel("more", RetainPolicy())
        await outbox.send(sent[0].batch)
    given = {"endpoint": server.address, "channels": "rows", "includeMetadata": "true"}

    def planned(filters, **options) -> list[tuple[int, int]]:
        reader = FilteringBatchReader(read_options(given | options, "batch read"), SCHEMA)
        assert reader.pushFilters(filters) == filters
        return [(part.value.first, part.value.until) for part in reader.partitions()]

    def check() -> None:
        low, high = GreaterThanOrEqual(("_sequence",), 3), LessThan(("_sequence",), 5)
        assert planned([low, high]) == [(3, 5)]
        assert planned([low, high], startingOffsets='{"rows": 4}') == [(4, 5)]
        assert planned([GreaterThanOrEqual(("_sequence",), 9)]) == []
        with pytest.raises(DataLost, match="messages 0 to 1 of new were freed"):
            planned([high])
        with pytest.raises(DataLost, match="a filter has message 1, but the server has messages 2 to 6"):
            planned([GreaterThanOrEqual(("_sequence",), 1)])
        past = [LessThan(("_timestamp",), between)]
        assert planned(past, startingOffsets="earliest") == [(2, 6)]
        assert planned([GreaterThanOrEqual(("_timestamp",), between)]) == []
        assert planned(past, channels="more") == []
        assert planned([], channels="more", startingTimestamp=between.isoformat()) == [(0, 1)]
        assert planned([], startingTimestamp=between.isoformat()) == []
        with pytest.raises(DataLost, match="messages 0 to 1 of new were freed"):
            planned([], startingTimestamp="2026-01-01T00:00:00Z")

    await asyncio.to_thread(check)


async def _later(message) -> bool:
    return datetime.now(UTC).timestamp() * 1e6 > message.timestamp + 1
