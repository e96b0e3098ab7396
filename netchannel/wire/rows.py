"""How many rows a message has: read from an Arrow body's own metadata, without making a batch of it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from netchannel.errors import SchemaMismatch

from .frames import HEADER, HEADER_SIZE, Frame, Kind, unpack
from .metadata import RECORD_BATCH, NoMessage, header_of, rows_in

if TYPE_CHECKING:
    from .frames import Buffer

ROWS_LIMIT = 1 << 40
"""More rows than any message has: sums of them stay far below what a field holds."""


def count_rows(body: Buffer) -> int:
    """The rows of an encapsulated Arrow message that is a record batch. Raises SchemaMismatch if it is not one."""
    try:
        header = header_of(body)
        rows = rows_in(body, header) if header.kind == RECORD_BATCH else -1
    except (NoMessage, struct.error):
        rows = -1
    if not 0 <= rows < ROWS_LIMIT:
        raise SchemaMismatch(f"a body of {len(body)} bytes is not an Arrow record batch")
    return rows


def rows_of(codec: str, body: Buffer) -> int:
    """The rows that a message counts for."""
    return count_rows(body) if codec == "arrow" else 1


def unpacked(frames: Buffer) -> tuple[list[memoryview], list[bytes], int]:
    """Return the bodies, notes and timestamp of a DATA frame as it goes on the wire."""
    frame = memoryview(frames)
    _, _, kind, flags, count, length, sequence, timestamp, _ = HEADER.unpack_from(frame)
    payload = frame[HEADER_SIZE : HEADER_SIZE + length]
    bodies, notes, _ = unpack(Frame(Kind(kind), flags, count, sequence, timestamp, payload))
    return bodies, notes, timestamp
