"""Memory that a producer asks its channel for: it goes without a copy where it can, and as all else where not."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from netchannel import (
    BufferFull,
    BufferPolicy,
    ChannelClosed,
    MessageTooLarge,
    NetChannelError,
    ReceiverChannel,
    ReceiverServer,
    SchemaMismatch,
    SenderChannel,
    SenderServer,
)
from netchannel.core.sending.lender import Lender
from netchannel.testing.deadlines import eventually

MIB = 1 << 20
ROWS = MIB // 16


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of bodies that were copied into shared memory."""
    lengths = []
    copied = Lender._copied

    def noted(self: Lender, memory: memoryview, loan: Any, body: Any) -> int | None:
        lengths.append(len(body))
        return copied(self, memory, loan, body)

    monkeypatch.setattr(Lender, "_copied", noted)
    return lengths


def pair(
    receiver: ReceiverServer, sender: SenderServer, **settings: Any
) -> tuple[ReceiverChannel, SenderChannel]:
    inbox = receiver.register_channel("c", **settings)
    return inbox, sender.register_channel("c", to=receiver.address, **settings)


async def memory_is_there(inbox: ReceiverChannel, outbox: SenderChannel) -> None:
    """Who asks first sees to it that there is shared memory."""
    await outbox.attached()
    outbox.allocate(MIB)
    await eventually(lambda: outbox.core.lends)


def filled(outbox: SenderChannel, value: int, size: int = MIB) -> memoryview:
    memory = outbox.allocate(size)
    assert (len(memory), memory.format, memory.readonly) == (size, "B", False)
    memory[:] = bytes([value]) * size
    return memory


def batch(outbox: SenderChannel, value: int) -> pa.RecordBatch:
    """Two columns in memory of the channel's."""
    memory = outbox.allocate(16 * ROWS)
    parts = memory[: 8 * ROWS], memory[8 * ROWS :]
    for part in parts:
        np.frombuffer(part, np.int64)[:] = value
    columns = [pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(part)]) for part in parts]
    return pa.record_batch(columns, names=["a", "b"])


async def test_bytes_are_not_copied(
    receiver: ReceiverServer, sender: SenderServer, copied: list[int]
) -> None:
    """All of it or its beginning; with a note, alone or with others."""
    inbox, outbox = pair(receiver, sender, codec="bytes")
    await memory_is_there(inbox, outbox)
    await outbox.send(filled(outbox, 1))
    await outbox.send(filled(outbox, 2)[:-5], b"note")
    await outbox.send_many([filled(outbox, 3), b"4", filled(outbox, 5)])
    bodies = [bytes(await inbox.recv()) for _ in range(5)]
    assert bodies == [b"\1" * MIB, b"\2" * (MIB - 5), b"\3" * MIB, b"4", b"\5" * MIB]
    assert outbox.statistics().shared_bytes == 4 * MIB - 5
    assert copied == []


async def test_batches_are_not_copied(
    receiver: ReceiverServer, sender: SenderServer, copied: list[int]
) -> None:
    inbox, outbox = pair(receiver, sender)
    await memory_is_there(inbox, outbox)
    for value in range(20):
        sent = batch(outbox, value)
        await outbox.send(sent)
        assert (await inbox.recv()).equals(sent)
    assert outbox.statistics().shared_bytes > 20 * MIB
    assert copied == []


async def test_a_batch_may_be_sent_again(
    receiver: ReceiverServer, sender: SenderServer, copied: list[int]
) -> None:
    """It is copied while the receiver has the first."""
    inbox, outbox = pair(receiver, sender)
    await memory_is_there(inbox, outbox)
    sent = batch(outbox, 1)
    for _ in range(3):
        await outbox.send(sent)
    kept = [await inbox.recv() for _ in range(3)]
    assert all(each.equals(sent) for each in kept)
    assert [length > MIB for length in copied] == [True, True]


