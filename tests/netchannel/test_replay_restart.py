"""Streams that are kept on disk, over restarts: of their retainer, of their sender, and of who reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from netchannel import (
    ChannelClosed,
    ChannelInUse,
    ChannelReader,
    ConsumerFenced,
    NetChannelError,
    Position,
    PositionLost,
    ReceiverServer,
    RetainPolicy,
    SchemaMismatch,
    SenderServer,
    StreamReplaced,
    Timing,
)
from netchannel.errors import LogDamaged, MessagesLost
from netchannel.storage.layout import segment_name
from tests.netchannel.test_replay import hours_later

QUICK = Timing(backoff_s=0.01, backoff_limit_s=0.05)


def body(number: int) -> bytes:
    return number.to_bytes(4, "little") * (1 + number % 50 * 40)


async def numbers(reader: ChannelReader, first: int | Position, until: int) -> list[bytes]:
    return [bytes(found) async for found in reader.read(first, until)]


async def test_a_receiver_goes_on_at_its_head_of_the_same_stream(tmp_path: Path, free_address: str) -> None:
    """CH-REP-1, CH-REP-4: with positions, rows and bytes, over and over."""
    policy = RetainPolicy(directory=tmp_path)
    async with SenderServer(timing=QUICK) as sender:
        outbox = sender.register_channel("c", free_address, codec="bytes")
        sent = size = 0
        stream = ""
        for life in range(5):
            async with ReceiverServer(free_address, timing=QUICK) as receiver:
                receiver.retain_channel("c", policy, codec="bytes")
                async with ChannelReader(free_address, "c", codec="bytes", timing=QUICK) as reader:
                    await outbox.send_many(body(sent + number) for number in range(100))
                    size += sum(len(body(sent + number)) for number in range(100))
                    sent += 100
                    heads = await reader.heads(beyond=sent - 1)
                    assert (heads.head, heads.rows, heads.bytes) == (sent, sent, size)
                    assert stream in ("", heads.stream)
                    stream = heads.stream
                    position = await reader.hold("me", holder="test")
                    assert position == max(0, sent - 150)
                    assert await numbers(reader, Position(stream, position), sent) == [
                        body(number) for number in range(position, sent)
                    ]
                    await reader.ack("me", sent - 50)
                    with pytest.raises(PositionLost):
                        await numbers(reader, sent - 51, sent)
                    if life == 4:
                        await outbox.close()
                        assert (await reader.heads(beyond=sent)).ended


async def test_the_end_is_durable_and_so_is_its_reason(tmp_path: Path, free_address: str) -> None:
    policy = RetainPolicy(directory=tmp_path)
    async with SenderServer(timing=QUICK) as sender:
        for failure in (None, "out of ink"):
            async with ReceiverServer(free_address, timing=QUICK) as receiver:
                receiver.retain_channel("c", policy, codec="bytes")
                outbox = sender.register_channel("c", free_address, codec="bytes")
                await outbox.send_many([b"one", b"two"])
                if failure is None:
                    await outbox.close()
                else:
                    await outbox.abort(failure)
            async with ReceiverServer(free_address, timing=QUICK) as receiver:
                receiver.retain_channel("c", policy, codec="bytes")
                async with ChannelReader(free_address, "c", codec="bytes", timing=QUICK) as reader:
                    heads = await reader.heads()
                    assert (heads.head, heads.ended, heads.failure) == (2, True, failure)
                    assert await numbers(reader, 0, 2) == [b"one", b"two"]
                    # Whoever sent it and did not hear, hears it now.
                    late = sender.register_channel(
                        "c", free_address, codec="bytes", stream=outbox.stream, replayable=True
                    )
                    with pytest.raises(NetChannelError, match="had already ended"):
                        await late.attached()
                    await reader.hold("me", holder="test")
                    await reader.ack("me", 2)


async def test_names_outlive_the_stream_that_they_came_with(tmp_path: Path) -> None:
    """CH-REP-4: what they have not acknowledged of the next one is kept, after a restart too."""
    policy = RetainPolicy(directory=tmp_path)
    async with SenderServer(timing=QUICK) as sender:
        for life in range(3):
            async with ReceiverServer(timing=QUICK) as receiver:
                receiver.retain_channel("c", policy, codec="bytes")
                outbox = sender.register_channel("c", receiver.address, codec="bytes")
                await outbox.send_many([b"%d" % life] * 10)
                await outbox.close()
                async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
                    heads = await reader.heads(beyond=9)
                    assert heads.stream == outbox.stream
                    assert await reader.hold("slow", holder="test") == 0
                    await reader.ack("fast", 10)
                    assert await numbers(reader, 0, 10) == [b"%d" % life] * 10
                    await reader.ack("slow", 10)
                    await reader.forget("fast")


async def test_a_sender_that_listens_goes_on_where_it_was(tmp_path: Path) -> None:
    """CH-REP-1: what was sent is durable once send has returned."""
    policy = RetainPolicy(directory=tmp_path)
    stream = ""
    for life in range(4):
        async with SenderServer("127.0.0.1:0", timing=QUICK) as sender:
            outbox = sender.retain_channel("c", policy)
            assert outbox.position == life * 20
            assert stream in ("", outbox.stream)
            stream = outbox.stream
            for number in range(20):
                await outbox.send(pa.record_batch({"n": [life * 20 + number] * 3}))
            async with ChannelReader(sender.address, "c", timing=QUICK) as reader:
                heads = await reader.heads(beyond=outbox.position - 1)
                assert heads.rows == 3 * outbox.position
                batches = [found async for found in reader.read(0, heads.head)]
                assert [found["n"][2].as_py() for found in batches] == list(range(heads.head))
            with pytest.raises(ChannelInUse):
                sender.retain_channel("c", policy)
    async with SenderServer("127.0.0.1:0", timing=QUICK) as sender:
        with pytest.raises(SchemaMismatch, match="registered with"):
            sender.retain_channel("c", policy, schema=pa.schema([("x", pa.string())]))
        with pytest.raises(NetChannelError, match="requested"):
            sender.retain_channel("c", policy, stream="another")
        outbox = sender.retain_channel("c", policy)
        closing = asyncio.create_task(outbox.close())
        async with ChannelReader(sender.address, "c", timing=QUICK) as reader:
            assert (await reader.heads(beyond=80)).ended
            with pytest.raises(ChannelClosed):
                await outbox.send(pa.record_batch({"n": [1, 2, 3]}))
            await reader.ack("me", 80)
            assert (await closing).acknowledged == 80
            assert list(tmp_path.iterdir()) == []
            another = sender.retain_channel("c", policy)
            assert (another.position, another.stream != stream) == (0, True)
            with pytest.raises(StreamReplaced):
                await reader.locate(Position(stream, 80))


async def test_what_close_gave_up_is_there_after_a_restart(tmp_path: Path) -> None:
    policy = RetainPolicy(directory=tmp_path)
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("c", policy, codec="bytes")
        await outbox.send_many([b"one", b"two"])
        report = await outbox.close(grace=0.01)
        assert (report.undelivered_from, report.undelivered) == (0, 2)
        again = sender.retain_channel("c", policy, codec="bytes")
        async with ChannelReader(sender.address, "c", codec="bytes", timing=QUICK) as reader:
            assert (await reader.heads()).ended
            assert await numbers(reader, 0, 2) == [b"one", b"two"]
            await reader.ack("me", 2)
            await again.close()


async def test_an_old_holder_is_fenced_after_a_restart_too(
    tmp_path: Path, free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-REP-4: and the holder has the time of a lease to come back."""
    policy = RetainPolicy(directory=tmp_path, lease_s=3600.0)
    async with ChannelReader(free_address, "c", codec="bytes", timing=QUICK) as one:
        async with SenderServer(free_address, timing=QUICK) as sender:
            outbox = sender.retain_channel("c", policy, codec="bytes")
            await outbox.send_many([b"x"] * 10)
            await one.ack("me", 3)
        async with ChannelReader(free_address, "c", codec="bytes", timing=QUICK) as two:
            async with SenderServer(free_address, timing=QUICK) as sender:
                sender.retain_channel("c", policy, codec="bytes")
                with pytest.raises(ChannelInUse):
                    await two.hold("me")
                await one.ack("me", 4)
                await one.close()
                with monkeypatch.context() as patched:
                    hours_later(patched)
                    assert await two.hold("me", holder="two") == 4
            async with (
                SenderServer(free_address, timing=QUICK) as sender,
                ChannelReader(free_address, "c", codec="bytes", timing=QUICK) as back,
            ):
                sender.retain_channel("c", policy, codec="bytes")
                with pytest.raises(ConsumerFenced, match="'two'"):
                    await back.ack("me", 5)
                await two.ack("me", 6)
                assert (await two.heads()).oldest <= 6


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:9] + b"?" + data[10:]])
async def test_a_damaged_file_of_positions_is_said(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    policy = RetainPolicy(directory=tmp_path)
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("c", policy, codec="bytes")
        await outbox.send(b"one")
        async with ChannelReader(sender.address, "c", codec="bytes") as reader:
            await reader.hold("me")
    (file,) = tmp_path.rglob("consumers")
    file.write_bytes(damage(file.read_bytes()))
    async with SenderServer("127.0.0.1:0") as sender:
        with pytest.raises(LogDamaged, match="does not match its checksum"):
            sender.retain_channel("c", policy, codec="bytes")


@pytest.mark.parametrize("named", [True, False])
async def test_a_segment_that_is_missing_is_said_when_the_channel_is_registered(
    tmp_path: Path, named: bool
) -> None:
    """CH-DUR-2: of a stream that is kept, each of them; what all consumers have acknowledged is not missed."""
    policy = RetainPolicy(directory=tmp_path, max_bytes=1 << 20)
    async with SenderServer("127.0.0.1:0", timing=QUICK) as sender:
        outbox = sender.retain_channel("c", policy, codec="bytes")
        for number in range(8):
            await outbox.send(b"%d" % number * 100_000)
        if named:
            async with ChannelReader(sender.address, "c", codec="bytes", timing=QUICK) as reader:
                await reader.ack("me", 3)
    files = {file.name: file for file in tmp_path.rglob("*.segment")}
    kept = range(3 if named else 0, 8)
    assert sorted(files) == [segment_name(number) for number in kept]
    for number in kept:
        async with SenderServer("127.0.0.1:0") as sender:
            file = files[segment_name(number)]
            content = file.read_bytes()
            file.unlink()
            with pytest.raises(
                MessagesLost, match=f"missing in {file.parent}, although they were not acknow"
            ) as error:
                sender.retain_channel("c", policy, codec="bytes")
            assert error.value.first == number
            file.write_bytes(content)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name != "lock":
            file.unlink()
    async with SenderServer("127.0.0.1:0") as sender:
        with pytest.raises(LogDamaged, match="the folder was emptied"):
            sender.retain_channel("c", policy, codec="bytes")
