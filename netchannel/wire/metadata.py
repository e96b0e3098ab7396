"""The self-description of an encapsulated Arrow message, read from its metadata without decoding its body.

The format: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format and its
Message.fbs, as FlatBuffers: a table begins with the distance back to its vtable, which holds its fields'
distances from it, after two lengths of 2 bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .frames import Buffer

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
"""Kinds of messages."""

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<IiI")
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 6, 8, 10
"""The places of a Message's fields in its vtable."""
_ROWS, _BUFFERS, _COMPRESSION = 4, 8, 10
"""The places of a RecordBatch's fields in its vtable."""
_DATA = 6
"""The place of a DictionaryBatch's field with the RecordBatch in it."""
_U32, _LONG = struct.Struct("<I"), struct.Struct("<q")
_BUFFER = struct.Struct("<qq")


class NoMessage(ValueError):
    """The bytes are not an encapsulated message."""


class Header(NamedTuple):
    """A message: where the table that describes it is, and where its body begins and ends."""

    kind: int
    table: int
    start: int
    end: int


def header_of(data: Buffer, at: int = 0) -> Header:
    """The message that begins at ``at``. Raises NoMessage, struct.error."""
    continuation, size, root = _PREFIX.unpack_from(data, at)
    start = at + 8 + size
    if continuation != _CONTINUATION or size < 4 or start > len(data):
        raise NoMessage(f"the {len(data) - at} bytes from byte {at} on do not begin with a message")
    message = at + 8 + root
    kind = _field(data, message, _HEADER_TYPE)
    table = _field(data, message, _HEADER)
    if kind is None or table is None:
        raise NoMessage("the message has no kind")
    length = _field(data, message, _BODY_LENGTH)
    body_length = 0 if length is None else int(_LONG.unpack_from(data, length)[0])
    if not 0 <= body_length <= len(data) - start:
        raise NoMessage(f"it claims a body of {body_length} bytes, but only {len(data) - start} follow")
    return Header(int(data[kind]), _follow(data, table), start, start + body_length)


def rows_in(data: Buffer, header: Header) -> int:
    """The rows of a record batch. Raises struct.error."""
    place = _field(data, header.table, _ROWS)
    return 0 if place is None else int(_LONG.unpack_from(data, place)[0])


def decompressed(data: Buffer, header: Header) -> int | None:
    """The bytes of a batch's buffers once they are decompressed; None if they are not compressed.

    Arrow's readers allocate what stands in front of each buffer, and fail if it holds more, or less: so the sum is
    what they will take. -1 stands for a buffer that is as it is. Raises NoMessage, struct.error.
    """
    table = header.table
    if header.kind == DICTIONARY_BATCH:
        place = _field(data, table, _DATA)
        if place is None:
            raise NoMessage("a dictionary holds nothing")
        table = _follow(data, place)
    if _field(data, table, _COMPRESSION) is None:
        return None
    return sum(_claims(data, table, header))


def _claims(data: Buffer, table: int, header: Header) -> Iterator[int]:
    """Return the decompressed size of each buffer of a compressed batch."""
    buffers, size = _field(data, table, _BUFFERS), header.end - header.start
    if buffers is None:
        return
    vector = _follow(data, buffers)
    (count,) = _U32.unpack_from(data, vector)
    if 16 * count > header.start - vector:
        raise NoMessage(f"it claims {count} buffers in {header.start - vector} bytes")
    for place in range(vector + 4, vector + 4 + 16 * count, 16):
        offset, length = _BUFFER.unpack_from(data, place)
        if offset < 0 or length < 0 or offset + length > size:
            raise NoMessage(f"a buffer of {length} bytes at byte {offset} is not in a body of {size} bytes")
        if length:
            if length < _LONG.size:
                raise NoMessage(
                    f"a compressed buffer has {length} bytes, but its length field alone has {_LONG.size}"
                )
            (claim,) = _LONG.unpack_from(data, header.start + offset)
            if claim < -1:
                raise NoMessage(f"a compressed buffer claims {claim} bytes")
            yield length - _LONG.size if claim == -1 else claim


class BodyTemplate:
    """The common part of all uncompressed record batches of one writer.

    Reading where each field is takes longer than all other work on a small batch: the bytes that hold the
    positions are compared in one go instead.
    """

    __slots__ = ("_body_length", "_expected", "_start", "_struct")

    def __init__(self, body: Buffer) -> None:
        """Take a message with a body, which `header_of` has read and `decompressed` has found to be uncompressed."""
        message = 8 + _U32.unpack_from(body, 8)[0]
        parts = [(0, 12), *_steps(body, message, _HEADER_TYPE, _HEADER, _BODY_LENGTH)]
        kind, table = _field(body, message, _HEADER_TYPE), _field(body, message, _HEADER)
        length = _field(body, message, _BODY_LENGTH)
        assert kind is not None
        assert table is not None
        assert length is not None
        parts += [(kind, 1), (table, 4), *_steps(body, _follow(body, table), _COMPRESSION)]
        text, at = "<", 0
        for place, size in _joined(parts):
            text += f"{place - at}x{size}s"
            at = place + size
        self._struct = struct.Struct(text)
        self._expected = self._struct.unpack_from(body)
        self._body_length = length
        self._start = 8 + _PREFIX.unpack_from(body)[1]

    def count(self, bodies: Sequence[Buffer]) -> int:
        """How many of ``bodies``, from the first on, are such ones, too, and all there."""
        unpack, expected = self._struct.unpack_from, self._expected
        length, place, start = _LONG.unpack_from, self._body_length, self._start
        found = 0
        try:
            for body in bodies:
                if unpack(body) != expected or not 0 <= length(body, place)[0] <= len(body) - start:
                    break
                found += 1
        except struct.error:  # it is shorter
            pass
        return found


def _steps(data: Buffer, table: int, *slots: int) -> list[tuple[int, int]]:
    """Return the bytes that hold the positions of a table's fields."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, vtable)
    return [(table, 4), (vtable, 2), *((vtable + slot, 2) for slot in slots if slot + 2 <= size)]


def _joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for place, size in sorted(parts):
        if joined and place <= sum(joined[-1]):
            before = joined[-1][0]
            joined[-1] = before, max(sum(joined[-1]), place + size) - before
        else:
            joined.append((place, size))
    return joined


def _follow(data: Buffer, place: int) -> int:
    """The place of a table or vector that a field refers to."""
    return place + int(_U32.unpack_from(data, place)[0])


def _field(data: Buffer, table: int, slot: int) -> int | None:
    """The place of a field of the table at ``table``; None if it has its default value. Raises struct.error."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise struct.error("before the first byte")
    (size,) = struct.unpack_from("<H", data, vtable)
    if slot + 2 > size:
        return None
    (distance,) = struct.unpack_from("<H", data, vtable + slot)
    if table + distance >= len(data):
        raise struct.error("after the last byte")
    return table + distance if distance else None
