"""How long either side waits for the other, what it says when it gives up, and how it goes on then."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time

import pytest

import netchannel
from netchannel import FaultPolicy, ReceiverChannel, ReceiverServer, SenderServer, Timing
from netchannel.servers.identity import node_name
from netchannel.testing.deadlines import eventually
from tests.support.chaos import Proxy
from tests.support.scripts import script

pytestmark = [pytest.mark.uvloop]

TIMING = Timing(heartbeat_s=0.1, dead_after_s=0.5, backoff_s=0.01, backoff_limit_s=0.05)
AWAY_S = 1.5
PATIENCE_S = 0.4
RESET = rf"failed: .*({os.strerror(errno.ECONNRESET)}|hung up)"
"""What a cut is, for who is cut off; or for its peer, where that has noticed first."""


def _cut(proxy: Proxy) -> None:
    for wire in proxy.wires:
        wire.cut()


async def test_either_side_waits_for_ever(free_address: str) -> None:
    """CH-FLT-1: three times as long as heartbeats are missed, at both sides; then both go on where they were."""
    async with ReceiverServer(timing=TIMING) as receiver, SenderServer(timing=TIMING) as sender:
        inbox = receiver.register_channel("c", codec="bytes", fault=FaultPolicy(retry="forever"))
        async with Proxy(receiver.address, listen=free_address):
            outbox = sender.register_channel(
                "c", to=free_address, codec="bytes", fault=FaultPolicy(retry="forever")
            )
            await outbox.send(b"0")
            assert bytes(await inbox.recv()) == b"0"
        await outbox.send(b"1")
        waiting = asyncio.ensure_future(inbox.recv())
        await asyncio.sleep(AWAY_S)
        assert not waiting.done()
        async with Proxy(receiver.address, listen=free_address), asyncio.timeout(60):
            assert bytes(await waiting) == b"1"
            await outbox.close()
            assert [body async for body in inbox] == []


async def test_a_sender_gives_up_after_its_time(free_address: str) -> None:
    """CH-FLT-1: from its registration, and from a loss; the error names the receiver, the reason and what is left."""
    fault = FaultPolicy(retry=PATIENCE_S)
    async with SenderServer(timing=TIMING) as sender, asyncio.timeout(60):
        began = time.monotonic()
        outbox = sender.register_channel("c", to=free_address, codec="bytes", fault=fault)
        await outbox.send_many([b"0", b"1"])
        with pytest.raises(
            netchannel.ChannelBroken, match="0 messages were acknowledged, 2 were not"
        ) as caught:
            await outbox.flush()
        assert time.monotonic() - began >= PATIENCE_S
        assert free_address in str(caught.value)
        assert "refused" in str(caught.value)
        async with ReceiverServer(free_address, timing=TIMING) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            outbox = sender.register_channel("c", to=free_address, codec="bytes", fault=fault)
            await outbox.send(b"0")
            await outbox.flush()
            assert bytes(await inbox.recv()) == b"0"
            began = time.monotonic()
        await outbox.send(b"1")
        with pytest.raises(
            netchannel.ChannelBroken, match="1 messages were acknowledged, 1 were not"
        ) as caught:
            await outbox.flush()
        assert time.monotonic() - began >= PATIENCE_S
        assert free_address in str(caught.value)


async def test_a_receiver_gives_up_after_its_time() -> None:
    """CH-FLT-1: from its registration, and from a loss; the error names the sender that was there, and the reason."""
    fault = FaultPolicy(retry=PATIENCE_S)
    async with ReceiverServer(timing=TIMING) as receiver, asyncio.timeout(60):
        began = time.monotonic()
        inbox = receiver.register_channel("c", codec="bytes", fault=fault)
        with pytest.raises(
            netchannel.ChannelBroken,
            match=r"no sender has connected.*the channel was not requested; the next message was number 0",
        ):
            await inbox.recv()
        assert time.monotonic() - began >= PATIENCE_S
        inbox = receiver.register_channel("c", codec="bytes", fault=fault)
        async with Proxy(receiver.address) as proxy, SenderServer(timing=TIMING) as sender:
            outbox = sender.register_channel("c", to=proxy.address, codec="bytes", fault=FaultPolicy(retry=0))
            await outbox.send(b"0")
            assert bytes(await inbox.recv()) == b"0"
            began = time.monotonic()
            _cut(proxy)
            with pytest.raises(netchannel.ChannelBroken, match=RESET) as caught:
                await inbox.recv()
        assert time.monotonic() - began >= PATIENCE_S
        assert node_name("sender") in str(caught.value)


async def test_either_side_gives_up_at_once() -> None:
    """CH-FLT-1: at the first loss; each names the other, and the reason."""
    fault = FaultPolicy(retry=0)
    async with ReceiverServer(timing=TIMING) as receiver, SenderServer(timing=TIMING) as sender:
        inbox = receiver.register_channel("c", codec="bytes", fault=fault)
        async with Proxy(receiver.address) as proxy, asyncio.timeout(60):
            outbox = sender.register_channel("c", to=proxy.address, codec="bytes", fault=fault)
            await outbox.attached()
            _cut(proxy)
            with pytest.raises(netchannel.ChannelBroken, match=RESET) as at_sender:
                await outbox.close()
            with pytest.raises(netchannel.ChannelBroken, match=RESET) as at_receiver:
                await inbox.recv()
            assert proxy.address in str(at_sender.value)
            assert node_name("sender") in str(at_receiver.value)
            assert len(proxy.wires) == 2  # nobody has tried again


async def test_a_consumer_registers_again_after_its_channel_broke() -> None:
    """CH-FLT-2: the same id, after a ChannelBroken: the stream goes on where it was acknowledged."""
    async with (
        ReceiverServer(timing=TIMING) as receiver,
        SenderServer(timing=TIMING) as sender,
        Proxy(receiver.address) as proxy,
        asyncio.timeout(60),
    ):
        outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
        await outbox.send_many([b"%d" % number for number in range(100)])
        for round_ in range(5):
            first = 10 * round_
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit", fault=FaultPolicy(retry=0))
            for number in range(first, first + 20):
                assert bytes(await inbox.recv()) == b"%d" % number
            await inbox.ack(first + 10)
            await eventually(lambda first=first: outbox.statistics().acknowledged == first + 10)
            _cut(proxy)
            with pytest.raises(netchannel.ChannelBroken):
                await _all(inbox)
        inbox = receiver.register_channel("c", codec="bytes")
        closing = asyncio.ensure_future(outbox.close())
        assert [int(bytes(body)) async for body in inbox] == list(range(50, 100))
        assert (await closing).acknowledged == 100


async def _all(inbox: ReceiverChannel) -> list[bytes]:
    return [bytes(body) async for body in inbox]


HOLDER = """
import asyncio, sys, netchannel
async def main():
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel("c", to=sys.argv[1], codec="bytes")
        await outbox.send(b"0")
        await outbox.flush()
        print("attached", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await outbox.send(b"1")
        await outbox.close()
        print(outbox.statistics().reconnects, "reconnects")
asyncio.run(main())
"""


@pytest.mark.processes
async def test_a_second_live_sender_is_told_who_has_the_channel() -> None:
    """CH-FLT-3: it is denied with the holder's name, again and again, and does the holder no harm."""
    async with ReceiverServer(timing=TIMING) as receiver, asyncio.timeout(60):
        inbox = receiver.register_channel("c", codec="bytes")
        async with script(HOLDER, receiver.address) as holder:
            assert await holder.says() == "attached"
            async with SenderServer(timing=TIMING) as sender:
                second = sender.register_channel(
                    "c", to=receiver.address, codec="bytes", fault=FaultPolicy(retry=PATIENCE_S)
                )
                await second.send(b"not this")
                with pytest.raises(netchannel.ChannelBroken) as caught:
                    await second.flush()
                assert f"{socket.gethostname()}/{holder.pid}" in str(caught.value)
            holder.go_on()
            assert await holder.says() == "0 reconnects"
            await holder.ends()
        assert await _all(inbox) == [b"0", b"1"]
