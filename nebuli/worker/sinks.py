"""The three modes of a sink, over any output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow import zset
from nebuli.worker.errors import OutputError
from nebuli.worker.result import Result

if TYPE_CHECKING:
    import pyarrow as pa

    from nebuli.worker.outputs import Output

__all__ = ["AppendSink", "ChangesSink", "FinalSink"]


class FinalSink:
    """Writes the result, once, at the clean end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._result = Result(output.directory)

    def open(self, schema: pa.Schema) -> None:
        """Begin aside, so that a path that cannot be written is known before the work is done."""
        self._output.open(schema)

    def write(self, change: pa.RecordBatch) -> None:
        """Add a change to the result."""
        self._result.add(change)

    def finish(self) -> None:
        """Write all rows, then publish them."""
        for rows in self._result.rows():
            self._output.write(rows)
        self._output.publish()
        self._result.close()

    def abort(self, reason: str) -> None:
        """Publish nothing."""
        self._result.close()
        self._output.discard()

    def interrupt(self) -> None:
        """Writing to a file does not wait for anybody."""


class ChangesSink:
    """Writes every change as it comes, with its weight."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def open(self, schema: pa.Schema) -> None:
        """Begin, with one column more."""
        self._output.open(zset.weighted(schema))

    def write(self, change: pa.RecordBatch) -> None:
        """Write the rows and their weights."""
        self._output.write(change)

    def finish(self) -> None:
        """Make what is written durable."""
        self._output.publish()

    def abort(self, reason: str) -> None:
        """Leave it as it is; that it is not whole, the fragment's state says."""
        self._output.discard()

    def interrupt(self) -> None:
        """Writing to a file does not wait for anybody."""


class AppendSink(ChangesSink):
    """Writes rows as they come; none of them may be taken back."""

    def open(self, schema: pa.Schema) -> None:
        """Begin."""
        self._output.open(schema)

    def write(self, change: pa.RecordBatch) -> None:
        """Write the rows."""
        if (zset.weights_of(change) < 0).any():
            raise OutputError(
                "a row was taken back, which a sink in mode append cannot do: use final or changes"
            )
        self._output.write(zset.expand(change))
