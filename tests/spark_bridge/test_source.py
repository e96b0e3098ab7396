"""The data source, read by a real Spark: batch and streaming, with tasks that fail and are tried again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from netchannel import ChannelReader, ReceiverServer, RetainPolicy, SenderServer
from spark_bridge import stop_at_end
from tests.docs.markdown import ROOT, blocks
from tests.support.spark import run
from tests.support.weak_tasks import failures, weak

pytestmark = pytest.mark.spark

SCHEMA = pa.schema({"id": pa.int64()})
PAGE = ROOT / "docs" / "how-to" / "spark-streaming.md"


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2,4]")


def batches(first: int, until: int, rows: int = 10) -> list[pa.RecordBatch]:
    """Messages with ``rows`` rows each, whose ids begin at ``first * rows``."""
    return [
        pa.RecordBatch.from_pydict({"id": range(n * rows, (n + 1) * rows)}, schema=SCHEMA)
        for n in range(first, until)
    ]


def ids(rows) -> list[int]:
    return [row.id for row in rows]


async def until_freed(outbox) -> None:
    """Wait until everything that was sent is acknowledged by all consumers."""
    async with asyncio.timeout(60):
        await outbox.flush()


async def frame_of(spark, sender, channels="rows", **options):
    """Not in the event loop's own thread, since servers that it runs are asked for the schema."""
    given = {"endpoint": sender.address, "channels": channels, **options}
    return await run(lambda: spark.read.format("netchannel").options(**given).load())


async def stream_of(spark, sender, channels="rows", **options):
    given = {"endpoint": sender.address, "channels": channels, **options}
    return await run(lambda: spark.readStream.format("netchannel").options(**given).load())


class Query:
    """A streaming query into files of JSON, one per batch, which are its result however often it is started."""

    def __init__(self, folder: Path, frame) -> None:
        self._folder = folder
        self._frame = frame

    def start(self, **trigger):
        out, checkpoint = str(self._folder / "out"), str(self._folder / "checkpoint")
        writer = self._frame.writeStream.format("json").option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start(out)

    def to_the_end(self):
        query = self.start(availableNow=True)
        query.awaitTermination()
        return query

    def rows(self, spark, schema="id BIGINT"):
        return spark.read.schema(schema).json(str(self._folder / "out")).collect()

    def ids(self, spark) -> list[int]:
        return sorted(ids(self.rows(spark)))


# -- batch


async def test_a_batch_read_gives_what_is_kept_as_often_as_it_is_read(spark):
    """SP-RD-1."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 100))
        frame = await frame_of(spark, sender)
        assert frame.schema.simpleString() == "struct<id:bigint>"
        for _ in range(2):
            assert ids(await run(frame.collect)) == list(range(1000))
        await outbox.send_many(batches(100, 101))
        assert await run((await frame_of(spark, sender)).count) == 1010


async def test_a_batch_read_of_nothing_gives_nothing_and_of_what_is_not_there_yet_a_sentence(spark):
    """SP-RD-1."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 3))
        assert await run((await frame_of(spark, sender, startingOffsets="latest")).count) == 0
        both = '{"rows": 2}'
        assert await run((await frame_of(spark, sender, startingOffsets=both, endingOffsets=both)).count) == 0
        for options, said in (
            (
                {"endingOffsets": '{"rows": 300}'},
                "gives number 300 for channel 'rows', which has only the messages from 0 to 3",
            ),
            (
                {"startingOffsets": '{"rows": 2}', "endingOffsets": '{"rows": 1}'},
                "the end is before the beginning",
            ),
        ):
            frame = await frame_of(spark, sender, **options)
            with pytest.raises(Exception, match=said):
                await run(frame.count)


async def test_a_channel_that_nothing_was_sent_on_is_not_waited_for_for_ever(spark):
    """SP-OPT-1: it has no schema to read by."""
    async with SenderServer("127.0.0.1:0") as sender:
        sender.retain_channel("rows", RetainPolicy())
        with pytest.raises(Exception, match=r"has no schema after 0\.3 s .* give a schema with \.schema"):
            await frame_of(spark, sender, connectTimeout=0.3)


