"""Executors that are processes of their own, of which one is killed in the middle of a query."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from netchannel import ReceiverServer, RetainPolicy, SenderServer, StagingPolicy
from tests.support.spark import run
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ROWS = 60_000
MESSAGE = 1000


@pytest.fixture(scope="module")
def spark(start_spark):
    import pyspark

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
        yield start_spark("local-cluster[2,1,1024]")


@pytest.mark.timeout(300)
async def test_an_executor_that_is_killed_costs_no_row(spark, tmp_path):
    """SP-RD-3, SP-RD-5, SP-WR-1: its tasks read and write on another one; nothing is lost, doubled or out of order."""
    running, killed = tmp_path / "running", tmp_path / "killed"

    def slow(parts):
        import threading

        from pyspark import TaskContext

        for number, part in enumerate(parts):
            if number == 1 and TaskContext.get().partitionId() == 0 and not killed.exists():
                running.with_suffix(".part").write_text(str(os.getppid()), "utf-8")
                running.with_suffix(".part").rename(running)
                threading.Event().wait(60)  # until this executor is killed
            yield part

    async def take(inbox) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"a": [], "b": []}
        while sum(map(len, found.values())) < 2 * ROWS:
            rows = await inbox.recv()
            for channel, number in zip(rows["channel"].to_pylist(), rows["id"].to_pylist(), strict=True):
                found[channel].append(number)
        return found

    async with SenderServer("127.0.0.1:0") as sender, ReceiverServer() as receiver:
        outboxes = [sender.retain_channel(name, RetainPolicy()) for name in "ab"]
        for outbox in outboxes:
            await outbox.send_many(
                pa.RecordBatch.from_pydict({"id": range(first, first + MESSAGE)})
                for first in range(0, ROWS, MESSAGE)
            )
        inbox = receiver.register_staged_channel("out", StagingPolicy(tmp_path / "staged"))
        reading = asyncio.create_task(take(inbox))

        def start():
            given = {"endpoint": sender.address, "channels": "a,b", "includeMetadata": "true"}
            read = spark.readStream.format("netchannel").options(**given, maxRowsPerTrigger="40000").load()
            rows = read.selectExpr("id", "_channel AS channel")
            writer = rows.mapInArrow(slow, "id BIGINT, channel STRING").writeStream.format("netchannel")
            writer = writer.options(endpoint=receiver.address, channels="out")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            return writer.trigger(availableNow=True).start()

        query = await run(start)
        await asyncio.to_thread(wait_for, running.exists, "a task runs", 90)
        executor = psutil.Process(
            int(running.read_text("utf-8"))
        ).parent()  # of the daemon that forked the task's process
        assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
        killed.touch()
        executor.kill()
        await run(query.awaitTermination, timeout_s=200)
        async with asyncio.timeout(60):
            found = await reading
        kept = [outbox.statistics().buffered_messages for outbox in outboxes]

    assert found == {"a": list(range(ROWS)), "b": list(range(ROWS))}
    assert kept == [0, 0]
