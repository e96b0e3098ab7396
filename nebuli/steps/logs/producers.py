"""Records of producers: the next number, and the contents of the last ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import SequenceGap, SequencePassed, SequenceReused

if TYPE_CHECKING:
    from collections.abc import Sequence

REMEMBERED = 256
"""How many numbers of a producer, the last ones, are remembered with what they stood for."""
SCHEMA = weighted(
    pa.schema(
        [
            ("producer", pa.string()),
            ("sequence", pa.uint64()),
            ("handle", pa.string()),
            ("digest", pa.uint64()),
            ("position", pa.uint64()),
        ]
    )
)

Sent = tuple[str, int, str, int]
"""A producer, its number, the handle that it was for, and the digest of the rows."""


@dataclass(slots=True)
class Producer:
    """A producer; ``contents`` are the handles, digests and positions by number.

    A position is how many rows there are up to the number, and with it. ``position`` is that of the last number,
    ``durable`` that of the last one that is not on its way any more.
    """

    next: int = 0
    position: int = 0
    durable: int = 0
    contents: dict[int, tuple[str, int, int]] = field(default_factory=dict)


class Producers:
    """All producers of a log, as they are in its shard, and with what is on its way there."""

    def __init__(self, rows: Sequence[pa.RecordBatch]) -> None:
        self._producers: dict[str, Producer] = {}
        for batch in rows:
            for row in zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True):
                self._take(*row)
        for each in self._producers.values():
            each.durable = each.position

    def next(self, producer: str) -> int:
        """The number that it sends next."""
        found = self._producers.get(producer)
        return found.next if found else 0

    def position(self, producer: str) -> int:
        """How many of its rows are durable."""
        found = self._producers.get(producer)
        return found.durable if found else 0

    @property
    def rows(self) -> int:
        """How many rows of all of them are durable."""
        return sum(each.durable for each in self._producers.values())

    def is_new(self, sent: Sent) -> bool:
        """True if it is the next one, not one that was sent before. Raises SequenceError."""
        producer, sequence, handle, digest = sent
        expected = self.next(producer)
        if sequence > expected:
            raise SequenceGap(producer, expected, sequence)
        if sequence == expected:
            return True
        before = self._producers[producer].contents.get(sequence, (handle, digest))
        if before[:2] != (handle, digest):
            raise SequenceReused(producer, expected, sequence)
        return False

    def is_later(self, producer: str, number: int) -> bool:
        """True if it is a number beyond the last one, not the last one itself. Raises SequencePassed."""
        expected = self.next(producer)
        if number + 1 < expected:
            raise SequencePassed(producer, expected, number)
        return number >= expected

    def take(self, sent: Sent, rows: int) -> pa.RecordBatch:
        """How the shard changes with what is sent, so many rows: it has what is remembered."""
        found = self._producers.get(sent[0])
        position = rows + (found.position if found else 0)
        changes = [(*sent, position, 1), *((*each, -1) for each in self._take(*sent, position))]
        columns = zip(*changes, strict=True)
        return pa.record_batch(
            [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )

    def logged(self, producer: str, rows: int) -> None:
        """So many rows more of those that were taken are durable."""
        self._producers[producer].durable += rows

    def _take(
        self, producer: str, sequence: int, handle: str, digest: int, position: int
    ) -> Sequence[tuple[str, int, str, int, int]]:
        """Take what was sent; what is not remembered any more."""
        found = self._producers.setdefault(producer, Producer())
        found.next = max(found.next, sequence + 1)
        found.position = max(found.position, position)
        found.contents[sequence] = handle, digest, position
        forgotten = [each for each in found.contents if each <= sequence - REMEMBERED]
        return [(producer, each, *found.contents.pop(each)) for each in forgotten]
