"""One channel over mutual TLS, with certificates that are made for the run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import netchannel
from benchmarks.certificates import HOST, issue, tls
from benchmarks.contestants import ours
from benchmarks.work import Result, Work


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """As without TLS; says where the certificates are, too."""
    with tempfile.TemporaryDirectory() as directory:
        issue(Path(directory))
        async with netchannel.ReceiverServer(f"{HOST}:0", tls=tls(Path(directory))) as receiver:
            return await ours.consumed(work, receiver, lambda: ready(f"{receiver.address} {directory}"))


async def send(work: Work, address: str) -> Result:
    """As without TLS."""
    address, _, directory = address.partition(" ")
    control = ours.congestion_control(work)
    async with netchannel.SenderServer(tls=tls(Path(directory)), congestion_control=control) as sender:
        return await ours.produced(work, sender, address)
