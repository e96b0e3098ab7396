"""CH-TLS-1: mutual TLS 1.3 on control and data connections; who is refused, by whom, with which sentence."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import logging
import os
import random
import re
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives import serialization

import netchannel
from netchannel import (
    CertificateError,
    FaultPolicy,
    HandshakeError,
    ReceiverServer,
    SenderServer,
    Timing,
    Tls,
)
from netchannel.core.connections import STRANGERS
from netchannel.core.control_connection import FOR_CONTROL, greeting
from netchannel.tls import Credentials
from netchannel.transports import register, schemes, tls_connection, unregister
from netchannel.transports.tls_errors import explain
from netchannel.transports.tls_transport import AcceptedConnection, TlsDialer, tls_protocol_factory
from tests.support.authority import CLIENT, HOUR, SERVER, Authority, TlsTransport
from tests.support.chaos import DOWN, UP, CutAfter, Flip, Proxy, Wire
from tests.support.sizes import some
from tests.support.waiting import until_async

_numbers = itertools.count()
QUICK = Timing(backoff_s=0.002, backoff_limit_s=0.02)
SECOND = datetime.timedelta(seconds=1)


async def until(condition: Callable[[], object], what: str) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until_async(holds, what)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """Another authority."""
    return Authority(tmp_path, "stranger")


async def deliver(receiver: ReceiverServer, sender: SenderServer, body: bytes = b"x", to: str = "") -> None:
    """Send ``body`` on a channel of its own, to its end."""
    name = f"c{next(_numbers)}"
    inbox = receiver.register_channel(name, codec="bytes")
    outbox = sender.register_channel(name, to=to or receiver.address, codec="bytes")
    await outbox.send(body)
    await outbox.close()
    assert [bytes(each) async for each in inbox] == [body]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- what is on the wire


class Recorded(Wire):
    """Keeps what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {UP: b"", DOWN: b""}

    def changed(self, direction: str, chunk: bytes) -> bytes:
        self.seen[direction] += chunk
        return chunk


def records(stream: bytes) -> list[tuple[int, bytes]]:
    """The types and contents of TLS records (RFC 8446, 5.1), of which the stream must consist."""
    found = []
    while stream:
        kind, version, length = struct.unpack(">BHH", stream[:5])
        assert kind in (20, 21, 22, 23)
        assert version in (0x0301, 0x0303)
        assert length <= (1 << 14) + 256
        found.append((kind, stream[5 : 5 + length]))
        stream = stream[5 + length :]
    return found


@pytest.mark.parametrize("secret", [None, "open sesame"])
async def test_only_records_of_tls_cross_the_wire(tls: Tls, secret: str | None) -> None:
    """CH-TLS-1: version 1.3, on control and data connections, in both directions; nothing can be read of either."""
    wires: list[Recorded] = []

    def record(_: int) -> Recorded:
        wires.append(Recorded())
        return wires[-1]

    body = b"a body that everybody could read" * 10_000
    async with (
        ReceiverServer(tls=tls, secret=secret) as receiver,
        Proxy(receiver.address, record) as proxy,
        SenderServer(tls=tls, secret=secret) as sender,
    ):
        inbox = receiver.register_channel("a channel's name", codec="bytes")
        outbox = sender.register_channel("a channel's name", to=proxy.address, codec="bytes")
        await outbox.send(body, b"a note")
        await outbox.close()
        assert (await inbox.recv_message()).batch == body
    control, data = wires
    assert sum(len(content) for _, content in records(data.seen[UP])) > len(body)
    for wire in (control, data):
        for direction, stream in wire.seen.items():
            kinds = [kind for kind, _ in records(stream)]
            assert kinds.count(22) == 1  # the two hellos; all the rest is encrypted
            assert set(kinds) <= {20, 22, 23}
            for secret_text in (
                b"everybody",
                b"a channel's name",
                b"a note",
                b"NETC",
                b"netchannel",
                b"hello",
            ):
                assert secret_text not in stream, direction
        # The extension supported_versions of the answer chooses 0x0304 (RFC 8446, 4.2.1).
        assert b"\x00\x2b\x00\x02\x03\x04" in records(wire.seen[DOWN])[0][1]


@pytest.mark.parametrize("data_ports", ["ephemeral", "40000-40999"])
async def test_ports_for_data_speak_it_too(tls: Tls, data_ports: str) -> None:
    """CH-TLS-1, CH-DATA-2."""
    async with ReceiverServer(tls=tls, data_ports=data_ports) as receiver, SenderServer(tls=tls) as sender:
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        receiver.register_channel("c", codec="bytes")
        await outbox.attached()
        assert receiver._runner is not None
        assert [type(each._transport) for each in receiver._runner.protocols] == [AcceptedConnection] * 2
        await outbox.close()


