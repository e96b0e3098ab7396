"""A file of an exact fragment: its rows are counted, and those that a predecessor has done are passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.connectors.endpoints import Signal, Skipping, Source
from nebuli.connectors.positions import END
from nebuli.dataflow import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from nebuli.connectors.positions import Lineage

__all__ = ["CountedSource"]


class CountedSource(Source):
    """Gives what ``source`` gives from the row ``lineage.start`` on; rows must be the same each time they are read."""

    def __init__(self, source: Source, lineage: Lineage, wake: Callable[[], None]) -> None:
        self._source = source
        self._lineage = lineage
        self._wake = wake
        self._given = 0
        self._placed = False

    def open(self) -> None:
        """Open the file."""
        self._source.open()

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """The next rows that are not done."""
        lineage = self._lineage
        lineage.advance()
        if lineage.start == END:
            return Signal.END
        if not self._placed:
            self._placed = True
            if lineage.start and isinstance(self._source, Skipping):
                self._source.skip(lineage.start)
                self._given = lineage.start
        batch = self._source.poll()
        if isinstance(batch, Signal | Progress):
            return batch
        first, self._given = self._given, self._given + batch.num_rows
        if self._given <= lineage.start:
            self._wake()  # the fragment looks whether it is to stop, and comes again
            return Signal.LATER
        lineage.position = self._given
        return batch.slice(max(0, lineage.start - first))

    def close(self, reason: str) -> None:
        """Close the file."""
        self._source.close(reason)

    def interrupt(self) -> None:
        """The file may be one that waits."""
        self._source.interrupt()
