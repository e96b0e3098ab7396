"""Outputs for rows: a file that appears when it is whole, a file that grows, or the terminal."""

from __future__ import annotations

import fcntl
import glob
import io
import logging
import os
import stat
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from nebuli.connectors.endpoints import Output
from nebuli.connectors.errors import OutputChanged, OutputError, OutputGone, unwritable
from nebuli.connectors.sinks.owned_file import FilePosition, OwnedFile
from nebuli.connectors.sinks.text_table import TextTable
from nebuli.connectors.sinks.writable_values import ValueUnwritable, check_texts, check_times
from nebuli.durable_files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from topology import CsvSink, NullSink, ParquetSink, PrintSink

_log = logging.getLogger("nebuli.connectors")

__all__ = [
    "GrowingFile",
    "Nothing",
    "Terminal",
    "WholeFile",
    "csv_file",
    "csv_rows",
    "make_folder",
    "more_csv_rows",
    "parquet_file",
    "parquet_rows",
    "printed",
]


_VALUES_AT_ONCE = 1 << 16
"""Values of a column that are encoded at once in Parquet, whose default of 1,024 takes a twentieth longer."""
_PORTION_BYTES = 16 << 20
"""Bytes of batches that are written together; a larger batch is written alone."""
_MOST_PARTS = 64
"""More batches are concatenated before they are written: each would be written for itself, in each column."""


class Rows(Protocol):
    """The encoder of batches in a format."""

    def write_table(self, rows: pa.Table) -> None:
        """Write rows, or keep them for the next write."""

    def close(self) -> None:
        """Write what is kept and what the format ends with; the file stays open."""


class _CsvRows:
    def __init__(self, file: IO[bytes], schema: pa.Schema, *, null: str, header: bool) -> None:
        options = pa.csv.WriteOptions(include_header=header, null_string=null)
        self._writer = pa.csv.CSVWriter(file, schema, write_options=options)

    def write_table(self, rows: pa.Table) -> None:
        check_times(rows)
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()


def csv_rows(file: IO[bytes], schema: pa.Schema, null: str = "") -> Rows:
    """CSV with a header; texts in quotes, so that an empty one and a null differ."""
    return _CsvRows(file, schema, null=null, header=True)


def more_csv_rows(file: IO[bytes], schema: pa.Schema, null: str = "") -> Rows:
    """The same below others, without a header."""
    return _CsvRows(file, schema, null=null, header=False)


def parquet_rows(file: IO[bytes], schema: pa.Schema) -> Rows:
    """Parquet; what is not closed has no footer, and cannot be read."""
    # A dictionary of numbers costs half of the time of a file, and makes files of few repetitions larger.
    texts = [field.name for field in schema if not pa.types.is_primitive(field.type)]
    writer: Rows = pa.parquet.ParquetWriter(
        file, schema, use_dictionary=texts, write_batch_size=_VALUES_AT_ONCE
    )
    return writer


