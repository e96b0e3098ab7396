"""Tasks that Spark tries again: each attempt is a stream of its own, and no consumer takes two for one."""

from __future__ import annotations

import asyncio
import os
import signal

import pyarrow as pa
import pytest

import spark_bridge
from netchannel import (
    ChannelClosedByPeer,
    ChannelFailed,
    FaultPolicy,
    ReceiverServer,
    SenderServer,
    StreamReplaced,
)
from tests.support.spark import run

pytestmark = pytest.mark.spark

SHORT = FaultPolicy(retry=0.5)


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2,2]")


async def read(inbox) -> list[int]:
    return [n for batch in [batch async for batch in inbox] for n in batch.column(0).to_pylist()]


def first_attempt() -> bool:
    from pyspark import TaskContext

    return TaskContext.get().attemptNumber() == 0


def failing_first(batches):
    for number, batch in enumerate(batches):
        if number == 3 and first_attempt():
            raise ValueError("a passing weakness")
        yield batch


async def test_the_second_attempt_is_a_new_and_whole_stream(spark):
    async with ReceiverServer() as receiver:
        first = asyncio.create_task(read(receiver.register_channel("again")))
        frame = spark.range(0, 10_000, 1, 1).mapInArrow(failing_first, "id BIGINT")
        send = spark_bridge.send("again", receiver.address)
        job = asyncio.create_task(run(frame.mapInArrow(send, spark_bridge.SENT).collect))
        with pytest.raises(ChannelFailed):
            await first

        assert await read(receiver.register_channel("again")) == list(range(10_000))
        assert [row.rows for row in await job] == [10_000]


async def test_a_consumer_that_reads_one_stream_never_gets_a_second(spark):
    """The first attempt ends its stream cleanly, then fails: the second finds nobody, and the job fails."""

    def fail_later(batches):
        yield from batches
        raise ValueError("a step behind the sender")

    async with ReceiverServer() as receiver:
        reading = asyncio.create_task(read(receiver.register_channel("once")))
        send = spark_bridge.send("once", receiver.address, fault=SHORT)
        frame = spark.range(0, 3000, 1, 1).mapInArrow(send, spark_bridge.SENT)
        with pytest.raises(Exception, match=r"no connection for 0\.5 s"):
            await run(frame.mapInArrow(fail_later, spark_bridge.SENT).collect)

        assert await reading == list(range(3000))


async def test_a_worker_that_is_killed_is_replaced_loudly(spark):
    async with ReceiverServer() as receiver:
        address = receiver.address

        def ship(rows):
            with spark_bridge.open_outbox("killed", to=address, fault=SHORT) as outbox:
                for number, _ in enumerate(rows):
                    outbox.send(pa.RecordBatch.from_pydict({"n": [number]}))
                    if number == 10 and first_attempt():
                        outbox.flush()
                        os.kill(os.getpid(), signal.SIGKILL)

        inbox = receiver.register_channel("killed")
        job = asyncio.create_task(run(lambda: spark.range(0, 100, 1, 1).foreachPartition(ship)))
        assert [(await inbox.recv()).column(0).to_pylist() for _ in range(11)] == [[n] for n in range(11)]
        with pytest.raises(StreamReplaced):
            await inbox.recv()

        assert await read(receiver.register_channel("killed")) == list(range(100))
        await job


async def test_a_producer_can_send_again_to_the_second_attempt(spark):
    batches = [pa.RecordBatch.from_pydict({"id": [n]}) for n in range(10)]
    attempts = []

    async def produce(desk, sender):
        while True:
            outbox = sender.register_channel("replayed", to=await spark_bridge.announced(desk, "replayed"))
            attempts.append(outbox)
            try:
                await outbox.send_many(batches)
                await outbox.close()
            except ChannelClosedByPeer:
                continue
            return

    def failing_after_four(rows):
        receive = spark_bridge.receive("replayed", address, pa.schema({"id": pa.int64()}))
        for number, batch in enumerate(receive(rows)):
            if number == 4 and first_attempt():
                raise ValueError("a passing weakness")
            yield batch

    async with ReceiverServer() as desk, SenderServer() as sender:
        address = desk.address
        frame = spark.range(1).coalesce(1).mapInArrow(failing_after_four, "id BIGINT")
        rows, _ = await asyncio.gather(run(frame.collect), produce(desk, sender))

    assert [row.id for row in rows] == list(range(10))
    assert len(attempts) == 2


async def test_a_producer_that_sends_once_makes_the_second_attempt_fail(spark):
    def failing(rows):
        for batch in spark_bridge.receive("vanished", address, pa.schema({"id": pa.int64()}), fault=SHORT)(
            rows
        ):
            raise ValueError(f"no use for {batch.num_rows} rows")
            yield batch

    async with ReceiverServer() as desk, SenderServer() as sender:
        address = desk.address
        job = asyncio.create_task(run(spark.range(1).coalesce(1).mapInArrow(failing, "id BIGINT").collect))
        outbox = sender.register_channel("vanished", to=await spark_bridge.announced(desk, "vanished"))
        await outbox.send(pa.RecordBatch.from_pydict({"id": [1]}))
        with pytest.raises(ChannelClosedByPeer, match="needs no more"):
            await outbox.close()
        with pytest.raises(Exception, match=r"no connection for 0\.5 s"):
            await job
