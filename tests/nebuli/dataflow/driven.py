"""A circuit whose changes are taken as soon as it is told something."""

from __future__ import annotations

import pyarrow as pa

from nebuli.dataflow import OperatorGraph, Progress


class Driven(OperatorGraph):
    """Gives all changes at once, in lists."""

    def push(self, source: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return list(super().push(source, batch))

    def advance(self, source: str, progress: Progress) -> list[pa.RecordBatch]:
        return list(super().advance(source, progress))

    def idle(self, source: str) -> list[pa.RecordBatch]:
        return list(super().idle(source))

    def end(self, source: str) -> list[pa.RecordBatch]:
        return list(super().end(source))