class _File(Output):
    """A file of one of the formats, at ``place`` while it is written; makes missing directories."""

    def __init__(self, path: str, place: Path, rows_of: Callable[[IO[bytes], pa.Schema], Rows]) -> None:
        self._path = Path(path)
        self._place = place
        self._rows_of = rows_of
        self._file: IO[bytes] | None = None
        self._owned: OwnedFile | None = None  # below it; a pipe or a device has no owner
        self._rows: Rows | None = None
        self._taken = self._written = 0  # rows

    @property
    def directory(self) -> Path | None:
        return self._path.parent

    def open(self, schema: pa.Schema) -> None:
        make_folder(str(self._path), self._path)
        try:
            self._file = self._opened()
        except OSError as error:
            raise unwritable(str(self._path), error) from error
        self._rows = self._rows_of(self._file, schema)

    def _opened(self) -> IO[bytes]:
        self._owned = OwnedFile(self._place, "w+b")
        return io.BufferedWriter(self._owned)

    def write(self, batch: pa.RecordBatch) -> None:
        self._check_texts(batch)
        self._write(pa.Table.from_batches([batch]))

    def _check_texts(self, batch: pa.RecordBatch) -> None:
        try:
            check_texts(batch)
        except ValueUnwritable as error:
            raise error.at(str(self._path), self._taken) from None
        self._taken += batch.num_rows

    def _write(self, rows: pa.Table) -> None:
        assert self._rows is not None
        self._check_place()
        try:
            self._rows.write_table(rows)
        except ValueUnwritable as error:
            raise error.at(str(self._path), self._written) from None
        except (OSError, pa.ArrowInvalid) as error:
            raise unwritable(str(self._path), error) from error
        self._written += rows.num_rows

    def _check_place(self) -> None:
        try:
            self._check(self._place)
        except OSError as error:
            raise unwritable(str(self._path), error) from error

    def _check(self, place: Path) -> None:
        """Raise OutputChanged unless the file is at a place, with what was written and nothing else; OSError."""
        if self._owned is not None:
            name = str(self._path)
            self._owned.check(place, name if place == self._path else f"{name}: its unfinished {place.name}")

    def _complete(self) -> None:
        """Bring all bytes onto the disk; the file stays open."""
        assert self._file is not None
        assert self._rows is not None
        self._rows.close()
        self._file.flush()
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # a pipe or a device has nothing to sync
            os.fsync(self._file.fileno())
        self._check(self._place)

    def discard(self) -> None:
        """Let go of the file as it is."""
        # Each on its own: a disk that is full is why we are here. The rows first, or they would try again when they
        # are collected, and complain of a file that is closed.
        for each in (self._rows, self._file):
            if each is not None:
                with suppress(OSError, pa.ArrowException):
                    each.close()


def make_folder(name: str, target: Path) -> None:
    """Make the directories that a file is to be in; ``OutputError`` where there can be no file, with its ``name``."""
    try:
        if target.is_dir():
            raise OutputError(f"{name} cannot be written: it is a directory")
        make_directory(target.parent)
    except (FileExistsError, NotADirectoryError) as error:
        raise OutputError(f"{name} cannot be written: {target.parent} is not a directory") from error
    except OSError as error:
        raise unwritable(name, error) from error


class GrowingFile(_File):
    """A file that readers can follow: rows are there after each write, also when a failure ends them.

    A later run continues after the synced rows: it cuts off later ones. A pipe it takes for another one.
    ``more_rows_of`` writes below rows that are there, if that is not the same.
    """

    def __init__(
        self,
        path: str,
        rows_of: Callable[[IO[bytes], pa.Schema], Rows],
        more_rows_of: Callable[[IO[bytes], pa.Schema], Rows] | None = None,
    ) -> None:
        super().__init__(path, Path(path), rows_of)
        self._more_rows_of = more_rows_of or rows_of
        self._begins_at: FilePosition | None = None
        self._has_name = False  # for good, in its directory

    def resume(self, position: str) -> None:
        """Continue there."""
        self._begins_at = FilePosition.from_text(position) if position else None

    def _opened(self) -> IO[bytes]:
        if self._place.exists() and not self._place.is_file():
            if self._begins_at is not None:
                size = f"{self._begins_at.size:,}"
                raise OutputChanged(
                    str(self._path), f"is not a file, but {size} bytes had been written to one"
                )
            return self._place.open("wb")
        if self._begins_at is None:
            return self._begun()
        try:
            file = OwnedFile(self._place, "r+b")
        except FileNotFoundError:
            raise OutputGone(
                f"{self._path} is gone, but {self._begins_at.size:,} bytes had been written to it"
            ) from None
        try:
            self._begins_at.check(file.fileno(), self._path)
            file.cut(self._begins_at.size)
        except BaseException:
            file.close()
            raise
        if self._begins_at.size:
            self._rows_of = self._more_rows_of
        self._owned = file
        return io.BufferedWriter(file)

    def _begun(self) -> IO[bytes]:
        """The file, new: earlier contents may be foreign, and have no position to continue at."""
        size = self._place.stat().st_size if self._place.exists() else 0
        file = super()._opened()
        if size:
            _log.warning(
                "%s: its previous %s bytes are deleted: a query that starts from scratch writes a new file",
                self._path,
                f"{size:,}",
            )
        return file

    def write(self, batch: pa.RecordBatch) -> None:
        """Write and let readers see."""
        super().write(batch)
        assert self._file is not None
        try:
            self._file.flush()
        except OSError as error:
            raise unwritable(str(self._path), error) from error

    def sync(self) -> str:
        """Bring all bytes onto the disk, and the file's name."""
        assert self._file is not None
        try:
            self._file.flush()
            if self._owned is None:
                return ""
            self._check(self._place)
            descriptor = self._owned.fileno()
            os.fsync(descriptor)
            if not self._has_name:
                sync_directory(self._path.resolve().parent)
                self._has_name = True
            return FilePosition.of(descriptor, self._owned.size).text
        except OSError as error:
            raise unwritable(str(self._path), error) from error

    def publish(self) -> None:
        """The last byte is on the disk, and so is the name."""
        assert self._file is not None
        try:
            self._complete()
            if self._owned is not None:  # and no pipe, which a path like /proc/self/fd/1 leads to
                sync_directory(self._path.resolve().parent)
            self._file.close()
        except OSError as error:
            raise unwritable(str(self._path), error) from error


