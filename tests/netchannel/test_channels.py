"""Channels as their users see them, over every transport and on every loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pyarrow as pa
import pytest

import netchannel
from netchannel import BufferPolicy, Message, Position, ReceiverServer, SenderServer, Timing
from netchannel.core.control import FOR_DATA, greeting
from netchannel.core.frames import Kind, signal
from netchannel.core.messages import encode


def batch(start: int, rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


async def eventually(condition: object, *, within_s: float = 10.0) -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - of what has no event to wait for
            await asyncio.sleep(0.005)


async def test_the_twelve_lines(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-END-1, CH-SEQ-1: in order, once, a clean end; after flush the receiver has everything."""
    inbox = receiver.register_channel("flights")
    outbox = sender.register_channel("flights", to=receiver.address)
    for number in range(100):
        await outbox.send(batch(number))
    await outbox.flush()
    assert inbox.statistics().received == 100
    report = await outbox.close()
    assert [received async for received in inbox] == [batch(number) for number in range(100)]
    assert report == netchannel.CloseReport(acknowledged=100)
    with pytest.raises(netchannel.EndOfChannel):
        await inbox.recv()
    with pytest.raises(netchannel.ChannelClosed):
        await outbox.send(batch(0))


async def test_registering_needs_no_network(address: str) -> None:
    """CH-REG-1, CH-CTL-2: both sides register at once, with nobody listening and no socket before."""
    async with SenderServer() as sender:
        began = time.perf_counter()
        outbox = sender.register_channel("c", to="127.0.0.1:1")
        assert time.perf_counter() - began < 0.01
        assert outbox.statistics().state == "registered"
        report = await outbox.close(grace=0.05)
    assert report.acknowledged == 0


