"""What strangers and misbehaving peers can cost: each limit, from both of its sides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import netchannel
from netchannel import BufferPolicy, FaultPolicy, ReceiverServer, SenderServer, Timing
from netchannel.core import waitlist
from netchannel.core.connections import STRANGERS
from netchannel.core.control_connection import FOR_CONTROL, FOR_DATA, GREETING, MAGIC, greeting, with_check
from netchannel.core.link import Closing, Link
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.states import SenderState
from netchannel.core.warning_limits import CAUSES, QUIET_S
from netchannel.wire.envelope import MessageParser
from netchannel.wire.frames import PACK_COUNT, Kind, signal
from netchannel.wire.messages import TEXT_LIMIT, Error, Hello
from tests.support.forged import forged, proof
from tests.support.waiting import until_async
from tests.support.world import World

HELLO: dict[str, Any] = {
    "t": "hello",
    "version": 1,
    "node": "n",
    "dead_after_ms": 5000,
    "nonce": b"n" * 16,
    "secret": False,
}
OPEN = {
    "t": "open",
    "channel": "c",
    "request": 1,
    "stream": "s",
    "codec": "bytes",
    "schema": None,
    "lossy": False,
}


def connect(world: World, core: ReceiverCore, said: bytes = b"", remote: str = "somebody") -> Link:
    """A connection without a wire, of somebody who has said so much."""
    link: Link = core.accept(remote)
    link.connected(world.now)
    return heard(world, link, said)


def connect_whole(world: World, core: ReceiverCore) -> Link:
    """The same, through the handshake."""
    hello = {**HELLO, "nonce": world.random.randbytes(16)}
    link = connect(world, core, greeting(FOR_CONTROL) + forged(hello))
    return heard(world, link, proof(hello["nonce"], b"".join(map(bytes, link.output()))))


def heard(world: World, link: Link, said: bytes) -> Link:
    while said and link.closing is Closing.OPEN:
        buffer = link.get_buffer(len(said))
        size = min(len(buffer), len(said))
        buffer[:size] = said[:size]
        link.received(size, world.now)
        said = said[size:]
        link = link.replacement or link
    return link


def is_open(link: Link) -> bool:
    return link.closing is Closing.OPEN


# -- strangers


@pytest.mark.parametrize(
    "said",
    [
        b"",
        greeting(FOR_CONTROL)[:7],
        greeting(FOR_DATA),
        greeting(FOR_CONTROL),
        greeting(FOR_CONTROL) + forged({**HELLO, "secret": True}),
    ],
    ids=["nothing", "half a greeting", "data", "control", "no proof"],
)
def test_a_flood_of_strangers_drops_its_own_oldest(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """CH-BAD-2: above the limit the oldest goes, whatever it has said; one warning."""
    world = World()
    receiver = world.receiver(secret=b"s")
    flood = [connect(world, receiver, said) for _ in range(STRANGERS + 100)]
    assert [is_open(link) for link in flood] == [False] * 100 + [True] * STRANGERS
    assert len(receiver.connections.links) == STRANGERS
    assert (
        len([record for record in caplog.records if "have not identified themselves" in record.getMessage()])
        == 1
    )


@pytest.mark.parametrize("said", [b"", greeting(FOR_CONTROL) + forged({**HELLO, "secret": True})])
def test_a_flood_does_not_keep_a_peer_out(said: bytes) -> None:
    """CH-BAD-2: three strangers at each step of its handshakes, and its channel is there at the first attempt."""
    world = World()
    receiver = world.receiver(secret=b"s")
    flood = [connect(world, receiver, said) for _ in range(STRANGERS)]
    consumer = world.inbox(receiver)
    producer = world.open(world.sender(secret=b"s"))
    producer.send(b"x")
    while producer.channel.state is not SenderState.ATTACHED:
        world.step()
        flood += [connect(world, receiver, said) for _ in range(3)]
    assert producer.channel.request == 1
    flood += [connect(world, receiver, said) for _ in range(2 * STRANGERS)]
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal, limit_s=1)
    consumer.read()
    assert consumer.values == [b"x"]
    assert sum(map(is_open, flood)) <= STRANGERS


def test_who_speaks_is_not_dropped_for_who_is_silent() -> None:
    """A handshake that is under way outlives any flood of silent connections."""
    world = World()
    receiver = world.receiver()
    slow = connect(world, receiver, greeting(FOR_CONTROL))
    for _ in range(3 * STRANGERS):
        connect(world, receiver)
    assert is_open(slow)


def test_there_are_so_many_connections_and_no_more() -> None:
    """Above `max_connections` newcomers are dropped, those that are there are not; and there is room again."""
    world = World()
    receiver = world.receiver(max_connections=10)
    established = [connect_whole(world, receiver) for _ in range(9)]
    waiting = connect(world, receiver)
    assert is_open(waiting)
    newcomer = connect(world, receiver)
    assert (is_open(waiting), is_open(newcomer)) == (False, True)  # of strangers the older one goes
    ninth = connect_whole(world, receiver)
    assert (is_open(newcomer), is_open(ninth)) == (False, True)
    late = connect(world, receiver)
    assert not is_open(late)
    assert all(map(is_open, established))
    established[0].lost("gone", world.now)
    assert is_open(connect(world, receiver))


async def test_a_limit_that_leaves_no_room_for_a_channel_is_refused() -> None:
    """A channel is two connections."""
    with pytest.raises(ValueError, match="max_connections is 1"):
        ReceiverServer(max_connections=1)


async def test_a_real_flood_over_sockets(sender: SenderServer) -> None:
    """CH-BAD-2: more silent connections than the limit, from sockets, and a real channel is served meanwhile."""
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("c", codec="bytes")
        host, port = receiver.address.split(":")
        with contextlib.ExitStack() as flood:
            for _ in range(STRANGERS + 500):
                flood.enter_context(socket.create_connection((host, int(port))))
                await asyncio.sleep(0)
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            await outbox.send(b"x")
            assert await inbox.recv() == b"x"
            await until(
                lambda: len(receiver._core.connections.links) <= STRANGERS + 2, "the flood is bounded"
            )
            await outbox.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await until_async(holds, what)


# -- versions


@asynccontextmanager
async def dialed(address: str, *said: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection of somebody who has said this."""
    path = address.removeprefix("unix:")
    reader, writer = await (
        asyncio.open_unix_connection(path)
        if path != address
        else asyncio.open_connection(*address.rsplit(":", 1))
    )
    try:
        writer.writelines(said)
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("purpose", [FOR_CONTROL, FOR_DATA])
async def test_another_version_is_refused_with_a_sentence(receiver: ReceiverServer, purpose: int) -> None:
    """CH-VER-1: on both kinds of connections, with the versions of both sides."""
    future = with_check(GREETING.pack(MAGIC, 98, 99, purpose, 0))
    async with dialed(receiver.address, future) as reader, asyncio.timeout(60):
        answer = await reader.read()
    text = b"the sender speaks versions 98 to 99, the receiver version 1"
    if purpose == FOR_DATA:
        assert answer == signal(Kind.REFUSED, payload=b"version " + text)
    else:
        (message,) = MessageParser().received(memoryview(answer))
        assert message == Error(message=text.decode(), permanent=True)


