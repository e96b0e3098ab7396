"""Sender buffers that go on in temporary files when the memory is full."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import netchannel
from netchannel import BufferPolicy, ReceiverServer, SenderServer

SPILLED = """
import asyncio, json, os, resource, sys, netchannel
async def main():
    to, total, size = sys.argv[1], int(sys.argv[2]), 1 << 20
    policy = netchannel.BufferPolicy(max_bytes=32 << 20, when_full="spill")
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel("c", to=to, codec="bytes", buffer=policy)
        await outbox.send(b"warm")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(1, total):
            await outbox.send(number.to_bytes(8, "little") + os.urandom(8) * ((size >> 3) - 1))
        kept = outbox.statistics()
        print(json.dumps([kept.buffered_messages, kept.disk_bytes]), flush=True)
        await outbox.close()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(json.dumps(grown), flush=True)
asyncio.run(main())
"""


@pytest.mark.timed
@pytest.mark.processes
@pytest.mark.uvloop
async def test_two_gigabytes_wait_on_disk_in_bounded_memory(free_address: str, tmp_path: Path) -> None:
    """CH-BUF-1: the peer is absent for 2 GB: the sender's memory stays near its bound, and all of it arrives."""
    total = 2048
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", SPILLED, free_address, str(total)),
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    async with asyncio.timeout(120):
        kept, disk_bytes = eval(await process.stdout.readline())
        assert kept == total
        assert disk_bytes > 1900 << 20
        assert list(tmp_path.iterdir()) == []  # files without names
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            assert bytes(await inbox.recv()) == b"warm"
            number = 0
            async for body in inbox:
                number += 1
                assert int.from_bytes(body[:8], "little") == number
                assert body[8:16] == body[-8:]
        grown_kib = int(await process.stdout.readline())
        await process.wait()
    assert number == total - 1
    assert grown_kib << 10 < (32 + 64) << 20


def spilling(sender: SenderServer, to: str, **settings: object) -> netchannel.SenderChannel:
    policy = BufferPolicy(when_full="spill", **{"max_bytes": 1 << 20, **settings})  # type: ignore[arg-type]
    return sender.register_channel("c", to=to, codec="bytes", buffer=policy)


def bodies(count: int, salt: int) -> list[bytes]:
    return [b"%d %d" % (salt, number) + bytes(number * 997 % 60_000) for number in range(count)]


async def test_episodes_of_spilling_keep_the_order(free_address: str) -> None:
    """CH-BUF-2: spilled, drained, spilled again, over reconnects and from memory in between: exact."""
    sent = []
    received = []
    async with SenderServer(timing=netchannel.Timing(backoff_limit_s=0.05)) as sender:
        outbox = spilling(sender, free_address)
        for episode in range(4):
            for body in bodies(200, episode):
                await outbox.send(body)
                sent.append(body)
            assert outbox.statistics().disk_bytes > 1 << 20
            assert outbox.statistics().buffered_bytes <= 3 << 19
            async with ReceiverServer(free_address) as receiver:
                inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
                received += [bytes(await inbox.recv()) for _ in range(150)]
                await inbox.ack(len(received))
                await asyncio.wait_for(acknowledged(outbox, len(received)), 60)
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            closing = asyncio.create_task(outbox.close())
            received += [bytes(body) async for body in inbox]
            await closing
        assert outbox.statistics().disk_bytes == 0
    assert received == sent


async def acknowledged(outbox: netchannel.SenderChannel, upto: int) -> None:
    while outbox.statistics().acknowledged < upto:
        await outbox.changes.wait()


async def test_space_comes_back_as_messages_are_acknowledged(free_address: str) -> None:
    """CH-BUF-2: `max_disk_bytes` is kept, with a stalled consumer in between; nothing is lost."""
    async with SenderServer() as sender, ReceiverServer(free_address) as receiver:
        outbox = spilling(sender, free_address, max_disk_bytes=4 << 20)
        inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_bytes=1 << 16))
        sent = bodies(1000, 0)
        largest = 0

        async def produce() -> None:
            nonlocal largest
            for body in sent:
                await outbox.send(body)
                largest = max(largest, outbox.statistics().disk_bytes)
            await outbox.close()

        producing = asyncio.create_task(produce())
        while outbox.statistics().disk_bytes < 3 << 20:
            await outbox.changes.wait()
        assert [bytes(body) async for body in inbox] == sent
        await producing
    assert 3 << 20 < largest < 5 << 20


async def test_a_limit_that_is_reached_is_named_once(
    free_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CH-BUF-2: with both numbers and what to do, also while it is reached again and again as space comes back."""

    def warnings() -> list[str]:
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return [text for text in texts if "max_disk_bytes" in text]

    def is_full() -> bool:
        return outbox.statistics().disk_bytes > 7 << 19

    sent = bodies(400, 0)
    async with SenderServer() as sender:
        outbox = spilling(sender, free_address, max_disk_bytes=4 << 20)
        producing = asyncio.create_task(outbox.send_many(sent))
        while not warnings():
            await outbox.changes.wait()
        assert not producing.done()
        before = outbox.position
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_bytes=1 << 16))
            received = [bytes(await inbox.recv()) for _ in range(100)]
            while outbox.position < before + 50 or not is_full():
                await outbox.changes.wait()
            (warning,) = warnings()
            received += [bytes(await inbox.recv()) for _ in sent[100:]]
            assert received == sent
            await producing
            await outbox.close()
    assert re.search(
        r"producer waits: \d+ of max_disk_bytes=4194304 are used.*acknowledged more, or raise", warning
    )


async def test_a_full_disk_holds_the_producer_back(
    free_address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CH-BUF-2: no space is left: said once, tried again, and all of it arrives."""
    full, refused = True, 0
    write = os.pwritev

    def pwritev(descriptor: int, buffers: object, offset: int) -> int:
        nonlocal refused
        if full and offset > 1 << 19:
            refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, buffers, offset)  # type: ignore[arg-type]

    monkeypatch.setattr("netchannel.storage.jobs.FULL_S", 0.02)
    monkeypatch.setattr(os, "pwritev", pwritev)
    async with SenderServer() as sender:
        outbox = spilling(sender, free_address)
        producing = asyncio.create_task(outbox.send_many(bodies(200, 0)))
        while refused < 5:  # several tries
            await outbox.changes.wait()
        assert not producing.done()
        full = False
        await producing
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            closing = asyncio.create_task(outbox.close())
            assert [bytes(body) async for body in inbox] == bodies(200, 0)
            await closing
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len([record for record in warnings if "no space is left" in record.getMessage()]) == 1


async def test_what_does_not_go_together() -> None:
    """CH-BUF-2: settings that contradict each other are refused by name."""
    with pytest.raises(ValueError, match=r"drop_oldest.*directory"):
        BufferPolicy(when_full="drop_oldest", directory="/tmp")
    with pytest.raises(ValueError, match=r"spill.*directory"):
        BufferPolicy(when_full="spill", directory="/tmp")
    with pytest.raises(ValueError, match="max_disk_bytes=5 limits the size of files"):
        BufferPolicy(max_disk_bytes=5)
    async with ReceiverServer() as receiver:
        with pytest.raises(ValueError, match="receiver"):
            receiver.register_channel("c", buffer=BufferPolicy(when_full="spill"))
