"""What the driver publishes of what tasks have sealed, with real servers and without Spark."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StructField, StructType

from netchannel import AttemptLost, ChannelBroken, EpochRegressed, ReceiverServer, StagingPolicy
from spark_bridge import CheckpointReplaced, SchemaConflict
from spark_bridge.options import WriteOptions, write_options
from spark_bridge.schemas import Normaliser, arrow_schema
from spark_bridge.writing.publisher import Query, drop, publish
from spark_bridge.writing.task_writer import Attempts, Rows, Work
from spark_bridge.writing.writers import BatchWriter, Written

SCHEMA = pa.schema({"id": pa.int64()})


def options(receiver: ReceiverServer, channels: str = "out", **given: Any) -> WriteOptions:
    here = {"endpoint": receiver.address, "channels": channels, "connectTimeout": "5"}
    return write_options(here | given, "batch write")


def written(options: WriteOptions, work: Work, ids: list[int], channel: int = 0) -> Attempts:
    """What a task returns that has written its only partition to the channel of that number."""
    attempt = Rows(options, SCHEMA).attempt(channel, work, 0)
    key = options.connection.sources[channel].key
    try:
        attempt.send(pa.RecordBatch.from_pydict({"id": ids}, schema=SCHEMA))
        return Attempts(((key, attempt.seal()),))
    except EpochRegressed:
        return Attempts(over=frozenset([key]))


async def save(options: WriteOptions, work: Work, ids: list[int]) -> None:
    made = await asyncio.to_thread(written, options, work, ids)
    await asyncio.to_thread(publish, options, work, [made], None)


def staged(receiver: ReceiverServer, directory: Path, channel: str = "out"):
    return receiver.register_staged_channel(channel, StagingPolicy(directory))


@pytest.mark.parametrize("read", [False, True], ids=["before it is read", "after it was read to its end"])
async def test_a_versioned_write_that_has_ended_the_stream_does_nothing_when_it_is_done_again(tmp_path, read):
    """SP-WR-5: as after a driver that died behind its commit."""
    work = Work("app", 3)
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, tmp_path)
        once = options(receiver, txnAppId="app", txnVersion="3")
        await save(once, work, [1, 2])
        if read:
            assert [batch.to_pydict() async for batch in inbox] == [{"id": [1, 2]}]
        await asyncio.wait_for(save(once, work, [1, 2]), 60)
        if not read:
            assert [batch.to_pydict() async for batch in inbox] == [{"id": [1, 2]}]


async def test_a_query_waits_for_its_consumer_for_longer_than_for_a_server_that_is_away(tmp_path, caplog):
    """In the task, which Spark can stop, and in the driver's commit: once it is told for what, and nothing fails."""
    work = Work("app", 1)
    async with ReceiverServer() as receiver:
        inbox = receiver.register_staged_channel(
            "out", StagingPolicy(tmp_path, max_kept_bytes=100), ack="explicit"
        )
        given = options(receiver, endOfStream="false", connectTimeout="0.3")
        await save(given, Work("app", 0), [1, 2])
        made = await asyncio.to_thread(written, given, work, [3])
        waiting = {
            asyncio.create_task(asyncio.to_thread(Rows(given, SCHEMA).wait_for_room, work, made)),
            asyncio.create_task(asyncio.to_thread(publish, given, work, [made], None)),
        }
        done, _ = await asyncio.wait(waiting, timeout=1.5)
        assert not done
        for said in (
            "channel out at .* is full, and the query waits for the consumer",
            "channel out at .* has no room yet",
        ):
            (told,) = [text for text in caplog.messages if re.match(said, text)]
            assert "bytes of groups are not yet acknowledged" in told
            assert "would exceed max_kept_bytes, 100: " in told
        await inbox.recv()
        await inbox.ack(1)
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert (await inbox.recv()).to_pydict() == {"id": [3]}


async def test_channels_that_no_partition_has_written_to_end_as_well():
    """SP-WR-2: at least once, with endOfStream."""
    async with ReceiverServer() as receiver:
        inboxes = [receiver.register_channel(name) for name in ("a", "b", "c")]
        loose = options(receiver, "a,b,c", deliveryGuarantee="at-least-once")
        writer = BatchWriter(Rows(loose, SCHEMA))
        await asyncio.to_thread(writer.commit, [Written(writer._work, None, Attempts())])
        for inbox in inboxes[1:]:
            async with asyncio.timeout(60):
                assert [batch async for batch in inbox] == []
        assert inboxes[0].stream is None  # it is its partition's


async def test_attempts_are_dropped_wherever_they_can_be(tmp_path):
    """SP-WR-1: a channel that is not there does not keep those of another."""
    work = Work("app", 0)
    async with ReceiverServer() as receiver:
        staged(receiver, tmp_path, "b")
        both = options(receiver, "a,b", connectTimeout="0.4")
        only = options(receiver, "b")
        made = await asyncio.to_thread(written, only, work, [1, 2])
        with pytest.raises(ChannelBroken, match="channel 'a'"):
            await asyncio.to_thread(drop, both, work)
        with pytest.raises(AttemptLost):
            await asyncio.to_thread(publish, only, work, [made], None)


