"""One channel over mutual TLS, with certificates that are made for the run."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable
from pathlib import Path

import netchannel
from benchmarks.contestants import ours
from benchmarks.work import Result, Work
from nebuli.cli.development import DevelopmentAuthority

HOST = "127.0.0.1"
VALID = datetime.timedelta(hours=1)


def _tls(folder: Path) -> netchannel.Tls:
    return netchannel.Tls(folder / "node.pem", folder / "node.key", folder / "authority.pem")


def _issue(folder: Path) -> None:
    authority = DevelopmentAuthority(VALID)
    certificate, key = authority.issue(HOST, [HOST])
    files = {"authority.pem": authority.certificate, "node.pem": certificate, "node.key": key}
    for name, content in files.items():
        (folder / name).write_bytes(content)


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """As without TLS; says where the certificates are, too."""
    with tempfile.TemporaryDirectory() as directory:
        _issue(Path(directory))
        async with netchannel.ReceiverServer(f"{HOST}:0", tls=_tls(Path(directory))) as receiver:
            return await ours.consumed(work, receiver, lambda: ready(f"{receiver.address} {directory}"))


async def send(work: Work, address: str) -> Result:
    """As without TLS."""
    address, _, directory = address.partition(" ")
    control, tls = ours.congestion_control(work), _tls(Path(directory))
    async with netchannel.SenderServer(tls=tls, congestion_control=control) as sender:
        return await ours.produced(work, sender, address)
