"""Tasks of Spark that fail, and are tried again; how often is counted, so that no test passes without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def weak(folder: Path, attempts: int = 1) -> Work:
    """For `mapInArrow`: so many attempts of each task fail behind their first batch, and leave a file in ``folder``."""

    def work(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, part in enumerate(parts):
            if number == 1 and context.attemptNumber() < attempts:
                (folder / f"failed-{context.taskAttemptId()}").touch()
                raise ValueError("a passing weakness")
            yield part

    return work


def failures(folder: Path) -> int:
    """How many attempts have failed."""
    return len(list(folder.glob("failed-*")))
