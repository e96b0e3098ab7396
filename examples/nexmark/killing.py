"""Kill members of a query that runs in steps, one every so many seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path


def run_and_kill(command: list[str], every_s: float | None) -> tuple[int, int]:
    """Run it to its end, and kill one of its members after the other; its exit code, and how many were killed.

    A kill comes with a checkpoint, the first one so long after the kill before: even on a busy machine, some of the
    work stays done.
    """
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    ) as query:
        assert query.stderr is not None
        killed, last = 0, time.monotonic()
        try:
            for line in query.stderr:
                sys.stderr.write(line)
                due = every_s is not None and time.monotonic() - last >= every_s
                if due and "checkpoint at step" in line and (members := members_of(query.pid)):
                    kill(members[0])  # the oldest, so that each has its turn
                    killed, last = killed + 1, time.monotonic()
        except BaseException:
            query.terminate()
            raise
        return query.wait(), killed


def kill(process: int) -> None:
    """Kill it as by hand, and print that."""
    print(f"$ kill -9 {process}", file=sys.stderr, flush=True)
    with suppress(ProcessLookupError):  # it was quicker
        os.kill(process, signal.SIGKILL)


def members_of(query: int) -> list[int]:
    """The process ids of a command's members, in the order in which they began.

    They are children of the command's template, which is its child.
    """
    parents, members = {}, []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            process = int(stat.parent.name)
            parents[process] = int(stat.read_text("utf-8").rpartition(")")[2].split()[1])
            if (stat.parent / "cmdline").read_bytes().startswith(b"nebuli member "):
                members.append(process)
    return sorted(each for each in members if parents.get(parents[each]) == query)