async def test_a_receiver_waits_for_its_sender(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-REG-3: `recv` is pending, the sender comes later."""
    inbox = receiver.register_channel("c")
    waiting = asyncio.create_task(inbox.recv())
    await asyncio.sleep(0)
    outbox = sender.register_channel("c", to=receiver.address)
    await outbox.send(batch(7))
    assert await waiting == batch(7)
    await outbox.close()


async def test_a_taken_id_is_refused(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-REG-5: the second registration fails, the first is unharmed."""
    inbox = receiver.register_channel("c")
    outbox = sender.register_channel("c", to=receiver.address)
    with pytest.raises(netchannel.ChannelInUse, match="'c'"):
        receiver.register_channel("c")
    with pytest.raises(netchannel.ChannelInUse, match="'c'"):
        sender.register_channel("c", to=receiver.address)
    await outbox.send(batch(1))
    assert await inbox.recv() == batch(1)
    await outbox.close()


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", "\ud800", 5])
async def test_ids_are_printable(receiver: ReceiverServer, bad: str) -> None:
    """An id is 1 to 255 bytes of printable UTF-8."""
    with pytest.raises(netchannel.NetChannelError, match="expected 1 to 255"):
        receiver.register_channel(bad)


async def test_misuse_is_named(receiver: ReceiverServer, sender: SenderServer) -> None:
    """What cannot work says so where it is asked for."""
    with pytest.raises(ValueError, match="port 0"):
        sender.register_channel("c", to="127.0.0.1:0")
    with pytest.raises(netchannel.NetChannelError, match="begin at 0"):
        receiver.register_channel("c", resume_from=-1)
    for server in (sender, receiver):
        with pytest.raises(netchannel.NetChannelError, match="running already"):
            await server.__aenter__()
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    with pytest.raises(netchannel.NetChannelError, match="expected bytes"):
        await outbox.send(b"x", "note")  # type: ignore[arg-type]
    for used in (outbox.send(b"x"), inbox.recv()):
        with pytest.raises(netchannel.NetChannelError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, used)
    await outbox.close()
    with pytest.raises(netchannel.ChannelClosed):
        await outbox.send("of the wrong type")


async def test_notes_numbers_and_timestamps(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-NOTE-1: they travel with their message."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    before = time.time_ns() // 1000
    assert outbox.position == 0
    await outbox.send(b"a", b"first")
    await outbox.send(b"b")
    await outbox.send(memoryview(b"big" * 1_000_000), b"last")
    assert outbox.position == 3
    messages = [await inbox.recv_message() for _ in range(3)]
    assert [(bytes(m.batch), m.note, m.sequence) for m in messages] == [
        (b"a", b"first", 0), (b"b", b"", 1), (b"big" * 1_000_000, b"last", 2),
    ]  # fmt: skip
    assert all(before <= message.timestamp <= time.time_ns() // 1000 for message in messages)
    await outbox.close()


async def test_large_messages_are_cut_and_joined() -> None:
    """CH-ARW-2: 200 MB pass; above the receiver's limit `send` says so with both numbers."""
    async with (
        ReceiverServer(message_limit=64 << 20) as small,
        ReceiverServer() as large,
        SenderServer() as sender,
    ):
        values = pa.array(range(25_000_000), pa.int64())
        big = pa.record_batch({"n": values})
        inbox = large.register_channel("big")
        outbox = sender.register_channel("big", to=large.address)
        await outbox.send(big)
        received = await inbox.recv()
        assert received.equals(big)
        await outbox.close()
        small.register_channel("small")
        refused = sender.register_channel("small", to=small.address)
        await refused.attached()
        with pytest.raises(netchannel.MessageTooLarge, match=r"2000\d+ bytes.*67108864"):
            await refused.send(big)
        await refused.close()


async def test_what_the_receiver_that_came_cannot_take(sender: SenderServer, free_address: str) -> None:
    """CH-ARW-2: a message sent before there was a receiver, above its limit: said at once, not tried for ever."""
    outbox = sender.register_channel("c", to=free_address, codec="bytes")
    await outbox.send(bytes(300_000))
    async with ReceiverServer(free_address, message_limit=200_000) as receiver:
        receiver.register_channel("c", codec="bytes")
        async with asyncio.timeout(5):
            with pytest.raises(netchannel.MessageTooLarge, match=r"300000 bytes.*200000"):
                await outbox.close()


async def test_explicit_acknowledgement_and_a_successor(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-ACK-1: read 50, acknowledged 30: the successor is given 30 and on."""
    first = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    for number in range(100):
        await outbox.send(b"%d" % number)
    for _ in range(50):
        await first.recv()
    await first.ack(30)
    await eventually(lambda: outbox.statistics().acknowledged == 30)
    position = first.position
    assert position == Position(outbox.stream, 50)
    await first.detach()
    second = receiver.register_channel(
        "c", codec="bytes", ack="explicit", resume_from=Position(outbox.stream, 30)
    )
    message = await second.recv_message()
    assert message == Message(b"30", b"", 30, message.timestamp)
    while (message := await second.recv_message()).sequence < 99:
        pass
    await second.ack(100)
    assert (await outbox.close()).acknowledged == 100


async def test_only_the_channel_of_a_slow_consumer_is_held_back(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-BP-1, CH-DATA-1, CH-BUF-2: its `send` waits, another channel between the same nodes goes on."""
    limit = BufferPolicy(max_bytes=1 << 20)
    slow = receiver.register_channel("slow", codec="bytes", buffer=limit)
    fast = receiver.register_channel("fast", codec="bytes", buffer=limit)
    outbox = {
        name: sender.register_channel(name, to=receiver.address, codec="bytes", buffer=limit)
        for name in ("slow", "fast")
    }
    body = bytes(1 << 18)

    async def produce(name: str) -> None:
        for _ in range(200):
            await outbox[name].send(body)
        await outbox[name].close()

    producers = [asyncio.create_task(produce(name)) for name in outbox]
    assert len([part async for part in fast]) == 200
    held = slow.statistics()
    assert not producers[0].done()
    assert held.buffered_bytes <= 4 << 20  # the mark, and what one read of the socket brings
    assert outbox["slow"].statistics().buffered_bytes <= 1 << 20
    assert len([part async for part in slow]) == 200
    await asyncio.gather(*producers)


async def test_a_full_buffer_may_fail(sender: SenderServer) -> None:
    """CH-BUF-2: `when_full="fail"` raises with the numbers, and the message took no number."""
    policy = BufferPolicy(max_messages=2, when_full="fail")
    outbox = sender.register_channel("c", to="127.0.0.1:1", codec="bytes", buffer=policy)
    await outbox.send(b"x")
    await outbox.send(b"y")
    with pytest.raises(netchannel.BufferFull, match="2 messages"):
        await outbox.send(b"z")
    assert outbox.position == 2
    assert (await outbox.close(grace=0)).undelivered == 2


async def test_the_oldest_may_be_dropped(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-BUF-2: what was never sent is dropped, oldest first; both sides count it, the numbers show the gap."""
    policy = BufferPolicy(max_messages=10, when_full="drop_oldest")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=policy)
    for number in range(100):
        await outbox.send(b"%d" % number)
        await asyncio.sleep(0)  # frames are made once per turn of the loop
    inbox = receiver.register_channel("c", codec="bytes")
    assert (await outbox.close()).acknowledged == 100
    messages = [await inbox.recv_message() for _ in range(10)]
    with pytest.raises(netchannel.EndOfChannel):
        await inbox.recv()
    assert [message.sequence for message in messages] == list(range(90, 100))
    assert [int(message.batch) for message in messages] == list(range(90, 100))
    assert outbox.statistics().dropped == inbox.statistics().dropped == 90
    assert inbox.statistics().received == 10


async def test_dropping_and_explicit_acknowledgement_do_not_go_together(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-BUF-2: refused by name, for good."""
    receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel(
        "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(when_full="drop_oldest")
    )
    with pytest.raises(netchannel.HandshakeError, match="drop_oldest"):
        await outbox.close()


async def test_a_starved_channel_is_named_on_both_sides(
    receiver: ReceiverServer, sender: SenderServer, caplog: pytest.LogCaptureFixture
) -> None:
    """CH-ACK-3: a buffer of 64, a consumer that commits per 100: one warning each with both numbers, no silence."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel(
        "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=64)
    )

    async def produce() -> None:
        for _ in range(200):
            await outbox.send(b"x")
        await outbox.close()

    async def consume() -> None:
        for number in range(200):
            await inbox.recv()
            if number % 100 == 99:
                await inbox.ack(number + 1)

    producing, consuming = asyncio.create_task(produce()), asyncio.create_task(consume())
    await eventually(lambda: inbox.statistics().starved and outbox.statistics().starved)
    warnings = [record.getMessage() for record in caplog.records if "starved" in record.getMessage()]
    assert len(warnings) == 2
    assert all("64" in warning and "number 0 on" in warning for warning in warnings)
    while not consuming.done():
        if inbox.statistics().starved:  # the way out: acknowledge what is there
            assert inbox.position is not None
            await inbox.ack(inbox.position.sequence)
        await asyncio.sleep(0.001)
    await producing


async def test_leaving_by_an_exception_is_no_clean_end(receiver: ReceiverServer) -> None:
    """CH-END-7: the consumer gets what was sent, then the failure with its cause."""
    inbox = receiver.register_channel("c", codec="bytes")

    async def fail() -> None:
        async with SenderServer() as sender:
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            await outbox.send(b"x")
            raise ZeroDivisionError("the answer")

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await inbox.recv() == b"x"
    with pytest.raises(netchannel.ChannelFailed, match=r"left without closing: the answer"):
        await inbox.recv()


async def test_leaving_does_not_wait_for_who_is_not_there() -> None:
    """CH-END-5: an exception comes out at once where no receiver listens."""
    began = time.perf_counter()
    async with SenderServer() as sender:
        await sender.register_channel("c", to="127.0.0.1:1", codec="bytes").send(b"x")
    assert time.perf_counter() - began < 2


async def test_abort_reaches_the_consumer(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-END-2: after the data, with the message."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"x")
    await outbox.abort(ValueError("bad row 7"))
    assert await inbox.recv() == b"x"
    with pytest.raises(netchannel.ChannelFailed, match="ValueError: bad row 7"):
        await inbox.recv()


async def test_a_consumer_that_leaves_stops_the_producer(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-END-3: with its reason; also one that waits for room."""
    inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_messages=1))
    outbox = sender.register_channel(
        "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=3)
    )

    async def produce() -> None:
        while True:
            await outbox.send(bytes(1000))

    producing = asyncio.create_task(produce())
    await inbox.recv()
    await inbox.close("three is enough")
    with pytest.raises(netchannel.ChannelClosedByPeer, match="three is enough"):
        await producing
    with pytest.raises(netchannel.ChannelClosed):
        await inbox.recv()


async def test_closing_never_hangs(sender: SenderServer) -> None:
    """CH-END-5: a peer that is away: close(grace) comes back, and says what was not delivered."""
    outbox = sender.register_channel("c", to="127.0.0.1:1", codec="bytes")
    await outbox.send(b"x")
    began = time.perf_counter()
    report = await outbox.close(grace=0.1)
    assert time.perf_counter() - began < 1
    assert report == netchannel.CloseReport(acknowledged=0, undelivered_from=0, undelivered=1)
    with pytest.raises(netchannel.ChannelBroken, match=r"grace=0\.1"):
        await outbox.send(b"y")


async def test_a_new_stream_on_an_ended_id(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-END-9: Monday's job ends, Tuesday's runs on the same id."""
    for day in (b"monday", b"tuesday"):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(day)
        await outbox.close()
        assert [bytes(part) async for part in inbox] == [day]


async def test_codecs_and_schemas_must_agree(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-ARW-4: another codec or schema is a typed error on both sides, whoever learns it when."""
    inbox = receiver.register_channel("codec", codec="arrow")
    outbox = sender.register_channel("codec", to=receiver.address, codec="bytes")
    with pytest.raises(netchannel.SchemaMismatch, match=r"'arrow' here, 'bytes'"):
        await inbox.recv()
    with pytest.raises(netchannel.SchemaMismatch, match=r"'arrow' here, 'bytes'"):
        await outbox.close()
    for name, declared in (("early", batch(0).schema), ("late", None)):
        inbox = receiver.register_channel(name, schema=pa.schema({"n": pa.string()}))
        outbox = sender.register_channel(name, to=receiver.address, schema=declared)
        if declared is None:
            await outbox.attached()
            await outbox.send(batch(0))
        with pytest.raises(netchannel.SchemaMismatch, match=r"n: int64.*n: string"):
            await inbox.recv()
        with pytest.raises(netchannel.SchemaMismatch, match=r"n: int64.*n: string"):
            await outbox.close()


async def test_another_schema_at_send(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-ARW-4: the wrong batch is refused where it is sent, the channel lives on."""
    inbox = receiver.register_channel("c")
    outbox = sender.register_channel("c", to=receiver.address)
    await outbox.send(batch(1))
    with pytest.raises(netchannel.SchemaMismatch, match=r"m: string.*n: int64"):
        await outbox.send(pa.record_batch({"m": ["x"]}))
    with pytest.raises(netchannel.SchemaMismatch, match=r"expected a\s+pyarrow.RecordBatch"):
        await outbox.send(b"bytes")
    assert await inbox.recv() == batch(1)
    await outbox.close()


async def test_the_schema_is_known_before_data(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-ARW-4: on an empty stream too."""
    inbox = receiver.register_channel("c")
    outbox = sender.register_channel("c", to=receiver.address, schema=batch(0).schema)
    assert await inbox.schema() == batch(0).schema
    await outbox.close()
    assert [part async for part in inbox] == []


async def test_cancelling_takes_nothing_away(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-CAN-1: cancelled at whatever await: each message once, as `position` says."""
    inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_messages=2))
    outbox = sender.register_channel(
        "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=2)
    )
    received: list[int] = []

    async def consume() -> None:
        async for part in inbox:
            received.append(int(part))  # noqa: PERF401 - one by one: it is cancelled in between

    async def cancelled_after(turns: int, coroutine: object) -> None:
        task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    number = 0
    for round_ in range(200):
        before = outbox.position
        await cancelled_after(round_ % 7, outbox.send(b"%d" % number))
        number += outbox.position - before
        await cancelled_after(round_ % 5, outbox.flush())
        await cancelled_after(round_ % 6, consume())
    consuming = asyncio.create_task(consume())
    await cancelled_after(1, outbox.close())
    await outbox.close()
    await consuming
    assert received == list(range(number))
    assert number > 100


async def test_one_control_connection_between_two_nodes(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-CTL-1, CH-CTL-5: 100 channels: 1 control connection, 100 data connections, none when they are over."""
    inboxes = [receiver.register_channel(f"c{n}", codec="bytes") for n in range(100)]
    outboxes = [sender.register_channel(f"c{n}", to=receiver.address, codec="bytes") for n in range(100)]
    assert sender._runner is not None
    await asyncio.gather(*(outbox.attached() for outbox in outboxes))
    kinds = [protocol._link.control for protocol in sender._runner.protocols]
    assert (kinds.count(True), kinds.count(False)) == (1, 100)
    await asyncio.gather(*(outbox.close() for outbox in outboxes))
    for inbox in inboxes:
        assert [part async for part in inbox] == []
    await eventually(lambda: sender._runner is not None and not sender._runner.protocols)


async def test_statistics_agree_with_the_traffic(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-OBS-1: counters on both sides."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    for _ in range(10):
        await outbox.send(bytes(100))
    await eventually(lambda: outbox.statistics().received == 10)
    for _ in range(4):
        await inbox.recv()
    await inbox.ack(3)
    await eventually(lambda: outbox.statistics().acknowledged == 3)
    sent, got = outbox.statistics(), inbox.statistics()
    assert (sent.state, sent.sent, sent.received, sent.bytes) == ("attached", 10, 10, 1000)
    assert (sent.buffered_messages, sent.in_flight, sent.reconnects) == (7, 7, 0)
    assert (got.state, got.received, got.acknowledged, got.bytes) == ("attached", 10, 3, 1000)
    assert (got.buffered_messages, got.buffered_bytes) == (6, 600)
    await outbox.close(grace=0)


async def test_a_stranger_is_told_apart(tcp_receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-DATA-3, CH-BAD-1: noise and guessed tokens are refused, and the channel lives on."""
    receiver = tcp_receiver
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"x")
    host, port = receiver.address.split(":")
    guess = greeting(FOR_DATA) + signal(Kind.ATTACH, payload=bytes(16)) + signal(Kind.END)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, guess):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(noise)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
        writer.close()
    await outbox.send(b"y")
    assert [await inbox.recv(), await inbox.recv()] == [b"x", b"y"]
    await outbox.close()


async def test_versions_are_compared(sender: SenderServer) -> None:
    """CH-VER-1: a peer of version 99 gets a sentence with both versions, and is not retried for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode({"t": "hello", "version": 99, "node": "future", "dead_after_ms": 5000}))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    outbox = sender.register_channel("c", to=f"127.0.0.1:{port}", codec="bytes")
    async with asyncio.timeout(5):
        with pytest.raises(netchannel.HandshakeError, match=r"version 99, this side version 1"):
            await outbox.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ("open sesame", "open barley", "another secret"),
        ("open sesame", None, "asks for"),
        (None, "open sesame", "has no secret"),
    ],
)
async def test_strangers_open_no_channels(
    ours: str | None, theirs: str | None, reason: str, address: str
) -> None:
    """CH-SEC-1: wrong or no secret: refused, named on the sender's side, not retried for ever."""
    async with ReceiverServer(address, secret=ours) as receiver, SenderServer(secret=theirs) as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        async with asyncio.timeout(5):
            with pytest.raises(netchannel.HandshakeError, match=f"{reason}.*the same secret="):
                await outbox.close()
        assert inbox.statistics().state == "registered"


async def test_who_knows_the_secret_is_served(address: str) -> None:
    """CH-SEC-1: with the same secret on both sides the channel works."""
    async with ReceiverServer(address, secret="s") as receiver, SenderServer(secret="s") as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        await outbox.close()
        assert await inbox.recv() == b"x"


@pytest.mark.parametrize("data_ports", ["30100-30199", "ephemeral"])
async def test_ports_for_data(data_ports: str, sender: SenderServer) -> None:
    """CH-DATA-2: a range, or a fresh port for each channel; reconnects get one too, none stays open."""
    async with ReceiverServer(data_ports=data_ports) as receiver:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        assert sender._runner is not None
        for number in range(5):
            await outbox.send(b"%d" % number)
            await outbox.flush()
            ports = [p._transport.get_extra_info("peername")[1] for p in sender._runner.protocols]
            control = int(receiver.address.split(":")[1])
            (port,) = [port for port in ports if port != control]
            assert data_ports == "ephemeral" or 30100 <= port <= 30199
            for protocol in list(sender._runner.protocols):
                if not protocol._link.control:
                    protocol._transport.abort()
        await outbox.close()
        assert [bytes(part) async for part in inbox] == [b"0", b"1", b"2", b"3", b"4"]


async def test_data_ports_that_are_all_in_use(sender: SenderServer, free_address: str) -> None:
    """CH-DATA-2: a range that is full is a denial with its reason, and the channel waits."""
    port = free_address.split(":")[1]
    async with ReceiverServer(free_address, data_ports=f"{port}-{port}") as receiver:
        receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", fault=netchannel.FaultPolicy(retry=0)
        )
        with pytest.raises(netchannel.ChannelBroken, match="in use"):
            await outbox.close()


async def test_unix_sockets_left_by_a_kill_are_taken_over(tmp_path: Path) -> None:
    """A stale socket file is no address in use, one that answers is."""
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with ReceiverServer(f"unix:{path}") as receiver:
        with pytest.raises(OSError, match="another process"):
            async with ReceiverServer(receiver.address):
                pass
    assert not path.exists()


async def test_a_port_in_use_is_named() -> None:
    """Listening twice on a port says which."""
    async with ReceiverServer() as first:
        with pytest.raises(OSError, match=f"cannot listen on {first.address}"):
            async with ReceiverServer(first.address):
                pass


async def test_listen_and_advertise_differ() -> None:
    """CH-DATA-4: control and data both go to the address that was dialed."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialed.append(1)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", hidden)
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))

    dialed: list[int] = []
    proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with ReceiverServer("127.0.0.1:0", advertise=f"127.0.0.1:{port}") as receiver:
        hidden = int(receiver._listener.address.split(":")[1])
        async with SenderServer() as sender:
            inbox = receiver.register_channel("c", codec="bytes")
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            await outbox.send(b"x")
            await outbox.close()
            assert await inbox.recv() == b"x"
    assert len(dialed) == 2
    proxy.close()
    await proxy.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_who_comes_and_goes_ends_no_wait() -> None:
    """CH-FLT-1: a connection's deadline that is not needed any more brings no other deadline forward."""
    async with ReceiverServer(timing=Timing(handshake_s=0.05)) as receiver:
        inbox = receiver.register_channel("c", codec="bytes", fault=netchannel.FaultPolicy(retry=3600))
        _, writer = await asyncio.open_connection(*receiver.address.split(":"))
        await eventually(lambda: receiver.statistics().connections == 1)
        writer.close()
        with pytest.raises(TimeoutError):  # and not ChannelBroken
            async with asyncio.timeout(0.2):
                await inbox.recv()


@pytest.mark.parametrize("data_ports", [None, "ephemeral"])
async def test_nothing_small_waits_for_more(data_ports: str | None, sender: SenderServer) -> None:
    """CH-REG-4: on both ends of both kinds of connections; else each answer takes a delayed acknowledgement."""
    async with ReceiverServer(data_ports=data_ports) as receiver:
        receiver.register_channel("c", codec="bytes")
        await sender.register_channel("c", to=receiver.address, codec="bytes").attached()
        for server in (sender, receiver):
            assert server._runner is not None
            sockets = [each._transport.get_extra_info("socket") for each in server._runner.protocols]
            assert len(sockets) == 2
            assert all(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for sock in sockets)


async def test_silent_connections_hold_up_no_one() -> None:
    """CH-BAD-2: 500 of them, and a real channel is served meanwhile; after the deadline they are gone."""
    timing = Timing(handshake_s=0.5)
    async with ReceiverServer(timing=timing) as receiver, SenderServer() as sender:
        host, port = receiver.address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(500)]
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        assert await inbox.recv() == b"x"
        async with asyncio.timeout(10):
            for reader, writer in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
        await outbox.close()
