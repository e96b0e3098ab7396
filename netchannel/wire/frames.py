"""The wire format of data connections: frames with a fixed header, packed on one side and parsed on the other.

A frame is a header of 40 bytes, little-endian, and a payload (docs/protocol/wire.md, section Data
connection)::

    checksum u32 | check u16 | kind u8 | flags u8 | count u32 | length u32
    sequence u64 | timestamp i64 (microseconds since 1970 UTC) | extent u64

``checksum`` is the lower half of XXH3-64 over the rest of the header and the payload: what TCP's own sixteen
bits let pass, and what a middlebox breaks, ends the connection, and the message is sent again. ``check`` is
the lowest quarter of XXH3-64 over the rest of the header, so that a length is believed before its payload has
come.

The payload of ``DATA`` is a table of ``count`` body lengths (u32), with the flag ``NOTES`` a table of as many
note lengths and the notes, then the bodies; each of these parts is padded with zeros to a multiple of 8, so
that Arrow bodies keep their alignment. Data that may be too large for one frame goes in pieces, numbered by
``count``: a message as ``PART`` frames, schemas and contexts as ``SCHEMA`` and ``CONTEXT``. Piece 0 has in
``extent`` the size of the whole, and a message's note as its payload; the others carry the whole, up to its
last byte.

``SHARED`` is a message whose body lies in memory that both sides have: the payload is its offset there (u64),
its length (u64) and the note.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from itertools import accumulate, chain, pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from netchannel.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .frame_memory import FrameMemory

Buffer = bytes | bytearray | memoryview
"""Anything that a vectored write takes."""

_CHECKSUM = struct.Struct("<I")
_UNSUMMED = bytes(4)
_CHECK = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_FIELDS = struct.Struct("<BBIIQqQ")
HEADER = struct.Struct("<IHBBIIQqQ")
HEADER_SIZE = HEADER.size
SUMMED_FROM = _CHECKSUM.size
"""The offset in a frame at which begins what its checksum covers."""
CHECKED_FROM = _CHECKSUM.size + _CHECK.size
"""The offset in its header at which begins what the header's check covers."""

FRAME_LIMIT = 1 << 20
"""The largest body in a frame, in bytes: what stays in a core's cache between socket and consumer."""
WHOLE_LIMIT = FRAME_LIMIT + FRAME_LIMIT // 8
"""A message up to this many bytes is sent in one frame all the same, so that no small piece is left over."""
PACK_LIMIT = 1 << 18
"""Messages are packed into one frame until their bodies and notes reach this many bytes."""
SHARED_FROM = 1 << 16
"""A body of so many bytes goes through shared memory, where there is some."""
ALONE = 1 << 15
"""A larger body has a frame of its own, and is sent from where it is: copying it costs more than a frame."""
COPIED = 1 << 12
"""A body up to this many bytes is copied into its frame: that costs less than a write of several pieces."""
GATHERED = 1 << 14
"""A larger frame of several messages is assembled in memory that is reused."""
NOTE_LIMIT = 1 << 15
UPQUERY_LIMIT = 1 << 20
ACK_BYTES = 1 << 17
"""Bytes of messages whose acknowledgement a receiver does not delay, even without a request."""
PAYLOAD_LIMIT = FRAME_LIMIT + PACK_LIMIT
TOKEN_FRAME_LIMIT = 1 << 10
HEAD = struct.Struct("<Q")
"""The payload of a frame whose sender has not shown a token."""
PACK_COUNT = 1 << 16
"""The most messages in a frame: what the smallest ones that are counted in bytes come to."""
SEQUENCE_LIMIT = 1 << 63
"""A number above all others; there is room for a frame's count, so that a sum still fits its field."""

NOTES = 1
"""The flag of a frame that has a table of note lengths."""
UNSUMMED = 2
"""The flag of ATTACHED: checksums of what comes with the stream are not looked at."""


