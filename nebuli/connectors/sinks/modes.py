"""The three modes of a sink, over any output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.errors import RowsUnfit
from nebuli.connectors.sinks.result import Result
from nebuli.dataflow import zset

if TYPE_CHECKING:
    from nebuli.connectors.endpoints import Output
    from nebuli.dataflow import Progress

__all__ = ["AppendSink", "ChangesSink", "FinalSink"]


class FinalSink:
    """Writes the result, once, at the clean end.

    ``only_grows``: no row is retracted. A large result goes to an output that is aside at once then.
    """

    def __init__(self, output: Output, *, only_grows: bool = False) -> None:
        self._output = output
        self._result = Result(output.directory)
        self._may_write = only_grows and output.is_aside
        self._writes = False
        self._written = 0

    def open(self, schema: pa.Schema) -> None:
        """Begin aside, so that a path that cannot be written is known before the work is done."""
        self._output.open(_of_rows(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Add a change to the result."""
        if self._writes:
            self._put(
                _rows_to_stay(change, "the plan of its query has no operator that retracts rows: report this")
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
        rows = _rows_to_stay(change, "a sink in mode append cannot retract one: use final or changes")
        self._output.write(rows)
        return int(rows.num_rows)


def _rows_to_stay(change: pa.RecordBatch, why: str) -> pa.RecordBatch:
    if (zset.weights_of(change) < 0).any():
        raise RowsUnfit(f"a row was retracted, and {why}")
    return zset.expand(change)


def _of_rows(zsets: pa.Schema) -> pa.Schema:
    return pa.schema(list(zsets)[:-1])
