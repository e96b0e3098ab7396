"""Rows of Parquet files: each is a message, by its number in its file."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from xxhash import xxh3_128_digest

from nebuli.connectors.errors import InputError
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.ingestion.errors import AddressGone, SourceUnusable
from nebuli.ingestion.message_addresses import Messages

from .polled_files import Look, Part, PolledFiles, look_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.ingestion.definition import ParquetOrigin

    from .seen_files import SeenFiles

_log = logging.getLogger("nebuli.ingestion")

BATCH_ROWS = 16_384
"""How many rows are read at once."""
_FIRST_ROW = 1
"""After so many rows, a reader has to continue in the same file."""


class _File(Part):
    """How many ``rows`` it has is of when it had this ``look``; its mark is its footer."""

    __slots__ = ("is_told", "look", "rows")

    def __init__(self, path: str, at: int) -> None:
        super().__init__(path, at)
        self.is_told = False
        self.look: Look | None = None
        self.rows = 0


@dataclass(slots=True)
class _Reading:
    """The file that is read now."""

    part: _File
    look: Look
    columns: ArrowColumns
    file: pa.parquet.ParquetFile
    batches: Iterator[pa.RecordBatch]


class ParquetFiles(PolledFiles[_File]):
    """The columns of a ``schema``, found by their names; others are passed over.

    A file is to appear whole, by being renamed; one without a footer is tried again when it has changed. Each is read
    to its end before the next one; memory is that of a row group.
    """

    unit: ClassVar[str] = "rows"

    def __init__(
        self, origin: ParquetOrigin, *, schema: pa.Schema, name: str, seen: SeenFiles | None = None
    ) -> None:
        super().__init__(origin.path, name=name, seen=seen)
        self._schema = schema
        self._reading: _Reading | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the requested schema."""
        return self._schema

    def _new(self, path: str, at: int) -> _File:
        return _File(path, at)

    def _check(self, part: _File) -> None:
        if (file := self._opened(part)) is not None:
            file.close()

    def _read(self, part: _File) -> Messages | None:
        reading = self._reading
        if reading is None or reading.part is not part:
            self._close_file()
            reading = self._reading = self._begun(part)
        if reading is None:
            return None
        batch = self._next_of(reading)
        if batch is None:
            self._close_file()
            part.seen = reading.look
            return None
        lower, part.at = part.at, part.at + batch.num_rows
        if part.at == reading.file.metadata.num_rows:
            self._close_file()
            part.seen = reading.look
        return Messages(part.path, lower, part.at, np.arange(lower, part.at, dtype=np.int64), batch)

    def _go_on(self, part: _File) -> None:
        part.is_waiting = True
        self._ready.appendleft(part)

    def _begun(self, part: _File) -> _Reading | None:
        """Open a file; None: it is incomplete."""
        look = look_of(os.stat(part.path))  # noqa: PTH116 - as the others
        file = self._opened(part)
        if file is None:
            part.seen = look
            return None
        try:
            columns = ArrowColumns(self._schema, f"{self._name}: {part.path}", "file", "the source")
            columns.check(file.schema_arrow)
        except InputError as error:
            file.close()
            raise SourceUnusable(str(error)) from error
        return _Reading(part, look, columns, file, _rows_from(file, part.at, self._schema.names))

    def _opened(self, part: _File) -> pa.parquet.ParquetFile | None:
        """Its file; None: it has no footer. Raises AddressGone where another one was read."""
        try:
            file = pa.parquet.ParquetFile(part.path, pre_buffer=False, coerce_int96_timestamp_unit="us")
        except pa.ArrowInvalid as error:
            if not part.is_told:
                part.is_told = True
                _log.warning(
                    "%s: %s is not a Parquet file, or is not finished (%s): the file is read "
                    "again when it changes; write a file elsewhere, and rename it when it is complete",
                    *(self._name, part.path, _first_line(error)),
                )
            if part.at:
                raise AddressGone(self._is_another(part, "is not a finished Parquet file")) from error
            return None
        metadata = file.metadata
        mark = _FIRST_ROW, _digest(metadata)
        if part.at and part.marks and part.marks[0] != mark:
            file.close()
            raise AddressGone(self._is_another(part, f"has another footer, and {metadata.num_rows} rows"))
        if part.at > metadata.num_rows:
            file.close()
            raise AddressGone(self._is_another(part, f"has only {metadata.num_rows} rows"))
        part.marks.clear()
        part.marks.append(mark)
        return file

    def _is_another(self, part: _File, what: str) -> str:
        return (
            f"{self._name}: {part.path} was read up to row {part.at}, but {what} now: another "
            f"file has replaced it; put the earlier file back, or start from scratch"
        )

    def _next_of(self, reading: _Reading) -> pa.RecordBatch | None:
        """The next rows, as they are wanted."""
        try:
            batch = next(reading.batches, None)
            return None if batch is None else reading.columns.of(batch)
        except InputError as error:
            self._close_file()
            raise SourceUnusable(f"{_first_line(error)}, in row {reading.part.at} or a later row") from error
        except OSError:
            self._close_file()
            raise
        except pa.ArrowException as error:
            self._close_file()
            raise SourceUnusable(
                f"{self._name}: {reading.part.path} cannot be read from row {reading.part.at} on: {_first_line(error)}"
            ) from error

    def _close_file(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.file.close()

    def _let_go(self) -> None:
        with self._turning:
            self._close_file()

    def _end(self, part: _File) -> int:
        look = look_of(os.stat(part.path))  # noqa: PTH116 - as the others
        if look != part.look:
            try:
                part.rows = pa.parquet.read_metadata(part.path).num_rows
            except pa.ArrowInvalid:  # not finished
                part.rows = 0
            part.look = look
        return max(part.rows, part.at)


def _digest(metadata: pa.parquet.FileMetaData) -> bytes:
    """Return a digest of all that is in a footer.

    Sizes, and, as a rule, the least and the greatest value of each column.
    """
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return xxh3_128_digest(sink.getvalue())


def _rows_from(file: pa.parquet.ParquetFile, at: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows from a number on."""
    group, begin = 0, 0
    while group < file.num_row_groups and begin + file.metadata.row_group(group).num_rows <= at:
        begin += file.metadata.row_group(group).num_rows
        group += 1
    passed = at - begin
    groups = list(range(group, file.num_row_groups))
    for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=names, use_threads=False):
        if passed < batch.num_rows:
            yield batch.slice(passed)
        passed = max(0, passed - batch.num_rows)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
