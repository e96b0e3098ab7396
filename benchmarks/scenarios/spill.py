"""A consumer that comes late: what its producer sends meanwhile goes to temporary files, and is drained when it comes.

"steady" is the same channel with a consumer that is there from the beginning, and a buffer in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import netchannel
from benchmarks.throughput import Watch
from benchmarks.work import Result, Work


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Register when the sender says so, and take all."""
    async with netchannel.ReceiverServer() as receiver:
        talk = receiver.register_channel("talk", codec="bytes")
        ready(receiver.address)
        await talk.recv()
        inbox = receiver.register_channel("c", codec="bytes")
        watch = Watch(work)
        look = watch.look()
        async for message in inbox:
            look(message)
        async for late in talk:
            raise ValueError(f"a word too many: {bytes(late)!r}")
    return watch.result()


async def send(work: Work, address: str) -> Result:
    """Send all, before or after the consumer has come."""
    away = work.options["away"]
    messages = work.messages()
    rounds = int(work.options["MB"] * 1e6 / (len(messages) * work.size))
    async with netchannel.SenderServer() as sender:
        talk = sender.register_channel("talk", to=address, codec="bytes")
        outbox = sender.register_channel(
            "c",
            to=address,
            codec="bytes",
            buffer=netchannel.BufferPolicy(when_full="spill" if away else "block"),
        )
        if not away:
            await talk.send(b"come")
            await outbox.attached()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            for message in messages:
                await outbox.send(message)
        seconds = time.perf_counter() - began
        disk_bytes = outbox.statistics().disk_bytes
        if away:
            await talk.send(b"come")
        await outbox.close()
        await talk.close()
    count = rounds * len(messages)
    gigabytes = count * work.size / 1e9
    return Result(
        count,
        {
            "taken_MB_per_s": gigabytes * 1e3 / seconds,
            "disk_MB": disk_bytes / 1e6,
            "sender_cpu_s_per_GB": (time.process_time() - cpu) / gigabytes,
        },
    )
