"""What the logs of a member take, on this disk: a step made durable, and the input read back."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from benchmarks.work import Result, Work
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.output_log import OutputLog
from nebuli.store import Store
from nebuli.store.ordering import sqlite

from .circuits import rows_of
from .percentiles import percentiles

WARM_UP = 20
CIRCUIT, HANDLE, OUTPUT, PRODUCER = "circuit", "in", "out", "producer"
FEW_BYTES = 1 << 12


def _rows(work: Work, number: int) -> pa.RecordBatch:
    count = work.options["rows"]
    return rows_of("left", np.arange(number * count, (number + 1) * count))


@asynccontextmanager
async def _input_log(store: Store, work: Work) -> AsyncIterator[InputLog]:
    log = await InputLog.open(store, CIRCUIT, {HANDLE: _rows(work, 0).schema})
    async with log:
        yield log


async def durable_steps(work: Work, _: str) -> Result:
    """Rows are pushed, count for a step, and are given out by it; ``p50_ms`` is that of the last two together."""
    with _unchecked() if work.options.get("unchecked") else nullcontext():
        return await _durable_steps(work)


@contextmanager
def _unchecked() -> Iterator[None]:
    """Logs without the checksums of their entries and the notes of their ends."""
    with (
        patch.object(sqlite, "checksum", lambda *_: 0),
        patch.object(sqlite.NotedEnds, "note", lambda *_: None),
    ):
        yield


async def _durable_steps(work: Work) -> Result:
    pushes, fixes, writes = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        async with Store.at(folder) as store, _input_log(store, work) as log:
            output = await OutputLog.open(store, CIRCUIT, {OUTPUT: _rows(work, 0).schema})
            for number in range(WARM_UP + work.options["steps"]):
                began = time.perf_counter()
                await log.push(HANDLE, _rows(work, number), producer=PRODUCER, sequence=number)
                pushed = time.perf_counter()
                inputs = await log.fix(number)
                fixed = time.perf_counter()
                await output.write(number, {OUTPUT: inputs[HANDLE]})
                written = time.perf_counter()
                assert inputs[HANDLE].num_rows == work.options["rows"]
                pushes.append(pushed - began)
                fixes.append(fixed - pushed)
                writes.append(written - fixed)
    overheads = [fix + write for fix, write in zip(fixes, writes, strict=True)]
    parts = {"push_": pushes, "fix_": fixes, "write_": writes, "": overheads}
    measures = {
        name: value
        for part, times in parts.items()
        for name, value in percentiles(times[WARM_UP:], part).items()
    }
    return Result(len(overheads), measures)


def plain_syncs(work: Work, _: str) -> Result:
    """What no step can be below here: twice a few bytes at the end of a file, and `fdatasync`."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        file = os.open(Path(folder) / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(WARM_UP + work.options["steps"]):
            began = time.perf_counter()
            for _ in range(2):
                os.write(file, bytes(FEW_BYTES))
                os.fdatasync(file)
            times.append(time.perf_counter() - began)
        os.close(file)
    return Result(len(times), percentiles(times[WARM_UP:]))


async def read_back(work: Work, _: str) -> Result:
    """All steps of a log, each with one push, as Z-sets, by who opens the store anew; no circuit has a part in it."""
    steps, rows = work.options["steps"], work.options["rows"]
    with tempfile.TemporaryDirectory() as folder:
        async with Store.at(folder) as store, _input_log(store, work) as log:
            for number in range(steps):
                await log.push(HANDLE, _rows(work, number), producer=PRODUCER, sequence=number)
                await log.fix(number)
        async with Store.at(folder) as store, _input_log(store, work) as log:
            came = 0
            began = time.perf_counter()
            for number in range(steps):
                inputs = await log.read(number, asyncio.Event())
                assert inputs is not None
                came += inputs[HANDLE].num_rows
            took = time.perf_counter() - began
    assert came == steps * rows, f"{came} rows came back, of {steps * rows}"
    return Result(steps, {"rows_per_s": came / took, "step_us": took / steps * 1e6})
