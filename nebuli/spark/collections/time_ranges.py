"""Reading a collection in driver and tasks: its contents at a time, and what has changed in a range of times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.spark.collections.collection_links import opened
from nebuli.spark.collections.errors import RowTakenBack
from nebuli.spark.row_schemas import WEIGHT
from spark_bridge.batch_sizes import joined
from spark_bridge.schemas import Normaliser
from spark_bridge.tasks.task import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.spark.collections.collection_options import ReadOptions

TIME = "_time"
"""The column with the time of a row's change, in milliseconds since 1970."""
_ROWS = 1 << 16
"""Rows of a batch that is handed to Spark, if there are as many."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents at a time: one part of so many, given by its number."""

    at: int
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes after the time ``first``, up to ``last``."""

    first: int
    last: int

    def cut(self, parts: int) -> list[Changes]:
        """The same in so many parts, if there are as many times."""
        size = self.last - self.first
        count = min(size, parts)
        bounds = [self.first + size * number // count for number in range(count + 1)] if count > 0 else []
        return [Changes(a, b) for a, b in pairwise(bounds)]


def contents_at(options: ReadOptions, at: int) -> list[Contents]:
    """All parts of the contents at a time."""
    with opened(options.place) as collections:
        parts = collections.parts(options.place.collection, at)
    return [Contents(at, number, parts) for number in range(parts)]


@dataclass(frozen=True, slots=True)
class TimeReader:
    """Reads into batches of ``schema``; travels to the tasks. ``whole``: see `RangeReader`."""

    options: ReadOptions
    schema: pa.Schema
    whole: bool = False

    def __call__(self, part: Contents | Changes) -> Iterator[pa.RecordBatch]:
        """The rows, the same whenever they are read. Raises TimesForgotten, RowTakenBack, CollectionStreamError."""
        zsets = self._contents(part) if isinstance(part, Contents) else self._changes(part)
        normalise = Normaliser(self.schema, whole=self.whole)
        yield from joined((normalise(self._as_read(at, zset)) for at, zset in zsets), _ROWS)
        settle()

    def _contents(self, part: Contents) -> Iterator[tuple[int, pa.RecordBatch]]:
        place = self.options.place
        with opened(place) as collections:
            contents = collections.snapshot(
                place.collection,
                part.at,
                weighted=True,
                deadline_s=place.timeout_s,
                part=(part.number, part.of),
            )
        for batch in contents.to_batches(max_chunksize=_ROWS):
            yield part.at, batch

    def _changes(self, part: Changes) -> Iterator[tuple[int, pa.RecordBatch]]:
        place = self.options.place
        with opened(place) as collections:
            spans = collections.subscribe(place.collection, part.first)
            try:
                for span in spans:
                    for at, rows in span.updates:
                        if at <= part.last and rows.num_rows:
                            yield at, rows
                    if span.upper > part.last:
                        return
            finally:
                spans.close()

    def _as_read(self, at: int, zset: pa.RecordBatch) -> pa.RecordBatch:
        if self.options.changes:
            return zset.append_column(TIME, pa.array(np.full(zset.num_rows, at, dtype=np.int64)))
        # With the engine, which takes each of Spark's processes longer to import than all the rest.
        from nebuli.dataflow.zset import consolidate, weights_of, without_weight

        net = consolidate(zset)
        weights = weights_of(net)
        if (weights < 0).any():
            row = without_weight(net).slice(int(np.argmax(weights < 0)), 1).to_pylist()[0]
            raise RowTakenBack(
                f"{self.options.place} retracts {row} at {at}, but plain rows cannot show a retraction: read "
                f"with changes=true, to get {WEIGHT} and {TIME}"
            )
        return without_weight(net).take(pa.array(np.repeat(np.arange(net.num_rows), weights)))
