"""Channels as their users see them, beside what the conformance kit shows over every transport: arguments, TCP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pyarrow as pa
import pytest

import netchannel
from netchannel import BufferPolicy, ReceiverServer, SenderServer, Timing
from netchannel.testing.deadlines import eventually
from tests.support.forged import forged


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", "\ud800", 5])
async def test_ids_are_printable(receiver: ReceiverServer, bad: str) -> None:
    """An id is 1 to 255 bytes of printable UTF-8."""
    with pytest.raises(ValueError if isinstance(bad, str) else TypeError, match="expected 1 to 255"):
        receiver.register_channel(bad)


async def test_servers_and_channels_show_what_they_are(free_address: str) -> None:
    policy = netchannel.RetainPolicy()
    receiver, sender = ReceiverServer(free_address), SenderServer("127.0.0.1:0")
    assert [repr(receiver), repr(sender)] == [
        f"<ReceiverServer '{free_address}', not running>",
        "<SenderServer not running>",
    ]
    async with receiver, sender:
        assert repr(receiver) == f"<ReceiverServer '{free_address}', running>"
        assert repr(sender) == f"<SenderServer '{sender.address}', running>"
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", free_address, codec="bytes")
        await outbox.attached()
        assert [repr(outbox), repr(inbox)] == [
            "<SenderChannel 'c', attached>",
            "<ReceiverChannel 'c', attached>",
        ]
        kept, keeping = sender.retain_channel("kept", policy), receiver.retain_channel("keeping", policy)
        assert repr(kept) == "<RetainedSenderChannel 'kept', attached>"
        assert repr(keeping).startswith("<RetainedChannel 'keeping', ")
        attempt = sender.register_attempt("staged", free_address, netchannel.Group("app", 0, 0))
        assert repr(attempt).startswith("<GroupChannel 'staged', ")
        reader = netchannel.ChannelReader(free_address, "keeping")
        assert repr(reader) == f"<ChannelReader 'keeping', '{free_address}', not entered>"
        await outbox.close()
        assert repr(outbox) == "<SenderChannel 'c', ended>"


async def test_misuse_is_named(receiver: ReceiverServer, sender: SenderServer) -> None:
    """What cannot work says so where it is asked for."""
    with pytest.raises(ValueError, match="port 0"):
        sender.register_channel("c", to="127.0.0.1:0")
    with pytest.raises(ValueError, match="begin at 0"):
        receiver.register_channel("c", resume_from=-1)
    for server in (sender, receiver):
        with pytest.raises(netchannel.NetChannelError, match="already running"):
            await server.__aenter__()
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    with pytest.raises(TypeError, match="expected bytes"):
        await outbox.send(b"x", "note")  # type: ignore[arg-type]
    for used in (outbox.send(b"x"), inbox.recv()):
        with pytest.raises(netchannel.NetChannelError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, used)
    await outbox.close()
    with pytest.raises(netchannel.ChannelClosed):
        await outbox.send("of the wrong type")


@pytest.mark.long
async def test_messages_of_200_mb() -> None:
    """CH-ARW-2: 200 MB pass; above a limit of 64 MB `send` says so with both numbers."""
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


async def test_nothing_is_taken_behind_a_detach(receiver: ReceiverServer, sender: SenderServer) -> None:
    """While it waits for what was sent before: more would be lost with the channel. Given up, it goes on."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel(
        "c", receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=2)
    )
    await outbox.send(b"0")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(outbox.detach(), 0.05)
    await outbox.send(b"1")
    waiting = asyncio.ensure_future(outbox.send(b"no room"))
    await asyncio.sleep(0)
    detaching = asyncio.ensure_future(outbox.detach())
    assert [await inbox.recv(), await inbox.recv()] == [b"0", b"1"]
    for send in (waiting, outbox.send(b"2"), outbox.send_many([b"2"]), outbox.send(b"2", note=b"n")):
        with pytest.raises(netchannel.ChannelClosed, match="detached"):
            await send
    await inbox.ack(1)
    assert not detaching.done()
    await inbox.ack(inbox.position)
    await detaching
    assert outbox.position == 2


async def test_who_leaves_without_closing_is_told_what_did_not_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits for it there: it is neither sent nor raised any more."""
    async with SenderServer() as sender:
        outbox = sender.register_channel("c", to="127.0.0.1:1", codec="bytes")
        await outbox.send_many([b"0", b"1"])
    (told,) = [text for text in caplog.messages if "was not closed before its server" in text]
    assert "2 messages were sent, but those from number 0 on were not acknowledged" in told


async def test_a_close_that_waits_for_acknowledgements_says_so(
    receiver: ReceiverServer,
    sender: SenderServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer that forgets them keeps its producer waiting for ever."""
    monkeypatch.setattr("netchannel.servers.sender_channel.COMPLAIN_AFTER_S", 0.05)
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel("c", receiver.address, codec="bytes")
    await outbox.send(b"0")
    assert await inbox.recv() == b"0"
    closing = asyncio.ensure_future(outbox.close())
    await eventually(lambda: "close() waits for 1 messages, from number 0 on" in caplog.text)
    assert not closing.done()
    await inbox.ack(inbox.position)
    assert (await closing).acknowledged == 1


async def test_noise_is_hung_up_on(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-BAD-1: what is not a connection of ours is hung up on, and the channel lives on."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"x")
    host, port = receiver.address.split(":")
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(noise)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
        writer.close()
    await outbox.send(b"y")
    assert [await inbox.recv(), await inbox.recv()] == [b"x", b"y"]
    await outbox.close()


async def test_versions_are_compared(sender: SenderServer) -> None:
    """CH-VER-1: a peer of version 99 gets a sentence with both versions, and is not retried for ever."""

    hung_up = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(forged({"t": "hello", "version": 99, "node": "future", "dead_after_ms": 5000}))
        await reader.read()
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    outbox = sender.register_channel("c", to=f"127.0.0.1:{port}", codec="bytes")
    async with asyncio.timeout(60):
        with pytest.raises(netchannel.HandshakeError, match=r"version 99, this side version 1"):
            await outbox.close()
        await hung_up.wait()
    server.close()
    await server.wait_closed()


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
    """A stale socket file is not an address in use, one that answers is."""
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with ReceiverServer(f"unix:{path}") as receiver:
        with pytest.raises(OSError, match=f"cannot listen on unix:{path}: .* in use"):
            async with ReceiverServer(receiver.address):
                pass
    assert not path.exists()


async def test_a_port_in_use_is_named() -> None:
    """Listening twice on a port says which."""
    async with ReceiverServer() as first:
        with pytest.raises(OSError, match=f"cannot listen on {first.address}: .*choose another port"):
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
        async with asyncio.timeout(60):
            for reader, writer in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
        await outbox.close()
