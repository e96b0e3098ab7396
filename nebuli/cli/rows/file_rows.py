"""Rows of a file that a command was given, CSV or Parquet, in batches of so many."""

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

BATCH_ROWS = 100_000
"""Batch ``n`` has as many rows, from row ``n`` times this on, whatever reads the file: it is known again by ``n``."""


@contextmanager
def rows_of(file: str, columns: Schema) -> Iterator[Iterator[pa.RecordBatch]]:
    """Batches of Z-sets, all but the last of `BATCH_ROWS`. Raises ClickException for what is no such file."""
    from nebuli.connectors.errors import InputError

    with tempfile.TemporaryDirectory(prefix="nebuli-") as directory:
        path = file
        if file == STDIN:  # what is read has to be a file: its first rows are read twice
            path = str(Path(directory) / "stdin.csv")
            with Path(path).open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        try:
            yield _batches(path, columns)
        except InputError as error:
            # It is said of queries, whose rows have a logical source.
            said = str(error).replace("the logical source", "the collection")
            raise click.ClickException(said.replace(path, "<stdin>") if file == STDIN else said) from None


def _batches(path: str, columns: Schema) -> Iterator[pa.RecordBatch]:
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
    waiting: list[pa.RecordBatch] = []
    rows = 0
    try:
        source.open()
        if has_weights := WEIGHT in source.columns_there:
            source.close("its weights are read, too")
            source = of((*columns, Column(name=WEIGHT, type=DataType.INT64)))
            source.open()
        while isinstance(batch := source.poll(), pa.RecordBatch):
            if has_weights:
                batch = _weighted(batch, path)
            while rows + batch.num_rows >= BATCH_ROWS:
                first = batch.slice(0, BATCH_ROWS - rows)
                yield pa.concat_batches([*waiting, first])
                batch = batch.slice(first.num_rows)
                waiting, rows = [], 0
            if batch.num_rows:
                waiting.append(batch)
                rows += batch.num_rows
        assert batch is Signal.END, "a file has all that it has at once"
        if waiting:
            yield pa.concat_batches(waiting)
    finally:
        source.close("done")


def _weighted(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """The Z-set whose weights the file has. Raises InputError for a row without one."""
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
    """Files wake nobody."""
