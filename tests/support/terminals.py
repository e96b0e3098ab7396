"""Commands whose standard error is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread


def on_terminal(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command to its end; its exit code, and what it wrote to the terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    drawn: list[bytes] = []

    def read() -> None:
        try:
            while some := os.read(ours, 65536):
                drawn.append(some)
        except OSError:  # the other end is closed
            pass

    reader = Thread(target=read)
    given = {**os.environ, "TERM": "xterm", **(environment or {})}
    with subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=given
    ) as process:
        os.close(theirs)
        reader.start()
        code = process.wait(100)
    reader.join(10)
    os.close(ours)
    return code, b"".join(drawn).decode("utf-8")
