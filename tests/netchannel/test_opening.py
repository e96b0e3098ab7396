"""Channels and their connections as they come to be, over real sockets and between processes."""

from __future__ import annotations

import asyncio
import os
import time

import pyarrow as pa
import pytest

from netchannel import ReceiverChannel, ReceiverServer, SenderServer, Timing
from netchannel.core.control_connection import FOR_DATA, greeting
from netchannel.prometheus import ChannelCollector
from netchannel.testing.deadlines import eventually
from netchannel.wire.frames import HEAD, Kind, signal
from netchannel.wire.messages import TOKEN_SIZE
from tests.support.chaos import DOWN, UP, Proxy, Wire
from tests.support.scripts import script
from tests.support.sockets import connections, sockets

AT_ONCE_S = 0.01
SOON_S = 0.05
CHANNELS = 100


async def test_a_sender_dials_with_its_first_channel() -> None:
    """CH-CTL-2: a SenderServer that is started holds no socket; its first channel brings both connections."""
    async with ReceiverServer() as receiver:
        before = sockets()
        async with SenderServer() as sender:
            await asyncio.sleep(0.05)
            assert sockets() == before
            receiver.register_channel("c", codec="bytes")
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            assert sockets() == before
            await outbox.attached()
            both_ends_of_two = 4
            assert len(sockets() - before) == both_ends_of_two
            await outbox.close()


@pytest.mark.timed
async def test_both_sides_register_at_once(free_address: str) -> None:
    """CH-REG-1: within 10 ms, with nobody at the other end, and without a connection, which would need the loop."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        held = sockets()
        for register in (
            receiver.register_channel,
            lambda name: sender.register_channel(name, to=free_address),
        ):
            took = []
            for number in range(10):  # a busy machine takes its time from some of them
                began = time.perf_counter()
                register(f"c{number}")
                took.append(time.perf_counter() - began)
            assert min(took) <= AT_ONCE_S
        assert sockets() == held


@pytest.mark.uvloop
async def test_what_is_sent_before_there_is_a_receiver_arrives(free_address: str) -> None:
    """CH-REG-2: 1 000 batches, the receiver starts 2 s later: all of them, in order, once."""
    async with SenderServer() as sender:
        outbox = sender.register_channel("c", to=free_address)
        for number in range(1000):
            await outbox.send(pa.record_batch({"n": [number]}))
        await asyncio.sleep(2.0)
        assert outbox.statistics().buffered_messages == 1000
        async with ReceiverServer(free_address) as receiver, asyncio.timeout(60):
            inbox = receiver.register_channel("c")
            report, batches = await asyncio.gather(outbox.close(), _all(inbox))
    assert [batch["n"][0].as_py() for batch in batches] == list(range(1000))
    assert report.acknowledged == 1000


async def _all(inbox: ReceiverChannel) -> list[pa.RecordBatch]:
    return [batch async for batch in inbox]


@pytest.mark.timed
async def test_a_denied_channel_opens_as_soon_as_it_is_registered() -> None:
    """CH-REG-4: metrics show the denial; the first batch comes within 50 ms, not after 20 s of backoff."""
    timing = Timing(backoff_s=20.0, backoff_limit_s=20.0)
    async with ReceiverServer() as receiver, SenderServer(timing=timing) as sender:
        names = iter(range(100))

        async def from_denial_to_batch() -> float:
            name = f"c{next(names)}"
            outbox = sender.register_channel(name, to=receiver.address)
            await outbox.send(pa.record_batch({"n": [1]}))
            await eventually(lambda: outbox.statistics().state == "denied")
            states = {
                sample.labels["state"]: sample.value
                for metric in ChannelCollector(sender).collect()
                for sample in metric.samples
                if sample.name == "netchannel_sender_state" and sample.labels["channel"] == name
            }
            assert {state for state, value in states.items() if value} == {"denied"}
            began = time.perf_counter()
            inbox = receiver.register_channel(name)
            async with asyncio.timeout(60):
                assert (await inbox.recv()).num_rows == 1
            return time.perf_counter() - began

        took = []
        for _ in range(10):  # a busy machine takes its time from some of them
            took.append(await from_denial_to_batch())
            if took[-1] <= SOON_S:
                break
        assert min(took) <= SOON_S


HUNDRED = """
import asyncio, sys, netchannel
async def main():
    async with netchannel.ReceiverServer("127.0.0.1:0") as receiver:
        inboxes = [receiver.register_channel(f"c{n}", codec="bytes") for n in range(int(sys.argv[1]))]
        print(receiver.address, flush=True)
        for inbox in inboxes:
            print(bytes(await inbox.recv()).decode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.uvloop
async def test_two_processes_share_one_control_connection() -> None:
    """CH-CTL-1: 100 channels between them are 1 control and 100 data sockets, at either process."""
    async with asyncio.timeout(60), script(HUNDRED, CHANNELS) as other, SenderServer() as sender:
        address = await other.says()
        outboxes = [sender.register_channel(f"c{n}", to=address, codec="bytes") for n in range(CHANNELS)]
        for number, outbox in enumerate(outboxes):
            await outbox.send(b"%d" % number)
        assert [int(await other.says()) for _ in range(CHANNELS)] == list(range(CHANNELS))
        assert connections("self", address) == connections(other.pid, address) == 1 + CHANNELS
        await asyncio.gather(*(outbox.close() for outbox in outboxes[1:]))
        await eventually(lambda: connections("self", address) == connections(other.pid, address) == 2)
        await outboxes[0].close()
        other.go_on()
        await other.ends()


class _Recorded(Wire):
    """Keeps what went over it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = {UP: b"", DOWN: b""}

    def changed(self, direction: str, chunk: bytes) -> bytes:
        self.said[direction] += chunk
        return chunk


FOREIGN = """
import socket, sys
host, port, said = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
with socket.create_connection((host, port)) as stranger:
    stranger.settimeout(60)
    stranger.sendall(said)
    answer = b""
    while chunk := stranger.recv(1000):
        answer += chunk
        stranger.shutdown(socket.SHUT_WR)
print(answer.hex())
"""


@pytest.mark.processes
@pytest.mark.uvloop
async def test_a_foreign_process_cannot_take_part() -> None:
    """CH-DATA-3: with a guessed token, and with all that the sender's own connection said: refused, no harm done."""
    async with ReceiverServer() as receiver, Proxy(receiver.address, lambda _: _Recorded()) as proxy:
        inbox = receiver.register_channel("c", codec="bytes")
        async with SenderServer() as sender, asyncio.timeout(60):
            outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
            await outbox.send_many([b"0", b"1"])
            await outbox.flush()
            said = [wire.said[UP] for wire in proxy.wires if isinstance(wire, _Recorded)]
            (replayed,) = [each for each in said if each[6] == FOR_DATA]
            guessed = greeting(FOR_DATA) + signal(Kind.ATTACH, payload=os.urandom(TOKEN_SIZE) + HEAD.pack(2))
            for forged in (replayed, guessed):
                host, _, port = receiver.address.rpartition(":")
                async with script(FOREIGN, host, port, forged.hex()) as foreign:
                    assert b"token " in bytes.fromhex(await foreign.says())
                    await foreign.ends()
                assert outbox.statistics().state == inbox.statistics().state == "attached"
            await outbox.send(b"2")
            await outbox.close()
            assert [bytes(body) async for body in inbox] == [b"0", b"1", b"2"]
            assert (outbox.statistics().reconnects, inbox.statistics().reconnects) == (0, 0)
