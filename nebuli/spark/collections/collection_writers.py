"""The writers that Spark calls: of a batch and of a stream, into a collection: each is one insert, at one time.

Tasks stage their rows in the store, and the driver's commit has all of them inserted. Every stream writer exists
several times, in processes of the driver and in tasks, and none gets the query: the result of a task brings it to the
driver.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nebuli.spark.collections.collection_links import opened
from nebuli.spark.collections.errors import CollectionStreamError
from nebuli.spark.pushed_batches import Work, batch_work, pieces, running_work, whole_rows
from nebuli.spark.row_schemas import written_as
from spark_bridge.errors import CheckpointReplaced
from spark_bridge.schemas import Normaliser
from spark_bridge.tasks.task import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from nebuli.spark.collections.collection_options import WriteOptions

    Messages: TypeAlias = list[WriterCommitMessage | None]

_log = logging.getLogger("nebuli.spark")


@dataclass
class Written(WriterCommitMessage):
    """The rows that a task has staged, and their insert."""

    work: Work
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inserting:
    """How the rows of a write get into a collection; travels to the tasks."""

    options: WriteOptions
    target: pa.Schema

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType) -> Inserting:
        """The rows of a write of ``schema``. Raises SchemaConflict, CollectionStreamError."""
        place = options.place
        with opened(place) as collections:
            found = collections.describe(place.collection)
        if found.timed != "store":
            raise CollectionStreamError(
                f"the writers of {place} assign the times of its rows, but rows of Spark have no times: write "
                f"to a collection whose times the store assigns (the default)"
            )
        target = written_as(str(place), found.schema, schema)
        settle()
        return cls(options, target)

    def stage(self, work: Work, batches: Iterator[pa.RecordBatch]) -> Written:
        """Stage a partition. Raises InputIncomplete: Spark failed above this task; CollectionStreamError."""
        place, names = self.options.place, []
        normalise = Normaliser(self.target)
        try:
            for batch in whole_rows(batches):
                for rows in pieces(normalise(batch)):
                    with opened(place) as collections:
                        name = collections.stage(
                            place.collection, rows, producer=work.producer, sequence=work.number
                        )
                    names.append(name)
        except BaseException:
            with suppress(CollectionStreamError):  # what is raised is why it failed
                self._drop(work, names)
            raise
        return Written(work, tuple(names))

    def insert(self, messages: Messages) -> None:
        """Have what tasks have staged inserted, all of it at one time; once, however often it is called.

        Raises CheckpointReplaced: a later batch was inserted; BatchLost; CollectionStreamError.
        """
        written = _written(messages)
        if not written:  # without partitions there are no rows, and their query is not known
            return
        work, place = written[0].work, self.options.place
        names = [name for each in written for name in each.names]
        with opened(place) as collections:
            expected = collections.next_sequence(place.collection, work.producer)
            if expected > work.number + 1:
                raise CheckpointReplaced(
                    f"{place}, {work.shown}: the higher number {expected - 1} was already inserted, so the "
                    f"query's checkpoint, or txnVersion, is older than the inserted rows; continue from the "
                    f"newest checkpoint, or start from scratch"
                )
            collections.insert_staged(place.collection, names, producer=work.producer, sequence=work.number)

    def drop(self, messages: Messages) -> None:
        """Forget what tasks have staged for an insert that failed; what cannot be forgotten now is after some hours."""
        written = _written(messages)
        try:
            self._drop(
                written[0].work if written else None, [name for each in written for name in each.names]
            )
        except CollectionStreamError as error:
            _log.warning("staged rows stay until they expire: %s", error)

    def _drop(self, work: Work | None, names: list[str]) -> None:
        if names and work is not None:
            with opened(self.options.place) as collections:
                collections.drop_staged(self.options.place.collection, names, producer=work.producer)


class CollectionBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Made once per write, in the driver, and sent to the tasks."""

    def __init__(self, inserting: Inserting) -> None:
        self._inserting = inserting
        self._work = batch_work(inserting.options.txn_app_id, inserting.options.txn_version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage a partition."""
        return self._inserting.stage(self._work, iterator)

    def commit(self, messages: Messages) -> None:
        """Have all that was staged inserted."""
        self._inserting.insert(messages)

    def abort(self, messages: Messages) -> None:
        """Forget what was staged."""
        self._inserting.drop(messages)


class CollectionStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query: each is one insert of its query's id, with its batch id for a number."""

    def __init__(self, inserting: Inserting) -> None:
        self._inserting = inserting

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage a partition of a batch."""
        return self._inserting.stage(running_work(), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's signature
        """Have a batch inserted, once."""
        self._inserting.insert(messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's signature
        """Forget what was staged for a batch."""
        self._inserting.drop(messages)


def _written(messages: Messages) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]