@pytest.mark.parametrize("codec", ["bytes", "arrow"])
@pytest.mark.parametrize("memory", [0, 1 << 16, 3 * MIB], ids=["none", "little", "some"])
async def test_without_room_it_is_ordinary_memory(memory: int, codec: Any) -> None:
    """With the same result."""
    async with ReceiverServer() as receiver, SenderServer(shared_memory=memory) as sender:
        inbox, outbox = pair(receiver, sender, codec=codec)
        await outbox.attached()
        make = filled if codec == "bytes" else batch
        kept, sent = [], [make(outbox, value) for value in range(8)]
        for value, each in enumerate(sent):
            await outbox.send(each)
            kept.append(await inbox.recv())
            first = kept[-1][0] if codec == "bytes" else kept[-1].column(0)[0].as_py()
            assert first == value
        assert outbox.statistics().shared_bytes <= memory


async def test_before_there_is_a_receiver(free_address: str, sender: SenderServer) -> None:
    outbox = sender.register_channel("c", to=free_address, codec="bytes")
    await outbox.send(filled(outbox, 1))
    async with ReceiverServer(free_address) as receiver:
        inbox = receiver.register_channel("c", codec="bytes")
        assert bytes(await inbox.recv()) == b"\1" * MIB


async def test_what_is_sent_is_the_channels(receiver: ReceiverServer, sender: SenderServer) -> None:
    """A write and a second send raise; where it lies makes no difference."""
    inbox, outbox = pair(receiver, sender, codec="bytes")
    for _ in range(2):
        memory = filled(outbox, 1)
        await outbox.send(memory[:10])
        with pytest.raises(ValueError, match="released"):
            memory[0] = 2
        with pytest.raises(SchemaMismatch, match=r"released.*is sent only once"):
            await outbox.send(memory)
        assert bytes(await inbox.recv()) == b"\1" * 10
        await memory_is_there(inbox, outbox)


async def test_what_is_not_taken_is_the_producers(receiver: ReceiverServer, sender: SenderServer) -> None:
    """It can be sent once there is room."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    few = BufferPolicy(max_messages=1, when_full="fail")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=few)
    await outbox.send(b"first")
    memory = filled(outbox, 1)
    with pytest.raises(BufferFull):
        await outbox.send(memory)
    memory[:] = b"\2" * MIB
    await inbox.recv()
    await inbox.ack(1)
    await outbox.flush()
    await outbox.send(memory)
    assert bytes(await inbox.recv()) == b"\2" * MIB


@pytest.mark.parametrize(
    ("size", "error"),
    [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError), (2 * MIB, MessageTooLarge)],
)
async def test_what_is_no_size(size: Any, error: type[Exception], sender: SenderServer) -> None:
    async with ReceiverServer(message_limit=MIB) as receiver:
        _, outbox = pair(receiver, sender, codec="bytes")
        await outbox.attached()
        with pytest.raises(error, match=str(size)):
            outbox.allocate(size)
        assert len(outbox.allocate(MIB)) == MIB


async def test_a_channel_that_is_over_gives_none(receiver: ReceiverServer, sender: SenderServer) -> None:
    inbox, outbox = pair(receiver, sender, codec="bytes")
    await memory_is_there(inbox, outbox)
    memory = filled(outbox, 1)
    await outbox.close()
    with pytest.raises(ChannelClosed):
        outbox.allocate(MIB)
    memory[0] = 2  # what it has is its own


async def test_only_on_its_own_loop(receiver: ReceiverServer, sender: SenderServer) -> None:
    _, outbox = pair(receiver, sender, codec="bytes")
    with pytest.raises(NetChannelError, match="another event loop"):
        await asyncio.to_thread(outbox.allocate, MIB)


@pytest.mark.parametrize("on_a_thread", [False, True])
async def test_what_is_never_sent_comes_back(
    receiver: ReceiverServer, sender: SenderServer, copied: list[int], on_a_thread: bool
) -> None:
    """All of the memory is taken; once nobody refers to it, it is there for others, wherever that was noticed."""
    inbox, outbox = pair(receiver, sender, codec="bytes")
    await memory_is_there(inbox, outbox)
    kept = [np.frombuffer(outbox.allocate(8 * MIB), np.uint8) for _ in range(8)]
    await outbox.send(bytes(MIB))
    await inbox.recv()
    assert outbox.statistics().shared_bytes == 0
    if on_a_thread:
        await asyncio.to_thread(kept.clear)
    kept.clear()
    gc.collect()
    await asyncio.sleep(0)
    await outbox.send(filled(outbox, 1))
    await inbox.recv()
    assert outbox.statistics().shared_bytes == MIB
