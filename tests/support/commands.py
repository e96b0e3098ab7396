"""The command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import psutil

from tests.support.hosts import Host
from tests.support.waiting import wait_for

_END_S = 240
"""Below pytest's own limit."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str
    peak_bytes: int = 0
    """The most memory that any of its processes had resident at once: those that have been waited for when it ended."""

    @property
    def error(self) -> str:
        """The sentence that says what went wrong; there is one, and no traceback."""
        assert "Traceback" not in self.stderr, self.stderr
        errors = [line for line in self.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, self.stderr
        return errors[0].removeprefix("Error: ")


class Command:
    """A ``nebuli`` command that runs, on this machine or on a host of a test."""

    def __init__(self, *arguments: str | Path, directory: Path, host: Host | None = None) -> None:
        self._stderr = directory / "stderr.txt"
        command = [sys.executable, "-m", "nebuli", *map(str, arguments)]
        with self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                host.command(*command) if host else command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # What workers remember is of this test, unless the test says where it is.
                env={"XDG_STATE_HOME": str(directory / "state"), **os.environ},
            )

    def wait_until_said(self, *texts: str) -> None:
        """Wait until all of these are on its stderr."""
        wait_for(
            lambda: (
                all(text in self._stderr.read_text() for text in texts) or self.process.poll() is not None
            ),
            f"{texts} in {self._stderr}",
        )
        assert self.process.poll() is None, self.end().stderr

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, in the order of its nodes."""
        children = psutil.Process(self.process.pid).children()
        return sorted(children, key=lambda child: str(child.cmdline()))

    def end(self) -> Ended:
        """Wait for the end, while its output is read; a command that has none is killed, and not left behind."""
        assert self.process.stdout is not None
        deadline = Timer(_END_S, self.process.kill)
        deadline.start()
        stdout = self.process.stdout.read().decode()
        deadline.cancel()
        self.process.stdout.close()
        peak_bytes = 0
        if self.process.returncode is None:
            _, status, usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            peak_bytes = usage.ru_maxrss << 10
        return Ended(self.process.returncode, stdout, self._stderr.read_text(), peak_bytes)


def nebuli(*arguments: str | Path, directory: Path, host: Host | None = None) -> Ended:
    """Run a ``nebuli`` command from start to end."""
    return Command(*arguments, directory=directory, host=host).end()
