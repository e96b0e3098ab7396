"""What a query's driver sees of its channels, with real servers and without Spark."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from netchannel import (
    ChannelReader,
    HandshakeError,
    ReceiverServer,
    RetainPolicy,
    SchemaMismatch,
    SenderServer,
)
from spark_bridge import CheckpointReplaced, DataLost, SparkBridgeError
from spark_bridge.options import read_options
from spark_bridge.reading.batch_reader import BatchReader
from spark_bridge.reading.channel_watch import Channels
from spark_bridge.reading.offsets import Entry
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})
SHORT_S = "1"


@asynccontextmanager
async def watched(address: str, **options: Any) -> AsyncIterator[Channels]:
    given = {"endpoint": address, "channels": "rows", "connectTimeout": SHORT_S, **options}
    channels = Channels(read_options(given, "streaming read"))
    try:
        yield channels
    finally:
        await asyncio.to_thread(channels.close)


def look(channels: Channels, holder: str) -> int:
    """As the driver of a query does, over and over; with a ``holder`` it asks for the name as well. The head."""
    heads = channels.latest().get("rows")
    if heads is None and holder:
        channels.hold_soon("rows", holder, fresh=True)
    return 0 if heads is None else heads.head


async def until_head(channels: Channels, head: int, holder: str = "") -> None:
    """Wait until the driver sees so many messages."""
    await until_async(lambda: asyncio.to_thread(lambda: look(channels, holder) >= head), f"head {head}")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "gave no answer" in each.getMessage()]


async def until_given_up(caplog: pytest.LogCaptureFixture, channels: Channels, holder: str = "") -> None:
    """Wait until it was said that nothing is heard of the channel, while the driver looks."""

    async def said() -> bool:
        await asyncio.to_thread(look, channels, holder)
        return bool(warnings(caplog))

    await until_async(said, "a warning that nothing is heard")


async def acknowledged(channels: Channels, stream: str, upto: int) -> None:
    """As for a batch that Spark has committed."""
    entries = {"rows": Entry(stream, upto, first=0, holder="me")}
    await asyncio.to_thread(lambda: channels.acknowledge(entries, channels.latest()))


async def test_an_idle_query_goes_on_when_its_server_was_away_for_longer_than_its_timeout(tmp_path, caplog):
    """SP-RD-4: what it reads then is acknowledged, under its name."""
    (address,) = free_addresses(1)
    policy = RetainPolicy(directory=tmp_path)
    async with watched(address) as channels:
        async with SenderServer(address) as sender:
            outbox = sender.retain_channel("rows", policy)
            await outbox.send(BATCH)
            await until_head(channels, 1)
            await asyncio.to_thread(channels.hold, "rows", "me", fresh=True)
            await outbox.detach()
        await until_given_up(caplog, channels)
        async with SenderServer(address) as sender:
            outbox = sender.retain_channel("rows", policy)
            await outbox.send(BATCH)
            await until_head(channels, 2)
            await acknowledged(channels, outbox.stream, 2)
            await asyncio.wait_for(outbox.flush(), 60)
            await until_async(
                lambda: asyncio.to_thread(lambda: channels.latest()["rows"].oldest == 2), "freed"
            )
    assert len(warnings(caplog)) == 1


async def test_a_query_may_begin_before_its_server_by_more_than_its_timeout(caplog):
    (address,) = free_addresses(1)
    async with watched(address) as channels:
        await until_given_up(caplog, channels, "me")
        async with SenderServer(address) as sender:
            outbox = sender.retain_channel("rows", RetainPolicy())
            await outbox.send(BATCH)
            await until_head(channels, 1, "me")
            await acknowledged(channels, outbox.stream, 1)


async def test_a_query_may_begin_before_its_producer_by_more_than_its_timeout(tmp_path, caplog):
    """Where it is kept with a directory, the name cannot be held before there is a stream."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        receiver.retain_channel("rows", RetainPolicy(directory=tmp_path))
        async with watched(receiver.address) as channels:
            await until_given_up(caplog, channels, "me")
            outbox = sender.register_channel("rows", receiver.address)
            await outbox.send(BATCH)
            await until_head(channels, 1, "me")
            await acknowledged(channels, outbox.stream, 1)


async def test_a_name_that_the_server_has_forgotten_is_taken_again_for_the_same_query():
    """SP-RD-4: as a server does that keeps in memory, when it is restarted."""
    async with SenderServer("127.0.0.1:0") as sender, watched(sender.address) as channels:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many([BATCH, BATCH])
        await until_head(channels, 2)
        await acknowledged(channels, outbox.stream, 1)
        async with ChannelReader(sender.address, "rows") as other:
            await other.forget("spark")
            await acknowledged(channels, outbox.stream, 2)
            await asyncio.wait_for(outbox.flush(), 60)


async def test_a_name_that_another_query_has_taken_is_said_so():
    async with SenderServer("127.0.0.1:0") as sender, watched(sender.address) as channels:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send_many([BATCH, BATCH])
        await until_head(channels, 2)
        await acknowledged(channels, outbox.stream, 1)
        async with ChannelReader(sender.address, "rows") as other:
            await other.forget("spark")
            await other.hold("spark", holder="another")
            with pytest.raises(
                SparkBridgeError, match=r"another query, .* reads channel 'rows' as consumer 'spark'"
            ):
                await acknowledged(channels, outbox.stream, 2)


