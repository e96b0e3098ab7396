"""One Spark for all that is measured, and the processor time of everything that belongs to it."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.running import ROOT

_PIECE = 4 << 20


@contextmanager
def spark_session() -> Iterator[Any]:
    """Two task slots on this machine, with this Python."""
    from pyspark.sql import SparkSession

    from .in_task import Dropping, InTask

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmarks")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(InTask)
    spark.dataSource.register(Dropping)
    try:
        yield spark
    finally:
        spark.stop()


def touch_memory(nbytes: int) -> None:
    """Use and free as much memory as a contestant may take: none pays for what a host has taken back meanwhile.

    A virtual machine may hand memory that is free back to its host within a second. To touch it again took ten times
    as long as to copy into it: 0.4 to 0.7 GB/s, in a fresh file as well, beside 6 GB/s.
    """
    piece = bytes(_PIECE)
    pieces = nbytes // _PIECE + 1
    with mmap.mmap(-1, pieces * _PIECE) as memory:
        for _ in range(pieces):
            memory.write(piece)


def cpu_s(*others: int) -> float:
    """Processor seconds so far of this process, of all below it, and of ``others``."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    known = {process.pid for process in processes}
    processes += [psutil.Process(pid) for pid in others if pid not in known]
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
