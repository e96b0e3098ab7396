"""What Spark itself takes: a source whose batches are made within the task, and a sink that drops them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from .data import DDL, batch


class Part(InputPartition):
    """So many batches."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches)
        self.batches = batches


def _made(kind: str, rows: int, batches: int) -> Iterator[pa.RecordBatch]:
    made = batch(kind, rows)
    for _ in range(batches):
        yield made


class Reader(DataSourceReader):
    """``batches`` of ``rows`` each, in ``partitions``."""

    def __init__(self, options: Any) -> None:
        self.kind, self.rows = options["kind"], int(options["rows"])
        self.batches, self.parts = int(options["batches"]), int(options["parts"])

    def partitions(self) -> Sequence[InputPartition]:
        """As many batches in each."""
        return [Part(self.batches // self.parts) for _ in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The same batch again and again."""
        assert isinstance(partition, Part)
        return _made(self.kind, self.rows, partition.batches)


class StreamReader(DataSourceStreamReader):
    """One batch for each trigger."""

    def __init__(self, options: Any) -> None:
        self.kind, self.rows = options["kind"], int(options["rows"])
        self.offset = 0

    def initialOffset(self) -> dict[str, int]:
        """Nothing."""
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:
        """One more, each time."""
        self.offset += 1
        return {"n": self.offset}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """A single one."""
        return [Part(1)] if end["n"] > start["n"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One batch."""
        return _made(self.kind, self.rows, 1)


class InTask(DataSource):
    """The source ``in_task``."""

    @classmethod
    def name(cls) -> str:
        """In format(...)."""
        return "in_task"

    def schema(self) -> str:
        """Of the kind of rows."""
        return DDL[self.options["kind"]]

    def reader(self, schema: Any) -> DataSourceReader:
        """For jobs."""
        return Reader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """For queries."""
        return StreamReader(self.options)


class _Dropping:
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Look at no row."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Writer(_Dropping, DataSourceArrowWriter):
    """For jobs."""


class StreamWriter(_Dropping, DataSourceStreamArrowWriter):
    """For queries."""


class Dropping(DataSource):
    """The sink ``dropping``."""

    @classmethod
    def name(cls) -> str:
        """In format(...)."""
        return "dropping"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """For jobs."""
        return Writer()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For queries."""
        return StreamWriter()
