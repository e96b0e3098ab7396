"""Codecs: how a message's body is made from what the application sends, and read again.

A codec is made per channel and keeps what all bodies share: the Arrow schema, and the dictionaries that the bodies
refer to (their *context*), which travel once per connection and only when they change.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from netchannel.errors import ProtocolError, SchemaMismatch
from netchannel.values import check_kind, with_article

from .allocations import HEADER_ROOM, Allocations
from .arrow_objects import is_arrow, one_batch
from .frames import ALONE, Body, Buffer, Scattered
from .metadata import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    BodyTemplate,
    NoMessage,
    decompressed,
    header_of,
    rows_in,
)
from .string_views import bytes_of_values, has_string_views

if TYPE_CHECKING:
    from collections.abc import Sequence

CodecName = Literal["arrow", "bytes"]

SCATTER = 1 << 17
"""Batches from this many bytes on are sent from the columns' own memory instead of being copied together."""


class Encoder(Protocol):
    """The sender's side of a codec."""

    schema: bytes | None
    """The description of all bodies of the stream; None until it is known."""
    context: bytes
    """The context that the last encoded body needs in addition to the schema.

    The same object while it does not change.
    """
    allocations: Allocations
    """Memory that was given to the producer, to make bodies in."""

    def encode(self, value: Any) -> Body:
        """Make a message's body. Its memory must not change until the message is acknowledged."""

    def as_they_are(self, values: Sequence[Any]) -> bool:
        """True if each of ``values`` is its own body: then it need not be encoded."""


class Decoder(Protocol):
    """The receiver's side of a codec."""

    learned: bytes
    """The sender's schema; empty before it is known, and if there is none."""

    def compare(self, schema: bytes) -> None:
        """Check the schema that the sender has sent. Raises SchemaMismatch if it is not the one that is wanted."""

    def learn(self, schema: bytes) -> None:
        """Learn the sender's schema. Raises SchemaMismatch if another one is declared."""

    def check(self, bodies: Sequence[memoryview], context: memoryview | None, limit: int) -> None:
        """Look at bodies that have come, before they are taken: whether they have the form that `decode` needs.

        Raises ProtocolError for a body that could not be read, or would have more than ``limit`` bytes when
        it is.
        """

    def check_context(self, context: bytes, limit: int) -> None:
        """Do the same for the context that bodies need in addition to the schema."""

    def decode(self, body: memoryview, context: memoryview | None, limit: int) -> Any:
        """Read a body; the value may refer to its memory.

        Raises ProtocolError for a malformed one, or one whose values have more than ``limit`` bytes.
        """


def make_encoder(codec: CodecName, schema: pa.Schema | None) -> Encoder:
    """The encoder of a channel. Raises NetChannelError for an unknown codec."""
    _check(codec, schema)
    return ArrowEncoder(schema) if codec == "arrow" else BytesEncoder()


def make_decoder(codec: CodecName, schema: pa.Schema | None) -> Decoder:
    """The decoder of a channel. Raises NetChannelError for an unknown codec."""
    _check(codec, schema)
    return ArrowDecoder(schema) if codec == "arrow" else BytesDecoder()


def _check(codec: str, schema: pa.Schema | None) -> None:
    if codec not in ("arrow", "bytes"):
        raise ValueError(f"the codec {codec!r} is not known: expected 'arrow' or 'bytes'")
    check_kind("schema", schema, pa.Schema)
    if codec == "bytes" and schema is not None:
        raise ValueError("a schema was given with the codec 'bytes': only 'arrow' has schemas")


class BytesEncoder:
    """Bytes as they are."""

    schema: bytes | None = b""
    context = b""

    def __init__(self) -> None:
        self.allocations = Allocations()

    def encode(self, value: Any) -> Body:
        """Take anything with the buffer protocol, e.g. bytes, memoryview or pyarrow.Buffer."""
        if isinstance(value, bytes):
            return value
        return _flat(value)

    def as_they_are(self, values: Sequence[Any]) -> bool:
        """True if all are bytes, and not of a subclass."""
        return set(map(type, values)) == {bytes}