def test_the_reason_of_a_refused_data_connection_is_told() -> None:
    """CH-VER-1: who gives up names what the receiver said."""
    world = World()
    world.inbox(world.receiver())
    producer = world.open(world.sender(), fault=FaultPolicy(retry=0))
    while not world.wires(control=False):
        world.step()
    (wire,) = world.wires(control=False)
    wire.inbox += signal(
        Kind.REFUSED, payload=b"version the sender speaks versions 1 to 1, the receiver version 99"
    )
    world.run(lambda: producer.channel.terminal)
    with pytest.raises(
        netchannel.ChannelBroken, match=r"refused: the sender speaks versions 1 to 1, .*version 99"
    ):
        producer.send(b"x")


# -- control connections


async def introduce(rude: socket.socket, secret: str | None) -> None:
    """Go through the handshake; with a ``secret``, not to its end."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(rude, greeting(FOR_CONTROL) + forged({**HELLO, "secret": secret is not None}))
    if secret is None:
        answered = b""
        while not any(isinstance(each, Hello) for each in MessageParser().received(memoryview(answered))):
            answered += await loop.sock_recv(rude, 1 << 16)
        await loop.sock_sendall(rude, proof(HELLO["nonce"], answered))


@pytest.mark.parametrize("secret", [None, "s"], ids=["peer", "stranger"])
@pytest.mark.parametrize("asked", [{"t": "ping", "at": 1}, OPEN], ids=["ping", "open"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
async def test_who_asks_and_does_not_listen_is_not_read_any_further(
    secret: str | None, asked: dict[str, object], family: int, tmp_path: Path
) -> None:
    """Answers that nobody takes do not pile up: the connection is left alone, and then dropped as dead."""
    address = f"unix:{tmp_path}/s" if family == socket.AF_UNIX else "127.0.0.1:0"
    timing = Timing(heartbeat_s=0.1, dead_after_s=0.5, handshake_s=1.0)
    async with ReceiverServer(address, timing=timing, secret=secret) as receiver:
        with socket.socket(family) as rude:
            host, _, port = receiver.address.rpartition(":")
            rude.connect(f"{tmp_path}/s" if family == socket.AF_UNIX else (host, int(port)))
            rude.setblocking(False)
            await introduce(rude, secret)
            ask = forged(asked) * 1000
            (session,) = await _sessions(receiver)
            most = 0
            async with asyncio.timeout(60):
                while receiver._core.connections.links:
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        rude.send(ask)
                    await asyncio.sleep(0.001)
                    most = max(most, sum(map(len, session._output)))
            assert most < 4 << 20


async def test_a_last_word_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """A connection that is to be closed behind answers that nobody takes is closed all the same."""
    timing = Timing(heartbeat_s=0.1, dead_after_s=0.5)
    async with ReceiverServer(f"unix:{tmp_path}/s", timing=timing) as receiver:
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(f"{tmp_path}/s")
            rude.setblocking(False)
            await introduce(rude, None)
            said = forged(OPEN) * 6000 + b"nonsense, and enough of it"
            await asyncio.get_running_loop().sock_sendall(rude, said)
            (session,) = await _sessions(receiver)
            await until(lambda: session.closing is not Closing.OPEN, "the nonsense was read")
            assert receiver._core.connections.links
            await until(lambda: not receiver._core.connections.links, "dropped")


def test_pings_of_a_receiver_that_does_not_listen_are_not_answered() -> None:
    """On a sender too: what its peer does not take does not pile up."""
    world = World()
    world.receiver()
    world.open(world.sender())
    (wire,) = (world.settle(), world.wires(control=True))[1]
    wire.link.writable = False
    wire.inbox += forged({"t": "ping", "at": 1}) * 1000
    while wire.inbox:
        world._read(wire)
    assert len(wire.link.output()) < 10


async def _sessions(receiver: ReceiverServer) -> list[ReceiverControl]:
    await until(lambda: bool(receiver._core.sessions), "connected")
    return list(receiver._core.sessions)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("channel", "", "1 to 255 bytes"),
        ("channel", "x" * 256, "1 to 255 bytes"),
        ("channel", "two\nlines", "1 to 255 bytes"),
        ("stream", "", "expected name"),
        ("stream", "x" * (TEXT_LIMIT + 1), f"{TEXT_LIMIT + 1} characters"),
        ("codec", "x" * (TEXT_LIMIT + 1), "expected codec"),
    ],
)
async def test_names_are_as_long_as_they_may_be(
    receiver: ReceiverServer, field: str, value: str, why: str
) -> None:
    """What a receiver would keep of an open request is bounded: any other is an error."""
    said = greeting(FOR_CONTROL) + forged(HELLO) + forged({**OPEN, field: value})
    async with dialed(receiver.address, said) as reader, asyncio.timeout(60):
        *_, last = MessageParser().received(memoryview(await reader.read()))
    assert isinstance(last, Error)
    assert not last.permanent
    assert why in last.message


def test_so_many_channels_are_remembered_for_senders_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all senders together; one that is not remembered asks again by itself."""
    monkeypatch.setattr(waitlist, "WAITING_LIMIT", 5)
    world = World()
    receiver = world.receiver()
    producers = [world.open(world.sender(), f"c{number}") for number in range(8)]
    world.settle()
    assert sum(len(session.waiting) for session in receiver.sessions) == 5
    for number in range(8):
        world.inbox(receiver, f"c{number}")
    world.run(lambda: all(producer.channel.state is SenderState.ATTACHED for producer in producers))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = [record for record in caplog.records if record.name.startswith("netchannel")]
    return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]


