"""What a batch read plans, from a real server and without Spark."""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pytest

from netchannel import ChannelReader, RetainPolicy, SenderServer
from spark_bridge import DataLost, OptionError
from spark_bridge.batch_reader import BatchReader
from spark_bridge.options import read_options

SCHEMA = pa.schema({"id": pa.int64()})
NOT_THERE = {"stream": "old", "seq": 3}


@pytest.fixture
async def server():
    """Messages 2 to 5 of the stream ``new`` are kept, each with a row of its number."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.register_channel("rows", retain=RetainPolicy(), stream="new")
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
        (NOT_THERE, "latest", "startingOffsets says stream old, and the server has stream new", [2, 3, 4, 5]),
        ({"stream": "old", "seq": 99}, "latest", "startingOffsets says stream old", [2, 3, 4, 5]),
        ("earliest", NOT_THERE, "endingOffsets says stream old, and the server has stream new", [2, 3, 4, 5]),
        ("beginning", "latest", "messages 0 to 1 of new were freed", [2, 3, 4, 5]),
        ({"stream": None, "seq": 0}, "latest", "messages 0 to 1 of new were freed", [2, 3, 4, 5]),
        (1, "latest", "startingOffsets says 1, and the server has 2 to 6", [2, 3, 4, 5]),
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
        (7, "latest", "startingOffsets says 7 for channel 'rows', which has messages 2 to 6"),
        ("earliest", 7, "endingOffsets says 7 for channel 'rows', which has messages 2 to 6"),
        (5, 3, "endingOffsets says 3 for channel 'rows', and startingOffsets 5"),
    ],
)
async def test_what_cannot_be_a_range_is_refused(server, start, end, said):
    """SP-OPT-1."""
    with pytest.raises(OptionError, match=said):
        await ids(server, start, end, fail=False)