class Kind(IntEnum):
    """Kinds of frames. Those from 16 on run against the stream's direction."""

    ATTACH = 1  # payload: token; sequence: the first number that the sender still has
    SCHEMA = 2  # the codec's description of all bodies, in pieces
    CONTEXT = 3  # context of the next bodies in addition to the schema (dictionaries), likewise
    DATA = 4
    PART = 5  # one message, likewise
    END = 6  # sequence: the number of messages of the stream
    FAIL = 7  # sequence: as END; payload: the producer's message
    GAP = 8  # count messages from sequence on were dropped before they were sent
    BLOCKED = 9  # the producer waits: all below sequence is received, count of it not acknowledged
    ASK = 10  # the sender waits until all below sequence is acknowledged
    SHARED = 11  # one message, whose body is in shared memory; payload: offset there, length, note
    ATTACHED = 16  # sequence: the next number that the receiver wants; payload: the last note it has
    ACK = 17  # sequence: everything below is acknowledged
    RECEIPT = 18  # sequence: everything below is received
    FINISHED = 19  # the end is acknowledged
    CLOSED = 20  # the consumer wants no more; payload: why
    REFUSED = 21  # what came is not taken; payload: a code, a space, and why
    STARVED = 22  # the consumer waits too, for what only its own acknowledgement lets through
    RELEASED = (
        23  # the bodies in shared memory at these count offsets have no references left; payload: the offsets
    )
    UPQUERY = 24  # the consumer asks its producer for something again; payload: between these two
    REQUEST = 32  # a client wants messages from sequence; payload: the number after the last


KINDS = frozenset(int(kind) for kind in Kind)
IN_PIECES = frozenset((int(Kind.SCHEMA), int(Kind.CONTEXT), int(Kind.PART)))
"""Kinds that carry one piece of something."""


class Frame(NamedTuple):
    """A received frame; ``payload`` is memory that nothing else will write to.

    Data in pieces comes out once, as its last frame, with the whole as its payload, and of a message the
    ``note``.
    """

    kind: int
    flags: int
    items: int
    sequence: int
    timestamp: int
    payload: memoryview
    note: bytes = b""


