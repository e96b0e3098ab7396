"""All rows of one time, in the one order that an envelope takes them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import zset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.ingestion.message_addresses import Messages


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows, and where each came from: the number of its part among ``parts``, and its address there."""

    rows: pa.RecordBatch
    parts: Sequence[str]
    part_numbers: NDArray[np.int64]
    addresses: NDArray[np.int64]

    @classmethod
    def of(cls, messages: Mapping[str, Sequence[Messages]], schema: pa.Schema) -> Arrived:
        """Those of several raw sources: by the names of these, then by part, then by address."""
        each = [
            some
            for name in sorted(messages)
            for some in sorted(messages[name], key=lambda one: (one.part, one.lower))
        ]
        each = [some for some in each if some.rows.num_rows]
        if not each:
            none = np.empty(0, dtype=np.int64)
            return cls(zset.empty(schema), (), none, none)
        batches = [some.rows for some in each]
        lengths = [len(some.addresses) for some in each]
        return cls(
            batches[0] if len(batches) == 1 else pa.concat_batches(batches),
            [some.part for some in each],
            np.repeat(np.arange(len(each)), lengths),
            np.concatenate([some.addresses for some in each]),
        )

    def part(self, row: int) -> str:
        """The part that a row came from."""
        return self.parts[int(self.part_numbers[row])]

    def place(self, row: int, source: str) -> str:
        """Return the place of a row, as errors name it."""
        part = self.part(row)
        return f"{source}: the message at {int(self.addresses[row])}" + (f" of {part}" if part else "")

    def take(self, which: NDArray[np.int64]) -> Arrived:
        """Some of them, in that order."""
        rows = self.rows.take(pa.array(which))
        return Arrived(rows, self.parts, self.part_numbers[which], self.addresses[which])

    @classmethod
    def together(cls, some: Sequence[Arrived]) -> Arrived:
        """Concatenate several, at least one."""
        if len(some) == 1:
            return some[0]
        before = np.cumsum([0, *(len(each.parts) for each in some[:-1])])
        return cls(
            pa.concat_batches([each.rows for each in some]),
            [part for each in some for part in each.parts],
            np.concatenate([each.part_numbers + more for each, more in zip(some, before, strict=True)]),
            np.concatenate([each.addresses for each in some]),
        )
