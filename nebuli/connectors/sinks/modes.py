"""The three modes of a sink, over any output; the final one has the result, a Z-set in memory or on disk."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.connectors.errors import RowsUnfit, unwritable
from nebuli.dataflow import zset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nebuli.connectors.endpoints import Output
    from nebuli.dataflow import Progress


_MERGE_BYTES = 4 << 20
"""Bytes below which changes wait for each other before they are merged."""
_MEMORY_BYTES = 16 << 20
"""Bytes above which a result that only ever grew goes to disk."""
_SORTED_BYTES = 1 << 20
"""Bytes above which a result that cannot shrink is written as it comes: sorting takes longer than many a query."""


class Result:
    """The sum of all changes so far.

    A result that retracts rows (an aggregate does) is held in memory, consolidated: its size is that of the
    answer, however many changes made it. One that only grows (a filter's) moves to a temporary file when it
    is large, so that memory does not grow with it; the first retracted row brings it back to memory.

    ``merges``: changes are merged as they come, not only if the result stays small.
    """

    def __init__(self, directory: Path | None, *, merges: bool = True) -> None:
        self._directory = directory
        self._merges = merges
        self._merged: pa.RecordBatch | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._only_grows = True
        self._spill: _Spill | None = None

    def add(self, change: pa.RecordBatch) -> None:
        """Add a Z-set; ``OutputError`` if there is no room for it."""
        if self._only_grows and _takes_back(change):
            self._only_grows = False
            self._restore()
        if self._spill is not None:
            self._spill.write(change)
            return
        self._waiting.append(change)
        self._waiting_bytes += change.nbytes
        merged_bytes = 0 if self._merged is None else self._merged.nbytes
        if self._merges and self._waiting_bytes > max(_MERGE_BYTES, merged_bytes):
            self._merge()

    @property
    def is_large(self) -> bool:
        """It has more bytes than are held in memory where it only grew, or than are sorted where it is not merged."""
        held = 0 if self._merged is None else self._merged.nbytes
        most = _MEMORY_BYTES if self._merges else _SORTED_BYTES
        return self._spill is not None or self._waiting_bytes + held > most

    def rows(self) -> Iterator[pa.RecordBatch]:
        """All rows, without weights; sorted by all columns, unless they are many that only grew: then as they came.

        ``DataflowError`` if a row was retracted more often than it was added.
        """
        if self._only_grows and not self._merges and self.is_large:
            yield from map(zset.expand, self._waiting)
            return
        if self._spill is None:
            self._merge()
        if self._spill is not None:
            yield from map(zset.expand, self._spill.read())
        elif self._merged is not None:
            order = [(name, "ascending") for name in self._merged.schema.names[:-1]]
            yield zset.expand(self._merged.take(pc.sort_indices(self._merged, sort_keys=order)))

    def close(self) -> None:
        """Remove the temporary file, if there is one."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _merge(self) -> None:
        if not self._waiting:
            return
        parts = self._waiting if self._merged is None else [self._merged, *self._waiting]
        self._merged = zset.consolidate(parts)
        self._waiting, self._waiting_bytes = [], 0
        if self._only_grows and self._merged.nbytes > _MEMORY_BYTES:
            self._spill = _Spill(self._merged.schema, self._directory)
            self._spill.write(self._merged)
            self._merged = None

    def _restore(self) -> None:
        if self._spill is not None:
            self._waiting = list(self._spill.read())
            self._waiting_bytes = sum(change.nbytes for change in self._waiting)
            self.close()


class _Spill:
    """A temporary file of batches, gone with the process however that ends."""

    def __init__(self, schema: pa.Schema, directory: Path | None) -> None:
        self._where = (
            "a temporary file" if directory is None else f"a temporary file in {directory.absolute()}"
        )
        with self._errors():
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - lives as long as this object
            self._writer = pa.ipc.new_stream(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        with self._errors():
            self._writer.write_batch(batch)

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches in order; nothing can be written afterwards."""
        with self._errors():
            self._writer.close()
            self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def close(self) -> None:
        with suppress(OSError):  # what a full disk did not take is not wanted any more
            self._file.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self._where, error) from error


def _takes_back(change: pa.RecordBatch) -> bool:
    return bool(zset.weights_of(change).min(initial=0) < 0)


class FinalSink:
    """Writes the result, once, at the clean end.

    ``only_grows``: no row is retracted. A large result goes to an output that is aside at once then.
    """

    def __init__(self, output: Output, *, only_grows: bool = False) -> None:
        self._output = output
        self._may_write = only_grows and output.is_aside
        self._result = Result(output.directory, merges=not self._may_write)
        self._writes = False
        self._written = 0

    def open(self, schema: pa.Schema) -> None:
        """Begin aside, so that a path that cannot be written is known before the work is done."""
        self._output.open(_of_rows(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Add a change to the result."""
        if self._writes:
            self._put(
                _rows_to_stay(
                    change, "the plan of its query has no operator that retracts rows: report this as a bug"
                )
            )
            return 0
        self._result.add(change)
        if self._may_write and self._result.is_large:
            self._writes = True
            self._put_all()
        return 0

    def advance(self, progress: Progress) -> None:
        """The result is written at the end, regardless of the time."""

    def finish(self) -> int:
        """Write all rows that are not written, then publish them."""
        if not self._writes:
            self._put_all()
        self._output.publish()
        return self._written

    def _put_all(self) -> None:
        for rows in self._result.rows():
            self._put(rows)
        self._result.close()

    def _put(self, rows: pa.RecordBatch) -> None:
        self._output.write(rows)
        self._written += rows.num_rows

    def abort(self, reason: str) -> None:
        """Publish nothing."""
        self._result.close()
        self._output.discard()

    def interrupt(self) -> None:
        """End a write that waits; called from another thread."""
        self._output.interrupt()


class ChangesSink:
    """Writes every change as it comes, with its weight."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def open(self, schema: pa.Schema) -> None:
        """Begin."""
        self._output.open(schema)

    def write(self, change: pa.RecordBatch) -> int:
        """Write the rows and their weights."""
        self._output.write(change)
        return int(change.num_rows)

    def advance(self, progress: Progress) -> None:
        """Do nothing: rows have their own times."""

    def finish(self) -> int:
        """Make what is written durable."""
        self._output.publish()
        return 0

    def abort(self, reason: str) -> None:
        """Leave it as it is; the fragment's state shows that it is incomplete."""
        self._output.discard()

    def interrupt(self) -> None:
        """End a write that waits; called from another thread."""
        self._output.interrupt()


class AppendSink(ChangesSink):
    """Writes rows as they come; none of them may be retracted."""

    def open(self, schema: pa.Schema) -> None:
        """Begin."""
        self._output.open(_of_rows(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Write the rows."""
        rows = _rows_to_stay(change, "a sink in mode append cannot retract rows: use final or changes")
        self._output.write(rows)
        return int(rows.num_rows)


def _rows_to_stay(change: pa.RecordBatch, why: str) -> pa.RecordBatch:
    if _takes_back(change):
        raise RowsUnfit(f"a row was retracted, and {why}")
    return zset.expand(change)


def _of_rows(zsets: pa.Schema) -> pa.Schema:
    return pa.schema(list(zsets)[:-1])
