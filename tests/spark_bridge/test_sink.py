"""The data source, written to by a real Spark: batch and streaming, exactly once and at least once."""

from __future__ import annotations

import asyncio
import os
import shutil
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from netchannel import EndOfChannel, ReceiverServer, StagingPolicy
from tests.support.spark import run
from tests.support.waiting import wait_for
from tests.support.weak_tasks import failures, weak

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(start_spark):
    return start_spark("local[2,4]")


def staged(receiver, channel, directory, **settings):
    return receiver.register_staged_channel(channel, StagingPolicy(directory), **settings)


async def read(inbox) -> list[dict]:
    """All rows, to the end of the stream."""
    return [row async for batch in inbox for row in batch.to_pylist()]


async def take(inbox, rows: int) -> list[dict]:
    """So many rows."""
    found: list[dict] = []
    async with asyncio.timeout(60):
        while len(found) < rows:
            found += (await inbox.recv()).to_pylist()
    return found


async def nothing_came(spark, receiver, inbox) -> bool:
    """Whether nothing was published that was not read: what another writer publishes now comes next."""
    other = {"txnAppId": str(uuid4()), "txnVersion": "0", "endOfStream": "false"}
    await run(partial(save, spark.range(-1, 0), receiver, inbox.id, **other))
    return ids(await take(inbox, 1)) == [-1]


def save(frame, receiver, channels, mode="append", **options):
    frame.write.format("netchannel").mode(mode).options(
        endpoint=receiver.address, channels=channels, **options
    ).save()


class Query:
    """A streaming query that reads files of JSON, one per batch, and writes channels."""

    def __init__(self, spark, folder: Path, receiver, channels="out", change=lambda frame: frame, **options):
        self.folder = folder
        (folder / "in").mkdir(parents=True, exist_ok=True)
        read = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1)
        self._frame = change(read.json(str(folder / "in")))
        self._options = {"endpoint": receiver.address, "channels": channels, **options}
        self.checkpoint: Path | str = folder / "checkpoint"

    def put(self, name: str, ids) -> None:
        """Another batch."""
        file = self.folder / "in" / f".{name}"
        file.write_text("\n".join(f'{{"id": {n}}}' for n in ids), "utf-8")
        os.utime(file, (1e9 + int(name), 1e9 + int(name)))  # by which Spark orders them
        file.rename(self.folder / "in" / f"{name}.json")

    def start(self, **trigger):
        writer = self._frame.writeStream.format("netchannel").options(**self._options)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def to_the_end(self) -> None:
        self.start(availableNow=True).awaitTermination()


def ids(rows) -> list[int]:
    return [row["id"] for row in rows]


def failing(parts):
    for number, part in enumerate(parts):
        if number == 1:
            raise ValueError("a broken record")
        yield part


# -- batch


async def test_a_batch_write_is_published_once_in_the_order_of_partitions_and_ends(spark, tmp_path):
    """SP-WR-1, SP-WR-5."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path)
        reading = asyncio.create_task(read(inbox))
        frame = spark.range(0, 20_000, 1, 4).selectExpr("id", "timestamp_seconds(id) AS at")
        await run(lambda: save(frame, receiver, "out"))
        rows = await reading
        schema = await inbox.schema()

    assert ids(rows) == list(range(20_000))
    assert [row["at"].timestamp() for row in rows[:3]] == [0, 1, 2]
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert all(field.nullable for field in schema)


async def test_a_batch_write_ends_nothing_where_it_is_told_so(spark, tmp_path):
    """SP-WR-5."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path)
        for _ in range(2):
            await run(lambda: save(spark.range(10), receiver, "out", endOfStream="false"))
            assert sorted(ids(await take(inbox, 10))) == list(range(10))
        await run(lambda: save(spark.range(0), receiver, "out"))
        with pytest.raises(EndOfChannel):
            await inbox.recv()


async def test_a_task_that_fails_and_is_tried_again_writes_its_rows_once(spark, tmp_path):
    """SP-WR-1: as does the other one."""
    async with ReceiverServer() as receiver:
        reading = asyncio.create_task(read(staged(receiver, "out", tmp_path / "staged")))
        frame = spark.range(0, 20_000, 1, 2).mapInArrow(weak(tmp_path), "id BIGINT")
        await run(lambda: save(frame, receiver, "out"))
        assert ids(await reading) == list(range(20_000))
    assert failures(tmp_path) == 2


