"""How Spark reads and writes, in the ways that are put beside each other."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq

from benchmarks.running import Measures, Side, side
from benchmarks.work import Work

from .data import DDL, MADE, batch
from .session import cpu_s, touch_memory

Job = Callable[[], None]
PARTITIONS = 2
_TAKEN_PER_ROW = 128
"""Bytes, of memory: rows have 64, and are in files and on their way at once."""
QUERY_STARTS_WITHIN_S = 60


@contextmanager
def far_end(function: str, work: Work) -> Iterator[tuple[str, Side]]:
    """The other end's process, and its address."""
    with side(function, "benchmarks.spark.far_end", json.dumps(asdict(work)), None) as process:
        yield process.hear()["address"], process


@contextmanager
def folder() -> Iterator[Path]:
    """For files, gone afterwards."""
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# -- jobs: as many rows as go through


def measured(job: Job, rows: int, *others: int) -> Measures:
    """Rows per second, and processor time per row of everything that takes part."""
    touch_memory(rows * _TAKEN_PER_ROW)
    start, cpu = time.perf_counter(), cpu_s(*others)
    job()
    seconds = time.perf_counter() - start
    return {"rows_per_s": rows / seconds, "cpu_ns_per_row": (cpu_s(*others) - cpu) * 1e9 / rows}


def _to_noop(frame: Any) -> Job:
    return lambda: frame.write.format("noop").mode("overwrite").save()


