"""A plain asyncio process sends a table to Spark's executors, and gets it back from them with one more column.

Run it with ``python examples/spark/roundtrip.py``; it needs Java 17 or later and the ``spark`` extra.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import spark_bridge
from netchannel import ReceiverServer, SenderServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
ROWS = 200_000
BATCH = 10_000
SCHEMA = "id BIGINT, word STRING"


def partition_of_table(partition: int) -> list[pa.RecordBatch]:
    """Every second row of the table."""
    ids = pa.array(range(partition, ROWS, PARTITIONS), pa.int64())
    words = pc.cast(ids, pa.string())
    batches: list[pa.RecordBatch] = pa.table({"id": ids, "word": words}).to_batches(max_chunksize=BATCH)
    return batches


def through_spark(spark: SparkSession, desk: str) -> DataFrame:
    """Each partition reads a channel of its own, and sends what it made of it on another one."""
    slots = spark.range(0, PARTITIONS, 1, numPartitions=PARTITIONS)
    numbers = slots.mapInArrow(spark_bridge.receive("numbers/{partition}", desk, SCHEMA), SCHEMA)
    squares = numbers.selectExpr("id", "word", "id * id AS square")
    return squares.mapInArrow(spark_bridge.send("squares/{partition}", to=desk), spark_bridge.SENT)


async def produce(desk: ReceiverServer, sender: SenderServer, partition: int) -> None:
    """Send a partition to the task that asks for it."""
    channel = f"numbers/{partition}"
    outbox = sender.register_channel(channel, to=await spark_bridge.announced(desk, channel))
    await outbox.send_many(partition_of_table(partition))
    await outbox.close()


async def consume(desk: ReceiverServer, partition: int) -> pa.Table:
    """Receive what a task sends, to its clean end."""
    return pa.Table.from_batches([batch async for batch in desk.register_channel(f"squares/{partition}")])


async def exchange(spark: SparkSession) -> pa.Table:
    """Both ways at once, while Spark runs its job on a thread."""
    async with ReceiverServer() as desk, SenderServer() as sender, asyncio.TaskGroup() as group:
        job = through_spark(spark, desk.address)
        sent = group.create_task(asyncio.to_thread(job.collect))
        results = [group.create_task(consume(desk, partition)) for partition in range(PARTITIONS)]
        for partition in range(PARTITIONS):
            group.create_task(produce(desk, sender, partition))
        tables = [await result for result in results]
        for row in sorted(await sent):
            print(f"partition {row.partition}: {row.rows} rows in {row.batches} batches over {row.channel}")
    return pa.concat_tables(tables)


def start_spark() -> SparkSession:
    """Two executor threads on this machine, with this Python."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("roundtrip")
    for key, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> int:
    """Print the count and a checksum; the exit code shows if they are right."""
    spark = start_spark()
    try:
        table = asyncio.run(exchange(spark))
    finally:
        spark.stop()
    checksum = pc.sum(table["square"]).as_py()
    expected = sum(n * n for n in range(ROWS))
    print(f"{table.num_rows} rows, sum of squares {checksum} (expected {expected})")
    return 0 if (table.num_rows, checksum) == (ROWS, expected) else 1


if __name__ == "__main__":
    sys.exit(main())
