"""Networks that swallow, stall and flap, and clocks that jump: the sequence is exact afterwards."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

import netchannel
from netchannel import BufferPolicy, ReceiverChannel, ReceiverServer, SenderChannel, SenderServer, Timing
from netchannel.testing.deadlines import least_s
from netchannel.testing.suite import Suite
from tests.support.chaos import DOWN, UP, Proxy, Wire
from tests.support.waiting import until_async

TIMING = Timing(heartbeat_s=0.1, dead_after_s=0.5, handshake_s=0.3, backoff_s=0.001, backoff_limit_s=0.02)
SLACK_S = 0.3
"""For turns of a busy machine, on top of a budget."""


async def until(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await until_async(holds, what)


def body(number: int) -> bytes:
    """What message ``number`` holds: of its own, and of various lengths."""
    return b"%d " % number + random.Random(number).randbytes(number % 500)


async def send(outbox: SenderChannel, *numbers: int) -> None:
    for number in numbers:
        await outbox.send(body(number))


async def received(inbox: ReceiverChannel, *, explicit: bool = False) -> int:
    """How many messages came before the end, each the one that was due."""
    count = 0
    while True:
        try:
            message = await inbox.recv_message()
        except netchannel.EndOfChannel:
            return count
        assert (message.sequence, bytes(message.batch)) == (count, body(count))
        count += 1
        if explicit:
            await inbox.ack(count)


@pytest.fixture
async def receiver() -> AsyncIterator[ReceiverServer]:
    async with ReceiverServer(timing=TIMING) as server:
        yield server


@pytest.fixture
async def sender() -> AsyncIterator[SenderServer]:
    async with SenderServer(timing=TIMING) as server:
        yield server


async def test_a_peer_that_is_gone_without_a_word_is_found_by_heartbeats(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-CTL-3: both sides within their budget, with every socket open; exact once there is a way again."""
    swallowing = False

    def make_wire(_: int) -> Wire:
        wire = Wire()
        wire.swallows = swallowing
        return wire

    async with Proxy(receiver.address, make_wire) as proxy, asyncio.timeout(60):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
        await send(outbox, *range(100))
        await outbox.flush()
        passed = 100

        async def swallow() -> None:
            nonlocal swallowing
            swallowing = True
            for wire in proxy.wires:
                wire.swallows = True
            await send(outbox, *range(passed, passed + 100))
            for channel in (outbox, inbox):
                await until(lambda channel=channel: channel.statistics().state != "attached", "found")

        limit_s = TIMING.dead_after_s + TIMING.heartbeat_s + SLACK_S
        for _ in range(10):
            began, dialed = time.monotonic(), len(proxy.wires)
            await swallow()
            took_s = time.monotonic() - began
            await until(
                lambda dialed=dialed: len(proxy.wires) >= dialed + 3, "dialed in vain, more than once"
            )
            assert inbox.statistics().received == passed
            swallowing = False
            await outbox.flush()
            passed += 100
            if took_s <= limit_s:
                break
        assert took_s <= limit_s, "in the best of ten tries"
        await outbox.close()
        assert await received(inbox) == passed


async def test_a_black_hole_is_given_up_after_the_handshake_time(
    sender: SenderServer, free_address: str
) -> None:
    """CH-SEQ-2: connections are made, and nobody ever answers; another attempt finds the receiver once it is there."""
    host, port = free_address.split(":")
    outbox = sender.register_channel("c", to=free_address, codec="bytes")
    await send(outbox, *range(10))
    with socket.create_server((host, int(port))) as hole:
        hole.settimeout(60)

        async def swallow() -> None:
            connection, _ = await asyncio.to_thread(hole.accept)
            with connection:
                connection.settimeout(60)
                while await asyncio.to_thread(connection.recv, 1000):
                    pass

        for _ in range(3):
            await swallow()
        limit_s = TIMING.handshake_s + SLACK_S
        assert await least_s(limit_s, swallow) <= limit_s
    async with ReceiverServer(free_address, timing=TIMING) as receiver, asyncio.timeout(60):
        inbox = receiver.register_channel("c", codec="bytes")
        await outbox.close()
        assert await received(inbox) == 10