BROKEN = {
    "greeting": b"GET / HTTP/1.1\r\n",
    "version": with_check(GREETING.pack(MAGIC, 98, 99, FOR_CONTROL, 0)),
    "token": greeting(FOR_DATA) + signal(Kind.ATTACH, payload=bytes(16)),
    "frame": greeting(FOR_DATA) + bytes(100),
    "message": greeting(FOR_CONTROL) + bytes(100),
    "rules": greeting(FOR_CONTROL) + forged(HELLO) + forged({"t": "ready", "channel": "c"}),
    "secret": greeting(FOR_CONTROL) + forged({**HELLO, "secret": True}),
}


def visit(world: World, core: ReceiverCore, said: bytes, remote: str) -> None:
    """A connection that breaks the rules."""
    link = connect(world, core, said, remote)
    assert not is_open(link)
    link.lost("reset", world.now)


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
def test_a_stranger_is_warned_of_once(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Once per address and episode, not once per connection; when it was quiet for a while, again."""
    world = World()
    receiver = world.receiver()
    for port in range(500):
        visit(world, receiver, said, f"10.0.0.1:{port}")
        world.pass_time(1)
    assert len(warned(caplog)) == 1
    visit(world, receiver, said, "10.0.0.2:1")
    assert len(warned(caplog)) == 2
    world.pass_time(QUIET_S)
    visit(world, receiver, said, "10.0.0.1:1")
    assert len(warned(caplog)) == 3


def test_strangers_from_everywhere_are_warned_of_so_often(caplog: pytest.LogCaptureFixture) -> None:
    """Addresses are as cheap as connections: past a number of them, they count as one."""
    world = World()
    receiver = world.receiver()
    for number in range(10 * CAUSES):
        visit(world, receiver, BROKEN["greeting"], f"[2001:db8::{number:x}]:1")
    assert len(warned(caplog)) == CAUSES + 1


def test_what_a_peer_calls_itself_begins_no_line_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """Names and reasons of the other side are shown in one line, cut at 1 000 characters."""
    caplog.set_level(logging.INFO)
    world = World()
    name = "n\nERROR all is lost\x1b[2J" + "x" * 3000
    rude = forged({**HELLO, "node": name}) + forged({"t": "error", "message": name, "permanent": False})
    receiver = world.receiver()
    connect(world, receiver, greeting(FOR_CONTROL) + rude)
    consumer = world.inbox(receiver)
    producer = world.open(world.sender(), stream=name)
    producer.channel.finish(name)
    world.run(lambda: consumer.channel.terminal)
    told = [record.getMessage() for record in caplog.records]
    assert any("ERROR all is lost" in line for line in told)
    assert all(line.isprintable() and len(line) < 2500 for line in told)


# -- messages


@pytest.mark.parametrize("count", [PACK_COUNT + 1, 5 * PACK_COUNT])
def test_empty_messages_are_not_all_packed_into_one_frame(count: int) -> None:
    """What was sent before there was a receiver fits into frames that it takes."""
    world = World(chunk=1 << 18)
    producer = world.open(world.sender())
    for _ in range(count):
        producer.send(b"")
    consumer = world.inbox(world.receiver(), buffer=BufferPolicy(max_bytes=None))
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal)
    assert producer.channel.attachments == 1
    consumer.read()
    assert len(consumer.items) == count


def test_empty_messages_fill_a_queue_too() -> None:
    """CH-BP-1: a bound in bytes also bounds how many messages wait to be read."""
    world = World()
    consumer = world.inbox(world.receiver(), buffer=BufferPolicy(max_bytes=1 << 16))
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    for _ in range(1000):
        for _ in range(10):
            producer.send(b"")
        world.settle()
    assert len(consumer.channel.queue) < 500
    while len(consumer.items) < 10_000:
        consumer.read()
        world.settle()
    assert consumer.channel.queue.bytes == 0