@contextmanager
def read_in_task(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """Batches that are made within the task."""
    options = {"kind": work.options["kind"], "rows": work.options["rows"], "batches": work.options["batches"]}
    yield _to_noop(spark.read.format("in_task").options(**options, parts=PARTITIONS).load()), ()


@contextmanager
def read_channel(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """A range of each channel."""
    with far_end("keep", work) as (address, process):
        channels = ",".join(f"c{number}" for number in range(work.options["channels"]))
        frame = spark.read.format("netchannel").options(endpoint=address, channels=channels).load()
        yield _to_noop(frame), (process.pid,)


@contextmanager
def read_parquet(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """The same rows from files."""
    options = work.options
    with folder() as path:
        prebuilt = batch(options["kind"], options["rows"])
        for number in range(PARTITIONS):
            with pq.ParquetWriter(path / f"{number}.parquet", prebuilt.schema) as writer:
                for _ in range(options["batches"] // PARTITIONS):
                    writer.write_batch(prebuilt)
        yield _to_noop(spark.read.schema(DDL[options["kind"]]).parquet(str(path))), ()


def _made(spark: Any, work: Work) -> Any:
    rows = work.options["rows"] * work.options["batches"]
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(work.options["rows"]))
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(*MADE[work.options["kind"]])


@contextmanager
def write_dropping(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """An Arrow writer that drops."""
    frame = _made(spark, work)
    yield lambda: frame.write.format("dropping").mode("append").save(), ()


@contextmanager
def write_staged(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """Exactly once, by staged groups."""
    with far_end("consume", work) as (address, process):
        yield _write(_made(spark, work), address, work, "staged", "exactly-once"), (process.pid,)


@contextmanager
def write_plain(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """At least once, as the messages come."""
    with far_end("consume", work) as (address, process):
        yield _write(_made(spark, work), address, work, "plain", "at-least-once"), (process.pid,)


def _write(frame: Any, address: str, work: Work, name: str, guarantee: str) -> Job:
    channels = ",".join(f"{name}{number}" for number in range(work.options["channels"]))
    options = {"endpoint": address, "channels": channels, "deliveryGuarantee": guarantee}
    if name == "staged":
        options["endOfStream"] = "false"  # the next round goes on with it
    return lambda: frame.write.format("netchannel").options(**options).mode("append").save()


@contextmanager
def write_parquet(spark: Any, work: Work) -> Iterator[tuple[Job, tuple[int, ...]]]:
    """Files."""
    frame = _made(spark, work)
    with folder() as path:
        yield lambda: frame.write.mode("overwrite").parquet(str(path)), ()


# -- queries: how long a micro-batch takes


def triggers(query: Callable[[str], Any], count: int, warm_up: int) -> Measures:
    """The median of Spark's own figures for so many triggers, after some that warm it up."""
    with folder() as path:
        running = query(str(path)).start()
        try:
            seen: dict[int, float] = {}
            deadline = time.monotonic() + QUERY_STARTS_WITHIN_S + count
            while len(seen) < warm_up + count:
                if time.monotonic() > deadline or not running.isActive:
                    raise TimeoutError(f"{len(seen)} triggers of {warm_up + count}: {running.exception()}")
                for progress in running.recentProgress:
                    if progress["numInputRows"]:
                        seen[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
                time.sleep(0.05)
        finally:
            running.stop()
    return {"trigger_ms": median([seen[number] for number in sorted(seen)[warm_up:]])}


def _stream(frame: Any, sink: str, **options: str) -> Callable[[str], Any]:
    return lambda path: (
        frame.writeStream.format(sink).options(**options).option("checkpointLocation", f"{path}/checkpoint")
    )


@contextmanager
def stream_in_task(spark: Any, work: Work) -> Iterator[Callable[[str], Any]]:
    """Spark's floor: a source in Python whose batch is made within the task, and no sink."""
    options = {"kind": work.options["kind"], "rows": work.options["rows"]}
    yield _stream(spark.readStream.format("in_task").options(**options).load(), "noop")


@contextmanager
def stream_channel(spark: Any, work: Work) -> Iterator[Callable[[str], Any]]:
    """The same from a channel."""
    with far_end("produce", work) as (address, _):
        options = {
            "endpoint": address,
            "channels": "c0",
            "maxRowsPerTrigger": str(work.options["rows"]),
            "startingOffsets": "earliest",
        }

        def query(path: str) -> Any:
            # Each has a checkpoint of its own, and so a name of its own.
            reader = spark.readStream.format("netchannel").options(**options, consumer=Path(path).name)
            return _stream(reader.load(), "noop")(path)

        yield query


@contextmanager
def stream_to_dropping(spark: Any, work: Work) -> Iterator[Callable[[str], Any]]:
    """Spark's floor with a sink in Python: one that drops."""
    options = {"kind": work.options["kind"], "rows": work.options["rows"]}
    yield _stream(spark.readStream.format("in_task").options(**options).load(), "dropping")


@contextmanager
def stream_to_staged(spark: Any, work: Work) -> Iterator[Callable[[str], Any]]:
    """The same to a channel, exactly once."""
    yield from _to_channel(spark, work, "staged0", "exactly-once")


@contextmanager
def stream_to_plain(spark: Any, work: Work) -> Iterator[Callable[[str], Any]]:
    """The same to a channel, at least once."""
    yield from _to_channel(spark, work, "plain0", "at-least-once")


def _to_channel(spark: Any, work: Work, channel: str, guarantee: str) -> Iterator[Callable[[str], Any]]:
    options = {"kind": work.options["kind"], "rows": work.options["rows"]}
    frame = spark.readStream.format("in_task").options(**options).load()
    with far_end("consume", work) as (address, _):
        yield _stream(frame, "netchannel", endpoint=address, channels=channel, deliveryGuarantee=guarantee)


@contextmanager
def stream_parquet(spark: Any, work: Work) -> Iterator[Callable[[str], Any]]:
    """Files of as many rows, that lie in a folder."""
    with folder() as path:
        made = batch(work.options["kind"], work.options["rows"])
        for number in range(work.options["files"]):
            with pq.ParquetWriter(path / f"{number:06}.parquet", made.schema) as writer:
                writer.write_batch(made)
        reader = spark.readStream.schema(DDL[work.options["kind"]]).option("maxFilesPerTrigger", "1")
        yield _stream(reader.parquet(str(path)), "noop")