def _flat(value: Any) -> memoryview:
    """The memory of ``value`` as bytes. Raises SchemaMismatch if it has none, or not in one piece."""
    try:
        view = memoryview(value)
        # A view of several dimensions, one of which is 0, cannot be cast.
        flat = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise SchemaMismatch(
            f"a channel with the codec 'bytes' was sent {with_article(type(value))} ({error}): expected bytes or other "
            f"contiguous memory (numpy.ascontiguousarray copies to such memory; memory of allocate() is sent only "
            f"once), or register the channel with codec='arrow'"
        ) from error
    if "O" in view.format:
        raise SchemaMismatch(
            f"a channel with the codec 'bytes' was sent {with_article(type(value))} of Python objects, whose memory "
            f"holds addresses of this process: expected bytes"
        )
    return flat


class BytesDecoder:
    """Bytes as they are: a memoryview of what was received."""

    learned = b""

    def compare(self, schema: bytes) -> None:
        """There is nothing to check."""

    def learn(self, schema: bytes) -> None:
        """There is nothing to learn. Raises ProtocolError for what is meant to be."""
        if schema:
            raise ProtocolError(f"a schema of {len(schema)} bytes arrived, but codec 'bytes' has no schema")

    def check(self, bodies: Sequence[memoryview], context: memoryview | None, limit: int) -> None:
        """Take any bytes."""

    def check_context(self, context: bytes, limit: int) -> None:
        """Raise: there is no context."""
        raise ProtocolError(f"a context of {len(context)} bytes arrived, but codec 'bytes' has no context")

    def decode(self, body: memoryview, context: memoryview | None, limit: int) -> memoryview:
        """The body itself."""
        return body


class _Pieces:
    """A file that keeps what is written to it, without copying."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []

    def write(self, piece: pa.Buffer | bytes) -> int:
        view = memoryview(piece)
        self.pieces.append(view)
        return len(view)

    def take(self) -> list[Buffer]:
        pieces, self.pieces = self.pieces, []
        return pieces

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ArrowEncoder:
    """Record batches as encapsulated Arrow IPC messages, without the schema before each."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.schema: bytes | None = None
        self.context = b""
        self.allocations = Allocations(HEADER_ROOM)
        self._schema: pa.Schema | None = None
        self._dictionaries = False
        self._primitive = False
        self._sink = _Pieces()
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._row_bytes: float | None = None  # of the last body
        self._unwritten = 0  # the writer puts the schema, so many bytes, before its first batch
        if schema is not None:
            self._fix(schema)

    def _fix(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.schema = schema.serialize().to_pybytes()
        self._dictionaries = any(_has_dictionary(field.type) for field in schema)
        # Whatever bytes are in such columns, readers cannot be led out of them.
        self._primitive = all(pa.types.is_primitive(field.type) for field in schema)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema)
        self._unwritten = len(self.schema)

    def encode(self, value: Any) -> Body:
        """Take rows of the channel's schema (the first ones', if none was given): a RecordBatch, or its like."""
        if not isinstance(value, pa.RecordBatch):
            value = _batch_of(value)
        if self._schema is None:
            self._fix(value.schema)
        elif value.schema is not self._schema and not value.schema.equals(self._schema):
            raise SchemaMismatch(
                f"a batch of ({_describe(value.schema)}) was sent on a channel of ({_describe(self._schema)}): "
                f"cast it, or use another channel"
            )
        try:
            # As the receiver does: it would refuse the message, and could not report it any more.
            value.validate(full=True)
            return self._body(value)
        except pa.ArrowException as error:  # e.g. text that is not UTF-8; lists in lists, more than 64 deep
            raise SchemaMismatch(
                f"a batch with the schema ({_describe(self._schema)}) has invalid contents: {error}"
            ) from error

    def as_they_are(self, values: Sequence[Any]) -> bool:
        """False: values never go as they are."""
        return False

    def _body(self, batch: pa.RecordBatch) -> Body:
        if self._dictionaries:
            return self._encode_with_dictionaries(batch)
        rows = batch.num_rows
        # Asking a batch for its size takes longer than all the rest: it is taken to be like the one before.
        expected = batch.nbytes if self._row_bytes is None else rows * self._row_bytes
        body: Body = memoryview(batch.serialize()) if expected < SCATTER else Scattered(self._write(batch))
        if rows:
            self._row_bytes = len(body) / rows
        if not isinstance(body, Scattered):
            return body
        if len(body) <= ALONE:
            return b"".join(body.pieces)
        if self.allocations.known and self._primitive:
            return self.allocations.in_one_piece(body.pieces, batch.num_columns) or body
        return body

    def _write(self, batch: pa.RecordBatch) -> list[Buffer]:
        assert self._writer is not None
        self._writer.write_batch(batch)
        pieces = self._sink.take()
        while self._unwritten > 0:
            self._unwritten -= len(pieces.pop(0))
        return pieces

    def _encode_with_dictionaries(self, batch: pa.RecordBatch) -> Body:
        # The writer gives out a dictionary only when it is another than the last; then all of the batch's
        # dictionaries make a new context, so that a reader never depends on what an earlier connection saw.
        messages = _messages(self._write(batch))
        if len(messages) > 1 or not self.context:
            stream = _Pieces()
            writer = pa.ipc.new_stream(pa.PythonFile(stream, "w"), self._schema)
            writer.write_batch(batch)
            self.context = b"".join([memoryview(m.serialize()) for m in _messages(stream.take())[:-1]])
        return memoryview(messages[-1].serialize())