async def test_a_write_whose_upstream_fails_publishes_nothing(spark, tmp_path):
    """SP-WR-3."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path)
        broken = spark.range(0, 20_000, 1, 2).mapInArrow(failing, "id BIGINT")
        with pytest.raises(Exception, match="a broken record"):
            await run(lambda: save(broken, receiver, "out"))
        raised = spark.range(0, 20_000, 1, 2).selectExpr("if(id = 15000, raise_error('broken'), id) AS id")
        with pytest.raises(Exception, match="broken"):
            await run(lambda: save(raised.selectExpr("cast(id AS BIGINT) AS id"), receiver, "out"))
        await run(lambda: save(spark.range(10), receiver, "out"))
        assert sorted(ids(await read(inbox))) == list(range(10))


async def test_rows_are_parted_over_channels_by_partition_or_key(spark, tmp_path):
    """SP-WR-1."""
    async with ReceiverServer() as receiver:
        for options in ({}, {"keyColumns": "key"}):
            inboxes = [staged(receiver, f"out/{len(options)}/{n}", tmp_path) for n in range(3)]
            readings = [asyncio.create_task(read(inbox)) for inbox in inboxes]
            frame = spark.range(0, 5000, 1, 4).selectExpr("id", "cast(id % 40 AS STRING) AS key")
            names = ",".join(inbox.id for inbox in inboxes)
            await run(partial(save, frame, receiver, names, **options))
            parts = [await reading for reading in readings]
            assert sorted(n for part in parts for n in ids(part)) == list(range(5000))
            if options:
                keys = [{row["key"] for row in part} for part in parts]
                assert sum(map(len, keys)) == 40
                assert all(ids(part) == sorted(ids(part)) for part in parts)
            else:  # partitions 0 and 3 go to the first channel
                assert ids(parts[0]) == [*range(1250), *range(3750, 5000)]


async def test_a_write_with_a_version_is_done_once(spark, tmp_path):
    """SP-WR-1: as from foreachBatch, after a driver that died behind the commit."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path)
        once = {"txnAppId": "app", "endOfStream": "false"}
        for version, frame in ((4, spark.range(10)), (4, spark.range(10)), (5, spark.range(10, 20))):
            await run(partial(save, frame, receiver, "out", txnVersion=str(version), **once))
        assert sorted(ids(await take(inbox, 20))) == list(range(20))
        with pytest.raises(Exception, match=r"CheckpointReplaced.* 4.* 5|CheckpointReplaced.* 5.* 4"):
            await run(lambda: save(spark.range(10), receiver, "out", txnVersion="4", **once))
        assert await nothing_came(spark, receiver, inbox)


async def test_what_cannot_be_written_is_said(spark, tmp_path):
    """SP-OPT-1."""
    async with ReceiverServer() as receiver:
        with pytest.raises(Exception, match=r"cannot be overwritten, only appended to"):
            await run(lambda: save(spark.range(1), receiver, "out", mode="overwrite"))
        with pytest.raises(Exception, match=r"no option 'keycolums' .*did you mean keyColumns"):
            await run(lambda: save(spark.range(1), receiver, "out", keyColums="id"))
        with pytest.raises(Exception, match=r"keyColumns names 'key', but the rows have id"):
            await run(lambda: save(spark.range(1), receiver, "out", keyColumns="key"))