async def test_data_connections_that_vanish_are_made_again(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-SEQ-2: the control connection is well, the first three data connections lead nowhere."""

    def make_wire(number: int) -> Wire:
        wire = Wire()
        wire.swallows = 1 <= number <= 3
        return wire

    async with Proxy(receiver.address, make_wire) as proxy, asyncio.timeout(60):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
        await send(outbox, *range(10))
        await outbox.close()
        assert await received(inbox) == 10
        assert len(proxy.wires) >= 5
        assert inbox.statistics().reconnects == 0  # those never were connections


@pytest.mark.long
@pytest.mark.uvloop
async def test_a_stalled_consumer_is_no_broken_connection(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-BP-3: for ten times the heartbeat budget nothing is read, and all socket buffers are full: no reconnect."""
    small = BufferPolicy(max_bytes=1 << 16)
    inbox = receiver.register_channel("c", codec="bytes", buffer=small)
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=small)
    total = (Suite().held_by_system() + (16 << 20)) >> 15  # more than all sockets hold

    async def produce() -> None:
        for number in range(total):
            await outbox.send(body(number) + bytes(1 << 15))
        await outbox.close()

    producing = asyncio.create_task(produce())
    await inbox.recv()
    await asyncio.sleep(11 * TIMING.dead_after_s)
    assert outbox.position < total
    assert not producing.done()
    async with asyncio.timeout(60):
        for number in range(1, total):
            message = await inbox.recv_message()
            assert (message.sequence, bytes(message.batch)) == (number, body(number) + bytes(1 << 15))
        await producing
    assert inbox.statistics().reconnects == outbox.statistics().reconnects == 0


async def test_a_link_that_flaps_loses_nothing(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-SEQ-2, CH-SEQ-3: all connections are reset every few milliseconds, at least a hundred times, in a stream."""
    pause = random.Random(5)
    async with Proxy(receiver.address) as proxy, asyncio.timeout(120):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel(
            "c", to=proxy.address, codec="bytes", buffer=BufferPolicy(max_messages=50)
        )
        flapping = True

        async def produce() -> int:
            while flapping:
                await send(outbox, outbox.position)
            await outbox.close()
            return outbox.position

        producing = asyncio.create_task(produce())
        consuming = asyncio.create_task(received(inbox))
        resets = 0
        while resets < 100 or inbox.statistics().reconnects <= 10:  # a busy machine dials slowly
            await asyncio.sleep(pause.expovariate(1 / 0.01))
            for wire in proxy.wires:
                wire.cut()
            resets += 1
        flapping = False
        assert await consuming == await producing


async def test_a_wall_clock_that_jumps_changes_nothing(
    receiver: ReceiverServer, sender: SenderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines do not follow it: years forwards and backwards, and no heartbeat is missed; timestamps show it."""
    jumps = random.Random(6)
    now = time.time_ns()
    told: set[int] = set()

    def jumping_ns() -> int:
        told.add(value := now + jumps.randint(-(10**17), 10**17))
        return value

    async with asyncio.timeout(60):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.attached()
        monkeypatch.setattr(time, "time_ns", jumping_ns)
        monkeypatch.setattr(time, "time", lambda: jumping_ns() / 1e9)
        for number in range(20):
            await send(outbox, number)
            await asyncio.sleep(TIMING.dead_after_s / 10)
        await outbox.close()
        messages = [await inbox.recv_message() for _ in range(20)]
    monkeypatch.undo()
    assert [bytes(message.batch) for message in messages] == [body(number) for number in range(20)]
    assert {message.timestamp for message in messages} <= {value // 1000 for value in told}
    timestamps = [message.timestamp for message in messages]
    assert timestamps != sorted(timestamps)
    assert inbox.statistics().reconnects == outbox.statistics().reconnects == 0


class _Way(Proxy):
    """Each direction of each connection takes 0.02 to 1.5 s; what is lost on one may come behind its successor's."""

    def __init__(self, target: str, seed: int) -> None:
        super().__init__(target, self._slow)
        self.random = random.Random(seed)

    def _slow(self, number: int) -> Wire:
        wire = Wire()
        wire.latency_s = {direction: self.random.uniform(0.02, 1.5) for direction in (UP, DOWN)}
        return wire

    async def cut(self) -> None:
        """Now and then all that is there, on the way to an attachment or behind it."""
        for _ in range(5):
            await asyncio.sleep(self.random.uniform(2.0, 11.0))
            for wire in self.wires:
                if not wire.is_cut:
                    (wire.hang_up if self.random.random() < 0.7 else wire.cut)()


@pytest.mark.long
@pytest.mark.uvloop
async def test_what_comes_late_from_old_connections_ends_nothing() -> None:
    """Sixteen pairs over ways of their own, cut again and again: each sequence is exact, each end is heard of."""
    timing = Timing(backoff_s=0.01, backoff_limit_s=0.3)

    async def one(seed: int) -> int:
        """How often the consumer was attached."""
        explicit = seed % 2 == 1
        async with (
            ReceiverServer(timing=timing) as receiver,
            SenderServer(timing=timing) as sender,
            _Way(receiver.address, seed) as way,
        ):
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit" if explicit else "receipt")
            policy = BufferPolicy(max_messages=50)
            outbox = sender.register_channel("c", to=way.address, codec="bytes", buffer=policy)
            reading = asyncio.create_task(received(inbox, explicit=explicit))
            cutting = asyncio.create_task(way.cut())
            while not cutting.done() or outbox.position < 100:
                await send(outbox, outbox.position)
            report = await outbox.close()
            assert report.acknowledged == outbox.position == await reading
            return outbox.statistics().reconnects

    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        runs = [group.create_task(one(seed)) for seed in range(16)]
    assert sum(run.result() for run in runs) > 16