def _batch_of(value: Any) -> pa.RecordBatch:
    """Return the batch that another object stands for. Raises SchemaMismatch."""
    given = with_article(type(value))
    if not is_arrow(value):
        raise SchemaMismatch(
            f"a channel with the codec 'arrow' was sent {given}: expected a pyarrow.RecordBatch, or an object with "
            f"Arrow's PyCapsule interface, such as a table or a data frame (bytes need codec='bytes')"
        )
    try:
        return one_batch(value)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatch(f"{given} cannot be sent as one batch: {error}") from error


def _messages(pieces: Sequence[Buffer]) -> list[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(b"".join(pieces)))
    return list(reader)


class ArrowDecoder:
    """Record batches from Arrow IPC messages; they refer to the memory that was received."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self._declared = schema
        self.schema: pa.Schema | None = None
        self.learned = b""
        self._dictionaries = False
        self._repeats = False  # the bytes of a body can be those of many values
        self._likeness: BodyTemplate | None = None

    def compare(self, schema: bytes) -> None:
        """Compare it with what is declared, or known."""
        self._read(schema)

    def learn(self, schema: bytes) -> None:
        """Take the sender's schema; once known, only the same one."""
        if self.schema is not None and schema == self.learned:
            return
        self.schema, self.learned = self._read(schema), bytes(schema)
        self._dictionaries = any(_has_dictionary(field.type) for field in self.schema)
        self._repeats = has_string_views(self.schema)

    def _read(self, schema: bytes) -> pa.Schema:
        try:
            theirs = pa.ipc.read_schema(pa.py_buffer(schema))
        except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
            raise ProtocolError(f"a schema of {len(schema)} bytes cannot be read: {error}") from error
        expected = self.schema if self.schema is not None else self._declared
        if expected is not None and not expected.equals(theirs):
            raise SchemaMismatch(
                f"the sender's schema is ({_describe(theirs)}), but the receiver's is ({_describe(expected)}): "
                f"register both sides with the same one"
            )
        return theirs

    def check(self, bodies: Sequence[memoryview], context: memoryview | None, limit: int) -> None:
        """Check that each is a complete record batch; compressed data counts with its decompressed size."""
        if self.schema is None:
            raise ProtocolError("a batch arrived before its schema")
        if self._dictionaries and context is None:
            raise ProtocolError("a batch with dictionaries arrived before its dictionaries")
        likeness = self._likeness
        like = 0 if likeness is None else likeness.count(bodies)
        for body in bodies[like:]:
            self._examine(body, limit)

    def _examine(self, body: memoryview, limit: int) -> None:
        try:
            header = header_of(body)
            if header.kind != RECORD_BATCH:
                raise NoMessage(f"it is a message of kind {header.kind}")
            size = decompressed(body, header)
            seen = self._likeness is not None or header.end == header.start
            if not seen and size is None and rows_in(body, header):
                self._likeness = BodyTemplate(body)
        except (NoMessage, struct.error) as error:
            raise ProtocolError(f"a body of {len(body)} bytes is not a record batch: {error}") from error
        _check_size("a body", len(body), size or 0, limit)

    def check_context(self, context: bytes, limit: int) -> None:
        """Check that it is the channel's schema and dictionaries; these count with their decompressed size."""
        if self.schema is None or not self._dictionaries:
            why = (
                "but no schema arrived before it" if self.schema is None else "but no column has a dictionary"
            )
            raise ProtocolError(f"a context of {len(context)} bytes arrived, {why}")
        try:
            theirs = pa.ipc.read_schema(pa.py_buffer(context))
            size, at = 0, header_of(context).end
            while at < len(context):
                header = header_of(context, at)
                if header.kind != DICTIONARY_BATCH:
                    raise NoMessage(f"a message of kind {header.kind} is among its dictionaries")
                size += decompressed(context, header) or 0
                at = header.end
        except (NoMessage, struct.error, pa.ArrowException, OSError, EOFError, StopIteration) as error:
            raise ProtocolError(f"a context of {len(context)} bytes cannot be read: {error}") from error
        if not theirs.equals(self.schema):
            raise ProtocolError(
                f"a context has the schema ({_describe(theirs)}), but the channel has ({_describe(self.schema)})"
            )
        _check_size("a context", len(context), size, limit)

    def decode(self, body: memoryview, context: memoryview | None, limit: int) -> pa.RecordBatch:
        """Read one batch. Raises ProtocolError if it is malformed, or has too many references to its bytes."""
        if self.schema is None:
            raise ProtocolError("a batch arrived before its schema")
        try:
            if self._dictionaries:
                batch = _read_with_context(body, context)
            else:
                batch = pa.ipc.read_record_batch(pa.py_buffer(body), self.schema)
            if self._repeats:
                _check_values(batch, body, limit)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
            raise ProtocolError(
                f"a body of {len(body)} bytes is not a batch of the channel's schema: {error}"
            ) from error
        return batch