async def test_a_node_of_several_processes_speaks_it_too(tls: Tls, tmp_path: Path) -> None:
    """CH-TLS-1: at the front and at the member, which is dialed by the same host; between them it is not asked for."""
    node = f"unix:{tmp_path}/node"
    async with (
        ReceiverServer(tls=tls, members=node) as front,
        ReceiverServer(tls=tls, node=node) as member,
        SenderServer(tls=tls) as sender,
        SenderServer(timing=QUICK) as stranger,
    ):
        await deliver(member, sender, to=front.address)
        refused = stranger.register_channel("c", to=front.address, codec="bytes")
        with pytest.raises(HandshakeError, match="does the sender have tls="):
            await refused.close()


async def test_large_and_many_messages(tls: Tls) -> None:
    """Of all sizes around those of records and pieces, each as it was."""
    sizes = [0, 1, 4095, 4096, 16_383, 16_384, 65_535, 65_536, 65_537, 300_000, 5_000_000]
    async with ReceiverServer(tls=tls) as receiver, SenderServer(tls=tls) as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        bodies = [os.urandom(size) for size in sizes] * 3

        async def produce() -> None:
            await outbox.send_many(bodies)
            await outbox.close()

        producing = asyncio.create_task(produce())
        assert [bytes(body) async for body in inbox] == bodies
        await producing


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_the_name_is_the_host_that_is_dialed(host: str, authority: Authority) -> None:
    """CH-TLS-1: an address of either kind, or a name."""
    tls = authority.issue("node", hosts=[host.strip("[]")])
    async with ReceiverServer(f"{host}:0", tls=tls) as receiver, SenderServer(tls=tls) as sender:
        await deliver(receiver, sender)


async def test_another_name_can_be_asked_for(authority: Authority) -> None:
    """CH-TLS-1: ``server_name``, where the host that is dialed is not in the certificate."""
    node = authority.issue("node", hosts=["*.example.org"])
    named = authority.issue("sender", hosts=[], server_name="edge.example.org")
    async with ReceiverServer(tls=node) as receiver, SenderServer(tls=named) as sender:
        await deliver(receiver, sender)


async def test_an_intermediate_authority(authority: Authority, tmp_path: Path) -> None:
    """CH-TLS-1: its certificate stands behind the one that it signed; or it is trusted by itself."""
    between = authority.intermediate("between")
    node = between.issue("node")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(Path(node.certificate).read_bytes() + between.file.read_bytes())
    whole = Tls(chain, node.key, authority.file)
    for receiving, sending in [(whole, whole), (node, node)]:
        async with ReceiverServer(tls=receiving) as receiver, SenderServer(tls=sending) as sender:
            await deliver(receiver, sender)


# -- who is refused

