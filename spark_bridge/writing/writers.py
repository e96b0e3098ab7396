"""The writers that Spark calls: of a batch and of a stream.

Every stream writer exists several times: once in each process that Spark calls, none of which knows the query or the
session's settings, but the tasks' do: they are local properties of a task, as ``sql.streaming.queryId``. They go to
the driver with what a task returns.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_bridge.errors import UnsupportedSpark

from .checkpoints import Place, checkpoint_uri, session_checkpoint
from .publisher import Query, drop, forget, publish, warn_if_unguarded
from .task_writer import Attempts, Rows, Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spark_bridge.options import WriteOptions

    Messages: TypeAlias = list[WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class Running:
    """The streaming query that runs a task, and what its session has set about checkpoints."""

    query: str
    batch: int
    checkpoints: str | None
    file_system: str | None


@dataclass
class Written(WriterCommitMessage):
    """The result of a task: attempts that the driver publishes."""

    work: Work
    running: Running | None
    attempts: Attempts


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Made once per write, in the driver, and sent to the tasks."""

    def __init__(self, rows: Rows) -> None:
        options = rows.options
        self._rows = rows
        self._work = Work(options.txn_app_id or f"batch {uuid.uuid4().hex}", options.txn_version or 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send a partition."""
        return Written(self._work, None, self._rows.write(self._work, iterator))

    def commit(self, messages: Messages) -> None:
        """Publish what all tasks have made, and end the streams that they have not."""
        if self._rows.options.exactly_once:
            attempts = [message.attempts for message in _written(messages)]
            options = self._rows.options
            if options.end:
                attempts.append(self._rows.without_rows(self._work, attempts))
            publish(options, self._work, attempts, None)
            # The receiver of a stream that has ended may be gone by now.
            if options.txn_app_id is None and not options.end:
                forget(options, self._work)
        elif self._rows.options.end:
            self._rows.end_others(self._work, len(messages))

    def abort(self, messages: Messages) -> None:
        """Drop what the tasks have made."""
        if self._rows.options.exactly_once:
            drop(self._rows.options, self._work)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send a partition of a batch."""
        running = _running()
        work = Work(self._rows.options.txn_app_id or running.query, running.batch)
        return Written(work, running, self._rows.write(work, iterator))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's signature
        """Publish a batch; once, however often Spark calls it."""
        written = _written(messages)
        if written and self._rows.options.exactly_once:
            options, work = self._rows.options, Work(written[0].work.application, batchId)
            query = _query(options, written[0].running)
            if batchId == 0 and query is not None:  # so that it is logged once in the life of a query
                warn_if_unguarded(options, query)
            publish(options, work, [each.attempts for each in written], query)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's signature
        """Drop a batch that failed, if a task of it names its query; otherwise the next commit does."""
        application = next((message.work.application for message in _written(messages)), None)
        application = application or self._rows.options.txn_app_id
        if application is not None and self._rows.options.exactly_once:
            drop(self._rows.options, Work(application, batchId))


def _written(messages: Messages) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _query(options: WriteOptions, running: Running | None) -> Query | None:
    """The query, as the driver sees it, to whose directory and configuration a checkpoint's location is relative."""
    if running is None:
        return None
    location = options.checkpoint or session_checkpoint(running.checkpoints, options.query_name)
    place = Place.here(running.file_system)
    return Query(running.query, None if location is None else checkpoint_uri(location, place))


def _running() -> Running:
    """The query and batch of the task that runs here."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if context is None or not query or not batch:
        raise UnsupportedSpark(
            "this version of Spark does not tell a task the ids of its query and batch (sql.streaming.queryId, "
            "streaming.sql.batchId), which identify a repeated batch: use PySpark 4.1 to 4.3, or "
            "report your version"
        )
    checkpoints = context.getLocalProperty("spark.sql.streaming.checkpointLocation")
    return Running(query, int(batch), checkpoints, context.getLocalProperty("spark.hadoop.fs.defaultFS"))
