"""The wire format of data connections: frames with a fixed header, packed on one side and parsed on the other.

A frame is a header of 48 bytes, little-endian, and a payload (docs/protocol.md, section Data connection)::

    checksum u32 | check u16 | kind u8 | flags u8 | count u32 | length u32
    sequence u64 | timestamp i64 (microseconds since 1970 UTC) | group u64 | extent u64

``checksum`` is the lower half of XXH3-64 over the rest of the header and the payload: what TCP's own sixteen bits let
pass, and what a middlebox breaks, ends the connection, and the message is sent again. ``check`` is the lowest quarter
of XXH3-64 over the header behind it, so that a length is believed before its payload has come.

The payload of ``DATA`` is a table of ``count`` body lengths (u32), with the flag ``NOTES`` a table of as many note
lengths and the notes, then the bodies; each of these parts is padded with zeros to a multiple of 8, so that Arrow
bodies keep their alignment. A message too large for one frame goes as ``PART`` frames, numbered by ``count``: part 0
carries its note and in ``extent`` the size of its body, the others carry the body.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from netchannel.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .pool import Pool

Buffer = bytes | bytearray | memoryview
"""Anything that a vectored write takes."""

_CHECKSUM = struct.Struct("<I")
_CHECK = struct.Struct("<H")
_FIELDS = struct.Struct("<BBIIQqQQ")
_HEADER = struct.Struct("<IHBBIIQqQQ")
HEADER_SIZE = _HEADER.size

FRAME_LIMIT = 1 << 20
"""The largest body in a frame, in bytes: what stays in a core's cache between socket and consumer."""
PACK_LIMIT = 1 << 18
"""Messages are packed into one frame until their bodies and notes reach this many bytes."""
ALONE = 1 << 15
"""A larger body has a frame of its own, and is sent from where it is: copying it costs more than a frame."""
NOTE_LIMIT = 1 << 15
PAYLOAD_LIMIT = FRAME_LIMIT + PACK_LIMIT
TOKEN_FRAME_LIMIT = 1 << 10
"""The payload of a frame whose sender has not shown a token."""
PACK_COUNT = 1 << 16
"""The most messages in a frame: what the smallest ones that are counted in bytes come to."""
SEQUENCE_LIMIT = 1 << 63
"""Above every number; there is room for a frame's count, so that a sum still fits its field."""
SLAB = 1 << 19
"""One receive buffer for all connections of a core; frames above `DIRECT` are received into their own."""
DIRECT = 1 << 14

NOTES, LAST = 1, 2
"""Flags: the frame has a table of note lengths; the frame is the last part of what it carries."""


class Kind(IntEnum):
    """Kinds of frames. Those from 16 on run against the stream's direction."""

    ATTACH = 1  # payload: token; sequence: the first number that the sender still has
    SCHEMA = 2  # payload: the codec's description of all bodies, in pieces up to LAST
    CONTEXT = 3  # payload: what the bodies that follow need beside the schema (dictionaries), likewise
    DATA = 4
    PART = 5
    END = 6  # sequence: the number of messages of the stream
    FAIL = 7  # sequence: as END; payload: the producer's message
    GAP = 8  # count messages from sequence on were dropped before they were sent
    BLOCKED = 9  # the producer waits: all below sequence is received, count of it not acknowledged
    ATTACHED = 16  # sequence: the next number that the receiver wants; payload: the last note it has
    ACK = 17  # sequence: everything below is acknowledged
    RECEIPT = 18  # sequence: everything below is received
    FINISHED = 19  # the end is acknowledged
    CLOSED = 20  # the consumer wants no more; payload: why
    REFUSED = 21  # the token, or once attached the schema, is not taken; payload: why
    STARVED = 22  # the consumer waits too, for what only its own acknowledgement lets through
    REQUEST = 32  # reserved


KINDS = frozenset(int(kind) for kind in Kind)


