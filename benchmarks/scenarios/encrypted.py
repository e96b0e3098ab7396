"""One channel over mutual TLS, with certificates that are made for the run."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable
from pathlib import Path

import netchannel
from benchmarks.contestants.ours import congestion_control
from benchmarks.measuring import pace, watch
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
            inbox = receiver.register_channel("c", codec=work.codec)
            ready(f"{receiver.address} {directory}")
            watching = watch(work)
            look = watching.look()
            async for message in inbox:
                look(message)
    return watching.result()  # type: ignore[no-any-return]


async def send(work: Work, address: str) -> Result:
    """As without TLS."""
    address, _, directory = address.partition(" ")
    control, tls = congestion_control(work), _tls(Path(directory))
    async with netchannel.SenderServer(tls=tls, congestion_control=control) as sender:
        outbox = sender.register_channel("c", to=address, codec=work.codec)
        await outbox.attached()
        pacing = pace(work)
        async for messages in pacing:
            for message in messages:
                await outbox.send(message)
        await outbox.close()
    return pacing.result()  # type: ignore[no-any-return]