async def test_a_query_without_a_checkpoint_gets_no_name_that_another_one_has_read_under():
    """It would skip what the other one has acknowledged, and free what that one has not read."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy(lease_s=0.0))
        await outbox.send_many([BATCH, BATCH])
        async with watched(sender.address) as first:
            await until_head(first, 2)
            await acknowledged(first, outbox.stream, 1)
        async with watched(sender.address) as other:
            await until_head(other, 2)
            with pytest.raises(
                CheckpointReplaced, match=r"'rows' was read as consumer 'spark' by another"
            ) as error:
                await asyncio.to_thread(other.hold, "rows", "other", fresh=True)
            for said in ("below 1", "option consumer", "RetainPolicy(consumers=...)", ".forget('spark')"):
                assert said in str(error.value)


async def test_a_stream_that_is_replaced_while_it_is_acknowledged_is_left_to_the_next_look():
    async with SenderServer("127.0.0.1:0") as sender, watched(sender.address) as channels:
        outbox = sender.retain_channel("rows", RetainPolicy())
        await outbox.send(BATCH)
        await until_head(channels, 1)
        before = {"rows": channels.latest()["rows"]._replace(stream="before")}
        entries = {"rows": Entry("before", 1, first=0, holder="me")}
        await asyncio.to_thread(channels.acknowledge, entries, before)
        await acknowledged(channels, outbox.stream, 1)
        await asyncio.wait_for(outbox.flush(), 60)


async def test_a_server_that_is_gone_after_the_end_of_its_stream_is_looked_for_in_silence(
    monkeypatch, caplog
):
    """As a producer is that is done; another stream that begins there later is read all the same."""
    monkeypatch.setattr("spark_bridge.reading.channel_watch.REST_S", 0.2)
    caplog.set_level("INFO")
    (address,) = free_addresses(1)
    async with watched(address) as channels:
        async with SenderServer(address) as sender:
            outbox = sender.retain_channel("rows", RetainPolicy())
            await outbox.send(BATCH)
            await until_head(channels, 1)
            closing = asyncio.create_task(outbox.close())
            await until_async(
                lambda: asyncio.to_thread(lambda: channels.latest()["rows"].ended), "the end is known"
            )
            entries = {"rows": Entry(outbox.stream, 1, first=0, holder="me", ended=1)}
            await asyncio.to_thread(lambda: channels.acknowledge(entries, channels.latest()))
            await closing
        readers = set()

        async def tries() -> bool:
            await asyncio.to_thread(look, channels, "")
            readers.add(channels._watched["rows"].reader)
            return len(readers) > 3

        await until_async(tries, "it is looked for several times")
        assert [each.getMessage() for each in caplog.records if each.name == "spark_bridge"] == [
            "rows: its stream has ended, and its server no longer answers"
        ]
        assert not [each for each in caplog.records if each.levelname == "WARNING"]
        async with SenderServer(address) as sender:
            outbox = sender.retain_channel("rows", RetainPolicy())
            await outbox.send_many([BATCH, BATCH])
            await until_head(channels, 2)
            assert channels.latest()["rows"].stream == outbox.stream


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_channel_that_failed_before_it_had_a_stream_is_data_lost(tmp_path, fail, caplog):
    """For a batch and for a stream: its disk is broken."""
    kept = tmp_path / "kept"
    async with ReceiverServer() as receiver, SenderServer() as sender:
        receiver.retain_channel("rows", RetainPolicy(directory=kept))
        await asyncio.to_thread(shutil.rmtree, kept, ignore_errors=True)
        kept.write_text("in the way", "utf-8")
        sender.register_channel("rows", receiver.address)
        options = {"endpoint": receiver.address, "channels": "rows", "failOnDataLoss": fail}
        batch = BatchReader(read_options(options, "batch read"), BATCH.schema)
        async with watched(receiver.address, failOnDataLoss=fail) as channels:
            if fail == "true":
                with pytest.raises(DataLost, match="channel 'rows' has failed before any message was kept: "):
                    await asyncio.to_thread(batch.partitions)
                with pytest.raises(DataLost, match="channel 'rows' has failed before any message was kept: "):
                    await until_head(channels, 1)
            else:
                assert await asyncio.to_thread(batch.partitions) == []
                await asyncio.to_thread(channels.heads)
                assert [channels.latest() for _ in range(3)] == [{}] * 3
                assert caplog.text.count("has failed before any message was kept") == 2


async def test_what_no_time_will_change_is_raised():
    """Here a codec that is not Arrow's; so are a wrong secret and a certificate that is not trusted."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("rows", RetainPolicy(), codec="bytes")
        await outbox.send(b"x")
        async with watched(sender.address) as channels:
            with pytest.raises(SchemaMismatch, match="has the codec 'bytes'"):
                await until_head(channels, 1)
    async with (
        SenderServer("127.0.0.1:0", secret="one") as sender,
        watched(sender.address, secret="two") as channels,
    ):
        with pytest.raises(HandshakeError, match="secret"):
            await until_head(channels, 1)
