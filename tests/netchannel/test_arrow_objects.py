"""Tables and data frames of other libraries are sent as they are, and channels are read by those libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import netchannel
from netchannel import ReceiverServer, SenderServer

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "word": ["a", "é", ""]})


class ArrayOnly:
    """It has the interface for one batch, and no other method."""

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return ROWS.to_batches()[0].__arrow_c_array__(requested_schema)


class StreamOnly:
    """It has the interface for several batches."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)]).__arrow_c_stream__(requested_schema)


def polars_frame() -> Any:
    import polars

    return polars.from_arrow(ROWS)


OBJECTS: list[Callable[[], Any]] = [
    lambda: ROWS,
    lambda: pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches(max_chunksize=1)),
    lambda: pd.DataFrame({"n": [1, 2, 3], "word": ["a", "é", ""]}),
    lambda: duckdb.sql("SELECT * FROM (VALUES (1::BIGINT, 'a'), (2, 'é'), (3, '')) AS t (n, word)"),
    ArrayOnly,
    StreamOnly,
]


async def received(*objects: Any) -> list[pa.RecordBatch]:
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=receiver.address)
        for each in objects:
            await outbox.send(each)
        await outbox.close()
        return [batch async for batch in inbox]


@pytest.mark.parametrize("made", OBJECTS)
async def test_an_object_with_arrows_interface_is_one_message(made: Callable[[], Any]) -> None:
    first, second = await received(made(), made())
    assert first.equals(ROWS.to_batches()[0])
    assert second.equals(first)


async def test_a_frame_of_polars_is_one_message() -> None:
    (batch,) = await received(polars_frame())
    assert batch.to_pylist() == ROWS.to_pylist()


async def test_a_table_without_rows_is_a_message_too() -> None:
    first, second = await received(ROWS.schema.empty_table(), ROWS)
    assert (first.num_rows, first.schema, second.num_rows) == (0, ROWS.schema, 3)


async def test_many_are_sent_at_once() -> None:
    """By `send_many`, mixed with batches."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=receiver.address)
        await outbox.send_many([ROWS, *ROWS.to_batches(), StreamOnly()])
        await outbox.close()
        assert [batch.num_rows async for batch in inbox] == [3, 3, 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"n": 1}], "a list: expected a pyarrow.RecordBatch, or an object with Arrow's PyCapsule interface"),
        (pa.array([1, 2]), "an Int64Array cannot be sent as one batch"),
        (ROWS.select(["n"]), "was sent on a channel of"),
    ],
)
async def test_another_object_is_refused_and_the_channel_goes_on(given: Any, said: str) -> None:
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=receiver.address)
        await outbox.send(ROWS)
        with pytest.raises(netchannel.SchemaMismatch, match=said):
            await outbox.send(given)
        await outbox.send(ROWS)
        await outbox.close()
        assert [batch.num_rows async for batch in inbox] == [3, 3]


READ_BY_OTHERS = """
import json, duckdb, netchannel, pyarrow as pa
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
def sent(name, codec="arrow"):
    inbox = receiver.register_channel(name, codec=codec)
    outbox = sender.register_channel(name, to=receiver.address, codec=codec)
    for number in range(3 if codec == "arrow" else 0):
        outbox.send(pa.table({"n": [number, number + 10]}))
    outbox.close()
    return inbox
numbers = sent("a")
total = duckdb.sql("SELECT sum(n), count(*) FROM numbers").fetchall()[0]
table = pa.table(sent("b"))
try:
    pa.table(sent("c", "bytes"))
except TypeError as error:
    refused = str(error)
print(json.dumps([total, table.to_pydict(), refused]))
"""


@pytest.mark.processes
def test_a_channel_of_the_blocking_face_is_an_arrow_stream() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READ_BY_OTHERS],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    total, table, refused = json.loads(done.stdout)
    assert total == [0 + 10 + 1 + 11 + 2 + 12, 6]
    assert table == {"n": [0, 10, 1, 11, 2, 12]}
    assert refused == "channel 'c' has codec 'bytes': its messages are not Arrow batches"
