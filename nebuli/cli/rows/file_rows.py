"""Rows of a file, CSV, Parquet, JSON Lines or Arrow, in batches of a fixed size."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nebuli.cli.files import STDIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from topology import Schema

_ARROW_FILE = b"ARROW1"
"""The first bytes of an Arrow file, which a stream does not have."""
_BLOCK_BYTES = 1 << 22
"""The number of bytes of lines to read at once."""
BATCH_ROWS = 100_000
"""The rows of a batch. Batch ``n`` starts at row ``n`` times this in every run, so that ``n`` identifies it."""


@contextmanager
def rows_of(file: str, columns: Schema) -> Iterator[Iterator[pa.RecordBatch]]:
    """Read a file as batches of Z-sets, all but the last of `BATCH_ROWS`. Raises ClickException for an invalid file."""
    from nebuli.connectors.errors import InputError

    with tempfile.TemporaryDirectory(prefix="nebuli-") as directory:
        path = file
        if file == STDIN:  # the first rows are read twice, which takes a file
            path = str(Path(directory) / "stdin.csv")
            with Path(path).open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        try:
            yield _batches(path, columns)
        except InputError as error:
            # The reader's errors are worded for queries.
            said = str(error).replace("the logical source", "the collection")
            raise click.ClickException(said.replace(path, "<stdin>") if file == STDIN else said) from None


def row_count(file: str) -> int | None:
    """Return the number of rows of a file that has it in its metadata, as Parquet does."""
    import pyarrow as pa

    if Path(file).suffix.lower() != ".parquet":
        return None
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (OSError, pa.ArrowException):  # which the reader reports, with the reason
        return None


def _batches(path: str, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file of any format, in batches of the same size."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in _READERS.get(Path(path).suffix.lower(), _of_columns)(path, columns):
        while rows + batch.num_rows >= BATCH_ROWS:
            first = batch.slice(0, BATCH_ROWS - rows)
            yield pa.concat_batches([*waiting, first])
            batch = batch.slice(first.num_rows)  # noqa: PLW2901 - the rest of it
            waiting, rows = [], 0
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
    if waiting:
        yield pa.concat_batches(waiting)


def _of_columns(path: str, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Read CSV or Parquet, which name their columns once."""
    import pyarrow as pa

    from nebuli.connectors.endpoints import Signal
    from nebuli.connectors.sources.csv_source import CsvSource
    from nebuli.connectors.sources.parquet_source import ParquetSource
    from nebuli.dataflow.zset import WEIGHT
    from topology import Column, DataType
    from topology import CsvSource as CsvSettings
    from topology import ParquetSource as ParquetSettings

    def of(columns: Schema) -> CsvSource | ParquetSource:
        if Path(path).suffix.lower() == ".parquet":
            return ParquetSource(ParquetSettings(type="Parquet", logical="rows", path=path), columns, _never)
        return CsvSource(CsvSettings(type="CSV", logical="rows", path=path), columns, _never)

    source = of(columns)
    try:
        source.open()
        if has_weights := WEIGHT in source.columns_there:
            source.close("its weights are read, too")
            source = of((*columns, Column(name=WEIGHT, type=DataType.INT64)))
            source.open()
        while isinstance(batch := source.poll(), pa.RecordBatch):
            yield _weighted(batch, path) if has_weights else batch
        assert batch is Signal.END, "a file is complete when it is opened"
    finally:
        source.close("done")


def _of_json_lines(path: str, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Read an object per line; the default weight is 1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from nebuli.connectors.errors import InputError, RowInvalid, unreadable
    from nebuli.connectors.formats.json_objects import JsonRows, refuse_constant
    from nebuli.connectors.formats.message_bytes import MessageBytes
    from nebuli.dataflow.types import arrow_schema
    from nebuli.dataflow.zset import WEIGHT, weighted

    schema = weighted(arrow_schema(columns))
    objects = JsonRows(pa.schema([field.with_nullable(True) for field in schema]), refuse_constant)
    line = 1
    try:
        with Path(path).open("rb") as file:
            while some := file.readlines(_BLOCK_BYTES):
                if not some[-1].endswith(b"\n"):
                    some[-1] += b"\n"
                is_first = np.arange(len(some)) + line == 1
                try:
                    rows, _ = objects.read(MessageBytes.lines(b"".join(some)), is_first)
                except RowInvalid as error:
                    raise InputError(f"{path}, line {line + error.row}: {error}") from None
                weights = pc.fill_null(rows.column(WEIGHT), 1)
                yield pa.record_batch([*rows.columns[:-1], weights], schema=schema)
                line += len(some)
    except OSError as error:
        raise unreadable(path, error) from error


def _of_arrow(path: str, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Read an Arrow file or stream."""
    import pyarrow as pa

    from nebuli.connectors.errors import unreadable
    from nebuli.connectors.sources.arrow_columns import ArrowColumns
    from nebuli.dataflow.types import arrow_schema
    from nebuli.dataflow.zset import WEIGHT, as_read
    from topology import Column, DataType

    try:
        with pa.OSFile(path) as file:
            is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
            file.seek(0)
            reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
            has_weights = WEIGHT in reader.schema.names
            if has_weights:
                columns = (*columns, Column(name=WEIGHT, type=DataType.INT64))
            wanted = ArrowColumns(arrow_schema(columns), path, "file")
            wanted.check(reader.schema)
            for number in range(reader.num_record_batches if is_file else sys.maxsize):
                try:
                    batch = reader.get_batch(number) if is_file else reader.read_next_batch()
                except StopIteration:
                    break
                batch.validate(full=True)
                rows = as_read(wanted.of(batch))
                yield _weighted(rows, path) if has_weights else rows
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error) from error


_READERS = {".jsonl": _of_json_lines, ".arrow": _of_arrow}


def _weighted(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """Return a batch with the file's weights as a Z-set. Raises InputError for a row without a weight."""
    from nebuli.connectors.errors import InputError
    from nebuli.dataflow.zset import WEIGHT

    weights = batch.column(batch.num_columns - 1)
    if weights.null_count:
        raise InputError(
            f"{path}: column {WEIGHT} has nulls, {weights.null_count} in {batch.num_rows} rows: "
            f"give each row a whole number"
        )
    return batch


def _never() -> None:
    """Do nothing: files never wake a reader."""