def _check_size(what: str, size: int, becomes: int, limit: int) -> None:
    if becomes > limit:
        raise ProtocolError(f"{what} of {size} bytes decompresses to {becomes}: the limit here is {limit}")


def _check_values(batch: pa.RecordBatch, body: memoryview, limit: int) -> None:
    size = bytes_of_values(batch)
    if size > limit:
        raise ProtocolError(
            f"a body of {len(body)} bytes has string views that refer to {size} bytes in total: the limit here is "
            f"{limit}"
        )


class _Joined:
    """A file over two pieces of memory, read without copying."""

    closed = False

    def __init__(self, *pieces: memoryview) -> None:
        self._pieces = list(pieces)

    def read(self, size: int = -1) -> memoryview | bytes:
        while self._pieces and not len(self._pieces[0]):
            del self._pieces[0]
        if not self._pieces:
            return b""
        piece = self._pieces[0]
        if size < 0 or size >= len(piece):
            del self._pieces[0]
            return piece
        self._pieces[0] = piece[size:]
        return piece[:size]

    def close(self) -> None:
        pass


def _read_with_context(body: memoryview, context: memoryview | None) -> pa.RecordBatch:
    if context is None:
        raise ProtocolError("a batch with dictionaries arrived before its dictionaries")
    reader = pa.ipc.open_stream(pa.PythonFile(_Joined(context, body), "r"))
    return reader.read_next_batch()


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def _describe(schema: pa.Schema) -> str:
    text = ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return text if len(text) <= 400 else text[:397] + "..."
