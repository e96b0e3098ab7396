"""Faults from within a driver, at points that nobody hits from outside: armed by a file, and noted in one.

The folder of both is in SOAK_FAULTS, in the environment of the driver and of all that it starts.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from netchannel.process.blocking import BlockingGroupClient
from spark_bridge.source import NetchannelDataSource

POINTS = ("before", "between", "behind")
"""Of the commits of an epoch, one in each of two channels: where a driver is killed."""

_KILLED_WITHIN_S = 60.0


def arm(folder: Path, fault: str) -> None:
    """Have it happen, once."""
    (folder / fault).touch()


def struck(folder: Path, fault: str) -> int | None:
    """The process in which it happens; None as long as it does not."""
    found = next(folder.glob(f"{fault}.*"), None)
    if found is None:
        return None
    found.unlink()
    return int(found.suffix[1:])


def noted(folder: Path) -> Counter[str]:
    """What has happened in tasks, and how often: ``weak``, ``retried``."""
    file = folder / "noted"
    return Counter(file.read_text("utf-8").split()) if file.exists() else Counter()


def _strikes(fault: str) -> bool:
    """Whether it is armed; it is not any more then."""
    armed = _folder() / fault
    try:
        armed.rename(armed.with_suffix(f".{os.getpid()}"))
    except FileNotFoundError:
        return False
    return True


def _note(what: str) -> None:
    with (_folder() / "noted").open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")


def _folder() -> Path:
    return Path(os.environ["SOAK_FAULTS"])


def failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fails now and then behind the last row, where Spark tries again; or waits there to be killed."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() > 0:
        _note("retried")
    yield from batches
    if _strikes("worker"):
        Event().wait(_KILLED_WITHIN_S)
        raise TimeoutError("nobody has killed this worker")
    if context.attemptNumber() == 0 and context.taskAttemptId() % 41 == 7:
        _note("weak")
        raise ValueError("a passing weakness")


class DyingDataSource(NetchannelDataSource):
    """That of channels, whose commits are counted in the process that makes them for the driver."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` is given."""
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """That of channels."""
        _count_commits()
        return super().streamWriter(schema, overwrite)


@cache
def _count_commits() -> None:
    """In this process, which may serve many epochs."""
    commit = BlockingGroupClient.commit
    asked: Counter[int] = Counter()

    def counted(
        client: BlockingGroupClient, application: str, epoch: int, winners: Any, **settings: Any
    ) -> bool:
        if not winners:  # no commit of rows
            return commit(client, application, epoch, winners, **settings)
        _kill_driver_if_armed(POINTS[asked[epoch]])
        asked[epoch] += 1
        fresh = commit(client, application, epoch, winners, **settings)
        if asked[epoch] == len(POINTS) - 1:
            _kill_driver_if_armed(POINTS[-1])
        return fresh

    BlockingGroupClient.commit = counted


def _kill_driver_if_armed(point: str) -> None:
    """Kill the driver, with its JVM, which waits for this process, and this process."""
    if _strikes(point):
        os.killpg(os.getsid(0), signal.SIGKILL)  # the driver is the first of the session
        os.kill(os.getpid(), signal.SIGKILL)
