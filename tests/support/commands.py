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
from tests.support.starter import Forked, starter
from tests.support.waiting import wait_for

_END_S = 240
"""Below pytest's own limit."""

_MEASURE = """
import pathlib, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
pathlib.Path(sys.argv[1]).write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The sentence that says what went wrong; there is one, and no traceback."""
        assert "Traceback" not in self.stderr, self.stderr
        errors = [line for line in self.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, self.stderr
        return errors[0].removeprefix("Error: ")


class Command:
    """A ``nebuli`` command that runs, on this machine or on a host of a test."""

    def __init__(
        self,
        *arguments: str | Path,
        directory: Path,
        host: Host | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        self._stderr = directory / "stderr.txt"
        given = [*map(str, arguments)]
        environment = _environment(directory)
        self.process: subprocess.Popen[bytes] | Forked
        with self._stderr.open("w", encoding="utf-8") as stderr:
            if host is None and python == sys.executable and starter().can_start():
                self.process = starter().start(given, stderr.fileno(), environment)
            else:
                command = [str(python), "-m", "nebuli", *given]
                self.process = subprocess.Popen(
                    host.command(*command) if host else command,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=environment,
                )

    def wait_until_said(self, *texts: str) -> None:
        """Wait until all of these are on its stderr."""
        wait_for(
            lambda: (
                all(text in self._stderr.read_text("utf-8") for text in texts)
                or self.process.poll() is not None
            ),
            f"{texts} in {self._stderr}",
        )
        assert self.process.poll() is None, self.end().stderr

    def workers(self) -> list[psutil.Process]:
        """Its worker processes, in the order of its nodes."""
        children = [
            worker
            for template in psutil.Process(self.process.pid).children()
            for worker in template.children()
        ]
        return sorted(children, key=arguments_of)

    @property
    def has_been_ended(self) -> bool:
        """Whether `end` was called, as it is once."""
        return self.process.stdout is None or self.process.stdout.closed

    def end(self) -> Ended:
        """Wait for the end, while its output is read; a command that has none is killed, and not left behind."""
        assert self.process.stdout is not None
        deadline = Timer(_END_S, self.process.kill)
        deadline.start()
        stdout = self.process.stdout.read().decode()
        deadline.cancel()
        self.process.stdout.close()
        return Ended(self.process.wait(), stdout, self._stderr.read_text("utf-8"))


def arguments_of(worker: psutil.Process) -> list[str]:
    """Return the arguments in a worker's title, which is a single string to the system."""
    return " ".join(worker.cmdline()).split()


def nebuli(
    *arguments: str | Path,
    directory: Path,
    host: Host | None = None,
    python: str | Path = sys.executable,
) -> Ended:
    """Run a ``nebuli`` command from start to end."""
    return Command(*arguments, directory=directory, host=host, python=python).end()


def measured(*arguments: str | Path, directory: Path) -> tuple[Ended, int]:
    """Run a ``nebuli`` command, and the most bytes that any of its processes had resident at once.

    A process between counts: what the system counts for a child of this one begins with what this one has.
    """
    peak = directory / "peak.txt"
    command = [
        sys.executable,
        "-c",
        _MEASURE,
        str(peak),
        sys.executable,
        "-m",
        "nebuli",
        *map(str, arguments),
    ]
    ended = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=_END_S,
        env=_environment(directory),
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr), int(peak.read_text("utf-8")) << 10


def _environment(directory: Path) -> dict[str, str]:
    """What workers remember is of this test, unless the test says where it is."""
    return {"XDG_STATE_HOME": str(directory / "state"), **os.environ}
