"""Which transport carries an address, and what is made of one that misbehaves."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import netchannel
from netchannel import ChannelBroken, FaultPolicy, ReceiverServer, SenderServer
from netchannel.address import parse_address
from netchannel.core.link import Closing, Link
from netchannel.testing.deadlines import eventually
from netchannel.transports import Listener, MakeProtocol, register, tcp, unregister
from netchannel.transports.runner import HIGH_WATER, LinkProtocol
from netchannel.transports.schemes import check, scheme_of
from netchannel.wire.frames import Buffer
from tests.support.framed import FramedTransport, Unacknowledged


@pytest.fixture
def framed() -> Iterator[str]:
    register("framed", FramedTransport("framed"))
    yield "framed:127.0.0.1:0"
    unregister("framed")


@pytest.mark.parametrize(
    ("address", "scheme"),
    [
        ("localhost:80", "tcp"),
        ("[::1]:80", "tcp"),
        ("framed:localhost:80", "framed"),
        ("framedhost:80", "tcp"),
        ("mem:a:b", "mem"),
        ("unix:/a:b", "unix"),
    ],
)
@pytest.mark.usefixtures("framed")
def test_an_address_belongs_to_the_scheme_that_it_begins_with(address: str, scheme: str) -> None:
    check(address)
    assert scheme_of(address) == scheme


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("nonsense", "is not host:port, unix:/path or mem:name"),
        (":80", "is not host:port"),
        ("::1:80", r"expected \[host\]:port"),
        ("host:99999", "a number from 0 to 65535"),
        ("framed:host", "a scheme that is registered in this process"),
        ("host:0", "port 0, which only a receiver can listen on"),
        ("unix:", "expected unix:/path"),
        (f"unix:/{'ö' * 54}", "a path of 109 bytes, but a socket's path has at most 107"),
        ("mem:", "expected mem:name"),
    ],
)
async def test_what_is_no_address_says_what_was_expected(
    address: str, expected: str, sender: SenderServer
) -> None:
    with pytest.raises(ValueError, match=expected):
        sender.register_channel("c", to=address)


@pytest.mark.parametrize("taken", ["tcp", "unix", "mem", "framed"])
@pytest.mark.usefixtures("framed")
def test_a_scheme_is_registered_once(taken: str) -> None:
    with pytest.raises(ValueError, match="is taken"):
        register(taken, FramedTransport(taken))


@pytest.mark.parametrize("bad", ["", "1a", "a:b", "a b", "ä"])
def test_a_scheme_is_a_word(bad: str) -> None:
    with pytest.raises(ValueError, match="is not a valid scheme"):
        register(bad, FramedTransport(bad))


def test_a_scheme_that_is_unregistered_is_free() -> None:
    register("framed", FramedTransport("framed"))
    unregister("framed")
    with pytest.raises(KeyError):
        unregister("framed")
    with pytest.raises(ValueError, match="registered"):
        check("framed:host")


@pytest.mark.parametrize("address", ["unix:/tmp/s", "mem:a", "framed:127.0.0.1:0"])
@pytest.mark.usefixtures("framed")
def test_ports_for_data_are_tcps_own(address: str) -> None:
    """CH-DATA-2: refused where the receiver is made."""
    with pytest.raises(ValueError, match="data_ports needs TCP"):
        ReceiverServer(address, data_ports="ephemeral")


class Failing:
    """A transport with a mistake in it."""

    def check(self, address: str) -> None:
        pass

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        raise ZeroDivisionError("a mistake")

    async def listen(self, address: str, make_protocol: MakeProtocol) -> Listener:
        raise NotImplementedError


async def test_a_transport_that_raises_what_it_should_not_is_named(
    sender: SenderServer, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """CH-FLT-1: the channel fails as its policy says, instead of waiting for a connection that never comes."""
    register("failing", Failing())
    request.addfinalizer(lambda: unregister("failing"))
    outbox = sender.register_channel("c", to="failing:x", codec="bytes", fault=FaultPolicy(retry=0))
    with pytest.raises(
        netchannel.ChannelBroken, match=r"its transport failed: ZeroDivisionError\('a mistake'\)"
    ):
        await outbox.close()
    assert "dialing failing:x failed" in caplog.text


async def test_idle_connections_are_probed() -> None:
    """CH-CTL-4: all of both sides, so that an end that only one side saw is found where nothing is sent."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        await inbox.recv()
        probed = []
        for descriptor in sender.descriptors() + receiver.descriptors():
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    probed.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        assert probed == [1] * 4
        await outbox.close()


@pytest.mark.parametrize(("wanted", "expected"), [("reno", b"reno"), ("unheard of", None), (None, None)])
async def test_congestion_control_within_a_host(wanted: str | None, expected: bytes | None) -> None:
    """It is set on connections that do not leave the host, if the system has it."""
    systems = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_bytes().strip()
    async with ReceiverServer() as receiver, SenderServer(congestion_control=wanted) as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        await inbox.recv()
        for descriptor in sender.descriptors():
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
                assert used == (expected or systems)
        await outbox.close()


