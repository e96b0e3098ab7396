"""Notes and send timestamps: each stays what it was, whatever happens to those who carry it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from netchannel import ReceiverChannel, ReceiverServer, SenderServer
from netchannel.testing.suite import QUICK
from tests.support.chaos import Proxy
from tests.support.scripts import Script, script

EACH = 30
"""Messages that each life of a sender sends, every third without a note."""

SENDS = """
import asyncio, sys, time, netchannel
async def main():
    timing = netchannel.Timing(backoff_s=0.002, backoff_limit_s=0.05)
    async with netchannel.SenderServer(timing=timing) as sender:
        outbox = sender.register_channel(
            "c", to=sys.argv[1], codec="bytes", buffer=netchannel.BufferPolicy(directory=sys.argv[2])
        )
        for number in range(outbox.position, outbox.position + int(sys.argv[3])):
            before = time.time_ns() // 1000
            await outbox.send(b"%d" % number, b"note %d" % number if number % 3 else b"")
            print(before, time.time_ns() // 1000, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def readings(sending: Script) -> list[tuple[int, int]]:
    """What the sender's clock said before and after each `send`, in microseconds."""
    lines = [(await sending.says()).split() for _ in range(EACH)]
    return [(int(before), int(after)) for before, after in lines]


async def read(inbox: ReceiverChannel, numbers: range) -> list[int]:
    """The timestamps of these messages, which have the notes that they were sent with."""
    stamps = []
    for number in numbers:
        message = await inbox.recv_message()
        note = b"note %d" % number if number % 3 else b""
        assert (message.sequence, bytes(message.batch), bytes(message.note)) == (number, b"%d" % number, note)
        stamps.append(message.timestamp)
    return stamps


@pytest.mark.processes
@pytest.mark.uvloop
async def test_notes_and_timestamps_outlive_both_processes(tmp_path: Path, free_address: str) -> None:
    """CH-NOTE-1: of what a killed sender had sent, those of then, for each consumer that comes."""
    async with asyncio.timeout(60):
        async with script(SENDS, free_address, tmp_path, EACH) as first:
            sent = await readings(first)
            await first.kill()
        async with (
            ReceiverServer(timing=QUICK) as receiver,
            Proxy(receiver.address, listen=free_address) as proxy,
            script(SENDS, free_address, tmp_path, EACH) as second,
        ):
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
            stamps = await read(inbox, range(2 * EACH))
            sent += await readings(second)
            await inbox.ack(10)
            for wire in proxy.wires:
                wire.cut()
            await inbox.detach()
            again = receiver.register_channel("c", codec="bytes", ack="explicit", resume_from=10)
            assert await read(again, range(10, 2 * EACH)) == stamps[10:]
    assert all(before <= stamp <= after for stamp, (before, after) in zip(stamps, sent, strict=True))


async def test_notes_and_timestamps_are_of_the_turn_in_which_a_message_was_sent(free_address: str) -> None:
    """CH-NOTE-1: before there is a receiver, and while its connection is cut, as well as on one that is up."""
    sent, at = [], range(3 * EACH)
    async with (
        ReceiverServer(timing=QUICK) as receiver,
        SenderServer(timing=QUICK) as sender,
        asyncio.timeout(60),
    ):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=free_address, codec="bytes")

        async def send(numbers: range) -> None:
            for number in numbers:
                before = time.time_ns() // 1000
                await outbox.send(b"%d" % number, b"note %d" % number if number % 3 else b"")
                sent.append((before, time.time_ns() // 1000))
                await asyncio.sleep(0.001)  # another turn of the loop, a little later

        await send(at[:EACH])
        async with Proxy(receiver.address, listen=free_address):
            await send(at[EACH : 2 * EACH])
            stamps = await read(inbox, at[: 2 * EACH])
        await send(at[2 * EACH :])
        async with Proxy(receiver.address, listen=free_address):
            stamps += await read(inbox, at[2 * EACH :])
            await outbox.close()
    assert all(before <= stamp <= after for stamp, (before, after) in zip(stamps, sent, strict=True))
