"""What travels: every message is known by its number, so that nobody has to remember what was sent."""

from __future__ import annotations

import random
import struct

import pyarrow as pa

BLOB = random.Random(0).randbytes(1 << 20)
SIZES = (0, 10, 100, 1000, 1000, 10_000, 100_000)
_HEADER = struct.Struct("<Q")


class Violation(AssertionError):
    """A promise was broken."""


def body(number: int) -> bytes:
    """Message ``number`` of any stream of bytes."""
    drawn = number * 2654435761 % (1 << 32)
    size, start = SIZES[drawn % len(SIZES)], drawn % (len(BLOB) - SIZES[-1])
    return _HEADER.pack(number) + BLOB[start : start + size]


def batch(number: int) -> pa.RecordBatch:
    """Message ``number`` of any stream of batches: with a dictionary of its own every few messages."""
    words = [f"{number // 8}-{n}" for n in range(16)]
    rows = number * 37 % 500
    return pa.record_batch(
        {
            "number": pa.array(range(number, number + rows), pa.int64()),
            "word": pa.DictionaryArray.from_arrays(pa.array([n % 16 for n in range(rows)], pa.int8()), words),
        }
    )


def check(where: str, due: int, sequence: int, given: object) -> None:
    """``given`` came as number ``sequence`` where ``due`` was to come. Raises Violation."""
    if sequence != due:
        raise Violation(f"{where}: number {sequence} came where {due} was due")
    if not (given.equals(batch(due)) if isinstance(given, pa.RecordBatch) else given == body(due)):
        raise Violation(f"{where}: number {due} has another content than it was sent with")
