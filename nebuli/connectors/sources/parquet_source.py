"""Parquet files, read batch by batch with the types of the logical source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import InputError, unreadable
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from topology import ParquetSource as Settings
    from topology import Schema

__all__ = ["ParquetSource"]

_BATCH_ROWS = 16_384


class ParquetSource(Source):
    """One Parquet file. Columns are found by name, others are not read; memory is that of a row group.

    A column may be narrower than the logical source says (int32 for int64), or another form of the same (a
    dictionary of strings, a timestamp in another unit); anything else is an error, as is a value that does
    not fit.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._path = settings.path
        self._schema = arrow_schema(columns)
        self._file: pa.parquet.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def open(self) -> None:
        """Check the file's schema, and start reading."""
        try:
            self.total_bytes = Path(self._path).stat().st_size
            self._file = pa.parquet.ParquetFile(self._path, pre_buffer=False)
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(self._path, error) from error
        self._check(self._file.schema_arrow)
        self._batches = self._file.iter_batches(_BATCH_ROWS, columns=self._schema.names, use_threads=False)

    def poll(self) -> pa.RecordBatch | Signal:
        """The next batch of rows, each with weight 1."""
        try:
            batch = next(self._batches, None)
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(self._path, error) from error
        return Signal.END if batch is None else zset.insertions(self._cast(batch))

    def close(self, reason: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _check(self, found: pa.Schema) -> None:
        missing = [name for name in self._schema.names if name not in found.names]
        if missing:
            raise InputError(
                f"{self._path}: no column {', '.join(missing)}, which the logical source has; "
                f"the file's columns are {', '.join(found.names)}"
            )
        doubled = [name for name in self._schema.names if found.names.count(name) > 1]
        if doubled:
            raise InputError(f"{self._path}: more than one column {', '.join(doubled)}")
        for wanted in self._schema:
            type_ = found.field(wanted.name).type
            if not _holds(wanted.type, type_):
                raise InputError(
                    f"{self._path}: column {wanted.name} is {type_}, and {wanted.type} in the logical source"
                )

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            try:
                columns.append(batch.column(field.name).cast(field.type))
            except pa.ArrowInvalid as error:
                raise InputError(f"{self._path}: column {field.name}: {error}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _holds(wanted: pa.DataType, found: pa.DataType) -> bool:
    """Whether a column of ``found`` can be read as ``wanted`` without changing a value."""
    types = pa.types
    if types.is_dictionary(found):
        return _holds(wanted, found.value_type)
    for kind in (types.is_signed_integer, types.is_unsigned_integer, types.is_floating):
        if kind(wanted) and kind(found):
            return bool(found.bit_width <= wanted.bit_width)
    if types.is_string(wanted):
        return any(kind(found) for kind in (types.is_string, types.is_large_string, types.is_string_view))
    if types.is_binary(wanted):
        return any(kind(found) for kind in (types.is_binary, types.is_large_binary, types.is_binary_view))
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(found))
    return bool(wanted == found)