async def test_a_table_of_the_catalog_is_refused_before_anything_is_sent(spark, tmp_path):
    """SP-OPT-1: nobody could read it, and there is none afterwards. What foreachBatch writes is none."""
    said = r"a table of Spark's catalog, .*: write with save\(\) or start\(\)"
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        given = {"endpoint": receiver.address, "channels": "out", "endOfStream": "false"}
        frame = spark.range(3)
        writer = frame.write.format("netchannel").options(**given)
        for mode in ("append", "errorifexists"):
            with pytest.raises(Exception, match=said):
                await run(partial(writer.mode(mode).saveAsTable, "kept"))
        with pytest.raises(Exception, match=said):
            await run(frame.writeTo("kept").using("netchannel").options(**given).create)
        with pytest.raises(Exception, match=r"\bkept\b.* cannot be found"):
            await run(lambda: spark.table("kept").collect())
        query = Query(spark, tmp_path, receiver)
        query.put("0", range(3))

        def to_table(**trigger) -> None:
            stream = query._frame.writeStream.format("netchannel").options(
                endpoint=receiver.address, channels="out"
            )
            stream.option("checkpointLocation", str(tmp_path / "other")).trigger(**trigger).toTable(
                "kept"
            ).awaitTermination()

        def of_batches() -> None:
            stream = query._frame.writeStream.option("checkpointLocation", str(tmp_path / "batches"))
            by_batch = stream.foreachBatch(
                lambda rows, number: save(rows, receiver, "out", endOfStream="false")
            )
            by_batch.trigger(availableNow=True).start().awaitTermination()

        assert await nothing_came(spark, receiver, inbox)
        await run(of_batches)
        assert ids(await take(inbox, 3)) == [0, 1, 2]
        with pytest.raises(Exception, match=said):
            await run(partial(to_table, availableNow=True))
        await run(lambda: spark.sql("DROP TABLE IF EXISTS kept"))
        assert await nothing_came(spark, receiver, inbox)


# -- streaming


async def test_a_streaming_write_is_published_batch_by_batch_and_goes_on(spark, tmp_path):
    """SP-WR-1."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        query = Query(spark, tmp_path, receiver)
        for turn in range(2):
            for part in range(3):
                number = 3 * turn + part
                query.put(str(number), range(number * 10, number * 10 + 10))
            await run(query.to_the_end)
            assert ids(await take(inbox, 30)) == list(range(turn * 30, turn * 30 + 30))
        assert await nothing_came(spark, receiver, inbox)


async def test_a_batch_that_spark_runs_again_is_published_once(spark, tmp_path):
    """SP-WR-2: what a driver leaves that is killed between the sink's commit and Spark's."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        query = Query(spark, tmp_path, receiver)
        query.put("0", range(10))
        await run(query.to_the_end)
        query.put("1", range(10, 20))
        await run(query.to_the_end)
        for name in ("1", ".1.crc"):
            (query.checkpoint / "commits" / name).unlink()
        query.put("2", range(20, 30))
        await run(query.to_the_end)
        assert ids(await take(inbox, 30)) == list(range(30))
        assert await nothing_came(spark, receiver, inbox)


async def test_a_deleted_checkpoint_is_an_error_and_nothing_is_written_twice(spark, tmp_path):
    """SP-WR-4."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        for name, options in (("plain", {}), ("named", {"txnAppId": "app"})):
            query = Query(spark, tmp_path / name, receiver, **options)
            query.put("0", range(10))
            await run(query.to_the_end)
            assert ids(await take(inbox, 10)) == list(range(10))
            shutil.rmtree(query.checkpoint)
            query.checkpoint = f"file:{tmp_path}/./{name}/checkpoint"  # the same directory, written otherwise
            with pytest.raises(Exception, match=r"CheckpointReplaced.*checkpoint .* was deleted or replaced"):
                await run(query.to_the_end)
            assert await nothing_came(spark, receiver, inbox)
        shutil.rmtree(tmp_path / "named" / "checkpoint")
        renamed = Query(spark, tmp_path / "named", receiver, txnAppId="another")
        await run(renamed.to_the_end)
        assert ids(await take(inbox, 10)) == list(range(10))


async def test_an_older_checkpoint_is_an_error_with_both_numbers(spark, tmp_path):
    """SP-WR-4."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        query = Query(spark, tmp_path, receiver)
        query.put("0", range(10))
        await run(query.to_the_end)
        shutil.copytree(query.checkpoint, tmp_path / "old")
        for number in (1, 2):
            query.put(str(number), range(number * 10, number * 10 + 10))
            await run(query.to_the_end)
        shutil.rmtree(query.checkpoint)
        shutil.copytree(tmp_path / "old", query.checkpoint)
        with pytest.raises(Exception, match=r"CheckpointReplaced.*older than the written rows"):
            await run(query.to_the_end)
        assert ids(await take(inbox, 30)) == list(range(30))
        assert await nothing_came(spark, receiver, inbox)


