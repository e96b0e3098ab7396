"""Executors as ends of channels, on a real Spark with two slots and without retries."""

from __future__ import annotations

import asyncio
import datetime
import os
import threading

import pyarrow as pa
import pytest

import netchannel
import netchannel.aio
import spark_bridge
from netchannel import ChannelClosedByPeer, ChannelFailed, FaultPolicy, ReceiverServer, SenderServer
from tests.support.spark import run

pytestmark = pytest.mark.spark

ROWS = 20_000
SECOND = datetime.timedelta(seconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2]")


async def read(inbox) -> list[dict]:
    return [row async for batch in inbox for row in batch.to_pylist()]


async def read_until_it_fails(inbox) -> tuple[list[dict], str]:
    rows = []
    try:
        async for batch in inbox:
            rows += batch.to_pylist()
    except ChannelFailed as failure:
        return rows, str(failure)
    raise AssertionError(f"a clean end after {len(rows)} rows")


async def test_executors_send_exactly_the_rows_of_their_partitions(spark):
    frame = spark.range(0, ROWS, 1, 2).selectExpr(
        "id", "timestamp_seconds(id) AS at", "array(cast(id AS INT)) AS list", "cast(id AS STRING) AS word"
    )
    async with ReceiverServer() as receiver:
        reads = [asyncio.create_task(read(receiver.register_channel(f"rows/{n}"))) for n in range(2)]
        send = spark_bridge.send("rows/{partition}", to=receiver.address)
        summary = await run(frame.mapInArrow(send, spark_bridge.SENT).collect)
        parts = await asyncio.gather(*reads)

    expected = [
        {"id": n, "at": EPOCH + n * SECOND, "list": [n], "word": str(n)} for n in range(ROWS)
    ]  # what Spark's SQL functions are documented to give
    assert parts == [expected[: ROWS // 2], expected[ROWS // 2 :]]
    assert sorted(map(tuple, summary)) == [(0, "rows/0", 10, ROWS // 2), (1, "rows/1", 10, ROWS // 2)]


async def test_timestamps_travel_in_utc_whatever_the_session_says(spark):
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("at")
        frame = spark.sql("SELECT timestamp_seconds(60) AS at, array(timestamp_seconds(1)) AS list").coalesce(
            1
        )
        reading = asyncio.create_task(read(inbox))
        await run(frame.mapInArrow(spark_bridge.send("at", receiver.address), spark_bridge.SENT).collect)
        schema = await inbox.schema()

    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("list").type.value_type == pa.timestamp("us", tz="UTC")
    assert await reading == [{"at": EPOCH + 60 * SECOND, "list": [EPOCH + SECOND]}]


async def test_an_empty_partition_is_an_empty_stream_with_its_schema(spark):
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("none")
        reading = asyncio.create_task(read(inbox))
        send = spark_bridge.send("none", receiver.address, schema="id BIGINT, at TIMESTAMP")
        frame = spark.range(0).selectExpr("id", "timestamp_seconds(id) AS at").coalesce(1)
        summary = await run(frame.repartition(1).mapInArrow(send, spark_bridge.SENT).collect)

        assert await reading == []
        assert [tuple(row) for row in summary] == [(0, "none", 0, 0)]
        assert await inbox.schema() == pa.schema({"id": pa.int64(), "at": pa.timestamp("us", tz="UTC")})


async def test_executors_receive_exactly_the_rows_in_sparks_types(spark):
    """Dictionaries, nanoseconds, narrow integers and another order of columns are what senders have."""
    ids = range(ROWS)
    table = pa.table(
        {
            "word": pa.array([str(n % 7) for n in ids]).dictionary_encode(),
            "at": pa.array([n * 1_000_000_000 for n in ids], pa.timestamp("ns", tz="+00:00")),
            "id": pa.array(ids, pa.int32()),
        }
    )
    schema = "id BIGINT, at TIMESTAMP, word STRING"

    async def produce(desk, sender, partition):
        channel = f"rows/{partition}"
        outbox = sender.register_channel(channel, to=await spark_bridge.announced(desk, channel))
        await outbox.send_many(table.slice(partition * ROWS // 2, ROWS // 2).to_batches(max_chunksize=777))
        await outbox.close()

    async with ReceiverServer() as desk, SenderServer() as sender:
        receive = spark_bridge.receive("rows/{partition}", announce=desk.address, schema=schema)
        frame = spark.range(0, 2, 1, 2).mapInArrow(receive, schema)
        rows, *_ = await asyncio.gather(run(frame.toArrow), *(produce(desk, sender, n) for n in range(2)))

    assert rows.column("id").to_pylist() == list(ids)
    assert rows.column("word").to_pylist() == [str(n % 7) for n in ids]
    assert [at.timestamp() for at in rows.column("at").to_pylist()] == list(ids)


async def test_foreach_partition_sends_through_an_outbox(spark):
    async with ReceiverServer() as receiver:
        address = receiver.address

        def ship(rows):
            with spark_bridge.open_outbox("rows/{partition}", to=address) as outbox:
                outbox.send(pa.RecordBatch.from_pylist([row.asDict() for row in rows]))

        reads = [asyncio.create_task(read(receiver.register_channel(f"rows/{n}"))) for n in range(2)]
        await run(lambda: spark.range(0, 1000, 1, 2).foreachPartition(ship))

        assert await asyncio.gather(*reads) == [
            [{"id": n} for n in range(500)],
            [{"id": n} for n in range(500, 1000)],
        ]


async def test_foreach_partition_receives_through_an_inbox(spark, tmp_path):
    async with ReceiverServer() as desk, SenderServer() as sender:
        address, result = desk.address, tmp_path / "sum"

        def store(rows):
            with spark_bridge.open_inbox("numbers", announce=address) as inbox:
                result.write_text(str(sum(sum(batch["n"].to_pylist()) for batch in inbox)), "utf-8")

        job = asyncio.create_task(run(lambda: spark.range(1).coalesce(1).foreachPartition(store)))
        outbox = sender.register_channel("numbers", to=await spark_bridge.announced(desk, "numbers"))
        await outbox.send(pa.RecordBatch.from_pydict({"n": range(100)}))
        await outbox.close()
        await job

    assert result.read_text("utf-8") == "4950"


def double_by_asyncio(address):
    """What a task does that asks a service about its rows: both ways at once, on an event loop of its own."""

    async def talk(batches) -> list[pa.RecordBatch]:
        from pyspark import TaskContext

        partition = TaskContext.get().partitionId()
        answers = netchannel.aio.receiver_server().register_channel(f"answers/{partition}")
        questions = netchannel.aio.sender_server().register_channel(f"questions/{partition}", to=address)

        async def ask() -> None:
            for batch in spark_bridge.complete(batches):
                await questions.send(batch, note=netchannel.aio.receiver_server().address.encode())
            await questions.close()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(ask())
            return [batch async for batch in answers]

    return lambda batches: asyncio.run(talk(batches))


@pytest.mark.parametrize("way", ["mapInArrow", "foreachPartition"])
async def test_the_asyncio_api_sends_and_receives_inside_tasks(spark, way, tmp_path):
    """SP-API-1."""

    async def answer(receiver, sender, partition):
        questions = receiver.register_channel(f"questions/{partition}")
        message = await questions.recv_message()
        answers = sender.register_channel(f"answers/{partition}", to=message.note.decode())
        batch = message.batch
        try:
            while True:
                doubled = [2 * n for n in batch["id"].to_pylist()]
                await answers.send(pa.RecordBatch.from_pydict({"id": doubled}))
                batch = await questions.recv()
        except netchannel.EndOfChannel:
            await answers.close()

    async with ReceiverServer() as receiver, SenderServer() as sender, asyncio.TaskGroup() as group:
        double = double_by_asyncio(receiver.address)

        def in_rows(rows):
            batch = pa.RecordBatch.from_pylist([row.asDict() for row in rows])
            for number, each in enumerate(double([batch])):
                (tmp_path / f"{each['id'][0]}-{number}").write_text(
                    "\n".join(map(str, each["id"].to_pylist())), "utf-8"
                )

        for partition in range(2):
            group.create_task(answer(receiver, sender, partition))
        frame = spark.range(0, 3000, 1, 2)
        if way == "mapInArrow":
            rows = [row.id for row in await run(frame.mapInArrow(double, "id BIGINT").collect)]
        else:
            await run(lambda: frame.foreachPartition(in_rows))
            rows = [int(line) for file in tmp_path.iterdir() for line in file.read_text("utf-8").splitlines()]
    assert sorted(rows) == [2 * n for n in range(3000)]


async def test_jobs_of_a_session_reuse_the_services_of_a_worker(spark):
    """SP-API-1: a worker process starts its services once, whatever number of jobs it serves."""

    def work(rows):
        list(rows)
        with spark_bridge.open_outbox("reuse", to=address) as outbox:
            outbox.send(pa.RecordBatch.from_pydict({"n": [1]}))
        service = netchannel.receiver_server().address
        threads = sum(thread.name == "netchannel" for thread in threading.enumerate())
        yield pa.RecordBatch.from_pylist([{"pid": os.getpid(), "service": service, "threads": threads}])

    async with ReceiverServer() as receiver:
        address = receiver.address
        jobs = []
        for _ in range(6):
            reading = asyncio.create_task(read(receiver.register_channel("reuse")))
            frame = spark.range(1).coalesce(1).mapInArrow(work, "pid BIGINT, service STRING, threads BIGINT")
            jobs += [tuple(row) for row in await run(frame.collect)]
            assert await reading == [{"n": 1}]

    assert len(jobs) == 6
    assert len(set(jobs)) == len({pid for pid, *_ in jobs}) < 6
    assert {threads for *_, threads in jobs} == {1}


def fail_in_python(batches):
    for number, batch in enumerate(batches):
        if number == 5:
            raise ValueError("a broken record")
        yield batch


FAILURES = {
    "python": lambda frame: frame.mapInArrow(fail_in_python, "id BIGINT"),
    "jvm": lambda frame: frame.selectExpr(
        "if(id = 5000, raise_error('a broken record'), id) AS id"
    ).selectExpr("cast(id AS BIGINT) AS id"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_above_the_task_fails_the_stream_although_the_rows_end_as_usual(spark, failure):
    frame = FAILURES[failure](spark.range(0, 10_000, 1, 1))
    async with ReceiverServer() as receiver:
        reading = asyncio.create_task(read_until_it_fails(receiver.register_channel("broken")))
        with pytest.raises(Exception, match="a broken record"):
            await run(
                frame.mapInArrow(spark_bridge.send("broken", receiver.address), spark_bridge.SENT).collect
            )
        rows, message = await reading

    assert rows == [{"id": n} for n in range(len(rows))]
    assert len(rows) <= 5000
    assert "InputIncomplete" in message


async def test_a_limit_closes_the_channel_under_its_producer(spark):
    async with ReceiverServer() as desk, SenderServer() as sender:
        receive = spark_bridge.receive("many", desk.address, "n BIGINT")
        slot = spark.range(1).coalesce(1)
        job = asyncio.create_task(run(slot.mapInArrow(receive, "n BIGINT").limit(3).collect))
        outbox = sender.register_channel("many", to=await spark_bridge.announced(desk, "many"))

        with pytest.raises(ChannelClosedByPeer, match="needs no more"):
            await outbox.send_many(pa.RecordBatch.from_pydict({"n": [n] * 1000}) for n in range(100_000))
        assert [row.n for row in await job] == [0, 0, 0]


async def test_foreach_partition_tells_a_failure_above_it_too(spark):
    async with ReceiverServer() as receiver:
        address = receiver.address

        def ship(rows):
            with spark_bridge.open_outbox("broken", to=address) as outbox:
                for row in rows:
                    outbox.send(pa.RecordBatch.from_pylist([row.asDict()]))

        reading = asyncio.create_task(read_until_it_fails(receiver.register_channel("broken")))
        with pytest.raises(Exception, match="a broken record"):
            await run(lambda: FAILURES["jvm"](spark.range(0, 10_000, 1, 1)).foreachPartition(ship))

        assert "InputIncomplete" in (await reading)[1]


async def test_an_exception_in_the_task_fails_the_stream_with_its_message(spark):
    async with ReceiverServer() as receiver:
        address = receiver.address

        def ship(rows):
            with spark_bridge.open_outbox("broken", to=address) as outbox:
                outbox.send(pa.RecordBatch.from_pydict({"n": [1]}))
                raise ValueError("the task does not like this row")

        reading = asyncio.create_task(read_until_it_fails(receiver.register_channel("broken")))
        with pytest.raises(Exception, match="does not like this row"):
            await run(lambda: spark.range(1).coalesce(1).foreachPartition(ship))

        assert await reading == (
            [{"n": 1}],
            "the producer of channel 'broken' failed: ValueError: the task does not like this row",
        )


async def test_rows_left_unread_by_choice_are_a_clean_end(spark):
    async with ReceiverServer() as receiver:
        address = receiver.address

        def ship_first(rows):
            with spark_bridge.open_outbox("first", to=address) as outbox:
                outbox.send(pa.RecordBatch.from_pylist([next(rows).asDict()]))

        reading = asyncio.create_task(read(receiver.register_channel("first")))
        await run(lambda: spark.range(0, 100_000, 1, 1).foreachPartition(ship_first))

        assert await reading == [{"id": 0}]


async def test_a_cancelled_job_never_looks_like_a_clean_end(spark):
    def slow(batches):
        for batch in batches:
            threading.Event().wait(0.02)
            yield batch

    frame = spark.range(0, 10_000_000, 1, 1).mapInArrow(slow, "id BIGINT")
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("cancelled", fault=FaultPolicy(retry=30))
        job = asyncio.create_task(
            run(frame.mapInArrow(spark_bridge.send("cancelled", receiver.address), spark_bridge.SENT).collect)
        )
        await inbox.recv()
        spark.sparkContext.cancelAllJobs()
        with pytest.raises(Exception, match="cancelled"):
            await job
        with pytest.raises((ChannelFailed, netchannel.ChannelBroken)):
            await read(inbox)


async def test_a_consumer_that_closes_fails_the_task(spark):
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("closed")
        frame = spark.range(0, 5_000_000, 1, 1)
        job = asyncio.create_task(
            run(frame.mapInArrow(spark_bridge.send("closed", receiver.address), spark_bridge.SENT).collect)
        )
        await inbox.recv()
        await inbox.close("enough")

        with pytest.raises(Exception, match=r"ChannelClosedByPeer.*enough"):
            await job


async def test_a_producer_that_fails_fails_the_task(spark):
    async with ReceiverServer() as desk, SenderServer() as sender:
        receive = spark_bridge.receive("failing", desk.address, "n BIGINT")
        job = asyncio.create_task(run(spark.range(1).coalesce(1).mapInArrow(receive, "n BIGINT").collect))
        outbox = sender.register_channel("failing", to=await spark_bridge.announced(desk, "failing"))
        await outbox.send(pa.RecordBatch.from_pydict({"n": [1]}))
        await outbox.abort("the sensor is broken")

        with pytest.raises(Exception, match=r"ChannelFailed.*the sensor is broken"):
            await job


async def test_a_task_that_fails_while_it_receives_tells_the_producer(spark):
    async with ReceiverServer() as desk, SenderServer() as sender:
        receive = spark_bridge.receive("words", desk.address, "n BIGINT")
        job = asyncio.create_task(run(spark.range(1).coalesce(1).mapInArrow(receive, "n BIGINT").collect))
        outbox = sender.register_channel("words", to=await spark_bridge.announced(desk, "words"))
        await outbox.send(pa.RecordBatch.from_pydict({"n": ["no number"]}))

        with pytest.raises(ChannelClosedByPeer, match="SchemaConflict"):
            await outbox.close()
        with pytest.raises(Exception, match=r"the column 'n' is declared as int64, but arrives as string"):
            await job


async def test_two_partitions_never_share_a_channel(spark):
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("shared")
        send = spark_bridge.send("shared", receiver.address)
        reading = asyncio.create_task(read(inbox))
        with pytest.raises(
            Exception, match=r"this is partition 1: put \{partition\} into the channel's name"
        ):
            await run(spark.range(0, 10, 1, 2).mapInArrow(send, spark_bridge.SENT).collect)
        reading.cancel()


async def test_a_receiver_that_never_comes_fails_the_task_in_time(spark):
    send = spark_bridge.send("nobody", "127.0.0.1:1", fault=FaultPolicy(retry=0.5))
    with pytest.raises(Exception, match=r"ChannelBroken.*no connection for 0\.5 s"):
        await run(spark.range(0, 10, 1, 1).mapInArrow(send, spark_bridge.SENT).collect)
