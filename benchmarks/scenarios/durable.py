"""A durable buffer, with a consumer that takes what is on disk."""

from __future__ import annotations

import os
import tempfile
from typing import Any
from unittest import mock

import netchannel
from benchmarks.contestants import ours
from benchmarks.work import Result, Work

from .plain_file import Clock

receive = ours.receive


async def send(work: Work, address: str) -> Result:
    """`send_many`, which returns when its messages are durable."""
    batch: list[Any] = work.messages() * work.options["times"]
    sent = 0
    with tempfile.TemporaryDirectory() as directory:
        async with netchannel.SenderServer() as sender:
            outbox = sender.register_channel(
                "c", to=address, codec="bytes", buffer=netchannel.BufferPolicy(directory=directory)
            )
            await outbox.attached()
            with mock.patch("os.fdatasync", wraps=os.fdatasync) as syncs:
                clock = Clock(work)
                while clock.more():
                    await outbox.send_many(batch)
                    sent += len(batch)
                measures = clock.result(sent, syncs.call_count)
            await outbox.close()
    return Result(sent, measures)
