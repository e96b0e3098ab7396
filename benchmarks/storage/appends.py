"""How many rows processes append to the same table, each as fast as it can, one batch after the other."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.running import Failed
from benchmarks.work import Result, Work

from .data import rows_of
from .elsewhere import begun, ended, folder_of, started
from .tables import TABLES

MODULE = ".storage.appends"
KEPT_ROWS, KEPT_BATCHES = 300_000, 500
"""That a writer has before it begins: so many rows or batches, at most, but for three; then they come again."""
WARM_UP = 3


def append(work: Work, _: str) -> Result:
    """Of all ``writers`` together; everything that they were told is there is read at the end."""
    table, count, batch = TABLES[work.options["table"]], work.options["writers"], work.options["batch"]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        table.create(folder)
        writers = [stack.enter_context(started("write", MODULE, work, folder)) for _ in range(count)]
        for writer in writers:
            begun(writer)
        results = [ended(writer) for writer in writers]
        with table(folder) as opened:
            there = opened.read()
    appends = sum(result.messages for result in results)
    told = batch * (appends + WARM_UP * count)
    if there != told:
        raise Failed(
            f"{work.options['table']}: writers were told that {told} rows are there, and {there} are"
        )
    rate = sum(result.measures["appends_per_s"] for result in results)
    return Result(appends, {"rows_per_s": rate * batch, "appends_per_s": rate})


def write(work: Work, ready: Callable[[str], None]) -> Result:
    """One writer, which begins when all are there."""
    batch = work.options["batch"]
    kept = max(3, min(KEPT_BATCHES, KEPT_ROWS // batch))
    with TABLES[work.options["table"]](folder_of(work)) as opened:
        # No two writers have the same rows.
        batches = [opened.taken(rows_of(batch, os.getpid() * KEPT_BATCHES + each)) for each in range(kept)]
        for each in range(WARM_UP):
            opened.append(batches[each])
        ready("")
        sys.stdin.readline()
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < work.seconds:
            opened.append(batches[count % kept])
            count += 1
        took = time.perf_counter() - began
    return Result(count, {"appends_per_s": count / took})
