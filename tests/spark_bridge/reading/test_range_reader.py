"""What tasks read, from real servers and without Spark."""

from __future__ import annotations

import asyncio
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from netchannel import ChannelReader, ReceiverServer, RetainPolicy, SenderServer
from spark_bridge import DataLost, OptionError, SchemaConflict, SparkBridgeError
from spark_bridge.options import read_options
from spark_bridge.reading.offsets import Range
from spark_bridge.reading.range_reader import METADATA, RangeReader, check_declared
from spark_bridge.source import NetchannelDataSource
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

SCHEMA = pa.schema({"id": pa.int64()})


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": [number]}, schema=SCHEMA)


async def ids(
    address: str, stream: str, first: int, until: int, *, fail: bool = False, connect_timeout: float = 5
) -> list[int]:
    """The rows of a range, as a task reads them."""
    given = {"endpoint": address, "channels": "rows", "connectTimeout": str(connect_timeout)}
    connection = read_options(given, "streaming read").connection
    read = RangeReader(connection, SCHEMA, metadata=False, fail_on_data_loss=fail)
    wanted = Range(connection.sources[0], stream, first, until)
    return await asyncio.to_thread(
        lambda: [n for each in read(wanted) for n in each.column("id").to_pylist()]
    )


async def test_a_range_is_read_as_often_as_it_is_wanted():
    """SP-RD-1."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many([batch(n) for n in range(6)])
        for fail in (True, False):
            assert await ids(sender.address, outbox.stream, 2, 5, fail=fail) == [2, 3, 4]


async def test_a_task_that_was_away_reads_the_stream_that_is_there_now():
    """With failOnDataLoss=false: its reader has heard of the stream before only."""
    (address,) = free_addresses(1)
    async with SenderServer(address) as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(batch(1))
        assert await ids(address, outbox.stream, 0, 1) == [1]
    async with SenderServer(address) as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(batch(2))
        assert await ids(address, outbox.stream, 0, 1) == [2]


async def test_a_stream_that_is_gone_is_passed_over_where_that_is_wanted(caplog):
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(batch(1))
        assert await ids(sender.address, "another", 0, 1) == []
        assert "stream another and its messages are gone" in caplog.text
        with pytest.raises(DataLost, match="stream 'another' was requested"):
            await ids(sender.address, "another", 0, 1, fail=True)


async def test_a_task_does_not_wait_for_ever_for_a_server_that_came_back_without_a_stream():
    async with ReceiverServer() as receiver:
        receiver.retain_channel("rows", RetainPolicy())
        with pytest.raises(SparkBridgeError, match=r"no answer for channel 'rows' at .* within 1\.0 s"):
            await asyncio.wait_for(ids(receiver.address, "s", 0, 1, connect_timeout=1), 60)


async def test_what_is_freed_in_the_meantime_is_passed_over_where_that_is_wanted(caplog):
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many([batch(n) for n in range(6)])
        assert await ids(sender.address, outbox.stream, 0, 6) == list(range(6))
        async with ChannelReader(sender.address, "rows") as other:
            await other.ack("other", 4)
            assert await ids(sender.address, outbox.stream, 0, 6) == [4, 5]
            assert "messages 0 to 3 are gone" in caplog.text
            with pytest.raises(DataLost, match="number 0 of stream"):
                await ids(sender.address, outbox.stream, 0, 6, fail=True)
            await other.ack("other", 6)
            assert await ids(sender.address, outbox.stream, 0, 6) == []


async def test_a_batch_that_ends_beyond_what_a_server_has_now_can_be_read_again(tmp_path, caplog):
    """With failOnDataLoss=false: the server was started on an older copy of its directory."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy(directory=tmp_path))
        await outbox.send_many([batch(n) for n in range(3)])
        assert await ids(sender.address, outbox.stream, 1, 5, connect_timeout=1) == [1, 2]
        assert "messages 3 to 4 are gone" in caplog.text
        assert await ids(sender.address, outbox.stream, 4, 5, connect_timeout=1) == []


