"""CSV files, also zipped, read block by block with the types of the logical source."""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import InputError, shown_names, unreadable
from nebuli.connectors.formats.csv_lines import NEVER_CLOSED, CsvComplaint, Quotes, null_groups
from nebuli.connectors.formats.file_kinds import kind_of_file, size_of
from nebuli.connectors.formats.instants import ZONE, TimestampInvalid, instants_or_nulls
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from topology import CsvSource as Settings
    from topology import Schema

__all__ = ["CsvSource"]

_BLOCK_BYTES = 1 << 21
_GROWTH = 8
_SNIFFED_ROWS = 1000
_LONGEST_ROW = 1 << 26
"""Above this, a row is rather a mistake than a row."""
_HAS_ZONE = re.compile(ZONE)
_TOO_LONG = re.compile("straddling object|Empty CSV file or block")
"""A row does not end in the block after that in which it begins, or the header in the first."""


class CsvSource(Source):
    """One CSV file: a header, then rows; of a zip archive, its only file.

    Columns are found by name, others are passed over. Memory is a few blocks, for any file size. A text in
    quotes is never null. A blank line is a row where there is one column, and passed over where there are more.

    Arrow reads the file in the usual way first, and from the first value on that this does not fit, in another one:
    timestamps, all with a zone or all without (UTC), as texts, each taken for what it is; nulls in quotes, for columns
    that are not texts; and larger blocks for longer rows.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._path = settings.path
        self._types = {column.name: column.type for column in columns}
        self._schema = arrow_schema(columns)
        self._nulls = settings.nulls
        self._timestamps = settings.timestamps
        self._header: list[str] = []
        self._files: list[_Blocks] = []
        self._ahead: pa.RecordBatch | None = None
        self._types_to_parse: dict[str, pa.DataType] = {}
        self._readers: list[pa.csv.CSVStreamingReader] = []
        self._rows_given = 0
        self._rows_to_skip = 0
        self._reads_texts = False
        self._takes_quoted_nulls = False
        self._block_bytes = _BLOCK_BYTES
        self._header_line = 1

    def open(self) -> None:
        """Check the header, and start reading."""
        try:
            self.total_bytes = size_of(self._path)
            sample = self._read_sample()
            self._check_header()
            if not sample:
                self._check_quotes()
            else:
                self._types_to_parse = self._parsed_as(sample)
                self._start_in_some_way()
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
        if not self._readers:  # a header and nothing below it
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
        for each in (*self._readers, *self._files):
            each.close()

    def _read_sample(self) -> list[list[str]]:
        with closing(self._rows()) as rows:
            self._header, self._header_line = next(((row, line) for row, line in rows if row), ([], 1))
            if not self._header:
                raise InputError(
                    f"{self._path} is empty: expected a header with {shown_names(self._schema.names)}"
                )
            sample = []
            try:
                for row, _ in islice(rows, _SNIFFED_ROWS):
                    sample.append(row)
            except csv.Error:  # a value that is longer than a row may be, as its reader will report
                sample.append([])
            return sample

    def _check_header(self) -> None:
        missing = [name for name in self._schema.names if name not in self._header]
        if missing:
            self._check_quotes()
            if (kind := kind_of_file(self._path)) is not None:
                raise InputError(f"{self._path} is not a CSV file: {kind}")
            wanted, found = (shown_names(each, self._header + missing) for each in (missing, self._header))
            raise InputError(
                f"{self._path}, line 1: no column {wanted}, which the logical source has; "
                f"the file's columns are {found}{_remedy(missing, self._header)}"
            )
        doubled = [name for name in self._schema.names if self._header.count(name) > 1]
        if doubled:
            raise InputError(f"{self._path}, line 1: more than one column is named {shown_names(doubled)}")

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

    def _start_in_some_way(self) -> None:
        """Open the readers after the returned rows, in the way that was found so far, or in another."""
        while True:
            self.close("start over")
            self._rows_to_skip = self._rows_given
            try:
                self._start()
            except pa.ArrowInvalid as error:
                if not self._finds_another_way(error):
                    raise
            else:
                return

    def _finds_another_way(self, error: pa.ArrowInvalid) -> bool:
        """True if the file may be read in another way than the failed one, which is then taken."""
        if _TOO_LONG.search(str(error)):
            grows = self._block_bytes < _LONGEST_ROW and self._unclosed_quote() is None
            self._block_bytes = min(_GROWTH * self._block_bytes, _LONGEST_ROW)
            return grows
        found = CsvComplaint.of(error, "the header")
        if found.column is None:
            return False
        if not self._takes_quoted_nulls and found.value in self._nulls:
            self._takes_quoted_nulls = True
            return True
        if not self._reads_texts and pa.types.is_timestamp(
            self._schema.field(self._header[found.column]).type
        ):
            self._reads_texts = True
            return True
        return False

    def _next_batch(self) -> pa.RecordBatch:
        """The next rows that were not given yet."""
        while True:
            try:
                batch = self._read_batch()
            except pa.ArrowInvalid as error:
                if not self._finds_another_way(error):
                    raise
                self._start_in_some_way()
                continue
            skipped = min(self._rows_to_skip, batch.num_rows)
            self._rows_to_skip -= skipped
            if skipped < batch.num_rows or not skipped:
                batch = batch.slice(skipped)
                return self._with_timestamps(batch) if self._reads_texts else batch

    def _read_batch(self) -> pa.RecordBatch:
        """The next rows; none before what comes after them is known to be rows, and not a value that has no end."""
        batch = self._ahead
        if batch is None:
            raise StopIteration
        self._ahead = self._parsed_batch()
        return batch

    def _parsed_batch(self) -> pa.RecordBatch | None:
        try:
            parts = [
                reader.read_next_batch() for reader in self._readers
            ]  # of the same rows, as blocks are the same
        except StopIteration:
            if not self._files[0].end_is_found:
                self._check_quotes()
            return None
        if len(parts) == 1:
            return parts[0]
        columns = {name: part.column(name) for part in parts for name in part.schema.names}
        return pa.record_batch({name: columns[name] for name in self._schema.names})

    def _with_timestamps(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for place, field in enumerate(self._schema):
            if pa.types.is_timestamp(field.type):
                try:
                    column = instants_or_nulls(batch.column(place), field, self._nulls, self._timestamps)
                except TimestampInvalid as error:
                    row = self._header_line + self._rows_given + error.row + 1
                    raise InputError(f"{self._path}, {self._place(row)}, {error}") from None
                batch = batch.set_column(place, field, column)
        return batch

    def _start(self) -> None:
        types = {
            name: pa.string() if self._reads_texts and pa.types.is_timestamp(type_) else type_
            for name, type_ in self._types_to_parse.items()
        }
        self._readers, self._files = [], []
        for names, quoted_nulls in null_groups(self._schema, split=self._takes_quoted_nulls):
            self._files.append(_Blocks(_open_bytes(self._path), values=len(self._header)))
            reader = self._reader({name: types[name] for name in names}, quoted_nulls=quoted_nulls)
            self._readers.append(reader)
        self._ahead = self._parsed_batch()

    def _reader(self, types: Mapping[str, pa.DataType], *, quoted_nulls: bool) -> pa.csv.CSVStreamingReader:
        return pa.csv.open_csv(
            pa.PythonFile(self._files[-1], mode="r"),
            # One thread: with more, the messages name no row. Blocks come one after the other anyway.
            read_options=pa.csv.ReadOptions(
                use_threads=False, block_size=self._block_bytes, skip_rows=self._header_line - 1
            ),
            parse_options=pa.csv.ParseOptions(
                newlines_in_values=True,
                ignore_empty_lines=not self._has_one_column,
                invalid_row_handler=self._files[-1].handle,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(self._nulls),
                strings_can_be_null=True,
                quoted_strings_can_be_null=quoted_nulls,
            ),
        )

    @property
    def _has_one_column(self) -> bool:
        return len(self._header) == 1

    def _blame(self, error: pa.ArrowInvalid) -> InputError:
        """Arrow's complaint, with the line in the file and the column's name."""
        found = CsvComplaint.of(error, "the header")
        if found.column is None or (found.value is not None and "\n" in found.value):
            self._check_quotes()
        if _TOO_LONG.search(str(error)):
            return InputError(f"{self._path}: a row is longer than the limit of {_LONGEST_ROW:,} bytes")
        place = "" if found.row is None else f", {self._place(found.row)}"
        types = [self._types.get(name) for name in self._header]
        by = ": " if found.column is None else ", "
        return InputError(f"{self._path}{place}{by}{found.sentence(self._header, types)}")

    def _check_quotes(self) -> None:
        """Raise InputError where a quote of the file is never closed."""
        if (line := self._unclosed_quote()) is not None:
            raise InputError(f"{self._path}, line {line}: {NEVER_CLOSED}")

    def _unclosed_quote(self) -> int | None:
        """Return the line of the quote that is open at the end of the file; None: there is none."""
        quotes = Quotes()
        with _open_bytes(self._path) as file:
            for piece in _pieces(file):
                quotes.feed(piece)
        if not quotes.is_open:
            return None
        with _open_bytes(self._path) as file:
            return 1 + sum(map(_line_ends, _pieces(file, quotes.opened_at)))

    def _place(self, row: int) -> str:
        """The line at which Arrow's row begins: it does not count line breaks in quotes, nor all blank lines."""
        try:
            with closing(self._rows()) as rows:
                for number, (_, line) in enumerate(rows, start=1):
                    if number == row:
                        return f"line {line}"
        except csv.Error:  # a value too long for either reader
            pass
        return f"row {row}"

    def _rows(self) -> Generator[tuple[list[str], int], None, None]:
        """The file's rows as text, with the line on which each begins; blank lines as Arrow counts them.

        Above the header all are lines that it skips, below it they are rows or nothing.
        """
        with io.TextIOWrapper(_open_bytes(self._path), "utf-8-sig", errors="replace", newline="") as text:
            csv.field_size_limit(_LONGEST_ROW)
            reader = csv.reader(text)
            line = 1
            above = True
            for row in reader:
                above = above and not row
                if row or above or self._has_one_column:
                    yield row, line
                line = reader.line_num + 1