async def test_a_batch_read_may_be_of_a_part_of_some_columns_and_with_what_is_known_of_messages(spark):
    """SP-RD-1."""
    data = [pa.RecordBatch.from_pydict({"a": [n, n], "b": [f"{n}", None], "c": [0.5, n]}) for n in range(20)]
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows/0", RetainPolicy())
        await outbox.send_many(data)
        start = json.dumps({"rows/0": {"stream": outbox.stream, "seq": 5}})
        end = json.dumps({"rows/0": 8})
        options = {
            "startingOffsets": start,
            "endingOffsets": end,
            "columns": "c, a",
            "includeMetadata": "true",
        }
        frame = await frame_of(spark, sender, "rows/0", **options)
        rows = [row.asDict() for row in await run(frame.collect)]
        sent = [row.pop("_timestamp") for row in rows]

    assert rows == [
        {"c": c, "a": n, "_channel": "rows/0", "_sequence": n} for n in range(5, 8) for c in (0.5, float(n))
    ]
    assert sorted(sent) == sent
    assert len({str(each) for each in sent}) <= 3


async def test_the_types_of_senders_become_sparks(spark):
    """Dictionaries, nanoseconds and narrow integers are what senders have; the schema may be given or asked for."""
    table = pa.table(
        {
            "word": pa.array(["a", "b", "a"]).dictionary_encode(),
            "at": pa.array([10**9 * n for n in range(3)], pa.timestamp("ns", tz="+00:00")),
            "n": pa.array(range(3), pa.uint8()),
        }
    )
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(table.to_batches(max_chunksize=2))
        frame = await frame_of(spark, sender)
        assert frame.schema.simpleString() == "struct<word:string,at:timestamp,n:smallint>"
        rows = await run(frame.selectExpr("word", "unix_seconds(at) AS at", "n").collect)
        assert [tuple(row) for row in rows] == [("a", 0, 0), ("b", 1, 1), ("a", 2, 2)]

        given = {"endpoint": sender.address, "channels": "rows"}
        declared = spark.read.format("netchannel").schema("n BIGINT, word STRING").options(**given)
        assert [tuple(row) for row in await run(declared.load().collect)] == [(0, "a"), (1, "b"), (2, "a")]
        with pytest.raises(
            Exception,
            match=r"columns selects word, but the given schema selects n, word of the channel",
        ):
            await run(declared.option("columns", "word").load().collect)
        numbered = spark.read.format("netchannel").schema("_sequence BIGINT, n BIGINT").options(**given)
        numbered.option("includeMetadata", "true")
        assert [tuple(row) for row in await run(numbered.load().collect)] == [(0, 0), (0, 1), (1, 2)]


async def test_several_senders_are_read_directly_with_one_partition_per_range(spark):
    """SP-RD-5."""
    where = "spark_partition_id() AS partition"
    async with SenderServer("127.0.0.1:0") as one, SenderServer("127.0.0.1:0") as other:
        for sender in (one, other):
            outbox = sender.retain_channel("rows", RetainPolicy())
            await outbox.send_many(batches(0, 40))
        await other.retain_channel("more", RetainPolicy()).send_many(batches(0, 1))
        options = {
            "endpoint": f"{one.address},{other.address}",
            "channels": f"rows,more@{other.address}",
            "includeMetadata": "true",
        }
        frame = spark.read.format("netchannel").options(**options)
        rows = await run(lambda: frame.load().selectExpr("id", "_channel", where).collect())
        frame.option("minPartitions", 9)
        parted = await run(lambda: frame.load().selectExpr("id", "_channel", where).collect())

    assert len(rows) == 810
    assert len({row.partition for row in rows}) == 3
    assert len({(row.partition, row._channel) for row in rows}) == 3
    assert sorted(row.id for row in rows) == sorted([*range(400), *range(400), *range(10)])
    assert sorted(map(tuple, [(row.id, row._channel) for row in parted])) == sorted(
        (row.id, row._channel) for row in rows
    )
    assert len({row.partition for row in parted}) >= 9
    for partition in {row.partition for row in parted}:
        within = [row.id for row in parted if row.partition == partition]
        assert within == sorted(within)