class Scattered:
    """A body that lies in several places, and is sent from there. Its length is in bytes."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size


Body = Buffer | Scattered
"""The body that a codec makes of a message. Its length is in bytes."""


def _fields(
    kind: Kind,
    length: int,
    *,
    flags: int = 0,
    count: int = 0,
    sequence: int = 0,
    timestamp: int = 0,
    extent: int = 0,
) -> bytes:
    """A header but for its checksum."""
    fields = _FIELDS.pack(kind, flags, count, length, sequence, timestamp, extent)
    return _CHECK.pack(xxh3_64_intdigest(fields) & 0xFFFF) + fields


def _joined(fields: bytes, *payload: Buffer) -> bytes:
    """A whole frame in one piece."""
    frame = b"".join([fields, *payload])
    return _CHECKSUM.pack(xxh3_64_intdigest(frame) & 0xFFFFFFFF) + frame


def _scattered(fields: bytes, payload: Sequence[Buffer], *, summed: bool) -> list[Buffer]:
    """A frame whose payload stays where it is."""
    if not summed:
        return [_UNSUMMED + fields, *payload]
    digest = xxh3_64(fields)
    for piece in payload:
        digest.update(piece)
    return [_CHECKSUM.pack(digest.intdigest() & 0xFFFFFFFF) + fields, *payload]


def _gathered(fields: bytes, payload: Iterable[Buffer], memory: FrameMemory) -> memoryview:
    """A whole frame in one piece of ``memory``: its bytes are copied once."""
    file = memory.take()
    file.write(_UNSUMMED)
    file.write(fields)
    file.writelines(payload)
    frame = file.getbuffer()[: file.tell()]
    _CHECKSUM.pack_into(frame, 0, xxh3_64_intdigest(frame[SUMMED_FROM:]) & 0xFFFFFFFF)
    return frame


def signal(kind: Kind, *, sequence: int = 0, payload: bytes = b"", count: int = 0, flags: int = 0) -> bytes:
    """A whole frame that carries no messages, e.g. an acknowledgement."""
    fields = _FIELDS.pack(kind, flags, count, len(payload), sequence, 0, 0)
    frame = _CHECK.pack(xxh3_64_intdigest(fields) & 0xFFFF) + fields + payload
    return _CHECKSUM.pack(xxh3_64_intdigest(frame) & 0xFFFFFFFF) + frame


_ALONE = struct.Struct("<BBIIQqQII")
"""The fields of a DATA frame, and its table of one length, padded."""
_DATA, _PART = int(Kind.DATA), int(Kind.PART)
_PAD = bytes(8)


def _padded(part: bytes) -> bytes:
    return part + _PAD[: -len(part) & 7]


_PADS = [_PAD[:missing] for missing in (0, 7, 6, 5, 4, 3, 2, 1)]
"""Padding of a body, by the length of the body modulo 8."""


def _tables(lengths: Sequence[int], notes: Mapping[int, bytes]) -> tuple[bytes, int]:
    count = len(lengths)
    alike = lengths.count(lengths[0]) == count
    tables = _padded(_LENGTH.pack(lengths[0]) * count if alike else struct.pack(f"<{count}I", *lengths))
    if not notes:
        return tables, 0
    note_lengths = [len(notes.get(index, b"")) for index in range(count)]
    tables += _padded(struct.pack(f"<{count}I", *note_lengths))
    return tables + _padded(b"".join([notes[index] for index in sorted(notes)])), NOTES


def pack(
    bodies: Sequence[Body],
    notes: Mapping[int, bytes],
    first: int,
    timestamp: int,
    memory: FrameMemory | None = None,
    *,
    summed: bool = True,
) -> list[Buffer]:
    """One DATA frame of messages, numbered from ``first``; several of them are at most PACK_LIMIT bytes together.

    ``notes`` are those that are not empty, by their message's place. A large frame of several is in ``memory``, if
    there is any. Not ``summed``, a large frame of one has no checksum.
    """
    count = len(bodies)
    lengths = list(map(len, bodies))
    tables, flags = _tables(lengths, notes)
    length = len(tables) + sum(lengths)
    pieces: Iterable[Buffer]
    if count == 1:
        pad = _PADS[lengths[0] & 7]
        pieces = (*pieces_of(bodies[0]), pad)
        length += len(pad)
    elif lengths.count(lengths[0]) == count:
        pad = _PADS[lengths[0] & 7]
        padded = chain.from_iterable(zip(bodies, repeat(pad, count), strict=True))
        pieces = padded if pad else bodies  # type: ignore[assignment]  # no scattered ones: those are alone
        length += count * len(pad)
    else:
        pads = [_PADS[size & 7] for size in lengths]
        pieces = chain.from_iterable(zip(bodies, pads, strict=True))  # type: ignore[arg-type]
        length += sum(map(len, pads))
    fields = _fields(Kind.DATA, length, flags=flags, count=count, sequence=first, timestamp=timestamp)
    if count == 1 and length > ALONE:
        return _scattered(fields, [tables, *pieces], summed=summed)
    if length > GATHERED and memory is not None:
        return [_gathered(fields, chain((tables,), pieces), memory)]
    return [_joined(fields, tables, *pieces)]


def refused(code: str, text: str) -> bytes:
    """Return the frame of a refusal."""
    return signal(Kind.REFUSED, payload=f"{code} {text}".encode()[:1000])


def alone(body: Body, note: bytes, sequence: int, timestamp: int, *, summed: bool = True) -> list[Buffer]:
    """Return the same as `pack` for one message, in as few steps as there are."""
    if note:
        return pack([body], {0: note}, sequence, timestamp, summed=summed)
    size = len(body)
    pad = _PADS[size & 7]
    head = _ALONE.pack(_DATA, 0, 1, 8 + size + len(pad), sequence, timestamp, 0, size, 0)
    head = _CHECK.pack(xxh3_64_intdigest(head[:-8]) & 0xFFFF) + head
    if size <= COPIED and not isinstance(body, Scattered):
        return [_joined(head, body, pad)]
    pieces: list[Buffer] = [_UNSUMMED + head]
    pieces += body.pieces if isinstance(body, Scattered) else (body,)
    if pad:
        pieces.append(pad)
    if not summed:
        return pieces
    digest = xxh3_64(head)
    for piece in pieces[1:]:
        digest.update(piece)
    pieces[0] = _CHECKSUM.pack(digest.intdigest() & 0xFFFFFFFF) + head
    return pieces


def pieces_of(body: Body) -> Sequence[Buffer]:
    """The places where ``body`` lies."""
    return body.pieces if isinstance(body, Scattered) else (body,)


def cut(
    kind: Kind,
    whole: Body,
    note: bytes = b"",
    sequence: int = 0,
    timestamp: int = 0,
    *,
    summed: bool = True,
) -> Iterator[list[Buffer]]:
    """The frames of something of any size but nothing: of a message, a schema or a context."""
    fields = _fields(kind, len(note), sequence=sequence, timestamp=timestamp, extent=len(whole))
    yield [_joined(fields, note)]
    views = [memoryview(piece).cast("B") for piece in pieces_of(whole)]
    index, left = 1, len(whole)
    while left:
        length = min(left, FRAME_LIMIT)
        left -= length
        fields = _fields(kind, length, count=index, sequence=sequence, timestamp=timestamp)
        yield _scattered(fields, _take(views, length), summed=summed)
        index += 1


_REFERENCE = struct.Struct("<QQ")


def reference(offset: int, size: int, note: bytes, sequence: int, timestamp: int) -> bytes:
    """The frame of a message whose body is in shared memory."""
    fields = _fields(Kind.SHARED, _REFERENCE.size + len(note), sequence=sequence, timestamp=timestamp)
    return _joined(fields, _REFERENCE.pack(offset, size), note)


def referred(frame: Frame) -> tuple[int, int, bytes]:
    """The offset, the size and the note of a SHARED frame. Raises ProtocolError if they cannot be."""
    payload, least = frame.payload, _REFERENCE.size
    if not least <= len(payload) <= least + NOTE_LIMIT:
        raise ProtocolError(
            f"a frame SHARED has {len(payload)} bytes: expected {least}, and a note of at most {NOTE_LIMIT}"
        )
    return *_REFERENCE.unpack_from(payload), bytes(payload[least:])


_OFFSET_SIZE = 8


def packed_offsets(offsets: Sequence[int]) -> bytes:
    """Return offsets in shared memory as they go on the wire."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def unpacked_offsets(packed: Buffer) -> tuple[int, ...]:
    """The same again. Raises ProtocolError if the length is not a multiple of theirs."""
    if len(packed) % _OFFSET_SIZE:
        raise ProtocolError(
            f"offsets in shared memory have {_OFFSET_SIZE} bytes each: {len(packed)} bytes arrived"
        )
    return struct.unpack(f"<{len(packed) // _OFFSET_SIZE}Q", packed)


