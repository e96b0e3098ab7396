"""How long after it was written a row is at another process, which follows the table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.steps.percentiles import percentiles
from benchmarks.ticks import NANOSECONDS
from benchmarks.work import Result, Work, Wrong

from .data import row_of
from .elsewhere import begun, ended, folder_of, started
from .tables import FOLLOWED

MODULE = ".storage.followed"
WARM_UP = 10


def follow(work: Work, _: str) -> Result:
    """``p50_ms`` and ``p99_ms`` are from the call that inserts a row to the row at the other process."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        FOLLOWED[work.options["table"]].create(folder)
        reader = stack.enter_context(started("read", MODULE, work, folder))
        writer = stack.enter_context(started("insert", MODULE, work, folder))
        begun(writer)
        written, came = ended(writer), ended(reader)
    return Result(came.messages, came.measures | written.measures)


def read(work: Work, ready: Callable[[str], None]) -> Result:
    """Each row once, in order, to the last one."""
    count = WARM_UP + work.options["inserts"]
    took: list[float] = []
    with (
        FOLLOWED[work.options["table"]](folder_of(work)) as opened,
        closing(opened.follow()) as found,
    ):
        next(found)
        ready("")
        while len(took) < count:
            rows = next(found)
            now = time.monotonic_ns()
            for key, asked in rows:
                if key != len(took):
                    raise Wrong(f"row {key} came, and row {len(took)} was due")
                took.append((now - asked) / NANOSECONDS)
    return Result(count - WARM_UP, percentiles(took[WARM_UP:]))


def insert(work: Work, _: str) -> Result:
    """A row at a time, when it is due; where the one before took too long, it counts from when it was due."""
    count = WARM_UP + work.options["inserts"]
    interval = NANOSECONDS // work.options["per_s"]
    took = []
    with FOLLOWED[work.options["table"]](folder_of(work)) as opened:
        due = time.monotonic_ns()
        for number in range(count):
            due += interval
            asked = due
            if (early := due - time.monotonic_ns()) > 0:
                time.sleep(early / NANOSECONDS)
                asked = time.monotonic_ns()
            opened.append(opened.taken(row_of(number, asked)))
            took.append((time.monotonic_ns() - asked) / NANOSECONDS)
    return Result(count - WARM_UP, percentiles(took[WARM_UP:], "insert_"))