async def test_a_query_whose_tasks_fail_publishes_once_and_one_that_fails_nothing(spark, tmp_path):
    """SP-WR-1, SP-WR-3."""
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        tried = Query(
            spark, tmp_path, receiver, change=lambda frame: frame.mapInArrow(weak(tmp_path), "id BIGINT")
        )
        tried.put("0", range(5000))
        await run(tried.to_the_end)
        assert ids(await take(inbox, 5000)) == list(range(5000))
        assert failures(tmp_path) == 1
        broken = Query(spark, tmp_path, receiver, change=lambda frame: frame.mapInArrow(failing, "id BIGINT"))
        broken.put("1", range(5000, 10_000))
        with pytest.raises(Exception, match="a broken record"):
            await run(broken.to_the_end)
        mended = Query(spark, tmp_path, receiver)
        await run(mended.to_the_end)
        assert ids(await take(inbox, 5000)) == list(range(5000, 10_000))


async def test_a_query_that_is_stopped_within_a_batch_publishes_nothing_of_it(spark, tmp_path):
    """SP-WR-3."""
    started = tmp_path / "started"

    def slow(parts):
        import threading

        for part in parts:
            yield part
            started.write_text("yes", "utf-8")
            threading.Event().wait(0.05)

    async with ReceiverServer() as receiver:
        inbox = staged(receiver, "out", tmp_path / "staged")
        query = Query(spark, tmp_path, receiver, change=lambda frame: frame.mapInArrow(slow, "id BIGINT"))
        query.put("0", range(100_000))
        running = await run(lambda: query.start(processingTime="0 seconds"))
        await asyncio.to_thread(wait_for, started.exists, "a batch begins", 60)
        await run(running.stop)
        quick = Query(spark, tmp_path, receiver)
        await run(quick.to_the_end)
        assert ids(await take(inbox, 100_000)) == list(range(100_000))


async def test_a_query_waits_for_a_consumer_that_stands_still_and_can_be_stopped_meanwhile(spark, tmp_path):
    """SP-WR-1: longer than for a server that is away, and each row is there once afterwards."""
    async with ReceiverServer() as receiver:
        policy = StagingPolicy(tmp_path / "staged", max_kept_bytes=100)
        inbox = receiver.register_staged_channel("out", policy, ack="explicit")
        query = Query(spark, tmp_path, receiver, connectTimeout="1")
        for number in range(4):
            query.put(str(number), range(number * 10, number * 10 + 10))
        for _ in range(2):
            running = await run(lambda: query.start(processingTime="0 seconds"))
            assert not await run(running.awaitTermination, 8)
            assert not running.exception()
            await run(running.stop, timeout_s=60)
        running = await run(lambda: query.start(processingTime="0 seconds"))
        found: list[int] = []
        async with asyncio.timeout(120):
            while len(found) < 40:
                message = await inbox.recv_message()
                found += ids(message.batch.to_pylist())
                await inbox.ack(message.sequence + 1)
        await run(running.stop)
        assert found == list(range(40))


async def test_at_least_once_writes_at_once_to_a_channel_that_goes_on(spark, tmp_path):
    """SP-WR-1: one stream over all tasks and batches, and over a restart of the query."""
    loose = {"deliveryGuarantee": "at-least-once"}
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("out")
        query = Query(spark, tmp_path, receiver, change=lambda frame: frame.coalesce(1), **loose)
        for turn in range(2):
            query.put(str(turn), range(turn * 10, turn * 10 + 10))
            await run(query.to_the_end)
        assert ids(await take(inbox, 20)) == list(range(20))
        with pytest.raises(
            Exception,
            match=r"for partition 1, because the number of channels is 1: name more channels, or call coalesce",
        ):
            await run(lambda: save(spark.range(0, 10, 1, 2), receiver, "more", **loose))

        ended = [receiver.register_channel(f"end/{n}") for n in range(2)]
        readings = [asyncio.create_task(read(each)) for each in ended]
        await run(lambda: save(spark.range(0, 10, 1, 2), receiver, "end/0,end/1", **loose))
        assert [ids(await reading) for reading in readings] == [list(range(5)), list(range(5, 10))]