def blob(kind: Kind, whole: bytes) -> list[Buffer]:
    """All frames of a schema or a context."""
    return list(chain.from_iterable(cut(kind, whole)))


def _take(views: list[memoryview], length: int) -> list[memoryview]:
    """The next ``length`` bytes of ``views``, whose first element is shortened by what was taken."""
    taken = []
    while length:
        view = views[0]
        taken.append(view[:length])
        length -= len(taken[-1])
        if len(taken[-1]) == len(view):
            del views[0]
        else:
            views[0] = view[len(taken[-1]) :]
    return taken


def _table(payload: memoryview, offset: int, count: int) -> tuple[tuple[int, ...], int]:
    end = offset + 4 * count
    if end > len(payload):
        raise ProtocolError(
            f"a frame of {len(payload)} bytes has no room for the lengths of its {count} messages"
        )
    return struct.unpack_from(f"<{count}I", payload, offset), end + (-end & 7)


Messages = tuple[list[memoryview], list[bytes], int]
"""The bodies of a frame, their notes, or none if all are empty, and the size of the largest body."""


def unpack(frame: Frame) -> Messages:
    """The messages of a DATA frame. Raises ProtocolError if the lengths do not add up."""
    payload, count = frame.payload, frame.items
    if not 0 < count <= PACK_COUNT:
        raise ProtocolError(
            f"a frame claims {count} messages, the first with number {frame.sequence}: expected 1 to "
            f"{PACK_COUNT} messages"
        )
    if count == 1 and not frame.flags & NOTES and len(payload) >= _ONE.size:
        size, _ = _ONE.unpack_from(payload)
        end = _ONE.size + size
        if end + (-size & 7) == len(payload) and size <= WHOLE_LIMIT:
            return [payload[_ONE.size : end]], _NO_NOTES, size
    lengths, offset = _table(payload, 0, count)
    notes: list[bytes] = []
    if frame.flags & NOTES:
        note_lengths, offset = _table(payload, offset, count)
        if max(note_lengths) > NOTE_LIMIT:
            raise ProtocolError(f"a note has {max(note_lengths)} bytes: the limit is {NOTE_LIMIT}")
        ends = list(accumulate(note_lengths, initial=offset))
        notes = [bytes(payload[start:end]) for start, end in pairwise(ends)]
        offset = ends[-1] + (-ends[-1] & 7)
    if lengths.count(length := lengths[0]) == count:
        step = (length + 7) & ~7
        end = offset + count * step
        bodies = (
            [payload[start : start + length] for start in range(offset, end, step)]
            if step
            else [_NOTHING] * count
        )
        offset = end
    else:
        starts = list(accumulate([(length + 7) & ~7 for length in lengths], initial=offset))
        offset = starts.pop()
        bodies = [payload[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    if offset != len(payload):
        raise ProtocolError(f"the messages of a frame end at byte {offset} of {len(payload)}")
    largest = max(lengths)
    if count == 1:
        _check_whole(largest)
    elif len(payload) > PACK_LIMIT and (size := sum(lengths) + sum(map(len, notes))) > PACK_LIMIT:
        raise ProtocolError(
            f"a frame packs {count} messages from number {frame.sequence} on, of {size} bytes together: the limit is "
            f"{PACK_LIMIT} bytes"
        )
    return bodies, notes, largest


def _check_whole(size: int) -> None:
    if size > WHOLE_LIMIT:
        raise ProtocolError(
            f"a frame carries a body of {size} bytes: the limit is {WHOLE_LIMIT}, and larger bodies are sent in parts"
        )


_NO_NOTES: list[bytes] = []
_NOTHING = memoryview(b"")
_ONE = struct.Struct("<II")
"""A table of one length, padded."""


def kind_of(frame: Buffer) -> int:
    """Return the kind of a frame as it goes on the wire."""
    return int(frame[CHECKED_FROM])


def kind_and_flags(frame: Buffer) -> tuple[int, int]:
    """Return a frame's kind and flags, as they go on the wire."""
    return frame[CHECKED_FROM], frame[CHECKED_FROM + 1]


def largest_message(frames: memoryview) -> int:
    """The size in bytes of the largest message in ``frames``: DATA frames, or all PART frames of one message."""
    largest = start = 0
    while start < len(frames):
        _, _, kind, _, count, length, _, _, extent = HEADER.unpack_from(frames, start)
        if kind == _PART:
            return int(extent)
        start += HEADER_SIZE
        if count == 1:
            largest = max(largest, _ONE.unpack_from(frames, start)[0])
        else:
            largest = max(largest, *struct.unpack_from(f"<{count}I", frames, start))
        start += length
    return largest


def from_number(frames: memoryview, first: int, number: int) -> tuple[int, memoryview]:
    """``frames``, of messages from number ``first`` on, without the DATA frames that hold none from ``number`` on.

    With the number of the first message that is left.
    """
    start = 0
    while start < len(frames):
        _, _, kind, _, count, length, sequence, _, _ = HEADER.unpack_from(frames, start)
        if kind != _DATA or sequence + count > number:
            return sequence if start else first, frames[start:]
        start += HEADER_SIZE + length
    raise ValueError(f"message {number} is after the last of these frames, whose first message is {first}")
