"""What it takes to ingest a CSV file, by one instance and by several, and to watch over one that stands still."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.running import Failed
from benchmarks.work import Result, Work
from nebuli.ingestion.definition import Definition, parse_definition
from nebuli.ingestion.recipe.reclocking import Remap
from nebuli.ingestion.source_client import Sources

from .data import rows_of
from .elsewhere import begun, ended, folder_of, started

MODULE = ".storage.ingesting"
FILE, STORE, SOURCE = "rows.csv", "store", "rows"
LATEST_S = 120.0
LOOK_S = 0.02
MB = 1_000_000


async def ingest(work: Work, _: str) -> Result:
    """By so many ``instances``, or, if there are none, by pyarrow."""
    return await _ingested(work) if work.options["instances"] else _copied(work)


async def _ingested(work: Work) -> Result:
    """Until all rows of the file are in the collection; ``store_MB`` is what all instances have written to the disk."""
    rows = work.options["rows"]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        _write_file(folder, rows)
        async with Sources(folder / STORE) as sources:
            await sources.create(_definition(folder), replicas=work.options["instances"])
            sides = [
                stack.enter_context(started("instance", MODULE, _named(work, number), folder))
                for number in range(work.options["instances"])
            ]
            began = time.perf_counter()
            for side in sides:
                begun(side)
            async with asyncio.timeout(LATEST_S):
                await _until_there(sources, folder)
            took = time.perf_counter() - began
            for side in sides:
                side.tell("")
            written = sum(ended(side).measures["store_MB"] for side in sides)
            there = (await sources.collections.snapshot(SOURCE)).num_rows
    if there != rows:
        raise Failed(f"the file has {rows} rows, and {there} were ingested")
    return Result(rows, {"rows_per_s": rows / took, "store_MB": written})


async def instance(work: Work, ready: Callable[[str], None]) -> Result:
    """One of them, until it is told to end."""
    async with Sources(folder_of(work) / STORE) as sources:
        ready("")
        await asyncio.to_thread(sys.stdin.readline)
        before = _written()
        ingesting = asyncio.create_task(sources.ingest(SOURCE, instance=work.options["name"]))
        await asyncio.to_thread(sys.stdin.readline)
        written = _written() - before
        ingesting.cancel()
        await asyncio.gather(ingesting, return_exceptions=True)
    return Result(0, {"store_MB": written / MB})


def _copied(work: Work) -> Result:
    """Read the file, and write it as one Parquet file, which is synced."""
    rows = work.options["rows"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_file(folder, rows)
        began = time.perf_counter()
        table = pa.csv.read_csv(folder / FILE)
        with (folder / "rows.parquet").open("wb") as file:
            pa.parquet.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        size = (folder / "rows.parquet").stat().st_size
    return Result(table.num_rows, {"rows_per_s": rows / took, "store_MB": size / MB})


async def idle(work: Work, _: str) -> Result:
    """An instance whose file stands still: the processor time of its process, in percent of one core."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_file(folder, work.options["rows"])
        async with Sources(folder / STORE) as sources:
            await sources.create(_definition(folder))
            ingesting = asyncio.create_task(sources.ingest(SOURCE))
            await _until_there(sources, folder)
            await asyncio.sleep(work.options["settle_s"])
            before, began = time.process_time(), time.perf_counter()
            await asyncio.sleep(work.options["idle_s"])
            used, took = time.process_time() - before, time.perf_counter() - began
            ingesting.cancel()
            await asyncio.gather(ingesting, return_exceptions=True)
    return Result(1, {"core_percent": 100 * used / took})


def _named(work: Work, number: int) -> Work:
    return Work(**{**vars(work), "options": {**work.options, "name": str(number)}})


def _write_file(folder: Path, rows: int) -> None:
    pa.csv.write_csv(pa.table(rows_of(rows).columns, names=rows_of(0).schema.names), folder / FILE)


def _definition(folder: Path) -> Definition:
    return parse_definition(
        f"name: {SOURCE}\nfrom: {{type: File, path: {folder / FILE}}}\nformat: CSV\n"
        "schema: [{name: key, type: int64}, {name: value, type: int64}, {name: name, type: string}]\n"
    )


async def _until_there(sources: Sources, folder: Path) -> None:
    """Until the collection is complete up to a time at which all of the file was available."""
    size = (folder / FILE).stat().st_size
    entry = await sources.entry(SOURCE)
    remap = await Remap.opened(sources.store, entry.remap, sources.collections.clock)
    await remap.begin(0)
    while sum(remap.last.get("data", {}).values()) != size:
        await asyncio.sleep(LOOK_S)
        await remap.look()
    await sources.collections.written(SOURCE, entry.rendition, remap.upper - 1)


def _written() -> int:
    return int(psutil.Process().io_counters().write_bytes)
