"""CSV files, also zipped, read block by block with the types of the logical source."""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import InputError, short, shown_names, unreadable
from nebuli.connectors.sources.instants import ZONE, instants
from nebuli.connectors.sources.regular_file import size_of
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from topology import CsvSource as Settings
    from topology import Schema

__all__ = ["CsvSource"]

_BLOCK_BYTES = 1 << 21
_SNIFFED_ROWS = 1000
_LONGEST_VALUE = (1 << 31) - 1
"""What a column of texts can hold; Python's own limit is 128 KiB, less than Arrow reads."""
_BAD_VALUE = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to [^:]*: (.*)", re.DOTALL)
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
_QUOTED = re.compile(r"'(.*?)'", re.DOTALL)
_HAS_ZONE = re.compile(ZONE)
_MAGIC_BYTES = 4
_COMPRESSED = "decompress it, or give a zip archive of one file"
_KINDS = {
    b"\x1f\x8b": f"it is compressed with gzip: {_COMPRESSED}",
    b"BZh": f"it is compressed with bzip2: {_COMPRESSED}",
    b"\xfd7zX": f"it is compressed with xz: {_COMPRESSED}",
    b"\x28\xb5\x2f\xfd": f"it is compressed with Zstandard: {_COMPRESSED}",
    b"\xff\xfe": "it is text in UTF-16: write it in UTF-8",
    b"\xfe\xff": "it is text in UTF-16: write it in UTF-8",
    b"PAR1": "it is a Parquet file: give the source type: Parquet",
}
_TIMESTAMP_FORMS = (
    "expected a form such as 2024-01-31, 2024-01-31T10:00:00, "
    "2024-01-31T10:00:00Z or 2024-01-31T10:00:00+02:00"
)


