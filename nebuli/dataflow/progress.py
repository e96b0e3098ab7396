"""How far event time has come in a stream: watermarks, and idle streams.

A watermark is an instant in microseconds: what follows it in its stream is not earlier, or late. It never goes back.
"""

from __future__ import annotations

import datetime
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.errors import DataflowError
from placement.durations import microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from placement.plan import WatermarkOrigin

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Progress:
    """A stream's watermark, and true flags if it is idle (its continuation is not known) or has ended."""

    watermark: int
    idle: bool = False
    ended: bool = False


BEGINNING = Progress(LEAST)
"""Nothing is known: anything may follow."""
END = Progress(GREATEST, ended=True)
"""Nothing follows."""


def combined(before: Progress, inputs: Sequence[Progress]) -> Progress:
    """The progress of what is made of several inputs, which was ``before``.

    The least watermark counts, without inputs that are idle and those that have ended. Where none is left to wait for
    it is the greatest that any of them came to, so that their order does not matter; and no later, though some have
    ended: an idle input may come back, and is not to find everything closed.
    """
    if all(each.ended for each in inputs):
        return END
    awaited = [each.watermark for each in inputs if not each.idle and not each.ended]
    if not awaited:
        return Progress(max(before.watermark, *(each.watermark for each in inputs)), idle=True)
    return Progress(max(before.watermark, min(awaited)))


class Origin:
    """Where a watermark begins: it follows the greatest time that was given out, by ``lateness``."""

    def __init__(self, settings: WatermarkOrigin) -> None:
        self._column = settings.time
        self.lateness = microseconds(settings.lateness)
        self.idle_after_s = None if settings.idle_after is None else microseconds(settings.idle_after) / 1e6
        self.progress = BEGINNING

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take notice of what is given out; it counts once it has been worked off."""
        self.progress = Progress(max(self.progress.watermark, self.watermark_of(batch)))

    def watermark_of(self, batch: pa.RecordBatch) -> int:
        """Where the watermark of a stream is that gives this, and has given nothing before."""
        greatest = pc.max(instants(batch.column(self._column))).as_py()
        return LEAST if greatest is None else max(greatest - self.lateness, LEAST)


def spelled(instant: int) -> str:
    """An instant in microseconds as people read it."""
    with suppress(OverflowError):
        return f"{_EPOCH + datetime.timedelta(microseconds=instant):%Y-%m-%dT%H:%M:%SZ}"
    return f"{instant} us since 1970"


def instants(column: Any) -> pa.Int64Array:
    """The values of a column of timestamps or dates in microseconds since 1970.

    ``DataflowError`` for a date that is out of their range.
    """
    if pa.types.is_date(column.type):
        try:
            column = column.cast(pa.timestamp("us"))
        except pa.ArrowInvalid as error:
            raise DataflowError(f"a date is beyond the range of microseconds from 1970: {error}") from None
    return column.cast(pa.int64())


def instants_of(column: Any) -> NDArray[np.int64]:
    """As ``instants``, of a column without nulls."""
    return np.asarray(instants(column).to_numpy())