def test_two_columns_of_a_name_are_not_written(tmp_path):
    """Nor two fields of one within a column: a plan names them as it likes, and columns are found by name."""
    given = write_options({"endpoint": "h:1", "channels": "out"}, "batch write")
    n = StructField("n", LongType())
    for rows, said in (
        (StructType([n, n]), "the DataFrame has 2 columns 'n'"),
        (
            StructType([StructField("s", ArrayType(StructType([n, n])))]),
            "'s' within the DataFrame has 2 columns 'n'",
        ),
    ):
        with pytest.raises(SchemaConflict, match=said):
            Rows.of(given, rows)


async def test_nested_nulls_that_one_plan_forbids_and_another_allows_go_into_one_stream(tmp_path):
    """SP-WR-1: what Spark derives about nulls is not part of the channel's schema, however deep."""

    def nested(nulls: bool) -> StructType:
        pair = StructType([StructField("a", LongType(), nulls)])
        kinds = {
            "l": ArrayType(pair, nulls),
            "s": pair,
            "m": MapType(LongType(), ArrayType(LongType(), nulls), nulls),
        }
        return StructType([StructField(name, kind, nulls) for name, kind in kinds.items()])

    row = {"l": [{"a": 1}], "s": {"a": 2}, "m": [(3, [4])]}
    async with ReceiverServer() as receiver:
        inbox = staged(receiver, tmp_path)
        loose = options(receiver, endOfStream="false")

        def save_all() -> None:
            for epoch, nulls in enumerate((False, True)):
                rows, work = Rows.of(loose, nested(nulls)), Work("app", epoch)
                attempt = rows.attempt(0, work, 0)
                given = pa.RecordBatch.from_pylist([row], schema=arrow_schema(nested(nulls)))
                attempt.send(Normaliser(rows.schema)(given))
                made = Attempts(((loose.connection.sources[0].key, attempt.seal()),))
                publish(loose, work, [made], None)

        await asyncio.to_thread(save_all)
        async with asyncio.timeout(60):
            assert [(await inbox.recv()).to_pylist() for _ in range(2)] == [[row], [row]]


@pytest.mark.parametrize("checkpoint", ["/data/checkpoint", "/data/" + "\N{ZERO WIDTH SPACE}" * 4090])
async def test_a_write_that_one_channel_refuses_is_published_in_none(tmp_path, checkpoint):
    """SP-WR-4: another query has written to one of the channels only."""
    async with ReceiverServer() as receiver:
        inboxes = [staged(receiver, tmp_path, name) for name in ("a", "b")]
        both = options(receiver, "a,b", endOfStream="false")

        def write(query: str, *channels: int) -> None:
            work = Work(query, 0)
            made = [written(both, work, [each], each) for each in channels]
            publish(both, work, made, Query(query, checkpoint))

        await asyncio.to_thread(write, "first", 1)
        for _ in range(2):
            with pytest.raises(
                CheckpointReplaced, match=r"than this one \(second\) has written to channel 'b'"
            ):
                await asyncio.to_thread(write, "second", 0, 1)
        with pytest.raises(CheckpointReplaced, match="to channel 'b'"):
            await asyncio.to_thread(write, "second", 0)
        assert (await inboxes[1].recv()).to_pydict() == {"id": [1]}
        for inbox in inboxes:
            assert inbox.statistics().buffered_messages == 0
        await asyncio.to_thread(write, "first", 0)  # which nobody has claimed meanwhile
        assert (await inboxes[0].recv()).to_pydict() == {"id": [0]}


async def test_an_older_version_is_published_in_no_channel_and_an_empty_one_counts(tmp_path):
    """SP-WR-1."""
    async with ReceiverServer() as receiver:
        inboxes = [staged(receiver, tmp_path, name) for name in ("a", "b")]

        def write(version: int, *channels: int) -> None:
            once = options(receiver, "a,b", endOfStream="false", txnAppId="app", txnVersion=str(version))
            work = Work("app", version)
            publish(once, work, [written(once, work, [each], each) for each in channels], None)

        await asyncio.to_thread(write, 9)
        said = r"channel 'a' already has a write with txnVersion 9 of txnAppId 'app', but this write has 8"
        with pytest.raises(CheckpointReplaced, match=said):
            await asyncio.to_thread(write, 8, 0, 1)
        await asyncio.to_thread(write, 10, 0)
        assert (await inboxes[0].recv()).to_pydict() == {"id": [0]}
        assert inboxes[1].statistics().buffered_messages == 0


def test_rows_without_columns_are_refused():
    """SP-WR-1: PySpark hands them over without their number."""
    with pytest.raises(SchemaConflict, match="no columns"):
        Rows.of(write_options({"endpoint": "h:1", "channels": "out"}, "batch write"), StructType([]))