async def test_a_receiver_that_keeps_what_it_gets_is_read_in_the_same_way(spark):
    """SP-RD-1."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        receiver.retain_channel("rows", RetainPolicy())
        outbox = sender.register_channel("rows", to=receiver.address)
        await outbox.send_many(batches(0, 10))
        await outbox.flush()
        assert ids(await run((await frame_of(spark, receiver)).collect)) == list(range(100))


async def test_a_task_that_fails_reads_the_same_rows_again(spark, tmp_path):
    """SP-RD-3: each of two tasks fails twice."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 1000, rows=50))
        frame = await frame_of(spark, sender, minPartitions="2")
        rows = await run(frame.mapInArrow(weak(tmp_path, attempts=2), "id BIGINT").collect)
        assert sorted(ids(rows)) == list(range(50_000))
    assert failures(tmp_path) == 4


async def test_a_secret_opens_and_is_not_shown(spark):
    async with SenderServer("127.0.0.1:0", secret="open sesame") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 1))
        assert await run((await frame_of(spark, sender, secret="open sesame")).count) == 10
        with pytest.raises(Exception, match="secret") as error:
            await frame_of(spark, sender, secret="close sesame")
        assert "sesame" not in str(error.value)


async def test_what_is_wrong_with_options_reaches_the_user(spark):
    """SP-OPT-1."""
    with pytest.raises(Exception, match=r"no option 'maxrowspertriger' .*did you mean maxRowsPerTrigger"):
        await run(
            lambda: (
                spark.readStream.format("netchannel")
                .options(endpoint="127.0.0.1:1", channels="a", maxRowsPerTriger="1")
                .load()
            )
        )
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1 gave no answer within 0\.3 s: .*refused"):
        await run(
            lambda: (
                spark.read.format("netchannel")
                .option("connectTimeout", 0.3)
                .load("netchannel://127.0.0.1:1/a")
            )
        )


# -- streaming


async def test_available_now_reads_in_limited_batches_and_leaves_nothing_unacknowledged(spark, tmp_path):
    """SP-RD-2, SP-RD-4: the last batch is acknowledged when the query has ended."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 100))
        query = Query(tmp_path, await stream_of(spark, sender, maxRowsPerTrigger="250"))
        ran = await run(query.to_the_end)
        assert outbox.statistics().buffered_messages == 0
        progress = [each for each in ran.recentProgress if each["numInputRows"]]
        assert [each["numInputRows"] for each in progress] == [250] * 4
        latest = [json.loads(each["sources"][0]["latestOffset"])["rows"] for each in progress]
        assert [each["backlogRows"] for each in latest] == [750, 500, 250, 0]
        assert [each["seq"] for each in latest] == [100] * 4

        await outbox.send_many(batches(100, 130))
        await run(query.to_the_end)
        assert outbox.statistics().buffered_messages == 0
        assert await run(query.ids, spark) == list(range(1300))


async def test_bytes_are_limited_too(spark, tmp_path):
    """SP-RD-2."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 40, rows=1000))  # 8 000 bytes and what Arrow adds
        ran = await run(Query(tmp_path, await stream_of(spark, sender, maxBytesPerTrigger="100k")).to_the_end)
        taken = [each["numInputRows"] for each in ran.recentProgress if each["numInputRows"]]
        assert sum(taken) == 40_000
        assert max(taken) <= 12_000
        assert len(taken) >= 4


async def test_a_running_query_follows_its_channels_and_goes_on_where_it_stopped(spark, tmp_path):
    """SP-RD-2, SP-RD-4: what Spark has committed is acknowledged while nothing new comes."""
    async with SenderServer("127.0.0.1:0") as sender:
        outboxes = [sender.retain_channel(name, RetainPolicy()) for name in ("a", "b")]
        given = {"endpoint": sender.address, "channels": "a,b"}
        # With a schema of its own, since nothing was sent yet.
        frame = spark.readStream.format("netchannel").schema("id BIGINT").options(**given).load()
        query = Query(tmp_path, frame)
        for turn in range(2):
            running = await run(query.start)
            for part in range(3):
                for outbox in outboxes:
                    await outbox.send_many(batches(10 * (3 * turn + part), 10 * (3 * turn + part) + 10))
                    await until_freed(outbox)
            await run(running.stop)
        assert await run(query.ids, spark) == sorted([*range(600), *range(600)])


