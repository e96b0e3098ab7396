"""Producers and consumers as processes on hosts, and what they have said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.hosts.messages import DEAD_AFTER
from tests.support.hosts import Host
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


class Actor:
    """A process on a host."""

    def __init__(
        self, host: Host, module: str, *arguments: str, files: Path, dead_after_s: float = 1.0
    ) -> None:
        self._stdout, self._stderr = (files.with_suffix(f".{name}") for name in ("stdout", "stderr"))
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = host.start(
                *(sys.executable, "-m", f"tests.hosts.{module}", *arguments),
                cwd=ROOT,
                env=os.environ | {DEAD_AFTER: str(dead_after_s)},
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
            )

    @property
    def logged(self) -> str:
        """What it has logged."""
        return self._stderr.read_text("utf-8")

    def end(self) -> None:
        """Wait until it has ended well."""
        wait_for(lambda: self.process.poll() is not None, f"the end of {self.process.args!r}")
        assert self.process.returncode == 0, self.logged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as an accident would; harmless when it has ended."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Producer(Actor):
    """Sends to channels given as ``COUNT,SIZE,RATE,CHANNEL,ADDRESS``."""

    def __init__(self, host: Host, *channels: str, files: Path, dead_after_s: float = 1.0) -> None:
        super().__init__(host, "producer", *channels, files=files, dead_after_s=dead_after_s)

    def numbers(self) -> dict[str, dict[str, Any]]:
        """What it said last of its channels; nothing if it has said nothing."""
        lines = self._stdout.read_text("utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        return json.loads(whole[-1]) if whole else {}  # type: ignore[no-any-return]

    def number(self, channel: str, name: str) -> Any:
        return self.numbers().get(channel, {}).get(name, 0)

    def stop(self) -> None:
        """Have it close its endless channels, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.end()

    def peak_bytes(self) -> int:
        """The most memory that it had resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10


def read_by(file: Path) -> list[int]:
    """The numbers that consumers have read of a channel, in their order; not of a line that is being written."""
    whole, _, _ = file.read_text("utf-8").rpartition("\n") if file.exists() else ("", "", "")
    return [int(line.split()[1]) for line in whole.splitlines()]
