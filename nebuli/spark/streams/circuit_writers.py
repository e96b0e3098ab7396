"""The writers that Spark calls: of a batch and of a stream, into an input of a circuit.

Every stream writer exists several times, in processes of the driver and in tasks, and none gets the query: a task knows
it, by a local property, and its result brings it to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nebuli.spark.pushed_batches import Work, batch_work, running_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from nebuli.spark.streams.piece_writer import Pieces, Staged

    Messages: TypeAlias = list[WriterCommitMessage | None]


@dataclass
class Written(WriterCommitMessage):
    """The rows that a task has staged, and their push."""

    work: Work
    pieces: Pieces


class CircuitBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Made once per write, in the driver, and sent to the tasks."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged
        self._work = batch_work(staged.options.txn_app_id, staged.options.txn_version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage a partition."""
        return Written(self._work, self._staged.stage(self._work, iterator))

    def commit(self, messages: Messages) -> None:
        """Have all that was staged count."""
        self._staged.push(self._work, [each.pieces for each in _written(messages)])

    def abort(self, messages: Messages) -> None:
        """Forget what was staged."""
        self._staged.drop(self._work, [each.pieces for each in _written(messages)])


class CircuitStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query: each is one push of its query's id, with its batch id for a number."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage a partition of a batch."""
        work = running_work()
        return Written(work, self._staged.stage(work, iterator))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's signature
        """Have a batch count, once. One without partitions has no rows, and no task that knows its query."""
        written = _written(messages)
        if written:
            self._staged.push(written[0].work, [each.pieces for each in written])

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's signature
        """Forget what was staged for a batch."""
        written = _written(messages)
        if written:
            self._staged.drop(written[0].work, [each.pieces for each in written])


def _written(messages: Messages) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]
