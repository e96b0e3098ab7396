"""A part, sent from one member to another in one exchange, as messages: divided at one end, joined at the other.

A part is an Arrow IPC message. The first part of an exchange that a member gets from another one has the schema in
front, the later ones are the record batch alone, and one without rows is nothing but its note. Where columns have
dictionaries, each part has the schema and its dictionaries in front: it can be read alone, and no dictionary has to be
kept from step to step.

A small part is one message, and is read where it was received. The buffers of a large one go out as they are, cut at
``PIECE_BYTES``; they are copied, as they come, to where the whole will be, so that neither end holds it twice.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NOTE = struct.Struct("<QQIB")
"""The note of a message: the step, the bytes of the whole part, the number of the exchange within the step, flags."""
LAST, STREAM, NOTHING = 1, 2, 4
"""Flags: the part ends with this message; it begins with its schema; there is no batch at all."""

PIECE_BYTES = 1 << 18
"""The largest message, but for what Arrow puts around a small part."""
_WHOLE_BYTES = 1 << 16
"""A part of so many bytes of values goes as one message."""
_TOGETHER_BYTES = 1 << 15
"""Buffers of fewer bytes are copied, to go together."""

Body = bytes | memoryview
Message = tuple[Body, bytes]
"""A sent message: its body and its note."""


class PartEncoder:
    """Makes messages of the parts for one member; knows of which exchanges that has the schema."""

    def __init__(self) -> None:
        self._known: dict[int, pa.Schema] = {}

    def messages(self, step: int, index: int, part: pa.RecordBatch | None) -> Message | Iterator[Message]:
        """The one message of a small part, or an iterator over those of a large one. None is sent as nothing."""
        if part is None:
            return b"", NOTE.pack(step, 0, index, LAST | NOTHING)
        schema = part.schema
        known = self._known.get(index)
        is_known = schema is known or (known is not None and schema.equals(known))
        if is_known and not part.num_rows:
            return b"", NOTE.pack(step, 0, index, LAST)
        self._known[index] = schema
        streamed = not is_known or has_dictionaries(schema)
        flags = STREAM if streamed else 0
        if part.nbytes > _WHOLE_BYTES:
            return _large(step, index, flags, _written(part, with_schema=streamed))
        if streamed:
            body: Body = b"".join(_written(part, with_schema=True))
        else:
            body = memoryview(part.serialize())
        return body, NOTE.pack(step, len(body), index, flags | LAST)


def _large(step: int, index: int, flags: int, buffers: list[memoryview]) -> Iterator[Message]:
    size = left = sum(map(len, buffers))
    for piece in _cut(buffers):
        left -= len(piece)
        yield piece, NOTE.pack(step, size, index, flags if left else flags | LAST)


class _Pieces:
    """A file that keeps what is written to it, without copying."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, piece: pa.Buffer | bytes) -> int:
        view = memoryview(piece)
        self.pieces.append(view)
        return len(view)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _written(batch: pa.RecordBatch, *, with_schema: bool) -> list[memoryview]:
    """The batch as IPC messages; its own buffers are among the pieces."""
    sink = _Pieces()
    pa.ipc.new_stream(pa.PythonFile(sink, "w"), batch.schema).write_batch(batch)
    if not with_schema:
        unwanted = len(batch.schema.serialize())
        while unwanted > 0:
            unwanted -= len(sink.pieces.pop(0))
    return sink.pieces


def _cut(buffers: Iterable[memoryview]) -> Iterator[Body]:
    """The same bytes in pieces: small buffers together, large ones cut."""
    small: list[memoryview] = []
    size = 0
    for buffer in buffers:
        rest = buffer
        if len(buffer) >= _TOGETHER_BYTES:
            if small:
                yield b"".join(small)
                small, size = [], 0
            whole = len(buffer) - len(buffer) % PIECE_BYTES
            for start in range(0, whole, PIECE_BYTES):
                yield buffer[start : start + PIECE_BYTES]
            rest = buffer[whole:]
            if len(rest) >= _TOGETHER_BYTES:
                yield rest
                continue
        if size + len(rest) > PIECE_BYTES:
            yield b"".join(small)
            small, size = [], 0
        if len(rest):
            small.append(rest)
            size += len(rest)
    if small:
        yield b"".join(small)


def has_dictionaries(schema: pa.Schema) -> bool:
    """True if a column, or a part of one, is encoded by a dictionary."""
    return any(_has_dictionary(field.type) for field in schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(place).type) for place in range(kind.num_fields))


class Unreadable(Exception):
    """The received data is not a part; the message has the reason."""


class PartDecoder:
    """Puts together the parts of one member; knows the schemas that it has sent."""

    def __init__(self) -> None:
        self._empty: dict[int, pa.RecordBatch] = {}
        self._whole: pa.Buffer | None = None
        self._room: memoryview[Any] = memoryview(b"")
        self._came = 0

    def add(self, index: int, size: int, flags: int, body: memoryview) -> tuple[pa.RecordBatch | None] | None:
        """Take a message: the part once it is whole, in a tuple, as it may be None; None if there is more to come.

        Raises Unreadable.
        """
        if self._whole is None and flags & LAST:  # all of it
            if len(body) != size:
                raise Unreadable(f"received {len(body)} bytes, but the part has {size} bytes")
            return (self._read(index, flags, pa.py_buffer(body) if size else None),)
        if self._whole is None:
            self._begin(size)
        begin, self._came = self._came, self._came + len(body)
        if self._came > len(self._room) or size != len(self._room):
            raise Unreadable(
                f"received {self._came} bytes of a part of {len(self._room)} bytes; this message announces "
                f"a part of {size} bytes"
            )
        self._room[begin : self._came] = body
        if not flags & LAST:
            return None
        if self._came != size:
            raise Unreadable(f"it ended after {self._came} bytes of {size}")
        whole, self._whole, self._room = self._whole, None, memoryview(b"")
        return (self._read(index, flags, whole),)

    def _begin(self, size: int) -> None:
        try:
            self._whole = pa.allocate_buffer(size)
        except MemoryError as error:
            raise Unreadable(f"this member has no memory for {size} bytes: {error}") from error
        self._room = memoryview(self._whole).cast("B")
        self._came = 0

    def _read(self, index: int, flags: int, whole: pa.Buffer | None) -> pa.RecordBatch | None:
        if flags & NOTHING:
            return None
        empty = self._empty.get(index)
        if whole is None and empty is not None:
            return empty
        if whole is None or (empty is None and not flags & STREAM):
            raise Unreadable(f"it was sent before the schema of exchange {index}")
        try:
            if empty is None or flags & STREAM:
                batch = pa.ipc.open_stream(whole).read_next_batch()
            else:
                batch = pa.ipc.read_record_batch(whole, empty.schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
            raise Unreadable(f"{whole.size} bytes are not a batch: {error}") from error
        if empty is None or not empty.schema.equals(batch.schema):
            self._empty[index] = pa.RecordBatch.from_pylist([], batch.schema)
        return batch
