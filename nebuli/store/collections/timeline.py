"""The rendition of a collection at each time, by its metadata: exactly one at each. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA = weighted(pa.schema([pa.field("rendition", pa.string(), nullable=False)]))
"""The schema of a collection's metadata."""


@dataclass(frozen=True, slots=True)
class Period:
    """From time ``begin`` on it is ``rendition``; up to but not including ``end``, if that is known."""

    rendition: str
    begin: int
    end: int | None


class Timeline:
    """Made from metadata: the contents at ``since``, and the changes after that."""

    def __init__(self, contents: pa.Table, since: int, updates: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Raises Damaged where some time does not have exactly one rendition."""
        self._begins = [since]
        self._renditions = [_only(contents.to_batches(), None, since)]
        for time, rows in updates:
            now = _only([rows], self._renditions[-1], time)
            if now != self._renditions[-1]:
                self._begins.append(time)
                self._renditions.append(now)

    @property
    def since(self) -> int:
        """The lowest time that can be read."""
        return self._begins[0]

    @property
    def begin(self) -> int:
        """The time from which it is the last one: below that, those before it are complete."""
        return self._begins[-1]

    @property
    def names(self) -> Sequence[str]:
        """The renditions, in the order of time; of the times that can be read."""
        return self._renditions

    @property
    def last(self) -> str:
        """The last known rendition, until another is recorded."""
        return self._renditions[-1]

    def at(self, time: int) -> Period:
        """The period with this time, which is at least the since."""
        place = bisect_right(self._begins, time) - 1
        end = self._begins[place + 1] if place + 1 < len(self._begins) else None
        return Period(self._renditions[place], self._begins[place], end)

    def period(self, rendition: str) -> Period | None:
        """When it is this one; None if it is not, at any time that can be read."""
        if rendition not in self._renditions:
            return None
        return self.at(self._begins[self._renditions.index(rendition)])


def handover(before: str | None, after: str) -> pa.RecordBatch:
    """Return the change of the metadata for a switch to another rendition; ``before`` is None for the first."""
    names = [after] if before is None else [before, after]
    return pa.record_batch([names, [1] if before is None else [-1, 1]], schema=SCHEMA)


def _only(batches: Sequence[pa.RecordBatch], before: str | None, time: int) -> str:
    """The one that is left when the changes are added to ``before``."""
    weights = {} if before is None else {before: 1}
    for batch in batches:
        for name, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            weights[name] = weights.get(name, 0) + weight
    left = {name: weight for name, weight in weights.items() if weight}
    if list(left.values()) != [1]:
        raise Damaged(
            f"the metadata of a collection must have exactly one rendition at time {time}, but has "
            f"{left or 'nothing'}: restore the store's folder from a copy"
        )
    return next(iter(left))