class Frame(NamedTuple):
    """A received frame; ``payload`` is memory that nothing else will write to.

    PART frames come out twice: part 0 with the note, and the last with the whole body as its payload.
    """

    kind: int
    flags: int
    items: int
    sequence: int
    timestamp: int
    payload: memoryview


class Scattered:
    """A body that lies in several places, and is sent from there. Its length is in bytes."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size


Body = Buffer | Scattered
"""What a codec makes of a message. Its length is in bytes."""


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
    fields = _FIELDS.pack(kind, flags, count, length, sequence, timestamp, 0, extent)
    return _CHECK.pack(xxh3_64_intdigest(fields) & 0xFFFF) + fields


def _joined(fields: bytes, *payload: Buffer) -> bytes:
    """A whole frame in one piece."""
    frame = b"".join([fields, *payload])
    return _CHECKSUM.pack(xxh3_64_intdigest(frame) & 0xFFFFFFFF) + frame


def _scattered(fields: bytes, payload: Sequence[Buffer]) -> list[Buffer]:
    """A frame whose payload stays where it is."""
    digest = xxh3_64(fields)
    for piece in payload:
        digest.update(piece)
    return [_CHECKSUM.pack(digest.intdigest() & 0xFFFFFFFF) + fields, *payload]


def signal(kind: Kind, *, sequence: int = 0, payload: bytes = b"", count: int = 0) -> bytes:
    """A whole frame that carries no messages, e.g. an acknowledgement."""
    return _joined(_fields(kind, len(payload), count=count, sequence=sequence), payload)


def blob(kind: Kind, payload: bytes) -> list[Buffer]:
    """SCHEMA or CONTEXT frames, the last of them with the flag LAST."""
    view = memoryview(payload)
    pieces = [view[start : start + FRAME_LIMIT] for start in range(0, len(view), FRAME_LIMIT)] or [view]
    buffers: list[Buffer] = []
    for index, piece in enumerate(pieces):
        flags = LAST if index == len(pieces) - 1 else 0
        buffers += _scattered(_fields(kind, len(piece), flags=flags, count=index), [piece])
    return buffers


_PAD = bytes(8)


def _padded(part: bytes) -> bytes:
    return part + _PAD[: -len(part) & 7]


_PADS = [_PAD[:missing] for missing in (0, 7, 6, 5, 4, 3, 2, 1)]
"""What follows a body, by the length of the body modulo 8."""


def _tables(lengths: Sequence[int], notes: Mapping[int, bytes]) -> tuple[bytes, int]:
    count = len(lengths)
    tables = _padded(struct.pack(f"<{count}I", *lengths))
    if not notes:
        return tables, 0
    note_lengths = [len(notes.get(index, b"")) for index in range(count)]
    tables += _padded(struct.pack(f"<{count}I", *note_lengths))
    return tables + _padded(b"".join([notes[index] for index in sorted(notes)])), NOTES


def pack(bodies: Sequence[Body], notes: Mapping[int, bytes], first: int, timestamp: int) -> list[Buffer]:
    """One DATA frame of messages, numbered from ``first``; several of them are at most PACK_LIMIT bytes together.

    ``notes`` are those that are not empty, by their message's place.
    """
    count = len(bodies)
    lengths = list(map(len, bodies))
    tables, flags = _tables(lengths, notes)
    length = len(tables) + sum(lengths)
    pieces: list[Buffer] = [tables]
    if count == 1:
        pieces += _pieces(bodies[0])
        pieces.append(_PADS[lengths[0] & 7])
        length += len(pieces[-1])
    elif lengths.count(lengths[0]) == count:
        pad = _PADS[lengths[0] & 7]
        pieces += [pad.join(bodies), pad] if pad else bodies  # type: ignore[arg-type]
        length += count * len(pad)
    else:
        pads = [_PADS[size & 7] for size in lengths]
        pieces += chain.from_iterable(zip(bodies, pads, strict=True))  # type: ignore[arg-type]
        length += sum(map(len, pads))
    fields = _fields(Kind.DATA, length, flags=flags, count=count, sequence=first, timestamp=timestamp)
    if count > 1 or length <= ALONE:
        return [_joined(fields, *pieces)]
    return _scattered(fields, pieces)


def _pieces(body: Body) -> Sequence[Buffer]:
    return body.pieces if isinstance(body, Scattered) else (body,)


def cut(body: Body, note: bytes, sequence: int, timestamp: int) -> list[Buffer]:
    """The PART frames of one message of any size."""
    fields = _fields(Kind.PART, len(note), sequence=sequence, timestamp=timestamp, extent=len(body))
    buffers: list[Buffer] = [_joined(fields, note)]
    views = [memoryview(piece).cast("B") for piece in _pieces(body)]
    index, left = 1, len(body)
    while left:
        length = min(left, FRAME_LIMIT)
        left -= length
        flags = 0 if left else LAST
        fields = _fields(Kind.PART, length, flags=flags, count=index, sequence=sequence, timestamp=timestamp)
        buffers += _scattered(fields, _take(views, length))
        index += 1
    return buffers


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


class Messages(NamedTuple):
    """The messages of a frame. ``notes`` is empty if there are none."""

    bodies: list[memoryview]
    notes: list[bytes]
    largest: int


def unpack(frame: Frame) -> Messages:
    """The messages of a DATA frame. Raises ProtocolError if the lengths do not add up."""
    payload, count = frame.payload, frame.items
    if count > PACK_COUNT:
        raise ProtocolError(f"a frame claims {count} messages: the limit is {PACK_COUNT}")
    lengths, offset = _table(payload, 0, count)
    notes: list[bytes] = []
    if frame.flags & NOTES:
        note_lengths, offset = _table(payload, offset, count)
        ends = list(accumulate(note_lengths, initial=offset))
        notes = [bytes(payload[start:end]) for start, end in pairwise(ends)]
        offset = ends[-1] + (-ends[-1] & 7)
    if not count:
        bodies = []
    elif lengths.count(length := lengths[0]) == count:
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
    return Messages(bodies, notes, max(lengths, default=0))


_NOTHING = memoryview(b"")


def largest_message(frames: memoryview) -> int:
    """The size in bytes of the largest message in ``frames``, one DATA frame or all PART frames of a message."""
    _, _, kind, _, count, _, _, _, _, extent = _HEADER.unpack_from(frames)
    if kind == Kind.PART:
        return int(extent)
    return max(map(int, struct.unpack_from(f"<{count}I", frames, HEADER_SIZE)))


class FrameParser:
    """Bytes in, frames out; large payloads are received straight into memory of their own.

    ``slab`` is shared by all parsers of a core: a reader asks for a buffer, fills it and reports it before another
    reader asks. ``pool`` gives payloads their memory. What is left of an incomplete frame is stashed until the next
    read. ``message_limit`` bounds the body of a message in PART frames, ``payload_limit`` each frame's payload, in
    bytes.
    """

    def __init__(
        self, slab: memoryview, pool: Pool, message_limit: int, payload_limit: int = PAYLOAD_LIMIT
    ) -> None:
        self._pool = pool
        self.payload_limit = payload_limit
        self._slab = slab
        self._message_limit = message_limit
        self._stash = b""
        self._header: tuple[int, ...] = ()
        self._digest = xxh3_64()
        self._target: memoryview | None = None  # where the payload of the frame of `_header` is received
        self._filled = 0
        self._body = memoryview(b"")  # of the message whose PART frames are coming
        self._joined = 0
        self._part = 0  # the part that must come next; 0: no message is open

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._target is not None:
            return self._target[self._filled :]
        kept = len(self._stash)
        self._slab[:kept] = self._stash
        return self._slab[kept:]

    def received(self, n: int) -> list[Frame]:
        """``n`` bytes are in the buffer. The frames that they complete; raises ProtocolError on a bad one."""
        if self._target is not None:
            self._filled += n
            if self._filled < len(self._target):
                return []
            target, self._target = self._target, None
            self._digest.update(target)
            _compare(self._header, self._digest.intdigest())
            return self._completed(self._header, target)
        frames: list[Frame] = []
        slab, start, end = self._slab, 0, len(self._stash) + n
        self._stash = b""
        while end - start >= HEADER_SIZE:
            header = _HEADER.unpack_from(slab, start)
            fields = slab[start + _CHECKSUM.size + _CHECK.size : start + HEADER_SIZE]
            length = _checked_length(header, fields, self.payload_limit)
            payload_start, frame_end = start + HEADER_SIZE, start + HEADER_SIZE + length
            if frame_end > end:
                if length <= DIRECT:
                    break
                self._digest = xxh3_64(slab[start + _CHECKSUM.size : payload_start])
                self._receive_directly(header, slab[payload_start:end])
                return frames
            _compare(header, xxh3_64_intdigest(slab[start + _CHECKSUM.size : frame_end]))
            frames += self._completed(header, slab[payload_start:frame_end])
            start = frame_end
        self._stash = bytes(slab[start:end])
        return frames

    def _receive_directly(self, header: tuple[int, ...], begun: memoryview) -> None:
        _, _, kind, _, part, length, *_ = header
        if kind == Kind.PART and part:
            self._target = self._room(part, length)
        else:
            self._target = self._pool.take(length)
        self._target[: len(begun)] = begun
        self._filled = len(begun)
        self._header = header

    def _completed(self, header: tuple[int, ...], payload: memoryview) -> list[Frame]:
        _, _, kind, flags, count, length, sequence, timestamp, _, extent = header
        if kind == Kind.PART and count:
            room = self._room(count, length)
            if payload.obj is not room.obj:
                room[:] = payload
            self._joined += length
            self._part += 1
            if not flags & LAST:
                return []
            return [Frame(kind, flags, count, sequence, timestamp, self._whole_body())]
        if kind == Kind.PART:
            self._begin_message(extent)
        if payload.obj is self._slab.obj:
            own = self._pool.take(length)
            own[:] = payload
            payload = own
        if kind == Kind.DATA:
            payload = payload.toreadonly()
        return [Frame(kind, flags, count, sequence, timestamp, payload)]

    def _begin_message(self, extent: int) -> None:
        if not 0 < extent <= self._message_limit:
            raise ProtocolError(f"a message claims {extent} bytes: the limit here is {self._message_limit}")
        self._body, self._joined, self._part = self._pool.take(extent), 0, 1

    def _room(self, part: int, length: int) -> memoryview:
        if not self._part or part != self._part or length > len(self._body) - self._joined:
            raise ProtocolError(
                f"part {part} of {length} bytes came where part {self._part} of at most "
                f"{len(self._body) - self._joined} was due"
            )
        return self._body[self._joined : self._joined + length]

    def _whole_body(self) -> memoryview:
        if self._joined != len(self._body):
            raise ProtocolError(
                f"the last part of a message ends at byte {self._joined} of {len(self._body)}"
            )
        body, self._body, self._part = self._body, memoryview(b""), 0
        return body.toreadonly()


def _checked_length(header: tuple[int, ...], fields: memoryview, limit: int) -> int:
    check, kind, length, sequence = header[1], header[2], header[5], header[6]
    if xxh3_64_intdigest(fields) & 0xFFFF != check:
        raise ProtocolError("a frame's header does not match its check: it was changed on the way")
    if kind not in KINDS:
        raise ProtocolError(f"a frame has the unknown kind {kind}")
    if length > limit:
        raise ProtocolError(f"a frame claims {length} bytes: the limit is {limit}")
    if sequence >= SEQUENCE_LIMIT:
        raise ProtocolError(f"a frame has the number {sequence}: they end at {SEQUENCE_LIMIT}")
    return int(length)


def _compare(header: tuple[int, ...], digest: int) -> None:
    if header[0] != digest & 0xFFFFFFFF:
        raise ProtocolError(
            f"a frame of {header[5]} bytes has the checksum {digest & 0xFFFFFFFF:08x}, its sender computed "
            f"{header[0]:08x}: it was changed on the way"
        )