async def test_a_query_reads_the_next_stream_after_the_end_of_one(spark, tmp_path):
    async with ReceiverServer() as receiver, SenderServer() as sender:
        receiver.retain_channel("rows", RetainPolicy())
        given = {"endpoint": receiver.address, "channels": "rows"}
        frame = spark.readStream.format("netchannel").schema("id BIGINT").options(**given).load()
        query = Query(tmp_path, frame)
        running = await run(query.start)
        for turn in range(3):
            outbox = sender.register_channel("rows", to=receiver.address)
            await outbox.send_many(batches(turn * 10, turn * 10 + 10))
            async with asyncio.timeout(30):
                await outbox.close()
            await run(running.processAllAvailable)
            if turn == 1:  # and over a restart
                await run(running.stop)
                running = await run(query.start)
        await run(running.processAllAvailable)
        await run(running.stop)
        assert await run(query.ids, spark) == list(range(300))


async def test_latest_leaves_out_what_was_there_before(spark, tmp_path):
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 10))
        query = Query(tmp_path, await stream_of(spark, sender, startingOffsets="latest"))
        await run(query.to_the_end)
        await outbox.send_many(batches(10, 20))
        await run(query.to_the_end)
        assert await run(query.ids, spark) == list(range(100, 200))


async def test_what_is_lost_fails_the_query_or_is_skipped_as_told(spark, tmp_path):
    """A sender that keeps in memory comes back as another stream."""
    async with SenderServer("127.0.0.1:0") as sender:
        address = sender.address
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 10))
        query = Query(tmp_path, await stream_of(spark, sender))
        await run(query.to_the_end)
        await outbox.send_many(batches(10, 20))
    async with SenderServer(address) as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(50, 60))
        with pytest.raises(
            Exception, match=r"read stream .* up to 10, but the server now has stream .*failOnDataLoss"
        ):
            await run(query.to_the_end)
        careless = Query(tmp_path, await stream_of(spark, sender, failOnDataLoss="false"))
        await run(careless.to_the_end)
        assert await run(careless.ids, spark) == [*range(100), *range(500, 600)]


async def test_a_producer_that_fails_fails_the_query_after_its_rows(spark, tmp_path):
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 10))
        query = Query(tmp_path, await stream_of(spark, sender))
        aborting = asyncio.create_task(outbox.abort("the sensor is broken"))
        with pytest.raises(Exception, match=r"failed after message 10: .*the sensor is broken"):
            await run(query.to_the_end)
        await aborting
        assert await run(query.ids, spark) == list(range(100))


async def test_two_queries_over_one_channel_read_everything_where_both_are_named(spark, tmp_path):
    """As the page has it. And whoever is not named does not read less in silence."""
    async with SenderServer("127.0.0.1:0") as sender:
        page = snippets(tmp_path, "def keep(", "def both(")
        outbox = page["keep"](sender)
        await outbox.send_many(batches(0, 10))
        url = f"netchannel://{sender.address}/numbers"

        def both() -> None:
            for query in page["both"](spark, url):
                query.awaitTermination()

        await run(both)
        for name in ("squares", "audit"):
            folder = str(tmp_path / f"{name}.parquet")
            assert sorted(ids(await run(spark.read.parquet(folder).collect))) == list(range(100))
        assert outbox.statistics().buffered_messages == 0

        async def refused(name: str, said: str, **options: str) -> None:
            query = Query(
                tmp_path / name, await stream_of(spark, sender, "numbers", consumer=name, **options)
            )
            with pytest.raises(Exception, match=said):
                await run(query.to_the_end)

        await outbox.send_many(batches(10, 20))
        await refused("squares", r"'numbers' was read as consumer 'squares' by another query.*below 10")
        missing = r"messages 0 to 9 of .* were freed .*RetainPolicy\(consumers=.*startingOffsets=earliest"
        await refused("late", missing)
        with pytest.raises(Exception, match=missing):
            await run((await frame_of(spark, sender, "numbers")).collect)
        options = {"consumer": "late", "startingOffsets": "earliest"}
        late = Query(tmp_path / "kept", await stream_of(spark, sender, "numbers", **options))
        await run(late.to_the_end)
        assert await run(late.ids, spark) == list(range(100, 200))


def snippets(folder: Path, *beginnings: str) -> dict[str, Any]:
    """What some blocks of the page define, writing to ``folder``."""
    found: dict[str, Any] = {}
    for block in blocks(PAGE):
        if any(each in block.text for each in beginnings):
            text = block.text.replace('f"{name}.', f'f"{folder}/{{name}}.').replace(
                '"kept"', f'"{folder}/kept"'
            )
            exec(text, found)
    return found