class WholeFile(_File):
    """A file that is written aside and renamed when complete: at its path is all of it, or what was there.

    Batches are written in portions (a row group each in Parquet), by a thread: meanwhile the next ones are computed.
    """

    is_aside = True

    def __init__(self, path: str, rows_of: Callable[[IO[bytes], pa.Schema], Rows]) -> None:
        target = Path(path)
        super().__init__(path, target.with_name(f".{target.name}.{uuid4().hex[:8]}.partial"), rows_of)
        self._portion: list[pa.RecordBatch] = []
        self._portion_bytes = 0
        self._writing: Thread | None = None
        self._failure: Exception | None = None

    def _opened(self) -> IO[bytes]:
        """Locked as long as its writer lives, so that the next one knows what a killed one has left."""
        self._refuse_what_is_no_file()
        for left in self._path.parent.glob(f".{glob.escape(self._path.name)}.????????.partial"):
            _remove_if_left(left)
        while True:
            file = super()._opened()
            with suppress(
                OSError
            ):  # a file system without locks, where no process removes the remains of another
                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(self._place.stat(), os.fstat(file.fileno())):
                    return file
            file.close()  # another process took it for abandoned between the two

    def _refuse_what_is_no_file(self) -> None:
        if self._path.exists() and not self._path.is_file():
            raise OutputError(
                f"{self._path} is not a file, and a result published at the end would replace it: give "
                "another path, or use mode append"
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; the error of a batch may be raised by a later call."""
        self._check_texts(batch)
        if self._writing is None or not self._writing.is_alive():
            self._join()
            self._check_place()
        if self._portion and self._portion_bytes + batch.nbytes > _PORTION_BYTES:
            self._hand_over()
        self._portion.append(batch)
        self._portion_bytes += batch.nbytes
        if self._portion_bytes >= _PORTION_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        self._join()
        self._writing = Thread(target=self._write_portion, args=(self._take_portion(),), daemon=True)
        self._writing.start()

    def _take_portion(self) -> pa.Table:
        portion = pa.Table.from_batches(self._portion)
        if len(self._portion) > _MOST_PARTS:
            portion = portion.combine_chunks()
        self._portion, self._portion_bytes = [], 0
        return portion

    def _write_portion(self, portion: pa.Table) -> None:
        try:
            self._write(portion)
        except Exception as error:  # noqa: BLE001 - raised by the fragment's thread, which reports it
            self._failure = error

    def _join(self) -> None:
        """Wait for the disk, as a write without a thread would, and raise the error that the thread has met."""
        if self._writing is not None:
            self._writing.join()
        if self._failure is not None:
            raise self._failure

    def publish(self) -> None:
        """Rename, durably: first the bytes, then the name."""
        assert self._file is not None
        self._join()
        if self._portion:
            self._write(self._take_portion())
        try:
            self._complete()
            self._refuse_what_is_no_file()
            self._place.replace(self._path)
            sync_directory(self._path.parent)
            self._file.close()  # unchecked from the rename on: its reader may move it away
        except OSError as error:
            raise unwritable(str(self._path), error) from error

    def discard(self) -> None:
        """Remove what was written aside."""
        if self._writing is not None:
            self._writing.join()
        super().discard()
        with suppress(OSError):  # where it could not be made, it need not be removed
            self._place.unlink()


def csv_file(settings: CsvSink) -> Output:
    """Whole where all comes at the end, else as it comes."""
    rows_of = partial(csv_rows, null=settings.nulls[0])
    if settings.mode == "final":
        return WholeFile(settings.path, rows_of)
    return GrowingFile(settings.path, rows_of, partial(more_csv_rows, null=settings.nulls[0]))


def parquet_file(settings: ParquetSink) -> Output:
    """Whole in any mode: without its end it cannot be read."""
    return WholeFile(settings.path, parquet_rows)


def _remove_if_left(aside: Path) -> None:
    with (
        suppress(OSError),
        aside.open("rb") as file,
    ):  # it belongs to another process, which is alive, or which we may not touch
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside.unlink()


def printed(settings: PrintSink) -> Output:
    """Rows on standard output."""
    return PrintedCsv() if settings.format == "CSV" else Terminal()


class Terminal(Output):
    """A table for people on standard output. Slow readers of the output are waited for."""

    def __init__(self) -> None:
        self._table: TextTable | None = None
        self._goes_on = False

    def resume(self, position: str) -> None:
        """Continue: printed rows stay."""
        self._goes_on = True

    def open(self, schema: pa.Schema) -> None:
        """Take the schema; nothing is printed before there are rows to measure."""
        self._table = TextTable(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        assert self._table is not None
        self._print(self._table.lines(batch))

    def publish(self) -> None:
        """A table without rows has a header still, unless its rows were printed before."""
        assert self._table is not None
        if not self._goes_on:
            self._print(self._table.header())

    def sync(self) -> str:
        """Standard output may be a file."""
        with suppress(ValueError):  # it has no descriptor
            if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
                _synced_output()
        return ""

    def discard(self) -> None:
        """Do nothing: what is printed stays."""

    def _print(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        encoding = sys.stdout.encoding
        with _output_errors():
            # As the terminal can show it: a locale without umlauts is not a reason to fail a query at its end.
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()


class PrintedCsv(Output):
    """CSV on standard output, flushed after each batch: a program reads it."""

    def __init__(self) -> None:
        self._rows: Rows | None = None
        self._goes_on = False

    def resume(self, position: str) -> None:
        """Continue: printed rows stay, and their header."""
        self._goes_on = True

    def open(self, schema: pa.Schema) -> None:
        """Print the header."""
        with _output_errors():
            self._rows = (more_csv_rows if self._goes_on else csv_rows)(sys.stdout.buffer, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        assert self._rows is not None
        with _output_errors():
            self._rows.write_table(pa.Table.from_batches([batch]))
            sys.stdout.flush()

    def publish(self) -> None:
        """Print what is left."""
        assert self._rows is not None
        with _output_errors():
            self._rows.close()
            sys.stdout.flush()

    def sync(self) -> str:
        """Standard output may be a file."""
        with suppress(ValueError):  # it has no descriptor
            if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
                _synced_output()
        return ""

    def discard(self) -> None:
        """Do nothing: what is printed stays."""


def _synced_output() -> None:
    with _output_errors():
        os.fsync(sys.stdout.fileno())


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable("standard output", error) from error


class Nothing(Output):
    """Drops all rows."""

    def __init__(self, settings: NullSink) -> None:
        pass

    def resume(self, position: str) -> None:
        """Do nothing: there is nothing to continue."""

    def sync(self) -> str:
        """Do nothing: there is nothing to keep."""
        return ""

    def open(self, schema: pa.Schema) -> None:
        """Do nothing: there is nothing to prepare."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Do nothing: the writer has counted them."""

    def publish(self) -> None:
        """Do nothing: there is nothing to end."""

    def discard(self) -> None:
        """Do nothing: there is nothing to end."""
