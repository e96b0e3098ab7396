"""The bytes of messages in one buffer, one after the other, each with a line end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.hashing import text_buffers

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

LINE_FEED, RETURN = 10, 13
UTF8_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}".encode()
"""The UTF-8 mark at the beginning of a file."""
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class MessageBytes:
    """Bytes: message ``i`` is from ``offsets[i]`` up to ``offsets[i + 1]``, and ends with a line end or is empty."""

    data: pa.Buffer
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.BinaryArray) -> Self:
        """Those of a column: the very buffer, where each has its line end already. A null is an empty one."""
        if column.null_count:
            column = column.fill_null(b"")
        if not len(column):
            return cls(pa.py_buffer(b""), np.zeros(1, dtype=np.int64))
        offsets, data = text_buffers(column)
        if not _end_lines(offsets, data):
            ended = pc.or_(pc.ends_with(column, b"\n"), pc.equal(pc.binary_length(column), 0))
            column = pc.if_else(ended, column, pc.binary_join_element_wise(column, b"\n", b""))
            offsets, data = text_buffers(column)
        start = int(offsets[0])
        return cls(pa.py_buffer(data[start : int(offsets[-1])]), offsets - start)

    @classmethod
    def lines(cls, block: bytes) -> Self:
        """The lines of a block, the last of which has its end."""
        ends = places_of(LINE_FEED, np.frombuffer(block, np.uint8)) + 1
        return cls(pa.py_buffer(block), np.concatenate([np.zeros(1, np.int64), ends]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def values(self) -> NDArray[np.uint8]:
        """All of them."""
        return np.frombuffer(self.data, dtype=np.uint8)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How long each is, with its line end."""
        return np.diff(self.offsets)

    def part(self, first: int, end: int) -> MessageBytes:
        """Some of them, which follow each other; nothing is copied."""
        offsets = self.offsets[first : end + 1]
        start = int(offsets[0])
        return MessageBytes(self.data.slice(start, int(offsets[-1]) - start), offsets - start)

    def only(self, which: NDArray[np.bool_]) -> MessageBytes:
        """Those of them."""
        if which.all():
            return self
        lengths = self.lengths
        data = self.values[np.repeat(which, lengths)]
        return MessageBytes(pa.py_buffer(data), np.cumsum([0, *lengths[which]], dtype=np.int64))

    def one(self, row: int) -> bytes:
        """The bytes of one, with its line end."""
        start, end = int(self.offsets[row]), int(self.offsets[row + 1])
        return bytes(self.data.slice(start, end - start))

    @property
    def blank(self) -> NDArray[np.bool_]:
        """Which of them are empty, or a line end alone."""
        lengths, firsts = self.lengths, self.firsts
        blank: NDArray[np.bool_] = (lengths <= 1) | ((lengths == 2) & (firsts == RETURN))
        return blank

    @property
    def firsts(self) -> NDArray[np.uint8]:
        """The first byte of each that is not empty; of an empty one, any."""
        data = self.values
        return (
            data[np.minimum(self.offsets[:-1], len(data) - 1)] if len(data) else np.zeros(len(self), np.uint8)
        )

    @property
    def are_lines(self) -> bool:
        """True if each non-empty one is one line, regardless of quotes: no line end is within."""
        data = self.values
        if len(places_of(LINE_FEED, data)) != np.count_nonzero(self.lengths):
            return False
        returns = places_of(RETURN, data)
        return not len(returns) or bool((data[returns + 1] == LINE_FEED).all())


def places_of(byte: int, data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where a byte is, sought block by block: what is made on the way stays in the processor's caches."""
    found = [
        np.flatnonzero(data[start : start + _BLOCK] == byte) + start for start in range(0, len(data), _BLOCK)
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def has(byte: int, data: pa.Buffer) -> bool:
    """True if a byte is there."""
    some = np.frombuffer(data, dtype=np.uint8)
    return any((some[start : start + _BLOCK] == byte).any() for start in range(0, len(some), _BLOCK))


def _end_lines(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> bool:
    ends = offsets[1:][np.diff(offsets) > 0]
    return bool((data[ends - 1] == LINE_FEED).all())
