"""Rows that are made up: for trying things out, and for measuring."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.connectors.endpoints import Signal, Source
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from topology import GeneratorSource as Settings
    from topology import Schema

__all__ = ["GeneratorSource"]

_BATCH_ROWS = 16_384
_TURN_S = 0.01
"""Seconds for which rows are gathered, with a rate. Each batch costs the same; at any rate some row is due soon."""
_START_US = 1_704_067_200_000_000  # 2024-01-01
_SECOND_US = 1_000_000
_DISTINCT = 1000
"""Drawn numbers, dates and texts are among so many."""


class GeneratorSource(Source):
    """Gives the same rows for the same seed, as fast as they are taken, or at a rate. To be made on the loop."""

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._schema = arrow_schema(columns)
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._given = self._skipped = 0
        self._began = self._turn = 0.0

    def open(self) -> None:
        """Rows are due from now on."""
        self._began = time.monotonic()

    def skip(self, rows: int) -> None:
        """Begin after so many rows."""
        self._given = self._skipped = rows

    def poll(self) -> pa.RecordBatch | Signal:
        """The rows that are due, each with weight 1."""
        left = _BATCH_ROWS
        if self._settings.count is not None:
            left = min(left, self._settings.count - self._given)
            if left == 0:
                return Signal.END
        now = time.monotonic()
        rows = min(left, self._due(now))
        if rows == 0 or (rows < left and now < self._turn):
            self._wake_later()
            return Signal.LATER
        self._turn = now + _TURN_S
        batch = self._rows(self._given, rows)
        self._given += rows
        return zset.insertions(batch)

    def close(self, reason: str) -> None:
        """There is nothing to let go of."""

    def _due(self, now: float) -> int:
        rate = self._settings.rows_per_s
        if rate is None:
            return _BATCH_ROWS
        return int((now - self._began) * rate) + self._skipped - self._given

    def _wake_later(self) -> None:
        rate = self._settings.rows_per_s or 1.0
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.call_later, max(_TURN_S, 1 / rate), self._wake)

    def _rows(self, first: int, count: int) -> pa.RecordBatch:
        # Drawn by blocks of their own, so that rows do not depend on how many were due at a time.
        blocks = [
            self._block(block).slice(max(first, block * _BATCH_ROWS) - block * _BATCH_ROWS, _BATCH_ROWS)
            for block in range(first // _BATCH_ROWS, (first + count - 1) // _BATCH_ROWS + 1)
        ]
        whole: pa.RecordBatch = pa.Table.from_batches(blocks).combine_chunks().to_batches()[0]
        return whole.slice(0, count)

    def _block(self, block: int) -> pa.RecordBatch:
        rng = np.random.default_rng((self._settings.seed, block))
        numbers = np.arange(block * _BATCH_ROWS, (block + 1) * _BATCH_ROWS)
        counting = timing = True
        columns = []
        for field in self._schema:
            kind = field.type
            if pa.types.is_integer(kind) and counting and kind.bit_width == 64:
                counting, column = False, pa.array(numbers, kind)
            elif pa.types.is_timestamp(kind) and timing:
                timing, column = False, pa.array(_START_US + numbers * _SECOND_US).cast(kind)
            else:
                column = _drawn(rng, kind)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _drawn(rng: np.random.Generator, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pa.array(rng.random(_BATCH_ROWS)).cast(kind)
    most = min(_DISTINCT, 100) if pa.types.is_integer(kind) and kind.bit_width == 8 else _DISTINCT
    drawn = pa.array(rng.integers(0, most, _BATCH_ROWS))
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(_BATCH_ROWS) < 0.5)
    if pa.types.is_integer(kind):
        return drawn.cast(kind)
    if pa.types.is_date(kind):
        return drawn.cast(pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(_START_US + drawn.to_numpy() * _SECOND_US).cast(kind)
    return drawn.cast(pa.string()).cast(kind)
