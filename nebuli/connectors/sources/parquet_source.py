"""Parquet files, read batch by batch with the types of the logical source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import InputError, unreadable
from nebuli.connectors.formats.file_kinds import kind_of_file, size_of
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from topology import ParquetSource as Settings
    from topology import Schema

__all__ = ["ParquetSource"]

_BATCH_ROWS = 16_384


class ParquetSource(Source):
    """One Parquet file. Its `ArrowColumns` are found by name, others are not read; memory is that of a row group."""

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._path = settings.path
        self._columns = ArrowColumns(
            arrow_schema(columns), settings.path, "file", timestamps=settings.timestamps
        )
        self._file: pa.parquet.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def open(self) -> None:
        """Check the file's schema, and start reading."""
        try:
            self.total_bytes = size_of(self._path)
            self._file = pa.parquet.ParquetFile(
                self._path, pre_buffer=False, coerce_int96_timestamp_unit="us"
            )
        except OSError as error:
            raise unreadable(self._path, error) from error
        except pa.ArrowInvalid as error:
            if (kind := kind_of_file(self._path)) is not None:
                raise InputError(f"{self._path} is no Parquet file: {kind}") from error
            raise unreadable(self._path, error) from error
        self._columns.check(self._file.schema_arrow)
        self._batches = self._file.iter_batches(
            _BATCH_ROWS, columns=self._columns.wanted.names, use_threads=False
        )

    @property
    def columns_there(self) -> list[str]:
        """All columns of the file, which is open."""
        return [] if self._file is None else self._file.schema_arrow.names

    def poll(self) -> pa.RecordBatch | Signal:
        """The next batch of rows, each with weight 1 unless its weights are read, too."""
        try:
            batch = next(self._batches, None)
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(self._path, error) from error
        return Signal.END if batch is None else zset.as_read(self._columns.of(batch))

    def close(self, reason: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
