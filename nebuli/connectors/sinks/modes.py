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
    """Writes the result, once, at the clean end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._result = Result(output.directory)

    def open(self, schema: pa.Schema) -> None:
        """Begin aside, so that a path that cannot be written is known before the work is done."""
        self._output.open(_of_rows(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Add a change to the result."""
        self._result.add(change)
        return 0

    def advance(self, progress: Progress) -> None:
        """The result is written at the end, whatever the time."""

    def finish(self) -> int:
        """Write all rows, then publish them."""
        written = 0
        for rows in self._result.rows():
            self._output.write(rows)
            written += rows.num_rows
        self._output.publish()
        self._result.close()
        return written

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
        """Rows say themselves when they were."""

    def finish(self) -> int:
        """Make what is written durable."""
        self._output.publish()
        return 0

    def abort(self, reason: str) -> None:
        """Leave it as it is; that it is not whole, the fragment's state says."""
        self._output.discard()

    def interrupt(self) -> None:
        """End a write that waits; called from another thread."""
        self._output.interrupt()


class AppendSink(ChangesSink):
    """Writes rows as they come; none of them may be taken back."""

    def open(self, schema: pa.Schema) -> None:
        """Begin."""
        self._output.open(_of_rows(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Write the rows."""
        if (zset.weights_of(change) < 0).any():
            raise RowsUnfit(
                "a row was taken back, which a sink in mode append cannot do: use final or changes"
            )
        rows = zset.expand(change)
        self._output.write(rows)
        return int(rows.num_rows)


def _of_rows(zsets: pa.Schema) -> pa.Schema:
    return pa.schema(list(zsets)[:-1])
