"""Channels that are open and say nothing: what each takes of either process' memory, and how long all take to open."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import netchannel
from benchmarks.work import Result, Work

PAGE = os.sysconf("SC_PAGE_SIZE")
ALIVE = b"still here"


class _Memory:
    """What the process has grown by."""

    def __init__(self) -> None:
        self._before = self._resident()

    @staticmethod
    def _resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * PAGE

    def kib_per(self, channels: int) -> float:
        return (self._resident() - self._before) / channels / 1024


def _allow_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Register all, and look at the memory when the sender says what its own is; each gives one message then."""
    _allow_files()
    count = work.options["channels"]
    async with netchannel.ReceiverServer() as receiver:
        talk = receiver.register_channel("talk", codec="bytes")
        ready(receiver.address)
        await talk.recv()  # so that what a first channel takes is there before
        memory = _Memory()
        inboxes = [receiver.register_channel(f"c{number}", codec="bytes") for number in range(count)]
        senders = float(bytes(await talk.recv()))
        each = memory.kib_per(count)
        alive = [bytes(await inbox.recv()) for inbox in inboxes]
        async for late in talk:
            raise ValueError(f"a word too many: {bytes(late)!r}")
    return Result(alive.count(ALIVE), {"receiver_KiB": each, "both_KiB": each + senders})


async def send(work: Work, address: str) -> Result:
    """Open all, and look at the memory; then one message on each."""
    _allow_files()
    count = work.options["channels"]
    async with netchannel.SenderServer() as sender:
        talk = sender.register_channel("talk", to=address, codec="bytes")
        await talk.send(b"begin")
        await talk.flush()
        memory = _Memory()
        began = time.perf_counter()
        outboxes = [
            sender.register_channel(f"c{number}", to=address, codec="bytes") for number in range(count)
        ]
        for outbox in outboxes:
            await outbox.attached()
        seconds = time.perf_counter() - began
        await asyncio.sleep(work.seconds)  # a time without a message: the subject
        each = memory.kib_per(count)
        await talk.send(repr(each).encode())
        for outbox in outboxes:
            await outbox.send(ALIVE)
        for outbox in outboxes:
            await outbox.flush()
        await talk.close()
        await asyncio.gather(*(outbox.detach() for outbox in outboxes))
    return Result(count, {"open_s": seconds, "sender_KiB": each, "channels": count})
