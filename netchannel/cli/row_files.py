"""Rows of files as batches, and batches as files: CSV, JSON Lines, Parquet and Arrow, by their names."""

from __future__ import annotations

import base64
import glob
import json
import math
import os
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol
from uuid import uuid4

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_ROWS = 65_536
"""Rows of a message, at most."""
SUFFIXES = (".csv", ".jsonl", ".parquet", ".arrow", ".arrows")
"""The last one is Arrow's stream, as its documentation names it."""
_ENDED = (".parquet", ".arrow")
"""The formats whose rows cannot be read without the end of the file."""


class FileUnusable(Exception):
    """A file cannot be read, or its name does not show its format."""


class FileNotWritten(Exception):
    """A file, or standard output, does not take the rows."""

    @classmethod
    def of(cls, name: str, error: Exception) -> FileNotWritten:
        """Return the error for the file or stream ``name``."""
        return cls(f"{name} cannot be written: {_said(error)}")


class RowsWriter(Protocol):
    """A writer of a format."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows."""

    def close(self) -> None:
        """Write the end."""


class _JsonLines:
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        if repeated := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise pa.ArrowInvalid(
                f"a JSON object cannot have a name twice, but column {repeated[0]!r} occurs several times; "
                f"write .csv or .arrow"
            )
        self._file = file

    def write_batch(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            line = json.dumps(_as_json_has_it(row), ensure_ascii=False, default=str)
            self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """There is no end to write."""


def _as_json_has_it(value: Any) -> Any:
    """Return a value with bytes in base64, and numbers that JSON lacks as strings."""
    match value:
        case dict():
            return {name: _as_json_has_it(each) for name, each in value.items()}
        case list() | tuple():
            return [_as_json_has_it(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def read_batches(name: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file, read as they are taken; ``-`` is CSV on standard input. Raises FileUnusable.

    A file without rows is one batch without rows: the receiver gets its columns.
    """
    try:
        schema, batches = _read(name)
        is_empty = True
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                is_empty = False
                yield batch.slice(start, BATCH_ROWS)
        if is_empty:
            yield pa.RecordBatch.from_pylist([], schema)
    except (OSError, pa.ArrowException) as error:
        raise FileUnusable(f"{name} cannot be read: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Return the system's sentence for its error, without the call that Arrow made."""
    code = getattr(error, "errno", None)
    return str(error) if code is None else os.strerror(code)


def _read(name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    match suffix_of(name):
        case ".csv":
            import pyarrow.csv

            # Without a buffer: its lock would be held by a read that waits when the command ends.
            given = Path("/dev/stdin").open("rb", buffering=0) if name == "-" else name  # noqa: SIM115
            lines = pyarrow.csv.open_csv(given)
            return lines.schema, iter(lines)
        case ".jsonl":
            import pyarrow.json

            table = pyarrow.json.read_json(name)
            return table.schema, iter(table.to_batches())
        case ".parquet":
            import pyarrow.parquet

            file = pyarrow.parquet.ParquetFile(name)
            return file.schema_arrow, file.iter_batches(BATCH_ROWS)
    reader = _arrow_reader(pa.memory_map(name))
    if isinstance(reader, pa.RecordBatchFileReader):
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
    return reader.schema, iter(reader)


def _arrow_reader(source: Any) -> Any:
    """Open a file, or a stream that was put into one."""
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source)


def suffix_of(name: str) -> str:
    """Return the suffix that names the format; CSV for ``-``. Raises FileUnusable."""
    suffix = ".csv" if name == "-" else Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise FileUnusable(
            f"{name}: the file format is not clear from the name: expected a name that ends with "
            f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    return suffix


class Output:
    """Where received rows go: standard output as CSV, as they come, or a file, which is there once it is whole.

    Parquet and Arrow files end with what finds their rows. Rows for them come into an Arrow stream, whose rows can be
    read without its end, as after a full disk, and which becomes the file once it is complete.
    """

    def __init__(self, name: str) -> None:
        self._suffix = suffix_of(name)
        self._path = None if name == "-" else Path(name)
        if self._path is not None and (wrong := _obstacle(self._path)):
            raise FileNotWritten(f"{name} cannot be written: {wrong}")
        self._aside = (
            None if self._path is None else self._path.with_name(f".{self._path.name}.{uuid4().hex[:8]}")
        )
        self._file: IO[bytes] | None = None
        self._writer: RowsWriter | None = None
        self._whole_bytes = 0

    def open(self, schema: pa.Schema) -> None:
        """Begin. Raises FileNotWritten."""
        with self._errors():
            self._file = sys.stdout.buffer if self._aside is None else self._aside.open("wb")
            try:
                if self._suffix == ".parquet":
                    _writer_of(".parquet", pa.BufferOutputStream(), schema).close()
                self._writer = _writer_of(
                    ".arrows" if self._suffix in _ENDED else self._suffix, self._file, schema
                )
                self._flush()
            except pa.ArrowException:  # the format lacks a type, so nothing is written
                if self._aside is not None:
                    self._file.close()
                    self._aside.unlink()
                raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, which are with the system then. Raises FileNotWritten."""
        assert self._writer is not None
        with self._errors():
            self._writer.write_batch(batch)
            self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        self._file.flush()
        if self._aside is not None:
            self._whole_bytes = self._file.tell()

    def publish(self) -> None:
        """All rows are there: have the file under its name. Raises FileNotWritten."""
        with self._errors():
            if self._writer is not None:
                self._writer.close()
            if self._path is not None and self._aside is not None and self._file is not None:
                self._file.close()
                if self._suffix in _ENDED:
                    self._convert(self._aside)
                self._aside.replace(self._path)

    def refuse_rest(self, messages: int) -> NoReturn:
        """Raise FileNotWritten: an earlier command took the first messages of the stream, and was killed."""
        left = () if self._path is None else self._path.parent.glob(f".{glob.escape(self._path.name)}.*")
        files = (
            ", ".join(str(each) for each in sorted(left) if each != self._aside) or "the output of that recv"
        )
        raise FileNotWritten(
            f"the first {messages:,} messages of the stream went to an earlier recv, which was killed; their rows are "
            f"in {files}: concatenate the files, or send and receive the whole stream again"
        )

    def _convert(self, stream: Path) -> None:
        """Replace a stream by the same rows in the format of the file. A failure leaves the stream."""
        made = stream.with_name(f"{stream.name}.made")
        try:
            with pa.memory_map(str(stream)) as source, made.open("wb") as file:
                reader = pa.ipc.open_stream(source)
                writer = _writer_of(self._suffix, file, reader.schema)
                for batch in reader:
                    writer.write_batch(batch)
                writer.close()
            made.replace(stream)
        finally:
            made.unlink(missing_ok=True)

    def keep_part(self) -> Path | None:
        """End a file that is not whole, and return it: its rows are acknowledged, so nothing else has them.

        It ends with the last rows that are written whole. None if there is no file, or it is published.
        """
        if self._path is None or self._aside is None or not self._aside.exists():
            return None
        suffix = ".arrows" if self._suffix in _ENDED else self._suffix
        part = self._path.with_name(f"{self._path.stem}.partial{suffix}")
        if part.exists():
            part = part.with_name(f"{self._path.stem}.partial-{uuid4().hex[:8]}{suffix}")
        if self._file is not None:
            with suppress(OSError):  # as on a full disk: the rows before stay
                self._file.close()
        with self._errors():
            os.truncate(self._aside, self._whole_bytes)
            self._aside.replace(part)
        return part

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise FileNotWritten.of(str(self._path or "standard output"), error) from error


def _obstacle(path: Path) -> str:
    """Return why there can be no file; empty if there can be one."""
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return "" if os.access(path.parent, os.W_OK | os.X_OK) else f"the folder {path.parent} is read-only"


def _writer_of(suffix: str, file: Any, schema: pa.Schema) -> RowsWriter:
    match suffix:
        case ".csv":
            import pyarrow.csv

            made: Any = pyarrow.csv.CSVWriter(file, schema)
        case ".jsonl":
            made = _JsonLines(file, schema)
        case ".parquet":
            import pyarrow.parquet

            made = pyarrow.parquet.ParquetWriter(file, schema)
        case ".arrow":
            made = pa.ipc.new_file(file, schema)
        case _:
            made = pa.ipc.new_stream(file, schema)
    writer: RowsWriter = made
    return writer