class _Stalled(asyncio.BufferedProtocol):
    """A peer that reads nothing until it leaves."""

    def __init__(self) -> None:
        self.here, self.gone = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()
        self.here.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()

    def get_buffer(self, hint: int) -> memoryview:
        return memoryview(bytearray(1 << 18))

    def buffer_updated(self, size: int) -> None: ...

    async def leave(self) -> None:
        await self.here.wait()
        self.transport.abort()
        await self.gone.wait()


class _Busy(Link):
    """A link that has a lot to say; ``fails`` lets its connection fail at the first word."""

    def __init__(self, sender: SenderServer, remote: str, *, fails: bool) -> None:
        super().__init__(sender._running().core, remote)
        self.fails = fails
        self.writes = 0

    def get_buffer(self, hint: int) -> memoryview:
        return self.core.slab

    def output(self) -> list[Buffer]:
        self.writes += 1
        self.more = self.writes < 64
        if self.writes > 64:
            return []
        if self.fails:
            self.adapter.abort()
        return [bytes(1 << 18), bytes(1 << 18)]

    def _received(self, n: int, now: float) -> None: ...

    def _lost(self, reason: str, now: float) -> None: ...


@pytest.mark.parametrize("fails", [False, True], ids=["stalls", "fails"])
async def test_nothing_more_is_written_to_who_does_not_read(sender: SenderServer, fails: bool) -> None:
    """CH-BUF-1: whatever a loop's `writelines` forgets, a connection holds little more than its high mark."""
    stalled = _Stalled()
    listener = await tcp.listen("127.0.0.1:0", lambda: stalled)
    link = _Busy(sender, listener.address, fails=fails)
    await tcp.connect(listener.address, lambda: LinkProtocol(sender._running(), lambda _: link))
    try:
        held = link.adapter._transport.get_write_buffer_size()
        assert link.writes == 1 if fails else not link.writable and held <= 2 * HIGH_WATER
    finally:
        link.adapter.abort()
        await stalled.leave()
        listener.close()
        await listener.stop()


async def test_a_connection_that_is_closed_behind_a_lot_ends_once(sender: SenderServer) -> None:
    """Closed while its peer reads nothing, it ends once all is read, and no callback fails."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    stalled = _Stalled()
    listener = await tcp.listen("127.0.0.1:0", lambda: stalled)
    link = _Busy(sender, listener.address, fails=False)
    await tcp.connect(listener.address, lambda: LinkProtocol(sender._running(), lambda _: link))
    assert not link.writable
    link.close()
    link.writes = 64
    await stalled.here.wait()
    stalled.transport.resume_reading()
    await stalled.gone.wait()
    listener.close()
    await listener.stop()
    assert link.adapter not in sender._running().protocols
    assert failures == []


class _HasWork(_Busy):
    """Whoever has it had asked for something to be done with it in the turn in which it ends."""

    def _lost(self, reason: str, now: float) -> None:
        self.core.touch(self)


async def test_a_connection_that_has_ended_is_not_given_up_once_more(
    sender: SenderServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is still to be done with it is done with: asyncio cannot abort what it has closed behind its last bytes."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    stalled = _Stalled()
    listener = await tcp.listen("127.0.0.1:0", lambda: stalled)
    link = _HasWork(sender, listener.address, fails=False)
    await tcp.connect(listener.address, lambda: LinkProtocol(sender._running(), lambda _: link))
    link.writes = 64
    link.closing = Closing.FLUSH
    link.adapter._transport.close()  # as `apply` does where the transport has not said stop
    await stalled.here.wait()
    stalled.transport.resume_reading()
    await stalled.gone.wait()
    await eventually(lambda: link.closing is Closing.ABORT and link not in link.core.dirty)
    listener.close()
    await listener.stop()
    assert failures == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_connection_that_is_reset_before_it_is_accepted_leaves_nothing(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """Its socket has no peer any more when it is given its options: no callback fails, and the others go on."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    address = parse_address(receiver.address)
    for _ in range(3):
        # The loop comes to accept it when it has been closed already.
        with socket.create_connection((address.host, address.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"x")
    assert bytes(await inbox.recv()) == b"x"
    live = len(receiver._running().protocols)
    assert (live, failures) == (2, [])


async def test_who_is_not_acknowledged_any_more_says_so() -> None:
    """The system's word for it alone, `timed out`, could as well be of what the peer did not say."""
    made: list[Unacknowledged] = []

    class Recorded(Unacknowledged):
        def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
            super().__init__(protocol)
            made.append(self)

    register("unheard", FramedTransport("unheard", Recorded))
    try:
        async with ReceiverServer("unheard:127.0.0.1:0") as receiver, SenderServer() as sender:
            receiver.register_channel("c", codec="bytes", ack="explicit")
            once = FaultPolicy(retry=0)
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes", fault=once)
            await outbox.send(b"x")
            await outbox.attached()
            for connection in made:
                connection.abort()
            with pytest.raises(ChannelBroken, match=r"sent to it are not acknowledged \(\[Errno 110\]"):
                await outbox.flush()
    finally:
        unregister("unheard")
