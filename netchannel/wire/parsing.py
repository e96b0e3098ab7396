"""Frames from the bytes of a data connection, received to where they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64, xxh3_64_intdigest

from netchannel.errors import ProtocolError

from .frames import (
    CHECKED_FROM,
    FRAME_LIMIT,
    HEADER,
    HEADER_SIZE,
    KINDS,
    LAST,
    NOTE_LIMIT,
    PAYLOAD_LIMIT,
    SEQUENCE_LIMIT,
    SUMMED_FROM,
    Frame,
    Kind,
)

if TYPE_CHECKING:
    from .pool import Pool

SLAB = 1 << 19
"""One receive buffer for all connections of a core, in bytes."""
DIRECT = 1 << 14
"""Larger payloads are received into memory of their own. Behind one of them no more is read than a header, with it or
into the slab, so that nothing of the next payload has to be copied."""

_DATA, _PART, _REFUSED = int(Kind.DATA), int(Kind.PART), int(Kind.REFUSED)
_KIND, _LENGTH = 2, 5
"""The places of a frame's kind and its payload's length in a header."""


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
        self._large = False  # the last frame was
        self._header: tuple[int, ...] = ()
        self._digest = xxh3_64()
        self._target: memoryview | None = None  # where the payload is received of the frame of `_header`
        self._filled = 0
        self._body = memoryview(b"")  # of the message whose PART frames are coming, and a header behind it
        self._extent = 0
        self._joined = 0
        self._part = 0  # the part that must come next; 0: no message is open
        self._sequence = 0  # of the message that is

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._target is not None:
            return self._target[self._filled :]
        kept = len(self._stash)
        if kept:
            self._slab[:kept] = self._stash
        return self._slab[kept:HEADER_SIZE] if self._large else self._slab[kept:]

    def received(self, n: int) -> list[Frame]:
        """``n`` bytes are in the buffer. The frames that they complete; raises ProtocolError on a bad one."""
        if self._target is None:
            return self._scan(len(self._stash) + n)
        self._filled += n
        length = self._header[_LENGTH]
        if self._filled < length:
            return []
        target, self._target = self._target, None
        payload, behind = target[:length], target[length : self._filled]
        self._digest.update(payload)
        _compare(self._header, self._digest.intdigest())
        frames = self._completed(self._header, payload)
        if behind:
            self._slab[: len(behind)] = behind
            frames += self._scan(len(behind))
        return frames

    def _scan(self, end: int) -> list[Frame]:
        """The frames in the first ``end`` bytes of the slab; what is left of another is put where it goes on."""
        frames: list[Frame] = []
        slab, start = self._slab, 0
        self._stash = b""
        while end - start >= HEADER_SIZE:
            header = HEADER.unpack_from(slab, start)
            payload_start = start + HEADER_SIZE
            length = _checked_length(header, slab[start + CHECKED_FROM : payload_start], self.payload_limit)
            frame_end = payload_start + length
            self._large = length > DIRECT
            if frame_end > end:
                if not self._large:
                    break
                self._digest = xxh3_64(slab[start + SUMMED_FROM : payload_start])
                self._receive_directly(header, slab[payload_start:end])
                return frames
            _compare(header, xxh3_64_intdigest(slab[start + SUMMED_FROM : frame_end]))
            frames += self._completed(header, self._own(header, slab[payload_start:frame_end]))
            start = frame_end
        if start < end:
            self._stash = bytes(slab[start:end])
        return frames

    def _receive_directly(self, header: tuple[int, ...], begun: memoryview) -> None:
        target = self._place(header)
        self._filled = len(begun)
        if self._filled:
            target[: self._filled] = begun
        self._target, self._header = target, header

    def _place(self, header: tuple[int, ...]) -> memoryview:
        """Where the payload goes, with room for a header behind it."""
        _, _, kind, _, part, length, sequence, *_ = header
        if kind == _PART and part:
            return self._room(part, length, sequence)
        return self._pool.take(length + HEADER_SIZE)

    def _own(self, header: tuple[int, ...], payload: memoryview) -> memoryview:
        """The same in memory that nothing else will write to."""
        if header[_KIND] not in (_DATA, _PART):
            return memoryview(bytes(payload))
        own = self._place(header)[: len(payload)]
        own[:] = payload
        return own

    def _completed(self, header: tuple[int, ...], payload: memoryview) -> list[Frame]:
        _, _, kind, flags, count, length, sequence, timestamp, _, extent = header
        if self._part and not (kind == _PART and count) and kind != _REFUSED:
            raise ProtocolError(
                f"a frame {Kind(kind).name} with number {sequence} came where part {self._part} of message "
                f"{self._sequence} was due"
            )
        if kind == _DATA:
            payload = payload.toreadonly()
        elif kind == _PART and count:
            self._joined += length
            self._part += 1
            if not flags & LAST:
                return []
            payload = self._whole_body()
        elif kind == _PART:
            self._begin_message(sequence, length, extent)
        return [Frame(kind, flags, count, sequence, timestamp, payload)]

    def _begin_message(self, sequence: int, note: int, extent: int) -> None:
        if note > NOTE_LIMIT:
            raise ProtocolError(f"message {sequence} has a note of {note} bytes: the limit is {NOTE_LIMIT}")
        if not 0 < extent <= self._message_limit:
            raise ProtocolError(
                f"message {sequence} claims {extent} bytes in parts: expected 1 to {self._message_limit}"
            )
        self._body, self._extent = self._pool.take(extent + HEADER_SIZE), extent
        self._joined, self._part, self._sequence = 0, 1, sequence

    def _room(self, part: int, length: int, sequence: int) -> memoryview:
        if not self._part or part != self._part or sequence != self._sequence:
            due = f"part {self._part} of message {self._sequence}" if self._part else "none"
            raise ProtocolError(f"part {part} of message {sequence} came where {due} was due")
        most = min(self._extent - self._joined, FRAME_LIMIT)
        if length > most:
            raise ProtocolError(
                f"part {part} of message {sequence} has {length} bytes: at most {most} were due"
            )
        return self._body[self._joined : self._joined + length + HEADER_SIZE]

    def _whole_body(self) -> memoryview:
        if self._joined != self._extent:
            raise ProtocolError(f"the last part of a message ends at byte {self._joined} of {self._extent}")
        body, self._body, self._part = self._body[: self._extent], memoryview(b""), 0
        return body.toreadonly()


def _checked_length(header: tuple[int, ...], fields: memoryview, limit: int) -> int:
    _, check, kind, _, _, length, sequence, *_ = header
    if xxh3_64_intdigest(fields) & 0xFFFF != check:
        raise ProtocolError("a frame's header does not match its check: it was changed on the way")
    if kind not in KINDS:
        raise ProtocolError(f"a frame has the unknown kind {kind}")
    if length > limit:
        raise ProtocolError(f"a frame claims {length} bytes: the limit is {limit}")
    if sequence >= SEQUENCE_LIMIT:
        raise ProtocolError(f"a frame has the number {sequence}: they end at {SEQUENCE_LIMIT}")
    return length


def _compare(header: tuple[int, ...], digest: int) -> None:
    if header[0] != digest & 0xFFFFFFFF:
        raise ProtocolError(
            f"a frame of {header[_LENGTH]} bytes has the checksum {digest & 0xFFFFFFFF:08x}, its sender computed "
            f"{header[0]:08x}: it was changed on the way"
        )
