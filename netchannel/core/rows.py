"""How many rows a message has: read from an Arrow body's own metadata, without making a batch of it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from netchannel.errors import SchemaMismatch

from .frames import HEADER, HEADER_SIZE, Frame, Kind, unpack

if TYPE_CHECKING:
    from .frames import Buffer

ROWS_LIMIT = 1 << 40
"""No message has so many rows: sums of them stay far below what a field holds."""

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_PREFIX = struct.Struct("<III")
_HEADER_TYPE, _HEADER = 6, 8
"""The places of two fields of a Message in its vtable (Message.fbs): two lengths of 2 bytes are before the first."""
_LENGTH = 4
"""The same of a RecordBatch's first field, the number of rows."""


def count_rows(body: Buffer) -> int:
    """The rows of an encapsulated Arrow message that is a record batch. Raises SchemaMismatch if it is none.

    The format: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format and its Message.fbs, as
    FlatBuffers: a table begins with the distance back to its vtable, which holds its fields' distances from it.
    """
    try:
        rows = _rows(body)
    except struct.error:
        rows = -1
    if not 0 <= rows < ROWS_LIMIT:
        raise SchemaMismatch(f"a body of {len(body)} bytes is no record batch of Arrow's")
    return rows


def _rows(body: Buffer) -> int:
    continuation, _, root = _PREFIX.unpack_from(body)
    message = 8 + root
    kind = _field(body, message, _HEADER_TYPE)
    header = _field(body, message, _HEADER)
    if continuation != _CONTINUATION or kind is None or body[kind] != _RECORD_BATCH or header is None:
        return -1
    batch: int = header + struct.unpack_from("<I", body, header)[0]
    length = _field(body, batch, _LENGTH)
    return 0 if length is None else int(struct.unpack_from("<q", body, length)[0])


def _field(data: Buffer, table: int, slot: int) -> int | None:
    """Where a field of the table at ``table`` is; None if it has its default value. Raises struct.error."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise struct.error("before the first byte")
    (size,) = struct.unpack_from("<H", data, vtable)
    if slot + 2 > size:
        return None
    (distance,) = struct.unpack_from("<H", data, vtable + slot)
    if table + distance >= len(data):
        raise struct.error("behind the last byte")
    return table + distance if distance else None


def rows_of(codec: str, body: Buffer) -> int:
    """The rows that a message counts for."""
    return count_rows(body) if codec == "arrow" else 1


def unpacked(frames: Buffer) -> tuple[list[memoryview], list[bytes], int]:
    """The bodies, notes and timestamp of a DATA frame as it goes on the wire."""
    frame = memoryview(frames)
    _, _, kind, flags, count, length, sequence, timestamp, _, _ = HEADER.unpack_from(frame)
    payload = frame[HEADER_SIZE : HEADER_SIZE + length]
    bodies, notes, _ = unpack(Frame(Kind(kind), flags, count, sequence, timestamp, payload))
    return bodies, notes, timestamp
