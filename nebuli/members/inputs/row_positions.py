"""The number of rows as a position, for sources that give the same rows each time that they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.endpoints import Signal, Skipping, Source

if TYPE_CHECKING:
    from nebuli.dataflow import Progress


class RowPositions(Source):
    """``source``, with places in it that are rows; what it cannot skip it reads and drops."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._given = 0
        self._behind = 0

    def seek(self, position: str) -> None:
        """Begin behind so many rows."""
        self._given = self._behind = int(position or 0)

    @property
    def position(self) -> str:
        """How many rows were given, or are before them."""
        return str(self._given)

    def release(self, position: str) -> None:
        """A file stays as it is."""

    def open(self) -> None:
        """Open it, behind what nobody wants."""
        self._source.open()
        if self._behind and isinstance(self._source, Skipping):
            self._source.skip(self._behind)
            self._behind = 0

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """The next rows."""
        while True:
            batch = self._source.poll()
            if not isinstance(batch, pa.RecordBatch):
                return batch
            known = min(self._behind, batch.num_rows)
            self._behind -= known
            if known < batch.num_rows:
                self._given += batch.num_rows - known
                return batch.slice(known)

    def close(self, reason: str) -> None:
        """Close it."""
        self._source.close(reason)

    def interrupt(self) -> None:
        """Have it wait no more."""
        self._source.interrupt()
