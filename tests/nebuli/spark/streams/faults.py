"""Faults from within a driver and its tasks, at points that nobody hits from outside: armed by a file, noted in one.

The folder of both is in STREAM_FAULTS, in the environment of the driver and of all that it starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from nebuli.spark.streams.circuit_source import CircuitDataSource
from nebuli.spark.streams.circuit_writers import CircuitStreamWriter, Written

KILLS = ("planned", "staged", "pushed")
"""Where a driver is killed: before tasks stage, before its commit, and behind that, before Spark's own."""
_HELD_WITHIN_S = 280.0


def arm(folder: Path, fault: str) -> None:
    """Have it happen, once."""
    (folder / fault).touch()


def struck(folder: Path, fault: str) -> bool:
    """Whether it has happened since it was armed."""
    return (folder / f"{fault}.struck").exists()


def release(folder: Path, fault: str) -> None:
    """Have what is held go on."""
    (folder / f"{fault}.released").touch()


def _strikes(fault: str) -> bool:
    """Whether it is armed; it is not any more then."""
    armed = _folder() / fault
    try:
        armed.rename(armed.with_suffix(".struck"))
    except FileNotFoundError:
        return False
    return True


def _folder() -> Path:
    return Path(os.environ["STREAM_FAULTS"])


class DyingCircuit(CircuitDataSource):
    """``circuit``, with faults."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        _kill_driver_if_armed("planned")
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, CircuitStreamWriter)
        return DyingWriter(writer._staged)


class DyingWriter(CircuitStreamWriter):
    """With faults in tasks behind what they have staged, and in the driver's commits."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        written = super().write(iterator)
        if written.pieces.names and _strikes("worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if written.pieces.names and _strikes("weak"):
            raise ValueError("a passing weakness")
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        _kill_driver_if_armed("staged")
        for fault in ("member", "circuit", "scaled"):
            if _strikes(fault):
                _hold(fault)
        super().commit(messages, batchId)
        _kill_driver_if_armed("pushed")


def _hold(fault: str) -> None:
    released = _folder() / f"{fault}.released"
    for _ in range(int(_HELD_WITHIN_S / 0.05)):
        if released.exists():
            return
        Event().wait(0.05)
    raise TimeoutError(f"nobody has released {fault}")


def _kill_driver_if_armed(point: str) -> None:
    """Kill the driver, with its JVM, which waits for this process, and this process."""
    if _strikes(point):
        os.killpg(os.getsid(0), signal.SIGKILL)  # the driver is the first of the session
        os.kill(os.getpid(), signal.SIGKILL)