async def test_what_a_server_is_about_to_get_again_is_waited_for(caplog):
    """With failOnDataLoss=false: it keeps in memory, and its sender sends again what it has not acknowledged."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(batch(0))
        reading = asyncio.create_task(ids(sender.address, outbox.stream, 0, 3))
        await asyncio.to_thread(wait_for, lambda: sender.statistics().connections, "somebody who asks")
        await outbox.send_many([batch(n) for n in (1, 2)])
        assert await reading == [0, 1, 2]
        assert caplog.text == ""


GIVEN = pa.schema({"b": pa.int64(), "a": pa.string()})


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (GIVEN, {}),
        (GIVEN, {"columns": "b, a"}),
        (pa.schema([*GIVEN, *METADATA]), {"columns": "b, a", "includeMetadata": "true"}),
        (pa.schema([METADATA.field("_sequence").with_nullable(True), *GIVEN]), {"includeMetadata": "true"}),
        (pa.schema([*GIVEN, *METADATA]), {"columns": "b, a, _channel, _sequence, _timestamp"}),
    ],
)
def test_a_schema_that_is_given_may_say_what_options_say(schema, options):
    """SP-OPT-1."""
    check_declared(schema, read_options({"endpoint": "h:1", "channels": "rows", **options}))


@pytest.mark.parametrize(
    ("schema", "options", "error", "said"),
    [
        (
            GIVEN,
            {"columns": "a, b"},
            OptionError,
            "columns selects a, b, but the given schema selects b, a of the channel:",
        ),
        (GIVEN, {"columns": "b"}, OptionError, "columns selects b, but the given schema .* of the channel:"),
        (
            GIVEN,
            {"includeMetadata": "true"},
            OptionError,
            "has none of its columns: add those that you need .*_sequence BIGINT",
        ),
        (
            pa.schema({**dict(zip(GIVEN.names, GIVEN.types, strict=True)), "_timestamp": pa.string()}),
            {"includeMetadata": "true"},
            SchemaConflict,
            (
                r"'_timestamp' of the given schema is string, but includeMetadata gives "
                r"timestamp\[us, tz=UTC\]"
            ),
        ),
    ],
)
def test_options_that_a_schema_would_leave_without_effect_are_refused(schema, options, error, said):
    """SP-OPT-1."""
    with pytest.raises(error, match=said):
        check_declared(schema, read_options({"endpoint": "h:1", "channels": "rows", **options}))


async def test_a_channels_own_column_is_not_hidden_by_one_of_the_messages():
    """SP-OPT-1: with a schema that was given, nobody has looked at the channel's own before."""
    schema = pa.schema([METADATA.field("_channel"), ("id", pa.int64())])
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(pa.RecordBatch.from_pydict({"_channel": ["mine"], "id": [1]}))
        connection = read_options({"endpoint": sender.address, "channels": "rows"}).connection
        read = RangeReader(connection, schema, metadata=True, fail_on_data_loss=True)
        wanted = Range(connection.sources[0], outbox.stream, 0, 1)
        said = rf"channel 'rows' at {sender.address}: .* a column '_channel'.*includeMetadata"
        with pytest.raises(SchemaConflict, match=said):
            await asyncio.to_thread(lambda: list(read(wanted)))


N, LONG = pa.field("n", pa.int64()), pa.int64()
POINT, POINT_3D = pa.struct({"x": LONG}), pa.struct({"x": LONG, "y": LONG})


NEXT = {
    # The fields before and after, a row, options, and the row that is read, or the conflict.
    "added": ([N], [N, ("new", pa.string())], [2, "x"], {}, "column 'new' of type string would be lost"),
    "added first": ([N], [("new", pa.null()), N], [None, 2], {}, "column 'new' of type null would be lost"),
    "not chosen": ([N], [N, ("new", LONG)], [2, 3], {"columns": "n"}, {"n": 2}),
    "beside metadata": (
        [N],
        [N, ("m", LONG)],
        [2, 3],
        {"includeMetadata": "true"},
        "column 'm' of type int64",
    ),
    "another case": (
        [N],
        [("N", LONG)],
        [2],
        {},
        "a column 'n', but the batch has none .*: 'N' exists",
    ),
    "both cases": ([N], [N, ("N", LONG)], [2, 3], {}, "column 'N' of type int64 would be lost"),
    "twice": ([N], [N, N], [2, 3], {}, "a column 'n', but the batch has 2 of"),
    "gone": ([N, ("b", LONG)], [N], [2], {}, "a column 'b', but the batch has none of"),
    "gone, not chosen": ([N, ("b", LONG)], [N], [2], {"columns": "n"}, {"n": 2}),
    "renamed": ([N, ("b", LONG)], [N, ("c", LONG)], [2, 3], {}, "a column 'b', but the batch has none of"),
    "reordered": ([N, ("b", LONG)], [("b", LONG), N], [2, 3], {}, {"n": 3, "b": 2}),
    "narrower": ([N], [("n", pa.int8())], [2], {}, {"n": 2}),
    "wider": ([("n", pa.int32())], [N], [2], {}, {"n": 2}),
    "too wide": ([("n", pa.int32())], [N], [2**40], {}, "cannot be read as int32 without loss"),
    "double": ([N], [("n", pa.float64())], [2.0], {}, "declared as int64, but arrives as double"),
    "text": ([N], [("n", pa.string())], ["2"], {}, "declared as int64, but arrives as string"),
    "encoded": ([("n", pa.string())], [("n", pa.dictionary(pa.int8(), pa.string()))], ["a"], {}, {"n": "a"}),
    "added within": ([("p", POINT)], [("p", POINT_3D)], [{"x": 1, "y": 2}], {}, "arrives as struct<x.*y"),
    "gone within": ([("p", POINT_3D)], [("p", POINT)], [{"x": 1}], {}, "arrives as struct<x: int64>:"),
    "not null": ([N], [N.with_nullable(False)], [2], {}, {"n": 2}),
    "may be null": ([N.with_nullable(False)], [N], [2], {}, {"n": 2}),
    "null": ([N.with_nullable(False)], [N], [None], {}, "declared without nulls, but 1 of 1"),
}


