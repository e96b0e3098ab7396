"""What both ends of a real connection know of it, and whoever stands between them does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from netchannel import ReceiverServer, SenderServer, Tls
from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.sending.data_sender import SenderData
from netchannel.tls import Credentials
from netchannel.transports import connection_binding
from netchannel.wire.messages import ENDS_SIZE
from tests.support.authority import Authority
from tests.support.chaos import Proxy

BODY = bytes(range(256)) * 1024


async def delivered(receiver: ReceiverServer, sender: SenderServer, to: str) -> tuple[bytes, bytes]:
    """The ends of the data connection by way of ``to``, which carries a message: at the sender, at the receiver."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=to, codec="bytes")
    await outbox.send(BODY)
    assert bytes(await inbox.recv()) == BODY
    found = []
    for server, kind in ((sender, SenderData), (receiver, ReceiverData)):
        (link,) = [each._link for each in server._running().protocols if isinstance(each._link, kind)]
        found.append(link)
    here, there = (link.ends for link in found)
    assert found[0]._summed is found[1]._parser.summed is (here != there or not here)
    await outbox.close()
    assert [each async for each in inbox] == []
    return here, there


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_a_connection_within_the_host_has_the_same_ends(host: str) -> None:
    async with ReceiverServer(f"{host}:0") as receiver, SenderServer() as sender:
        here, there = await delivered(receiver, sender, receiver.address)
        assert here == there
        assert len(here) == ENDS_SIZE


async def test_no_two_connections_have_the_same_ends() -> None:
    seen = set()
    async with ReceiverServer() as receiver:
        for _ in range(3):
            async with SenderServer() as sender:
                seen.add((await delivered(receiver, sender, receiver.address))[0])
    assert len(seen) == 3


async def test_a_proxy_of_tcp_is_seen() -> None:
    async with (
        ReceiverServer() as receiver,
        Proxy(receiver.address) as proxy,
        SenderServer() as sender,
    ):
        here, there = await delivered(receiver, sender, proxy.address)
        assert here != there


async def test_tls_has_ends_also_through_a_proxy_that_does_not_end_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        ReceiverServer(tls=authority.issue("receiver")) as receiver,
        Proxy(receiver.address) as proxy,
        SenderServer(tls=authority.issue("sender")) as sender,
    ):
        here, there = await delivered(receiver, sender, proxy.address)
        assert here == there
        assert len(here) == ENDS_SIZE


@asynccontextmanager
async def ending_tls(target: str, tls: Tls) -> AsyncIterator[str]:
    """A proxy with a certificate of its own, which both sides take."""
    host, port = target.split(":")
    receiver, sender = Credentials(tls, "receiver").context(), Credentials(tls, "sender").context()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port), ssl=sender)
        await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=receiver)
    yield "{}:{}".format(*server.sockets[0].getsockname())
    server.close()


async def test_a_proxy_that_ends_tls_is_seen(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        ReceiverServer(tls=authority.issue("receiver")) as receiver,
        ending_tls(receiver.address, authority.issue("proxy")) as proxy,
        SenderServer(tls=authority.issue("sender")) as sender,
    ):
        here, there = await delivered(receiver, sender, proxy)
        assert here
        assert there
        assert here != there


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        return here, listening.accept()[0]


def within(sock: socket.socket) -> tuple[bytes, ...]:
    return connection_binding._within_host(sock)


def test_a_host_without_a_name_has_no_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, there = connected()
    with here, there:
        assert within(here) == within(there) != ()
        monkeypatch.setattr(connection_binding, "_BOOT", tmp_path / "nothing")
        connection_binding._boot.cache_clear()
        assert within(here) == ()
        connection_binding._boot.cache_clear()


def test_a_kernel_without_names_for_network_namespaces_has_no_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = connected()
    with here, there:
        monkeypatch.setattr(connection_binding, "_NETNS_COOKIE", 9999)
        assert within(here) == ()


def test_a_socket_that_is_lost_or_has_no_name_has_no_ends() -> None:
    here, there = connected()
    there.close()
    here.close()
    assert within(here) == ()
    one, other = socket.socketpair()
    with one, other:
        assert within(one) == ()


def test_a_connection_between_two_addresses_has_no_ends() -> None:
    """Nobody says that it does not leave the host: copies of a running machine have the same name."""
    with socket.create_server(("127.0.0.2", 0)) as listening, socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        here.connect(listening.getsockname())
        there, _ = listening.accept()
        with there:
            assert within(here) == within(there) == ()
