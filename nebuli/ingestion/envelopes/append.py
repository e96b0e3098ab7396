"""The envelope of rows that are added, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import zset
from nebuli.dataflow.zset import insertions
from nebuli.ingestion.message_addresses import PLACE

from .envelope import Changes, Envelope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nebuli.ingestion.message_addresses import Messages


class Append(Envelope):
    """Adds every row, also one that is there already; it has no state."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = self.wants = schema

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """Every row once more."""
        rows = [each.rows for name in sorted(messages) for each in messages[name]]
        return Changes([zset.insertions(each) for each in rows if each.num_rows])


class AsTheyCame(Envelope):
    """Each message is a row."""

    def __init__(self, carried: pa.Schema) -> None:
        """``carried``: the columns of the messages."""
        self.wants = carried
        types = [pa.int64(), pa.string(), pa.string(), pa.int64(), pa.int64()]
        places = [pa.field(name, type_) for name, type_ in zip(PLACE, types, strict=True)]
        self.schema = pa.schema([*places, *carried])
        self._time = 0

    def at(self, time: int) -> None:
        """Later messages become available then."""
        self._time = time

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """All of them are added."""
        return Changes(
            [self._placed(source, each) for source in sorted(messages) for each in messages[source]]
        )

    def _placed(self, source: str, some: Messages) -> pa.RecordBatch:
        count = some.rows.num_rows
        columns = [
            pa.repeat(pa.scalar(self._time, pa.int64()), count),
            _same(source, count),
            _same(some.part, count),
            pa.array(some.addresses, pa.int64()),
            pa.array(_numbers(some.addresses), pa.int64()),
            *(some.rows.column(field.name) for field in self.wants),
        ]
        return insertions(pa.RecordBatch.from_arrays(columns, schema=self.schema))


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _numbers(addresses: np.ndarray) -> np.ndarray:
    """Return the number of each among those of its address, from 0."""
    places = np.arange(len(addresses), dtype=np.int64)
    if not len(addresses):
        return places
    is_first = np.r_[True, addresses[1:] != addresses[:-1]]
    return places - np.maximum.accumulate(np.where(is_first, places, 0))
