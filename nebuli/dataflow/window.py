"""Windows over event time: which rows are in which, and when one is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.operators import Stateless
from nebuli.dataflow.progress import LEAST, instants, instants_of
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import weighted
from placement.durations import microseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from placement.plan import Closing, WindowOperator
    from topology.schema import Schema

    Instants = NDArray[np.int64]

_FARTHEST = 1 << 62
"""Times beyond this, 146 000 years from 1970, leave no room to compute with."""
_WINDOW_BITS = np.uint64(28)
_HASH_BITS = np.uint64(64) - _WINDOW_BITS


class Window(Stateless):
    """Gives each row once for every window that its time falls into, with the window's start and end.

    A row whose window is over is late, and one without a time is in no window. Both are dropped, counted separately,
    and kept for ``take_late`` on request.
    """

    def __init__(self, settings: WindowOperator, output: Schema) -> None:
        self._time = settings.time
        self.size_us = microseconds(settings.size)
        self._slide = microseconds(settings.slide or settings.size)
        self._schema = weighted(arrow_schema(output))
        self._watermark = LEAST
        self._keeps_late = settings.late is not None
        self._late: list[pa.RecordBatch] = []
        self.late_rows = 0
        self.rows_without_time = 0

    def push(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the rows of a batch that are in time, a batch for each of the windows that a row can be in."""
        column = instants(batch.column(self._time))
        has_time = column.is_valid().to_numpy(zero_copy_only=False)
        times = column.fill_null(0).to_numpy()
        self._check(times)
        if not has_time.all():
            self.rows_without_time += len(times) - int(has_time.sum())
            self._keep(self._with_windows(batch, ~has_time, None))
        last_starts = times // self._slide * self._slide
        for back in range(-(-self.size_us // self._slide)):
            starts = last_starts - back * self._slide
            inside = has_time & (starts + self.size_us > times)
            over = starts + self.size_us <= self._watermark
            if (late := inside & over).any():
                self.late_rows += int(late.sum())
                self._keep(self._with_windows(batch, late, starts))
            yield self._with_windows(batch, inside & ~over, starts)

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Have what belongs to windows that end no later be late from now on."""
        self._watermark = watermark
        return iter(())

    @property
    def memory(self) -> dict[str, int | None]:
        """Where event time is, how many rows were late, and how many had no time."""
        return {
            "watermark": self._watermark,
            "late_rows": self.late_rows,
            "rows_without_time": self.rows_without_time,
        }

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Have it be as it was."""
        self._watermark = memory["watermark"] or 0
        self.late_rows = memory["late_rows"] or 0
        self.rows_without_time = memory.get("rows_without_time") or 0  # once counted among the late ones

    def take_late(self) -> list[pa.RecordBatch]:
        """Return the rows dropped since the last call."""
        late, self._late = self._late, []
        return late

    def _keep(self, rows: pa.RecordBatch) -> None:
        if self._keeps_late:
            self._late.append(rows)

    def _with_windows(
        self, batch: pa.RecordBatch, which: NDArray[np.bool_], starts: Instants | None
    ) -> pa.RecordBatch:
        """The rows ``which``, each in the window that begins at its start; None: in no window."""
        rows = batch if which.all() else batch.filter(pa.array(which))
        instant = self._schema.field(self._schema.get_field_index("window_start")).type
        if starts is None:
            bounds = [pa.nulls(rows.num_rows, instant)] * 2
        else:
            begins = starts[which]
            bounds = [pa.array(each).cast(instant) for each in (begins, begins + self.size_us)]
        return pa.record_batch([*rows.columns[:-1], *bounds, rows.columns[-1]], schema=self._schema)

    def _check(self, times: Instants) -> None:
        if len(times) and not -_FARTHEST < times.min() <= times.max() < _FARTHEST:
            raise DataflowError(f"a time in column {self._time!r} is more than 146,000 years from 1970")


class Windows:
    """The windows of an operator that is done with each one when the watermark has passed its end.

    Rows that come for one that is over are dropped and counted.
    """

    def __init__(self, settings: Closing) -> None:
        self.column = settings.column
        self._to_end = settings.to_end_us
        self._slide = settings.slide_us
        self._watermark = LEAST
        self._an_end: int | None = None
        self._passed: int | None = None
        self.late_rows = 0

    def in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of windows that are not over."""
        ends = instants_of(batch.column(self.column)) + self._to_end
        open_ = ends > self._watermark
        if not open_.all():
            self.late_rows += int((~open_).sum())
            batch, ends = batch.filter(pa.array(open_)), ends[open_]
        if self._an_end is None and len(ends):
            self._an_end = int(ends[0])
        return batch

    def hashes(self, batch: pa.RecordBatch, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The hashes of the rows' keys with the window in front, so that runs are sorted by window.

        Rows of finished windows then lie at an end of each run. Only the lowest bits of the window's number are used:
        that only decides where rows lie, and not which are equal or over.
        """
        windows = (instants_of(batch.column(self.column)) // self._slide).astype(np.uint64)
        return (windows << _HASH_BITS) | (hashes >> _WINDOW_BITS)

    @property
    def memory(self) -> dict[str, int | None]:
        """Where event time is, where windows end, which have, and how many rows were late."""
        return {
            "watermark": self._watermark,
            "an_end": self._an_end,
            "passed": self._passed,
            "late_rows": self.late_rows,
        }

    def recall(self, memory: Mapping[str, int | None]) -> None:
        """Have it be as it was."""
        self._watermark = memory["watermark"] or 0
        self._an_end, self._passed = memory["an_end"], memory["passed"]
        self.late_rows = memory["late_rows"] or 0

    def advance(self, watermark: int) -> int | None:
        """The greatest value of ``column`` that is over now; None if no window has ended since the last time."""
        self._watermark = watermark
        if self._an_end is None:
            return None
        passed = (watermark - self._an_end) // self._slide
        if passed == self._passed:
            return None
        self._passed = passed
        return watermark - self._to_end
