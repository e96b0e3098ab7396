"""What applications do with channels that nobody had in mind: typed errors at once, and no harm to others."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from netchannel import (
    BufferPolicy,
    ChannelClosed,
    ChannelClosedByPeer,
    ChannelFailed,
    MessageTooLarge,
    NetChannelError,
    Position,
    ReceiverServer,
    SchemaMismatch,
    SenderServer,
    Timing,
)
from netchannel.core.timers import Timers


async def test_a_successor_may_close_before_it_is_attached(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-END-8: it has nothing to send, and ends the stream where its predecessor has left it."""
    inbox = receiver.register_channel("c", codec="bytes")
    first = sender.register_channel("c", to=receiver.address, codec="bytes", stream="s")
    await first.send_many([b"0", b"1", b"2"])
    await first.detach()
    second = sender.register_channel("c", to=receiver.address, codec="bytes", stream="s", replayable=True)
    async with asyncio.timeout(60):
        assert (await second.close()).acknowledged == 3
    assert [bytes(body) async for body in inbox] == [b"0", b"1", b"2"]


async def test_an_error_may_name_a_file_that_is_no_utf_8(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-END-2: such names have surrogates, which no wire can carry: they arrive escaped."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"0")
    await outbox.abort(FileNotFoundError("no file caf\udce9"))
    assert bytes(await inbox.recv()) == b"0"
    with pytest.raises(ChannelFailed, match=r"no file caf\\udce9"):
        await inbox.recv()

    other = receiver.register_channel("other", codec="bytes")
    outbox = sender.register_channel("other", to=receiver.address, codec="bytes")
    await outbox.attached()
    await other.close("no room for caf\udce9")
    with pytest.raises(ChannelClosedByPeer, match=r"no room for caf\\udce9"):
        await outbox.send(b"1")
    with pytest.raises(ValueError, match="stream"):
        sender.register_channel("third", to=receiver.address, codec="bytes", stream="caf\udce9")


def words(*texts: str) -> pa.RecordBatch:
    """A small batch with a dictionary of its own."""
    return pa.record_batch({"word": pa.array(texts).dictionary_encode()})


async def test_dictionaries_count_in_both_buffers(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-BUF-1: what messages need is kept with them, so it takes room as they do, once."""
    buffer = BufferPolicy(max_bytes=100_000)
    outbox = sender.register_channel("c", to=receiver.address, buffer=buffer)
    batches = [words(f"{number}" + "x" * 50_000) for number in range(20)]
    sending = asyncio.create_task(outbox.send_many(batches))
    await asyncio.sleep(0)
    assert 50_000 < outbox.statistics().buffered_bytes <= 100_000
    assert not sending.done()
    inbox = receiver.register_channel("c", buffer=buffer)
    received = []
    for _ in batches:
        received.append(await inbox.recv())
        assert inbox.statistics().buffered_bytes <= 200_000
    assert received == batches
    await sending
    for _ in range(20):  # the same dictionary: it counts once
        await outbox.send(batches[-1])
    await outbox.flush()
    assert inbox.statistics().buffered_bytes < 80_000
    await outbox.close()
    assert [batch async for batch in inbox] == batches[-1:] * 20
    assert (inbox.statistics().buffered_bytes, outbox.statistics().buffered_bytes) == (0, 0)


async def test_a_very_large_schema_harms_no_other_channel(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-ARW-2: one that no control message could carry."""
    schema = pa.schema([("n", pa.int64())], metadata={"history": "x" * (5 << 20)})
    outbox = sender.register_channel("c", to=receiver.address, schema=schema)
    inbox = receiver.register_channel("c")
    async with asyncio.timeout(60):
        assert (await inbox.schema()).metadata == schema.metadata
    await outbox.close()
    assert [batch async for batch in inbox] == []


@pytest.mark.parametrize(
    "batch",
    [
        words("x" * 20_000),
        pa.record_batch([pa.array([1])], schema=pa.schema([("n", pa.int64())], metadata={"x": "x" * 20_000})),
    ],
    ids=["dictionary", "schema"],
)
async def test_what_messages_need_has_a_limit_too(batch: pa.RecordBatch, sender: SenderServer) -> None:
    """CH-ARW-2: above the receiver's limit `send` says so; if that was not known yet, the next call."""
    async with ReceiverServer(message_limit=10_000) as receiver, asyncio.timeout(60):
        early = sender.register_channel("early", to=receiver.address)
        await early.send(batch)
        receiver.register_channel("early")
        with pytest.raises(MessageTooLarge, match="10000"):
            await early.flush()
        receiver.register_channel("late")
        late = sender.register_channel("late", to=receiver.address)
        await late.attached()
        with pytest.raises(MessageTooLarge, match="10000"):
            await late.send(batch)


async def test_who_waited_first_is_served_first(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-SEQ-1: producers that wait for room get their numbers, and consumers their messages, in the order of calls."""
    inbox = receiver.register_channel("c", codec="bytes")
    buffer = BufferPolicy(max_messages=1)
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=buffer)
    receiving = [asyncio.create_task(inbox.recv()) for _ in range(50)]
    await outbox.attached()
    sending = [asyncio.create_task(outbox.send(b"%d" % number)) for number in range(50)]
    assert [int(bytes(body)) for body in await asyncio.gather(*receiving)] == list(range(50))
    await asyncio.gather(*sending)


async def test_numbers_that_are_none(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-ACK-3: a number from a data frame may be a float: refused at once, and the channel lives on."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send_many([b"0", b"1"])
    await inbox.recv()
    number: Any
    for number in (1.0, math.nan, "1", None):
        with pytest.raises(TypeError, match="whole number"):
            await inbox.ack(number)
    await inbox.ack(np.int64(1))
    for number, error in {Position("s", 2.5): TypeError, 1 << 63: ValueError}.items():  # type: ignore[arg-type]
        with pytest.raises(error, match="number"):
            receiver.register_channel("other", codec="bytes", resume_from=number)
    await inbox.recv()
    await inbox.ack(2)
    assert (await outbox.close()).acknowledged == 2


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be(seconds: float) -> None:
    """CH-CTL-3: a heartbeat every 0 seconds would stop the event loop."""
    with pytest.raises(ValueError, match="heartbeat_s"):
        Timing(heartbeat_s=seconds)


async def test_memory_of_all_kinds(receiver: ReceiverServer, sender: SenderServer) -> None:
    """What is in one piece is sent as it is; what is not, or is not memory, is refused by name."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    value: Any
    for value in (
        np.zeros((0, 3)),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.float64(1.5),
        np.zeros(2, [("a", "i4"), ("b", "f8")]),
        bytearray(),
        pa.py_buffer(b""),
    ):
        await outbox.send(value)
        assert bytes(await inbox.recv()) == memoryview(value).tobytes()
    released = memoryview(b"abc")
    released.release()
    for value in (
        np.arange(10)[::2],
        memoryview(b"abcdef")[::2],
        np.zeros(2, "M8[s]"),
        np.array([object()]),
        released,
        "text",
    ):
        with pytest.raises(SchemaMismatch, match=type(value).__name__):
            await outbox.send(value)
    assert outbox.position == 6


async def test_a_batch_that_arrow_cannot_write(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-ARW-4: it took no number, and the channel lives on."""
    inbox = receiver.register_channel("c")
    outbox = sender.register_channel("c", to=receiver.address)
    with pytest.raises(SchemaMismatch, match="larger than"):
        await outbox.send(pa.record_batch([pa.nulls(1 << 31)], names=["n"]))
    await outbox.send(pa.record_batch([pa.nulls(3)], names=["n"]))
    assert (await inbox.recv()).num_rows == 3


async def test_registering_from_another_thread(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-REG-5: refused, and the id is still free."""
    with pytest.raises(NetChannelError, match="another event loop or thread"):
        await asyncio.to_thread(sender.register_channel, "c", receiver.address, codec="bytes")
    sender.register_channel("c", to=receiver.address, codec="bytes")


async def test_an_abort_acknowledges_nothing(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-END-2, CH-ACK-1: what the consumer has not acknowledged before it stays so."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send_many([b"0", b"1"])
    await inbox.recv()
    await inbox.ack(1)
    await outbox.abort("the disk is gone")
    assert outbox.statistics().acknowledged <= 1
    with pytest.raises(
        ChannelClosed, match=r"was aborted \(the disk is gone\) by this side after 2 messages"
    ):
        await outbox.flush()
    assert (await outbox.close()).acknowledged <= 1


async def test_a_note_of_another_kind(receiver: ReceiverServer, sender: SenderServer) -> None:
    """Empty ones too, whether the message needs a place in the buffer to be looked for or has it already."""
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    for before in range(2):
        for note in (None, "", 0, "x"):
            with pytest.raises(TypeError, match=r"a note is .*: expected bytes"):
                await outbox.send(b"message", note)  # type: ignore[arg-type]
        assert outbox.position == before
        await outbox.send(b"message")


async def test_settings_of_another_kind(receiver: ReceiverServer, sender: SenderServer) -> None:
    """What a JSON file, or a slip of the finger, makes of them is named."""
    there: Any = receiver
    for setting, value in {"to": there, "buffer": 100, "fault": 5}.items():
        settings: dict[str, Any] = {"to": receiver.address, setting: value}
        with pytest.raises(TypeError, match=f"{setting} is .*: expected a "):
            sender.register_channel("c", **settings)
    for setting in ("buffer", "fault"):
        with pytest.raises(TypeError, match=f"{setting} is 5: expected a "):
            receiver.register_channel("c", **{setting: 5})
    with pytest.raises(TypeError, match="to is None: expected a str"):
        sender.register_channel("c", to=None)
    for register in (receiver.register_staged_channel, receiver.retain_channel, sender.retain_channel):
        with pytest.raises(TypeError, match="policy is 'kept': expected a "):
            register("c", policy="kept")
    with pytest.raises(TypeError, match=r"group is \('app', 0, 0\): expected a Group"):
        sender.register_attempt("c", receiver.address, group=("app", 0, 0))
    for position in (("s", 3), "x", 2.5):
        with pytest.raises(TypeError, match="resume_from"):
            receiver.register_channel("c", resume_from=position)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="secret is bytes: expected a str"):
        SenderServer(secret=b"s")  # type: ignore[arg-type]
    for setting in ("timing", "message_limit", "max_connections"):
        with pytest.raises(TypeError, match=f"{setting} is 'x': expected a"):
            ReceiverServer(**{setting: "x"})  # type: ignore[arg-type]
    for register in (receiver.register_channel, partial(sender.register_channel, to="127.0.0.1:9")):
        with pytest.raises(TypeError, match=r"schema is \{'x': 'int'\}: expected a Schema"):
            register("c", schema={"x": "int"})  # type: ignore[operator]
    with pytest.raises(TypeError, match="stream is 5: expected a str"):
        sender.register_channel("c", to="127.0.0.1:9", stream=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="listen is 8000: expected a str"):
        ReceiverServer(8000)  # type: ignore[arg-type]
    for limit in (0, 1 << 63):
        with pytest.raises(ValueError, match=f"message_limit is {limit}"):
            ReceiverServer(message_limit=limit)
    with pytest.raises(ValueError, match="nonsense"):
        ReceiverServer(advertise="nonsense")
    with pytest.raises(ValueError, match="is a URL"):
        sender.register_channel("c", to="tcp://127.0.0.1:80")


async def test_a_batch_that_is_not_valid(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-BAD-1: the receiver would refuse it, when it is too late: `send` does, and goes on."""
    inbox = receiver.register_channel("c")
    outbox = sender.register_channel("c", to=receiver.address)
    offsets, text = pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
    broken = pa.record_batch({"s": pa.Array.from_buffers(pa.utf8(), 1, [None, offsets, text])})
    with pytest.raises(SchemaMismatch, match="UTF"):
        await outbox.send(broken)
    good = pa.record_batch({"s": ["a"]})
    await outbox.send(good)
    assert await inbox.recv() == good


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
async def test_data_ports_of_either_family(host: str) -> None:
    """CH-DATA-2: also of IPv6."""
    async with ReceiverServer(f"{host}:0", data_ports="ephemeral") as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        assert bytes(await inbox.recv()) == b"x"
        await outbox.close()


async def test_a_name_with_several_addresses_has_one_port() -> None:
    """Who dials any of them reaches this server."""
    async with ReceiverServer("localhost:0") as receiver:
        ports = set()
        for descriptor in receiver.descriptors():
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                ports.add(sock.getsockname()[1])
        assert len(ports) == 1


def test_deadlines_that_were_cancelled_take_no_memory() -> None:
    """CH-FLT-1: channels come and go under a long policy."""
    timers = Timers()
    kept = timers.at(1e9, lambda now: None)
    for _ in range(10_000):
        timers.at(1e6, lambda now: None).cancel()
    assert len(timers._heap) < 100
    assert timers.next() == kept.when
