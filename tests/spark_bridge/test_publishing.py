"""What the driver publishes of what tasks have sealed, with real servers and without Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, LongType, MapType, StructField, StructType

from netchannel import AttemptLost, ChannelBroken, EpochRegressed, ReceiverServer, StagingPolicy
from spark_bridge.options import WriteOptions, write_options
from spark_bridge.publishing import drop, publish
from spark_bridge.schemas import Normaliser, arrow_schema
from spark_bridge.writers import BatchWriter, Written
from spark_bridge.writing import Attempts, Rows, Work

SCHEMA = pa.schema({"id": pa.int64()})


def options(receiver: ReceiverServer, channels: str = "out", **given: Any) -> WriteOptions:
    here = {"endpoint": receiver.address, "channels": channels, "connectTimeout": "5"}
    return write_options(here | given, "batch write")


def written(options: WriteOptions, work: Work, ids: list[int]) -> Attempts:
    """What a task returns that has written its only partition to the first channel."""
    attempt = Rows(options, SCHEMA).attempt(0, work, 0)
    key = options.connection.sources[0].key
    try:
        attempt.send(pa.RecordBatch.from_pydict({"id": ids}, schema=SCHEMA))
        return Attempts(((key, attempt.seal()),))
    except EpochRegressed:
        return Attempts(over=frozenset([key]))


async def save(options: WriteOptions, work: Work, ids: list[int]) -> None:
    made = await asyncio.to_thread(written, options, work, ids)
    await asyncio.to_thread(publish, options, work, [made], None)


def staged(receiver: ReceiverServer, directory: Path, channel: str = "out"):
    return receiver.register_channel(channel, staging=StagingPolicy(directory))


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
        await asyncio.wait_for(save(once, work, [1, 2]), 20)
        if not read:
            assert [batch.to_pydict() async for batch in inbox] == [{"id": [1, 2]}]


async def test_channels_that_no_partition_has_written_to_end_as_well():
    """SP-WR-2: at least once, with endOfStream."""
    async with ReceiverServer() as receiver:
        inboxes = [receiver.register_channel(name) for name in ("a", "b", "c")]
        loose = options(receiver, "a,b,c", deliveryGuarantee="at-least-once")
        writer = BatchWriter(Rows(loose, SCHEMA))
        await asyncio.to_thread(writer.commit, [Written(writer._work, None, Attempts())])
        for inbox in inboxes[1:]:
            async with asyncio.timeout(10):
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
        async with asyncio.timeout(10):
            assert [(await inbox.recv()).to_pylist() for _ in range(2)] == [[row], [row]]
