"""The printed form of a collection's changes in `nebuli collection follow`: CSV, JSON Lines, or an Arrow stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from nebuli.cli.rows.printed_rows import as_csv, as_json_line, echo_data
from nebuli.dataflow.zset import WEIGHT
from nebuli.python_values import values_of

if TYPE_CHECKING:
    from nebuli.store.shards.shard import Span

_TIME = "_time"


class Changes(Protocol):
    """An output format of changes."""

    def begin(self) -> None:
        """Print the beginning of the output, such as a header."""

    def print(self, span: Span) -> None:
        """Print the changes of a span."""

    def end(self) -> None:
        """Print the end of the output."""


def changes_as(form: str, schema: pa.Schema) -> Changes:
    """Return the printer of a collection's changes in a format: ``csv``, ``json`` or ``arrow``."""
    return _Arrow(schema) if form == "arrow" else _Lines(schema, is_json=form == "json")


class _Lines:
    def __init__(self, schema: pa.Schema, *, is_json: bool) -> None:
        self._names = [_TIME, *schema.names, WEIGHT]
        self._is_json = is_json

    def begin(self) -> None:
        if not self._is_json:
            echo_data(as_csv([self._names]))

    def print(self, span: Span) -> None:
        lines: list[tuple[Any, ...]] = [
            (time, *line)
            for time, rows in span.updates
            for line in zip(*map(values_of, rows.columns), strict=True)
        ]
        if self._is_json:
            echo_data("".join(f"{as_json_line(self._names, line)}\n" for line in lines))
        else:
            echo_data(as_csv(lines))

    def end(self) -> None:
        pass


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = pa.schema(
            [
                pa.field(_TIME, pa.uint64(), nullable=False),
                *schema,
                pa.field(WEIGHT, pa.int64(), nullable=False),
            ]
        )
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def begin(self) -> None:
        self._writer = pa.ipc.new_stream(sys.stdout.buffer, self._schema)
        sys.stdout.buffer.flush()

    def print(self, span: Span) -> None:
        if self._writer is None:
            self.begin()
        assert self._writer is not None
        for time, rows in span.updates:
            times = pa.repeat(pa.scalar(time, pa.uint64()), rows.num_rows)
            self._writer.write_batch(pa.record_batch([times, *rows.columns], schema=self._schema))
        sys.stdout.buffer.flush()

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            sys.stdout.buffer.flush()
