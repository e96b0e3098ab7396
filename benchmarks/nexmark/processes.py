"""A command with all of its processes: how long it takes, and what they take of the processor."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.running import ROOT

_PR_SET_CHILD_SUBREAPER = 36
_SAID_LINES = 40


class Refused(Exception):
    """The command has failed; the message is the end of what it said."""


def measured(command: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run it to the end of its last process: seconds, and processor seconds of all of them. Raises Refused."""
    runner = [sys.executable, "-m", "benchmarks.nexmark.processes", *map(str, command)]
    ended = subprocess.run(
        runner,
        cwd=ROOT,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if ended.returncode:
        raise Refused("\n".join(ended.stderr.splitlines()[-_SAID_LINES:]))
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def main() -> int:
    """Run the command of the arguments; its exit code. What its processes leave behind is waited for, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt processes")
    began = time.perf_counter()
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL) as command:
        code = command.wait()
    seconds = time.perf_counter() - began
    try:
        while True:
            os.wait()
    except ChildProcessError:  # all have ended
        pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(json.dumps({"seconds": seconds, "cpu_s": used.ru_utime + used.ru_stime}))
    return code


if __name__ == "__main__":
    sys.exit(main())
