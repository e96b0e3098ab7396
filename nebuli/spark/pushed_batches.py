"""A write of Spark as a push: the batch of a query, by a number, and its rows in pieces."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_bridge.batch_sizes import joined
from spark_bridge.errors import UnsupportedSpark
from spark_bridge.tasks.task import check_no_table, complete

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_ROWS = 1 << 16
_PIECE_BYTES = 32 << 20
"""A piece is kept in a file of its own, and is in memory where it passes."""


@dataclass(frozen=True, slots=True)
class Work:
    """The push to which a task's rows belong: its producer, and its number. ``shown`` names it in errors."""

    producer: str
    number: int
    shown: str


def batch_work(txn_app_id: str | None, txn_version: int | None) -> Work:
    """The push of a DataFrame that is not a stream: by what it was given, or one of its own."""
    if txn_app_id is None or txn_version is None:
        txn_app_id, txn_version = f"spark write {uuid.uuid4().hex}", 0
    return Work(txn_app_id, txn_version, f"{txn_app_id}, version {txn_version}")


def running_work() -> Work:
    """The push of the query and batch of the task that runs here. Raises UnsupportedSpark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise UnsupportedSpark(
            "this version of Spark does not tell a task the ids of its query and batch (sql.streaming.queryId, "
            "streaming.sql.batchId), which identify a repeated batch: use PySpark 4.1 to 4.3, or "
            "report your version"
        )
    return Work(f"spark query {query}", int(batch), f"query {query}, batch {batch}")


def whole_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that Spark gives a task, in fewer batches.

    Raises InputIncomplete: Spark failed above this task; OptionError: Spark writes a table of its catalog.
    """
    check_no_table()
    return joined(complete(batches), _ROWS)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, cut where it is large."""
    if batch.num_rows < 2 or batch.nbytes <= _PIECE_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))