@pytest.mark.parametrize(("before", "after", "row", "options", "outcome"), NEXT.values(), ids=NEXT)
async def test_a_next_stream_is_read_without_a_loss_or_is_a_conflict(before, after, row, options, outcome):
    """In a batch and in a stream, which keep the schema that they were given when they were loaded."""
    (address,) = free_addresses(1)
    given = {"endpoint": address, "channels": "rows", **options}
    async with SenderServer(address) as sender:
        sender.retain_channel("rows", RetainPolicy(), schema=pa.schema(before))
        source = NetchannelDataSource(given)
        schema = await asyncio.to_thread(source.schema)
    source = pickle.loads(pickle.dumps(source))
    target = pa.schema(after)
    arrays = [pa.array([value], field.type) for value, field in zip(row, target, strict=True)]
    async with SenderServer(address) as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(pa.RecordBatch.from_arrays(arrays, schema=target))
        part = InputPartition(Range(read_options(given).connection.sources[0], outbox.stream, 0, 1))
        for reader in (source.reader(schema), source.streamReader(schema)):
            read = pickle.loads(pickle.dumps(reader)).read
            rows = asyncio.to_thread(
                lambda read=read: [row for each in read(part) for row in each.to_pylist()]
            )
            if isinstance(outcome, str):
                with pytest.raises(SchemaConflict, match=f"channel 'rows' at {address}: .*{outcome}"):
                    await rows
            else:
                assert await rows == [outcome]


PAIR = pa.struct([("x", LONG), ("x", LONG)])
TWICE = {
    # The fields of a channel, the columns that are read, and the conflict, or the columns that Spark gets.
    "read": ([N, ("v", LONG), ("v", LONG)], None, "has 2 columns 'v', .* by the option columns"),
    "left out": ([N, ("v", LONG), ("v", LONG)], "n", ["n"]),
    "chosen": ([N, ("v", LONG), ("v", pa.string()), ("v", LONG)], "v", "has 3 columns 'v', "),
    "other cases": ([("v", LONG), ("V", LONG)], None, ["v", "V"]),
    "within": ([("s", PAIR)], None, "'s' within channel 'rows' at .* has 2 columns 'x'"),
    "within a list": (
        [("s", pa.list_(pa.large_list(PAIR)))],
        None,
        "'s' within channel 'rows' at .* has 2 columns 'x'",
    ),
    "within a map": (
        [("s", pa.map_(pa.string(), PAIR))],
        None,
        "'s' within channel 'rows' at .* has 2 columns 'x'",
    ),
    "within a struct": (
        [("s", pa.struct({"t": PAIR}))],
        None,
        "'t' within 's' within channel 'rows' at .* has 2 columns 'x'",
    ),
    "within, left out": ([N, ("s", PAIR)], "n", ["n"]),
    "no type of Spark": (
        [N, ("i", pa.month_day_nano_interval())],
        None,
        "column 'i': Spark has no type .*interval",
    ),
    "no type, left out": ([N, ("i", pa.month_day_nano_interval())], "n", ["n"]),
}


@pytest.mark.parametrize(("fields", "columns", "outcome"), TWICE.values(), ids=TWICE)
async def test_columns_that_spark_cannot_have_are_named_unless_they_are_left_out(fields, columns, outcome):
    async with SenderServer("127.0.0.1:0") as sender:
        sender.retain_channel("rows", RetainPolicy(), schema=pa.schema(fields))
        given = {"endpoint": sender.address, "channels": "rows"} | ({"columns": columns} if columns else {})
        schema = asyncio.to_thread(NetchannelDataSource(given).schema)
        if isinstance(outcome, str):
            with pytest.raises(SchemaConflict, match=outcome):
                await schema
        else:
            assert (await schema).names == outcome


async def test_channels_that_differ_in_columns_that_are_left_out_are_read_together():
    """As where a producer of one of them has added a column."""
    async with SenderServer("127.0.0.1:0") as sender:
        for name, fields in (("a", [N]), ("b", [("more", LONG), N])):
            sender.retain_channel(name, RetainPolicy(), schema=pa.schema(fields))
        given = {"endpoint": sender.address, "channels": "a,b"}
        with pytest.raises(SchemaConflict, match="channels 'a' and 'b' have different schemas"):
            await asyncio.to_thread(NetchannelDataSource(given).schema)
        assert (await asyncio.to_thread(NetchannelDataSource(given | {"columns": "n"}).schema)).names == ["n"]