async def test_two_loads_of_a_channel_in_one_query_need_two_names_and_one_frame_needs_one(spark, tmp_path):
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy(consumers=("a", "b"), lease_s=0.0))
        await outbox.send_many(batches(0, 5))
        a = await stream_of(spark, sender, consumer="a", connectTimeout="1")
        again = await stream_of(spark, sender, consumer="a", connectTimeout="1")
        same = Query(tmp_path / "same", a.union(again))
        with pytest.raises(
            Exception, match=r"another load\(\) of this query, reads channel 'rows' as consumer 'a'"
        ):
            await run(same.to_the_end)
        twice = Query(tmp_path / "twice", a.union(a))
        await run(twice.to_the_end)
        assert await run(twice.ids, spark) == sorted([*range(50), *range(50)])
        await outbox.send_many(batches(5, 6))
        b, c = [await stream_of(spark, sender, consumer=name) for name in ("b", "c")]
        both = Query(tmp_path / "both", b.union(c))
        await run(both.to_the_end)
        assert await run(both.ids, spark) == sorted([*range(60), *range(60)])


async def test_a_query_is_stopped_at_the_end_of_its_channels_and_again_when_it_comes_back(spark, tmp_path):
    """All is written and acknowledged then, so that the producer is done too."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 10))
        query = Query(tmp_path, await stream_of(spark, sender))
        running = await run(query.start)
        assert not await run(stop_at_end, running, 1.0)
        assert running.isActive
        closing = asyncio.create_task(outbox.close())
        assert await run(stop_at_end, running, 60.0)
        assert not running.isActive
        assert (await closing).undelivered == 0
        assert await run(query.ids, spark) == list(range(100))
        again = await run(query.start)
        assert await run(stop_at_end, again, 60.0)
        assert await run(query.ids, spark) == list(range(100))


async def test_a_temporary_view_reads_channels_and_a_table_says_so(spark):
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 3))
        given = f"(endpoint '{sender.address}', channels 'rows')"

        def sql(text: str) -> list:
            return spark.sql(text).collect()

        await run(sql, f"CREATE TEMPORARY VIEW seen USING netchannel OPTIONS {given}")
        assert ids(await run(sql, "SELECT * FROM seen")) == list(range(30))
        said = "use a temporary view, CREATE TEMPORARY VIEW name USING netchannel OPTIONS"
        with pytest.raises(Exception, match=said):
            await run(sql, f"CREATE TABLE kept USING netchannel OPTIONS {given}")
        await run(sql, f"CREATE TABLE declared (id BIGINT) USING netchannel OPTIONS {given}")
        with pytest.raises(Exception, match=said):
            await run(sql, "SELECT * FROM declared")
        await run(sql, "DROP TABLE declared")


async def test_filters_on_what_is_known_of_messages_read_no_more_than_they_leave(spark):
    """Shown by what is not there any more, and is not missed; where Spark does not push them the rows are the same."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 10))
        setting = "spark.sql.python.filterPushdown.enabled"
        narrow = "_sequence >= 4 AND _sequence < 6 AND id < 55 AND _timestamp > '2020-01-01'"
        for pushed in (False, True):
            spark.conf.set(setting, pushed)
            try:
                frame = await frame_of(spark, sender, includeMetadata="true")
                assert ids(await run(frame.where(narrow).collect)) == list(range(40, 55))
                if pushed:
                    async with ChannelReader(sender.address, "rows") as reader:
                        await reader.ack("other", 4)
                    assert ids(await run(frame.where(narrow).collect)) == list(range(40, 55))
                    assert (
                        await run(frame.where("_timestamp < '2020-01-01' AND _sequence >= 4").collect) == []
                    )
            finally:
                spark.conf.unset(setting)


async def test_tasks_of_a_streaming_query_that_fail_read_the_same_rows_again(spark, tmp_path):
    """SP-RD-3: each of the two tasks of each of two batches fails once."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many(batches(0, 1000, rows=100))
        frame = await stream_of(spark, sender, minPartitions="2", maxRowsPerTrigger="50000")
        query = Query(tmp_path, frame.mapInArrow(weak(tmp_path), "id BIGINT"))
        await run(query.to_the_end)
        assert await run(query.ids, spark) == list(range(100_000))
        assert outbox.statistics().buffered_messages == 0
    assert failures(tmp_path) == 4
