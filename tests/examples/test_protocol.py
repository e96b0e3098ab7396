"""The smallest peers of examples/protocol, which know the page and none of our code: with ours, and each other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from netchannel import HandshakeError, MessageTooLarge, ReceiverServer, SenderServer, Timing
from tests.support.chaos import ChaosProxy

pytestmark = [pytest.mark.processes, pytest.mark.uvloop]

EXAMPLE = Path(__file__).parents[2] / "examples" / "protocol"
TOTAL = 2000
CUTS = 10
SENT = [b"message %d" % number for number in range(TOTAL)]
TIMING = Timing(backoff_s=0.01, backoff_limit_s=0.05)


def cutting(target: str) -> ChaosProxy:
    """Cuts each connection after some thousand bytes, twenty at most, of which not all are needed to get through."""
    return ChaosProxy(target, seed=5, mean_bytes=6000, max_resets=2 * CUTS)


@asynccontextmanager
async def peer(program: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, EXAMPLE / program, *arguments), stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(100):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def port_of(receiver: asyncio.subprocess.Process) -> str:
    assert receiver.stderr is not None
    return f"127.0.0.1:{(await receiver.stderr.readline()).split()[-1].decode()}"


async def test_the_smallest_sender_loses_and_doubles_nothing() -> None:
    """CH-SEQ-2: its connections are cut ten times, and more."""
    async with ReceiverServer(timing=TIMING) as receiver, cutting(receiver.address) as proxy:
        inbox = receiver.register_channel("c", codec="bytes")
        async with peer("sender.py", proxy.address, "c", str(TOTAL)) as sender:
            assert [bytes(body) async for body in inbox] == SENT
            said, _ = await sender.communicate()
            assert said == b"end\n"
        assert proxy.resets >= CUTS


async def test_the_smallest_receiver_loses_and_doubles_nothing() -> None:
    """CH-SEQ-2: the same, of who sends to it."""
    async with peer("receiver.py", "127.0.0.1:0", "c") as receiver:
        async with cutting(await port_of(receiver)) as proxy, SenderServer(timing=TIMING) as sender:
            outbox = sender.register_channel("c", to=proxy.address, codec="bytes")
            for body in SENT:
                await outbox.send(body)
            assert (await outbox.close()).acknowledged == TOTAL
            assert proxy.resets >= CUTS
        said, _ = await receiver.communicate()
        assert said.split(b"\n")[:-1] == SENT


async def test_the_smallest_two_talk_to_each_other() -> None:
    """With few cuts: they wait for ever longer, as the page says."""
    async with (
        peer("receiver.py", "127.0.0.1:0", "c") as receiver,
        ChaosProxy(await port_of(receiver), seed=5, mean_bytes=20_000, max_resets=6) as proxy,
    ):
        async with peer("sender.py", proxy.address, "c", str(TOTAL)) as sender:
            said, _ = await receiver.communicate()
            assert said.split(b"\n")[:-1] == SENT
            assert (await sender.communicate())[0] == b"end\n"
        assert proxy.resets >= 2


async def test_what_the_smallest_receiver_cannot_take_is_an_error_that_says_so() -> None:
    """It has no features: neither pieces nor notes are sent to it."""
    async with peer("receiver.py", "127.0.0.1:0", "c") as receiver, SenderServer() as sender:
        address = await port_of(receiver)
        outbox = sender.register_channel("c", to=address, codec="bytes")
        await outbox.attached()
        with pytest.raises(MessageTooLarge, match="1179649"):
            await outbox.send(bytes(1_179_649))
        await outbox.send(b"one")
        await outbox.flush()
        await outbox.send(b"two", note=b"note")
        with pytest.raises(HandshakeError, match="does not accept notes"):
            await outbox.flush()
        assert receiver.stdout is not None
        assert await receiver.stdout.readline() == b"one\n"
