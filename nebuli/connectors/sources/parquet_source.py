"""Parquet files, read batch by batch with the types of the logical source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import InputError, printable, unreadable
from nebuli.connectors.formats.file_kinds import size_of
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.connectors.sources.row_groups import RowGroups, opened
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from topology.file_kinds import FIRST_BYTES, kind_of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from topology import ParquetSource as Settings
    from topology import Schema

__all__ = ["ParquetSource"]

_MAGIC = b"PAR1"


class ParquetSource(Source):
    """One Parquet file. Its `ArrowColumns` are found by name, others are not read.

    Threads read ahead while the last batch is worked on, see `RowGroups`.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._path = settings.path
        self._columns = ArrowColumns(
            arrow_schema(columns), settings.path, "file", timestamps=settings.timestamps
        )
        self._file: pa.NativeFile | None = None
        self._found: pa.Schema | None = None
        self._groups: RowGroups | None = None

    def open(self) -> None:
        """Check the file's schema, and start reading."""
        try:
            self.total_bytes = size_of(self._path)
            self._file = pa.OSFile(self._path)
            reader = opened(self._file)
        except (OSError, pa.ArrowInvalid) as error:
            raise self._unopened(error) from error
        self._found = reader.schema_arrow
        self._columns.check(self._found)
        self._groups = RowGroups(self._file, reader.metadata, self._columns.wanted.names, self._converted)

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return zset.as_read(self._columns.of(batch))

    def _unopened(self, error: Exception) -> InputError:
        """Why it is not a Parquet file; an OSError without a number is of what is in it."""
        if isinstance(error, OSError) and error.errno is not None:
            return unreadable(self._path, error)
        if not self.total_bytes:
            return InputError(f"{self._path} is not a Parquet file: it is empty")
        with Path(self._path).open("rb") as file:
            start = file.read(FIRST_BYTES)
        if start.startswith(_MAGIC):
            return InputError(
                f"{self._path} is damaged or truncated: write it again ({printable(str(error)).strip()})"
            )
        kind = kind_of_bytes(start) or "it does not begin with PAR1: is it in another format, such as CSV?"
        return InputError(f"{self._path} is not a Parquet file: {kind}")

    @property
    def columns_there(self) -> list[str]:
        """All columns of the file, which is open."""
        return [] if self._found is None else self._found.names

    def poll(self) -> pa.RecordBatch | Signal:
        """The next batch of rows, each with weight 1 unless its weights are read, too."""
        assert self._groups is not None, "it is open"
        try:
            batch = self._groups.next()
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(self._path, error) from error
        return Signal.END if batch is None else batch

    def close(self, reason: str) -> None:
        """Close the file."""
        if self._groups is not None:
            self._groups.close()
        if self._file is not None:
            self._file.close()
