"""What is known of producers: which number comes next, and what the last ones stood for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.storage.errors import SequenceGap, SequenceReused

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
        ]
    )
)

Sent = tuple[str, int, str, int]
"""A producer, its number, the handle that it was for, and the digest of the rows."""


@dataclass(slots=True)
class Producer:
    """A producer; ``contents`` are the handles and digests by number."""

    next: int = 0
    contents: dict[int, tuple[str, int]] = field(default_factory=dict)


class Producers:
    """All producers of a log, as they are in its shard, and with what is on its way there."""

    def __init__(self, rows: Sequence[pa.RecordBatch]) -> None:
        self._producers: dict[str, Producer] = {}
        for batch in rows:
            for sent in zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True):
                self._take(*sent)

    def next(self, producer: str) -> int:
        """The number that it sends next."""
        found = self._producers.get(producer)
        return found.next if found else 0

    def is_new(self, sent: Sent) -> bool:
        """Whether it is the next one, not one that was sent before. Raises SequenceError."""
        producer, sequence, handle, digest = sent
        expected = self.next(producer)
        if sequence > expected:
            raise SequenceGap(producer, expected, sequence)
        if sequence == expected:
            return True
        if self._producers[producer].contents.get(sequence, (handle, digest)) != (handle, digest):
            raise SequenceReused(producer, expected, sequence)
        return False

    def take(self, sent: Sent) -> pa.RecordBatch:
        """How the shard changes with what is sent: it has what is remembered."""
        rows = [(*sent, 1), *((*each, -1) for each in self._take(*sent))]
        columns = zip(*rows, strict=True)
        return pa.record_batch(
            [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )

    def _take(self, producer: str, sequence: int, handle: str, digest: int) -> Sequence[Sent]:
        """Take what was sent; what is not remembered any more."""
        found = self._producers.setdefault(producer, Producer())
        found.next = max(found.next, sequence + 1)
        found.contents[sequence] = handle, digest
        forgotten = [each for each in found.contents if each <= sequence - REMEMBERED]
        return [(producer, each, *found.contents.pop(each)) for each in forgotten]
