"""Numbers go through a streaming query of Spark, whose driver is killed in the middle and started again.

Run it with ``python examples/spark/exactly_once.py``; it needs Java 17 or later and the ``spark`` extra. The sender
keeps what it sends on disk, and the receiver takes what Spark writes only when Spark commits it: every number arrives
once and in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from netchannel import ReceiverChannel, ReceiverServer, RetainPolicy, SenderServer, StagingPolicy

ROWS = 100_000
BATCH = 500


def query(source: str, sink: str, checkpoint: str) -> None:
    """The driver: reads, squares, writes, until everything is done or it is killed."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("exactly once")
    for key, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(key, value)
    numbers = (
        builder.getOrCreate()
        .readStream.format("netchannel")
        .option("maxRowsPerTrigger", 10_000)
        .load(f"netchannel://{source}/numbers")
    )
    squares = numbers.selectExpr("n", "n * n AS square").writeStream.format("netchannel")
    squares = squares.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    squares.start(f"netchannel://{sink}/squares").awaitTermination()


async def run_driver(*arguments: str) -> asyncio.subprocess.Process:
    """The driver in a process of its own, with all that it starts."""
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, *arguments, start_new_session=True, stderr=asyncio.subprocess.DEVNULL
    )


async def take(inbox: ReceiverChannel, rows: int) -> list[int]:
    """So many numbers, at least."""
    found: list[int] = []
    while len(found) < rows:
        found += (await inbox.recv())["n"].to_pylist()
    return found


async def main() -> int:
    """Print what arrived; the exit code shows if it is right."""
    with tempfile.TemporaryDirectory() as folder:
        async with SenderServer("127.0.0.1:0") as sender, ReceiverServer() as receiver:
            outbox = sender.retain_channel("numbers", RetainPolicy(directory=Path(folder, "kept")))
            inbox = receiver.register_staged_channel("squares", StagingPolicy(Path(folder, "staged")))
            await outbox.send_many(
                pa.RecordBatch.from_pydict({"n": range(n, n + BATCH)}) for n in range(0, ROWS, BATCH)
            )
            arguments = (sender.address, receiver.address, str(Path(folder, "checkpoint")))
            driver = await run_driver(*arguments)
            arrived = await take(inbox, ROWS // 4)
            print(f"{len(arrived)} numbers have arrived: killing the driver")
            os.killpg(driver.pid, signal.SIGKILL)
            await driver.wait()
            driver = await run_driver(*arguments)
            arrived += await take(inbox, ROWS - len(arrived))
            await driver.wait()
            await outbox.flush()  # Spark has acknowledged everything
    right = arrived == list(range(ROWS))
    print(
        f"{len(arrived)} numbers arrived, {'each once and in order' if right else 'and not as they were sent'}"
    )
    return 0 if right else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        query(*sys.argv[1:])
    else:
        sys.exit(asyncio.run(main()))