class _Blocks:
    """A CSV file as Arrow reads it, block by block, and after it a row that shows where the file ends.

    Where a quote is open there, Arrow does not find that row. A carriage return comes with what follows it: of one at
    the end of a block Arrow drops the line feed in the next, also within quotes.
    """

    def __init__(self, file: IO[bytes], values: int) -> None:
        self._file = file
        self._held = b""
        self._last = b""
        self._end = uuid4().hex
        self._rest = f"{self._end}{',' * values}\n".encode()  # has a value too many
        self.end_is_found = False

    @property
    def closed(self) -> bool:
        """True if the file is closed."""
        return self._file.closed

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        block = self._held + self._file.read(size - len(self._held))
        if not block:
            if self._last not in b"\r\n":
                self._rest = b"\n" + self._rest
            self._last = b""
            block, self._rest = self._rest[:size], self._rest[size:]
            return block
        self._last = block[-1:]
        self._held = self._last if self._last == b"\r" and len(block) > 1 else b""
        return block[: len(block) - len(self._held)]

    def handle(self, row: pa.csv.InvalidRow) -> Literal["skip", "error"]:
        """Decide about a row that has more values than the header, or fewer."""
        if not row.text.startswith(self._end):
            return "error"
        self.end_is_found = True
        return "skip"

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _pieces(file: IO[bytes], size: int | None = None) -> Iterator[bytes]:
    """The first bytes of a file, or all; a carriage return is in one piece with its line feed."""
    held = b""
    while (size is None or size > 0) and (
        read := file.read(_BLOCK_BYTES if size is None else min(size, _BLOCK_BYTES))
    ):
        size = None if size is None else size - len(read)
        piece = held + read
        held = piece[-1:] if piece[-1:] == b"\r" else b""
        yield piece[: len(piece) - len(held)]
    yield held


def _line_ends(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def _open_bytes(path: str) -> IO[bytes]:
    if not zipfile.is_zipfile(path):
        return Path(path).open("rb")
    with zipfile.ZipFile(path) as archive:
        files = [info for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
        if len(files) != 1:
            raise InputError(f"{path} holds {len(files)} files; expected one CSV file")
        return archive.open(files[0])


def _remedy(missing: Sequence[str], header: Sequence[str]) -> str:
    """Return the remedy for columns that a header does not have, if the cause is known."""
    if len(header) == 1:
        for delimiter, name in {";": "semicolons", "\t": "tabs", "|": "bars"}.items():
            if {*missing} <= {*header[0].split(delimiter)}:
                return f": its values are separated by {name}; separate them by commas"
    if {*missing} <= {name.strip() for name in header}:
        return ": remove the spaces around them"
    if {name.lower() for name in missing} <= {name.lower() for name in header}:
        return ": upper and lower case differ"
    return ""
