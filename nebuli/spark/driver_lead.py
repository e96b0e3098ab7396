"""A process that drives Spark: it leads a process group, and the end of its standard input is the end of all.

It ends the session, its files, and every process of the group.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from queue import SimpleQueue

_STOP_S = 8.0
"""How long a session may take to stop; then its processes are ended."""
_CHILDREN_S = 3.0
"""How long what it has started may take to end."""


class Driven(Protocol):
    """The work of such a process."""

    commands: SimpleQueue[str]
    """The lines of standard input after the first."""

    @property
    def directory(self) -> Path:
        """The directory to remove at the end."""

    def run(self) -> None:
        """Do the work, on its own thread; it reports the outcome itself."""

    def stop(self) -> None:
        """End the session, and everything that runs in it."""


def lead(made: Callable[[str, Callable[[str], None]], Driven]) -> None:
    """Execute the order in the first line of standard input, until that ends; does not return.

    ``made`` is given the line, and what takes lines for standard output, from any thread.
    """
    # Java writes on standard output too: reports have a descriptor of their own.
    reports = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def report(line: str) -> None:
        with suppress(BrokenPipeError):  # its starter is gone, which the end of standard input shows as well
            reports.write(f"{line}\n")

    with open(0, encoding="utf-8", closefd=False) as orders:
        driven = made(orders.readline(), report)
        threading.Thread(target=driven.run, name="job", daemon=True).start()
        for line in orders:
            driven.commands.put(line.strip())
    _end(driven)


def _end(driven: Driven) -> None:
    stopping = threading.Thread(target=driven.stop, daemon=True)
    stopping.start()
    stopping.join(_STOP_S)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpgrp(), signal.SIGTERM)
    _wait_for_children()  # or Java would write where nothing is to be left
    shutil.rmtree(driven.directory, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _wait_for_children() -> None:
    deadline = time.monotonic() + _CHILDREN_S
    with suppress(ChildProcessError):  # none are left
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.02)