EXPIRED = {"begins": -2 * HOUR, "ends": -HOUR}
EARLY = {"begins": HOUR, "ends": 2 * HOUR}
REFUSALS: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, str, str]] = {
    "the receiver's authority": (
        {"by": "stranger"},
        {},
        (
            r"its certificate is not signed by an authority in .*authority\.pem: give both sides certificates of "
            "one"
        ),
        r"it refused the certificate .*receiver\.pem, whose authority it does not know",
    ),
    "the sender's authority": (
        {},
        {"by": "stranger"},
        r"it refused the certificate .*sender\.pem, whose authority it does not know: give both sides",
        r"its certificate is not signed by an authority in .*authority\.pem",
    ),
    "the receiver's name": (
        {"hosts": ["edge.example.org", "10.1.2.3"]},
        {},
        r"its certificate is for edge\.example\.org, 10\.1\.2\.3, not for 127\.0\.0\.1: connect to it by one",
        r"it refused the certificate .*receiver\.pem, because it is not for the dialed host, or not valid yet",
    ),
    "a receiver without a name": (
        {"hosts": []},
        {},
        r"its certificate names no host, so it does not name 127\.0\.0\.1",
        r"it refused the certificate .*receiver\.pem, because it is not for the dialed host",
    ),
    "the receiver's has expired": (
        EXPIRED,
        {},
        r"its certificate, or that of its authority, has expired \(there, or in",
        r"it refused the certificate .*receiver\.pem, because it has expired: renew it here",
    ),
    "the sender's has expired": (
        {},
        EXPIRED,
        r"it refused the certificate .*sender\.pem, because it has expired: renew it here",
        r"its certificate, or that of its authority, has expired \(there, or in",
    ),
    "the receiver's is not valid yet": (
        EARLY,
        {},
        r"its certificate, or that of its authority, is not valid yet: check the clocks",
        r"it refused the certificate .*receiver\.pem, because it is not for the dialed host, or not valid yet",
    ),
    "the sender's is not valid yet": (
        {},
        EARLY,
        r"it refused the certificate .*sender\.pem, because it is not for the dialed host, or not valid yet",
        r"its certificate, or that of its authority, is not valid yet",
    ),
    "the receiver's is for senders": (
        {"usages": [CLIENT]},
        {},
        r"its certificate is not for this use: .* a receiver serverAuth",
        r"it refused the certificate .*receiver\.pem, whose extended key usage",
    ),
    "the sender's is for receivers": (
        {},
        {"usages": [SERVER]},
        r"it refused the certificate .*sender\.pem, whose extended key usage",
        r"its certificate is not for this use: .* a sender needs clientAuth",
    ),
    "the sender has no TLS": (
        {},
        None,
        r"the sender does not speak TLS, but this receiver requires it: does the sender have tls=\?",
        r"the sender does not use TLS: set tls= there, too",
    ),
    "the receiver has no TLS": (
        None,
        {},
        r"TLS with .* failed: the other side does not speak TLS 1\.3: set tls= there, too",
        r"it speaks TLS, but this receiver has no tls=: give tls= to both sides, or to neither",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_who_is_refused_hears_why_and_does_not_try_again(
    case: str,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CH-TLS-1: one sentence at each side: raised by every channel of the sender, a warning of the receiver."""
    receiving, sending, raised, warned = REFUSALS[case]
    monkeypatch.setattr(netchannel.tls, "_check_own", lambda tls, role: None)  # it would not even begin

    def issue(name: str, settings: dict[str, Any] | None) -> Tls | None:
        if settings is None:
            return None
        signer = stranger if "by" in settings else authority
        return signer.issue(name, trusts=authority, **{k: v for k, v in settings.items() if k != "by"})

    async with (
        ReceiverServer(tls=issue("receiver", receiving)) as receiver,
        Proxy(receiver.address) as proxy,
        SenderServer(tls=issue("sender", sending), timing=QUICK) as sender,
    ):
        receiver.register_channel("a", codec="bytes")
        outboxes = [sender.register_channel(name, to=proxy.address, codec="bytes") for name in "ab"]
        await outboxes[0].send(b"x")
        async with asyncio.timeout(60):
            for outbox in outboxes:
                with pytest.raises(HandshakeError, match=raised) as caught:
                    await outbox.close()
                assert "\n" not in str(caught.value)
                assert proxy.address in str(caught.value)
        await until(lambda: not receiver.statistics().connections, "the connection is gone")
        await until(lambda: not sender.statistics().peers, "nobody is dialed any more")
        # One more asks for the names; one more sees whether it was not an accident.
        assert len(proxy.wires) == (2 if "name" in case or case == "the receiver has no TLS" else 1)
        (warning,) = warnings(caplog)
        assert re.search(rf"connection from 127\.0\.0\.1:\d+ closed: {warned}", warning)


async def test_a_channel_that_comes_later_is_tried(authority: Authority, stranger: Authority) -> None:
    """CH-TLS-1: what ended in an error can be registered again, once its cause is mended."""
    node, wrong = authority.issue("node"), stranger.issue("wrong", trusts=authority)
    async with ReceiverServer(tls=node) as receiver, SenderServer(tls=wrong) as sender:
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        with pytest.raises(HandshakeError):
            await outbox.close()
        authority.issue("wrong")
        await deliver(receiver, sender)


async def test_a_data_connection_that_is_refused_ends_its_channel(tls: Tls) -> None:
    """CH-TLS-1: where a port for data has another certificate than the control connection has."""
    async with ReceiverServer(tls=tls, data_ports="ephemeral") as receiver, SenderServer(tls=tls) as sender:
        assert receiver._ports is not None
        receiver._ports._acceptor._make_protocol = _Plain
        receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        with pytest.raises(HandshakeError, match="the other side does not speak TLS: set tls= there, too"):
            await outbox.close()


class _Plain(asyncio.Protocol):
    """Speaks first, and no TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writing = cast("asyncio.Transport", transport)
        writing.write(b"220 welcome\r\n")
        writing.close()


@pytest.mark.parametrize("secure", [True, False], ids=["TLS", "no TLS"])
async def test_who_is_refused_may_hang_up_first(secure: bool, tls: Tls) -> None:
    """CH-TLS-1: what the receiver said would be lost to a reset on some ways, if it closed before it was heard."""
    said, answer = greeting(FOR_CONTROL), b"does the sender have tls=?"
    if not secure:
        said, answer = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x15\x03\x03\x00\x02\x02\x46"
    async with ReceiverServer(tls=tls if secure else None) as receiver, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*receiver.address.split(":"))
        writer.write(said)
        assert answer in await (reader.read() if secure else reader.readexactly(len(answer)))
        writer.write(b"still on its way")
        await writer.drain()
        assert receiver.statistics().connections == 1
        writer.close()
        await until(lambda: not receiver.statistics().connections, "closed")


def raw_client(tls: Tls) -> ssl.SSLContext:
    """Whoever knows the authority, and has no certificate."""
    context = ssl.create_default_context(cafile=tls.authority)
    context.check_hostname = False
    return context


async def answer_to(address: str, context: ssl.SSLContext) -> bytes:
    """What a receiver says to somebody who has a context of its own. Raises what TLS does."""

    def talk() -> bytes:
        host, port = address.rsplit(":", 1)
        with (
            socket.create_connection((host, int(port)), timeout=5) as sock,
            context.wrap_socket(sock, server_hostname=host) as secured,
        ):
            secured.sendall(b"x")
            return secured.recv(100)

    return await asyncio.to_thread(talk)


async def test_who_shows_no_certificate_is_refused(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    """CH-TLS-1: by the receiver; the alert says so."""
    async with ReceiverServer(tls=tls) as receiver:
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate required"):
            await answer_to(receiver.address, raw_client(tls))
        await until(lambda: warnings(caplog), "a warning")
    assert "it presented no certificate: give the other side tls=" in warnings(caplog)[0]


async def test_an_older_tls_is_refused(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    """CH-TLS-1: of a sender, by the receiver."""
    context = raw_client(tls)
    context.load_cert_chain(tls.certificate, tls.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with ReceiverServer(tls=tls) as receiver:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol version"):
            await answer_to(receiver.address, context)
        await until(lambda: warnings(caplog), "a warning")
    assert "does not speak TLS 1.3" in warnings(caplog)[0]


@asynccontextmanager
async def serving(answer: Callable[[socket.socket], object]) -> AsyncIterator[str]:
    """An address where each connection is ``answer``'s, on a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, contextlib.suppress(OSError):
                        answer(sock)

        serving = asyncio.create_task(asyncio.to_thread(serve))
        yield "{}:{}".format(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
        await serving


async def failure(tls: Tls, address: str, **timing: float) -> Exception:
    """What a sender's channel to ``address`` ends with, if it is not to try for long."""
    async with SenderServer(tls=tls, timing=Timing(**timing)) as sender:
        outbox = sender.register_channel("c", to=address, codec="bytes", fault=FaultPolicy(retry=0))
        with pytest.raises(netchannel.NetChannelError) as caught:
            await outbox.close()
        return caught.value


async def test_a_receiver_of_an_older_tls_is_refused(tls: Tls) -> None:
    """CH-TLS-1: by the sender."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(lambda sock: context.wrap_socket(sock, server_side=True)) as address:
        error = await failure(tls, address)
    assert isinstance(error, HandshakeError)
    assert "does not speak TLS 1.3" in str(error)


async def test_another_program_is_named_as_such(tls: Tls) -> None:
    """CH-TLS-1: one that answers in something else."""
    async with serving(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        error = await failure(tls, address)
    assert isinstance(error, HandshakeError)
    assert "does not speak TLS: set tls= there, too" in str(error)


async def test_who_hangs_up_in_the_handshake_is_tried_again(tls: Tls) -> None:
    """CH-FLT-1: it may be starting, or behind a proxy: that may heal by itself."""
    async with serving(lambda sock: sock.recv(1)) as address:
        error = await failure(tls, address)
    assert isinstance(error, netchannel.ChannelBroken)
    assert "in the TLS handshake" in str(error)


async def test_who_says_nothing_in_the_handshake_is_tried_again(tls: Tls) -> None:
    """CH-FLT-1: after the time for handshakes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = await failure(tls, "{}:{}".format(*listener.getsockname()), handshake_s=0.1)
    assert isinstance(error, netchannel.ChannelBroken)
    assert "no connection within 0.1 s" in str(error)


@pytest.mark.parametrize("secret", ["another", None])
async def test_a_secret_is_asked_for_as_well(secret: str | None, tls: Tls) -> None:
    """CH-SEC-1: it keeps working below TLS."""
    async with ReceiverServer(tls=tls, secret="the right") as receiver:
        async with SenderServer(tls=tls, secret=secret) as sender:
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            with pytest.raises(HandshakeError, match="the same secret="):
                await outbox.close()
        async with SenderServer(tls=tls, secret="the right") as sender:
            await deliver(receiver, sender)


# -- faults on the way


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "end"])
@pytest.mark.parametrize("direction", [UP, DOWN])
@pytest.mark.parametrize("length", [0, 1, 5, 100, 700])
async def test_cut_handshakes_are_made_again(length: int, direction: str, resets: bool, tls: Tls) -> None:
    """CH-SEQ-2: of control and data connections, at any place."""
    cut = [CutAfter(direction, length, resets=resets) for _ in range(2)]
    wires = {0: cut[0], 2: cut[1]}
    async with (
        ReceiverServer(tls=tls) as receiver,
        Proxy(receiver.address, lambda number: wires.get(number) or Wire()) as proxy,
        SenderServer(tls=tls, timing=QUICK) as sender,
    ):
        await deliver(receiver, sender, b"whole", to=proxy.address)
        assert all(wire.is_cut for wire in cut)


@pytest.mark.parametrize("offset", [3000, 20_000, 100_000])
async def test_a_bit_that_flips_costs_its_connection(
    offset: int, tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    """CH-BAD-1, CH-TLS-1: nobody can change what is on the wire: it is found, and what was under way sent again."""
    flip = Flip(UP, offset, 3)
    async with (
        ReceiverServer(tls=tls) as receiver,
        Proxy(receiver.address, lambda number: flip if number == 1 else Wire()) as proxy,
        SenderServer(tls=tls, timing=QUICK) as sender,
    ):
        await deliver(receiver, sender, os.urandom(500_000), to=proxy.address)
        assert flip.flipped
        assert len(proxy.wires) == 3


@pytest.mark.parametrize("direction", [UP, DOWN])
async def test_a_bit_that_flips_in_a_handshake_ends_nothing(direction: str, tls: Tls) -> None:
    """CH-BAD-1, CH-TLS-1: whatever it makes of it, also a refusal: the channel comes about all the same."""
    draw = random.Random(8)
    places = [(offset, draw.randrange(8)) for offset in some(range(0, 600, 9))]
    flips: list[Flip] = []  # each in a connection of its own, until one has carried enough

    def change(_: int) -> Wire:
        if any(flip.flipped for flip in flips):
            return Wire()
        flips.append(Flip(direction, *places[-1]))
        return flips[-1]

    timing = Timing(backoff_s=0.002, backoff_limit_s=0.01, handshake_s=0.1)
    async with (
        ReceiverServer(tls=tls, timing=timing) as receiver,
        Proxy(receiver.address, change) as proxy,
    ):
        while places:
            async with SenderServer(tls=tls, timing=timing) as sender:
                await deliver(receiver, sender, to=proxy.address)
            assert any(flip.flipped for flip in flips)
            flips.clear()
            places.pop()


async def test_the_end_of_tcp_is_noticed(tls: Tls) -> None:
    """CH-CTL-3: without the end of TLS before it, as when a process is killed: it is a loss, and no end of a stream."""
    async with (
        ReceiverServer(tls=tls) as receiver,
        Proxy(receiver.address, lambda _: Wire(resets=False)) as proxy,
        SenderServer(tls=tls, timing=QUICK) as sender,
    ):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
        await outbox.send(b"one")
        await outbox.flush()
        for wire in list(proxy.wires):
            wire.cut()
        await until(lambda: outbox.statistics().reconnects == 1, "attached again")
        await outbox.send(b"two")
        await outbox.close()
        assert [bytes(body) async for body in inbox] == [b"one", b"two"]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_key_is_not_used_for_too_long(size: int, tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-TLS-1, CH-SEQ-2: after so many records another connection, with keys of its own, takes its place."""
    monkeypatch.setattr(tls_connection, "RECORDS", 200)
    async with ReceiverServer(tls=tls) as receiver, SenderServer(tls=tls, timing=QUICK) as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        for number in range(1000):
            await outbox.send(number.to_bytes(4) + bytes(size))
            assert int.from_bytes((await inbox.recv())[:4]) == number
        assert outbox.statistics().reconnects >= 2
        await outbox.close()


# -- what strangers cost


@pytest.mark.parametrize(
    "said", [b"", b"\x16", b"\x16\x03\x01\x40\x00", b"NET"], ids=["nothing", "a byte", "a record", "plain"]
)
async def test_a_flood_of_strangers_is_bounded(said: bytes, tls: Tls) -> None:
    """CH-BAD-2, CH-TLS-1: handshakes that do not end: a channel is served meanwhile, and leaving waits for none."""
    async with ReceiverServer(tls=tls) as receiver, SenderServer(tls=tls) as sender:
        host, port = receiver.address.split(":")
        with contextlib.ExitStack() as flood:
            for _ in range(STRANGERS + 200):
                one = flood.enter_context(socket.create_connection((host, int(port))))
                one.sendall(said)
                await asyncio.sleep(0)
            await deliver(receiver, sender)
            await until(lambda: receiver.statistics().connections <= STRANGERS + 2, "the flood is bounded")
            async with asyncio.timeout(60):
                await receiver.__aexit__(None, None, None)


async def test_a_handshake_has_its_time(tls: Tls) -> None:
    """CH-BAD-2: then its connection is closed."""
    async with ReceiverServer(tls=tls, timing=Timing(handshake_s=0.2)) as receiver:
        reader, writer = await asyncio.open_connection(*receiver.address.split(":"))
        writer.write(b"\x16\x03\x01")
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        assert receiver.statistics().connections == 0


async def test_a_refused_stranger_that_stays_has_its_time_too(tls: Tls) -> None:
    """CH-BAD-2: who is told why, and does not hang up."""
    async with ReceiverServer(tls=tls, timing=Timing(handshake_s=0.2)) as receiver:
        reader, writer = await asyncio.open_connection(*receiver.address.split(":"))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await until(lambda: not receiver.statistics().connections, "closed")
        writer.close()


async def test_a_sender_is_left_in_its_handshake(tls: Tls) -> None:
    """CH-CAN-1: nothing is left of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with SenderServer(tls=tls, timing=Timing(leave_s=0.1)) as sender:
            sender.register_channel("c", to="{}:{}".format(*listener.getsockname()), codec="bytes")
            accepted, _ = await asyncio.to_thread(listener.accept)
        with accepted:
            assert len(await asyncio.to_thread(_all_of, accepted)) > 100


def _all_of(sock: socket.socket) -> bytes:
    sock.settimeout(5)
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := sock.recv(1000):
            data += chunk
    return data


# -- files


def damaged(path: Path | Any, name: str) -> Path:
    """A file that begins and ends as it should."""
    lines = Path(path).read_text("utf-8").splitlines()
    other = Path(path).parent / name
    other.write_text("\n".join([lines[0], "A" * 64, lines[-1], ""]), "utf-8")
    return other


def encrypted(path: Path | Any) -> Path:
    key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    other = Path(path).parent / "encrypted.key"
    other.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    return other


BAD_FILES: dict[str, tuple[Callable[[Tls, Authority], Tls], str]] = {
    "no certificate": (
        lambda t, a: Tls("/nowhere.pem", t.key, t.authority),
        r"the certificate /nowhere\.pem cannot be read: No such file",
    ),
    "no key": (
        lambda t, a: Tls(t.certificate, "/nowhere.key", t.authority),
        r"the key /nowhere\.key cannot be read",
    ),
    "no authority": (
        lambda t, a: Tls(t.certificate, t.key, "/nowhere.pem"),
        r"the authority /nowhere\.pem cannot be read",
    ),
    "a directory": (
        lambda t, a: Tls("/", t.key, t.authority),
        r"the certificate / cannot be read: Is a directory",
    ),
    "files exchanged": (
        lambda t, a: Tls(t.key, t.certificate, t.authority),
        (
            r"the certificate .*\.key is not a file in PEM form with '-----BEGIN CERTIFICATE-----': it contains "
            "PRIVATE KEY; "
        ),
    ),
    "no PEM": (
        lambda t, a: Tls(t.certificate, t.key, __file__),
        r"the authority .*test_tls\.py is not a file in PEM form",
    ),
    "another's key": (
        lambda t, a: Tls(t.certificate, a.issue("other").key, t.authority),
        r"the key .*other\.key does not belong to the certificate .*node\.pem",
    ),
    "a damaged certificate": (
        lambda t, a: Tls(damaged(t.certificate, "bad.pem"), t.key, t.authority),
        r"the certificate .*bad\.pem is damaged",
    ),
    "a damaged key": (
        lambda t, a: Tls(t.certificate, damaged(t.key, "bad.key"), t.authority),
        r"the key .*bad\.key is damaged",
    ),
    "a damaged authority": (
        lambda t, a: Tls(t.certificate, t.key, damaged(t.authority, "bad.pem")),
        r"the authority .*bad\.pem is damaged",
    ),
    "a passphrase": (
        lambda t, a: Tls(t.certificate, encrypted(t.key), t.authority),
        r"the key .*encrypted\.key has a passphrase, .*openssl pkey",
    ),
    "expired": (
        lambda t, a: a.issue("old", **EXPIRED),
        r"the certificate .*old\.pem expired on .* GMT: renew it",
    ),
    "an expired authority": (
        lambda t, a: Tls(t.certificate, t.key, Authority(a.file.parent, "past", ends=-HOUR).file),
        r"the authority .*past\.pem expired on .* GMT: renew it",
    ),
    "not yet valid": (
        lambda t, a: a.issue("new", **EARLY),
        r"the certificate .*new\.pem is not valid before .* GMT: is this",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("server", [ReceiverServer, SenderServer])
def test_files_that_cannot_be_used_are_named_at_once(case: str, server: Any, authority: Authority) -> None:
    """CH-TLS-1: where the server is made: which file, why, and what to do."""
    spoil, expected = BAD_FILES[case]
    with pytest.raises(CertificateError, match=expected):
        server(tls=spoil(authority.issue("node"), authority))


@pytest.mark.parametrize(("server", "usage"), [(ReceiverServer, CLIENT), (SenderServer, SERVER)])
def test_a_certificate_for_the_other_role_is_named_at_once(
    server: Any, usage: Any, authority: Authority
) -> None:
    """CH-TLS-1: by its extended key usage."""
    with pytest.raises(
        CertificateError, match=r"one\.pem is not valid for a (sender|receiver): .*(client|server)Auth must"
    ):
        server(tls=authority.issue("one", usages=[usage]))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, "k", "a"), TypeError),
        (("c", "k", None), TypeError),
        (("c", "k", "a", 1), TypeError),
        (("c", "k", "a", ""), ValueError),
    ],
)
def test_arguments_are_paths_and_a_name(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Tls(*arguments)


@pytest.mark.parametrize("server", [ReceiverServer, SenderServer])
def test_nothing_else_is_taken_for_tls(server: Any) -> None:
    with pytest.raises(TypeError, match="expected a Tls"):
        server(tls=ssl.create_default_context())


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:/tmp/s", "a Unix socket, which does not leave this machine"),
        ("mem:a", "this process' own memory"),
        ("own:127.0.0.1:1", "of the transport 'own'"),
    ],
)
async def test_tls_is_for_tcp(address: str, why: str, tls: Tls) -> None:
    """CH-TLS-1: elsewhere it is refused, rather than left away."""
    register("own", TlsTransport(tls))
    try:
        with pytest.raises(ValueError, match=f"tls= is for TCP, and '{address}' is {why}"):
            ReceiverServer(address, tls=tls)
        async with SenderServer(tls=tls) as sender:
            with pytest.raises(ValueError, match=f"tls= is for TCP, and '{address}' is {why}"):
                sender.register_channel("c", to=address)
    finally:
        unregister("own")


# -- renewing


async def test_renewed_files_are_read_again(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """CH-TLS-1: by both sides, for new connections; those that are there go on."""
    for name in ("receiver", "sender"):
        _install(authority.issue(f"old {name}"), tmp_path / name)
    receiving, sending = (_installed(tmp_path / name) for name in ("receiver", "sender"))
    async with ReceiverServer(tls=receiving) as receiver, SenderServer(tls=sending) as sender:
        inbox = receiver.register_channel("old", codec="bytes")
        outbox = sender.register_channel("old", to=receiver.address, codec="bytes")
        await outbox.send(b"before")
        await outbox.flush()
        for name in ("receiver", "sender"):
            _install(stranger.issue(f"new {name}"), tmp_path / name)
        async with SenderServer(tls=sending) as fresh:
            await deliver(receiver, fresh)
        await outbox.send(b"after")
        await outbox.flush()
        assert outbox.statistics().reconnects == 0
        async with SenderServer(tls=authority.issue("late")) as late:
            refused = late.register_channel("c", to=receiver.address, codec="bytes")
            with pytest.raises(HandshakeError, match="not signed by an authority"):
                await refused.close()
        await outbox.close()
        assert [bytes(body) async for body in inbox] == [b"before", b"after"]


async def test_files_that_do_not_fit_together_yet_are_not_used(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CH-TLS-1: a renewal writes one file after the other: what is there goes on, with one warning."""
    _install(authority.issue("old"), tmp_path / "node")
    tls = _installed(tmp_path / "node")
    new = authority.issue("new")
    async with ReceiverServer(tls=tls) as receiver, SenderServer(tls=authority.issue("sender")) as sender:
        shutil.copy(new.certificate, tls.certificate)
        for _ in range(3):
            await deliver(receiver, sender, os.urandom(3))
        (warning,) = warnings(caplog)
        assert re.search(r"the key .* does not belong .*; the previously read files stay in use", warning)
        caplog.set_level(logging.INFO)
        shutil.copy(new.key, tls.key)
        async with SenderServer(tls=new) as other:
            await deliver(receiver, other)
        assert "was read again" in caplog.text


def _install(tls: Tls, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name in ("certificate", "key", "authority"):
        shutil.copy(getattr(tls, name), directory / name)


def _installed(directory: Path) -> Tls:
    return Tls(directory / "certificate", directory / "key", directory / "authority")


# -- single connections


class Speaker(asyncio.BufferedProtocol):
    """Writes as soon as it is given a connection, and keeps what happens to it."""

    def __init__(self, body: bytes, *, close: bool = False) -> None:
        self.received = bytearray()
        self.happened: list[str] = []
        self._body = body
        self._close = close
        self._buffer = memoryview(bytearray(1 << 16))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._body)
        if self._close:
            self.transport.close()
            self.transport.write(b"not this")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.happened.append("pause")

    def resume_writing(self) -> None:
        self.happened.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.happened.append("lost")


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("size", [1000, 10_000_000])
async def test_what_is_written_before_the_handshake_waits_for_it(size: int, close: bool, tls: Tls) -> None:
    """It counts, and a writer of much of it is told to pause; also if that is all that it has to say."""
    there, here = Speaker(bytes(size), close=close), Speaker(b"")
    listener = await schemes.listen(
        "127.0.0.1:0", tls_protocol_factory(Credentials(tls, "receiver"), lambda: there)
    )
    dialing = asyncio.create_task(
        TlsDialer(Credentials(tls, "sender")).connect(listener.address, lambda: here)
    )
    await until(lambda: there.happened or here.received or size == 1000, "it is told")
    await dialing
    await until(lambda: len(here.received) == size, "all came")
    if close:
        await until(lambda: "lost" in there.happened and "lost" in here.happened, "both are over")
    else:
        await until(lambda: there.happened == (["pause", "resume"] if size > 1000 else []), "it may go on")
        assert there.transport.get_write_buffer_size() == 0
        there.transport.abort()
        await until(lambda: "lost" in there.happened and "lost" in here.happened, "both are over")
    listener.close()
    await listener.stop()


@pytest.mark.parametrize(
    ("reason", "sentence", "is_final"),
    [
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "it refused the certificate c.pem, because it was revoked", True),
        (
            "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
            "it refused the certificate c.pem; see its error or log",
            True,
        ),
        ("TLSV1_ALERT_ACCESS_DENIED", "it refused the certificate c.pem; see its error or log", True),
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "it asks for a certificate, but got none that it can use: c.pem",
            True,
        ),
        (
            "SSLV3_ALERT_HANDSHAKE_FAILURE",
            "the other side finds no cipher or kind of key that both support",
            True,
        ),
        (
            "TLSV1_ALERT_INSUFFICIENT_SECURITY",
            "the other side finds no cipher or kind of key that is strong",
            True,
        ),
        ("SSLV3_ALERT_BAD_RECORD_MAC", "SSLV3_ALERT_BAD_RECORD_MAC", False),
        ("TLSV1_ALERT_INTERNAL_ERROR", "TLSV1_ALERT_INTERNAL_ERROR", False),
        ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "DECRYPTION_FAILED_OR_BAD_RECORD_MAC", False),
    ],
)
def test_alerts_that_are_for_good(reason: str, sentence: str, is_final: bool) -> None:
    """CH-TLS-1: what somebody must mend; what may have been changed on the way is tried again."""
    error = ssl.SSLError(1, reason)
    error.reason = reason
    why, final = explain(error, Tls("c.pem", "c.key", "a.pem"))
    assert why.startswith(sentence)
    assert final is is_final
    _, final_later = explain(error, Tls("c.pem", "c.key", "a.pem"), established=True)
    assert final_later is (is_final and "certificate" in sentence)
