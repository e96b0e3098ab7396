"""A durable buffer, whose consumer comes when everything is on disk, and takes it."""

from __future__ import annotations

import os
import tempfile
from typing import Any
from unittest import mock

import netchannel
from benchmarks.work import Result, Work

from . import spill
from .plain_file import Clock

receive = spill.receive


async def send(work: Work, address: str) -> Result:
    """`send_many`, which returns when its messages are durable."""
    batch: list[Any] = work.messages() * work.options["times"]
    sent = 0
    with tempfile.TemporaryDirectory() as directory:
        async with netchannel.SenderServer() as sender:
            talk = sender.register_channel("talk", to=address, codec="bytes")
            outbox = sender.register_channel(
                "c", to=address, codec="bytes", buffer=netchannel.BufferPolicy(directory=directory)
            )
            with mock.patch("os.fdatasync", wraps=os.fdatasync) as syncs:
                clock = Clock(work)
                while clock.more():
                    await outbox.send_many(batch)
                    sent += len(batch)
                measures = clock.result(sent, syncs.call_count)
            await talk.send(b"come")
            await outbox.close()
            await talk.close()
    return Result(sent, measures)