class CsvSource(Source):
    """One CSV file: a header, then rows; of a zip archive, its only file.

    Columns are found by name, others are passed over. Memory is a few blocks, whatever the file's size.
    Timestamps without a zone are UTC. Arrow parses a column of one kind, with a zone or without; from the first
    value of another kind on, timestamps are read as texts, and each value is taken for what it is.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._path = settings.path
        self._types = {column.name: column.type for column in columns}
        self._schema = arrow_schema(columns)
        self._nulls = settings.nulls
        self._header: list[str] = []
        self._file: IO[bytes] | None = None
        self._reader: pa.csv.CSVStreamingReader | None = None
        self._rows_given = 0
        self._rows_to_skip = 0
        self._reads_texts = False

    def open(self) -> None:
        """Check the header, and start reading."""
        try:
            self.total_bytes = size_of(self._path)
            sample = self._read_sample()
            self._check_header()
            if sample:
                self._start_in_one_kind(self._parsed_as(sample))
        except pa.ArrowInvalid as error:
            raise self._blame(error) from error
        except (
            OSError,
            EOFError,
            zlib.error,
            zipfile.BadZipFile,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise unreadable(self._path, error) from error

    @property
    def columns_there(self) -> list[str]:
        """All columns of the file, which is open."""
        return self._header

    def poll(self) -> pa.RecordBatch | Signal:
        """The next block of rows, each with weight 1 unless its weights are read, too."""
        if self._reader is None:  # a header and nothing below it
            return Signal.END
        try:
            batch = self._next_batch().cast(self._schema)
        except StopIteration:
            return Signal.END
        except pa.ArrowInvalid as error:
            raise self._blame(error) from error
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise unreadable(self._path, error) from error
        self._rows_given += batch.num_rows
        return zset.as_read(batch)

    def close(self, reason: str) -> None:
        """Close reader and file."""
        if self._reader is not None:
            self._reader.close()
        if self._file is not None:
            self._file.close()

    def _read_sample(self) -> list[list[str]]:
        with closing(self._rows()) as rows:
            header = next((row for row, _ in rows), None)
            if header is None:
                raise InputError(
                    f"{self._path} is empty: a header was expected, with {shown_names(self._schema.names)}"
                )
            self._header = header
            return [row for row, _ in (next(rows, ([], 0)) for _ in range(_SNIFFED_ROWS)) if row]

    def _check_header(self) -> None:
        missing = [name for name in self._schema.names if name not in self._header]
        if missing:
            if (kind := _kind(self._path)) is not None:
                raise InputError(f"{self._path} is no CSV file: {kind}")
            wanted, found = (shown_names(each, self._header + missing) for each in (missing, self._header))
            raise InputError(
                f"{self._path}, line 1: no column {wanted}, which the logical source has; "
                f"the file's columns are {found}"
            )
        doubled = [name for name in self._schema.names if self._header.count(name) > 1]
        if doubled:
            raise InputError(f"{self._path}, line 1: more than one column {shown_names(doubled)}")

    def _parsed_as(self, sample: list[list[str]]) -> dict[str, pa.DataType]:
        """The types to parse: a timestamp's text has a zone or has none, and Arrow wants to know which."""
        types = {field.name: field.type for field in self._schema}
        for name, type_ in types.items():
            if pa.types.is_timestamp(type_):
                place = self._header.index(name)
                values = (row[place] for row in sample if len(row) > place)
                first = next((value for value in values if value not in self._nulls), "Z")
                if not _HAS_ZONE.search(first.strip()):
                    types[name] = pa.timestamp(type_.unit)
        return types

    def _start_in_one_kind(self, types: dict[str, pa.DataType]) -> None:
        try:
            self._start(types)
        except pa.ArrowInvalid as error:
            if not self._is_about_a_timestamp(error):
                raise
            self._start_over_with_texts()

    def _start_over_with_texts(self) -> None:
        self.close("start over")
        self._reads_texts = True
        self._rows_to_skip = self._rows_given
        self._start(
            {
                field.name: pa.string() if pa.types.is_timestamp(field.type) else field.type
                for field in self._schema
            }
        )

    def _next_batch(self) -> pa.RecordBatch:
        """The next rows that were not given yet."""
        assert self._reader is not None
        try:
            batch = self._reader.read_next_batch()
        except pa.ArrowInvalid as error:
            if self._reads_texts or not self._is_about_a_timestamp(error):
                raise
            self._start_over_with_texts()
            batch = self._reader.read_next_batch()
        while self._rows_to_skip:
            skipped = min(self._rows_to_skip, batch.num_rows)
            self._rows_to_skip -= skipped
            batch = batch.slice(skipped) if skipped < batch.num_rows else self._reader.read_next_batch()
        return self._with_timestamps(batch) if self._reads_texts else batch

    def _with_timestamps(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for place, field in enumerate(self._schema):
            if not pa.types.is_timestamp(field.type):
                continue
            texts = batch.column(place)
            try:
                column = instants(texts, field.type)
            except pa.ArrowInvalid:
                raise self._first_bad(texts, field) from None
            batch = batch.set_column(place, field, column)
        return batch

    def _first_bad(self, texts: pa.Array, field: pa.Field) -> InputError:
        low, high = 0, len(texts)  # the first bad value is in texts[low:high]
        while high - low > 1:
            middle = (low + high) // 2
            try:
                instants(texts.slice(low, middle - low), field.type)
                low = middle
            except pa.ArrowInvalid:
                high = middle
        row = self._rows_given + low + 2  # Arrow counts from 1, and the header
        return InputError(
            f"{self._path}, {self._place(row)}, column {field.name}: "
            f"{short(texts[low].as_py())!r} is no {self._types[field.name]}; {_TIMESTAMP_FORMS}"
        )

    def _is_about_a_timestamp(self, error: pa.ArrowInvalid) -> bool:
        found = _BAD_VALUE.match(str(error))
        if found is None:
            return False
        return bool(pa.types.is_timestamp(self._schema.field(self._header[int(found[1])]).type))

    def _start(self, types: dict[str, pa.DataType]) -> None:
        self._file = _open_bytes(self._path)
        self._reader = pa.csv.open_csv(
            self._file,
            # One thread: with more, the messages name no row. Blocks come one after the other anyway.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(self._nulls),
                strings_can_be_null=True,
            ),
        )

    def _blame(self, error: pa.ArrowInvalid) -> InputError:
        """Arrow's complaint, with the line in the file and the column's name."""
        if found := _BAD_VALUE.match(str(error)):
            column, row, why = int(found[1]), int(found[2]), found[3]
            name = self._header[column]
            return InputError(
                f"{self._path}, {self._place(row)}, column {name}: {self._complaint(name, why)}"
            )
        if found := _BAD_ROW.match(str(error)):
            row, expected, got, text = int(found[1]), found[2], found[3], short(found[4])
            values = "1 value" if got == "1" else f"{got} values"
            return InputError(
                f"{self._path}, {self._place(row)}: {values} where the header names {expected}: {text}"
            )
        if "straddling object" in str(error):
            return InputError(
                f"{self._path}: a row is longer than {_BLOCK_BYTES:,} bytes, the most that is read"
            )
        return InputError(f"{self._path}: {error}")

    def _complaint(self, name: str, why: str) -> str:
        wanted = self._types[name]
        value = _QUOTED.search(why)
        if value is None:
            return f"{why} (the column is {wanted})"
        return f"{short(value[1])!r} is no {wanted}"

    def _place(self, row: int) -> str:
        """The line at which Arrow's row begins: it counts neither blank lines nor line breaks inside quotes."""
        try:
            with closing(self._rows()) as rows:
                for number, (_, line) in enumerate(rows, start=1):
                    if number == row:
                        return f"line {line}"
        except csv.Error:  # a value too long for either reader
            pass
        return f"row {row}"

    def _rows(self) -> Generator[tuple[list[str], int], None, None]:
        """The file's rows as text, blank lines left out, with the line on which each begins."""
        with io.TextIOWrapper(_open_bytes(self._path), "utf-8-sig", errors="replace", newline="") as text:
            csv.field_size_limit(_LONGEST_VALUE)
            reader = csv.reader(text)
            line = 1
            for row in reader:
                if row:
                    yield row, line
                line = reader.line_num + 1


def _open_bytes(path: str) -> IO[bytes]:
    if not zipfile.is_zipfile(path):
        return Path(path).open("rb")
    with zipfile.ZipFile(path) as archive:
        files = [info for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
        if len(files) != 1:
            raise InputError(f"{path} holds {len(files)} files; one CSV file was expected")
        return archive.open(files[0])


def _kind(path: str) -> str | None:
    """Return what a file is by its first bytes, and what to do about that; None if it may be text."""
    with Path(path).open("rb") as file:
        start = file.read(_MAGIC_BYTES)
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)
