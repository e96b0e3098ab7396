"""Frames from the bytes of a data connection, received to where they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64, xxh3_64_intdigest

from netchannel.errors import ProtocolError

from .frames import (
    CHECKED_FROM,
    COPIED,
    FRAME_LIMIT,
    HEADER,
    HEADER_SIZE,
    IN_PIECES,
    KINDS,
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
"""Larger payloads are received into memory of their own.

After one of them no more is read than a header, with it or into the slab, so that nothing of the next payload has to
be copied.
"""

_DATA, _PART, _REFUSED = int(Kind.DATA), int(Kind.PART), int(Kind.REFUSED)
_MESSAGES = frozenset((_DATA, _PART, int(Kind.SHARED)))
_NONE = memoryview(b"")
_KIND, _LENGTH = 2, 5
"""The places of a frame's kind and its payload's length in a header."""


class FrameParser:
    """Bytes in, frames out; large payloads are received straight into memory of their own.

    ``slab`` is shared by all parsers of a core: a reader asks for a buffer, fills it and reports it before
    another reader asks. ``pool`` gives payloads their memory. The rest of an incomplete frame is stashed
    until the next read. ``message_limit`` bounds what comes in pieces, ``payload_limit`` each frame's
    payload, in bytes. Unless ``summed``, checksums are not looked at: the transport vouches for what it
    carries.
    """

    def __init__(
        self, slab: memoryview, pool: Pool, message_limit: int, payload_limit: int = PAYLOAD_LIMIT
    ) -> None:
        self._pool = pool
        self.payload_limit = payload_limit
        self._slab = slab
        self.message_limit = message_limit
        self.summed = True
        self._stash = b""
        self._large = False  # the last messages were
        self._header: tuple[int, ...] = ()
        self._digest = xxh3_64()
        self._target: memoryview | None = None  # where the payload is received of the frame of `_header`
        self._filled = 0
        self._whole = _NONE  # of a body in pieces, and a header after it
        self._extent = 0
        self._joined = 0
        self._piece = 0  # the piece that must come next; 0: nothing is begun
        self._of: tuple[int, int] = (0, 0)  # kind and number of what is
        self._note = b""

    def drop(self) -> None:
        """Let go of what has begun: nothing more is parsed."""
        self._target, self._whole, self._stash = None, _NONE, b""

    def get_buffer(self) -> memoryview:
        """Memory for the next bytes."""
        if self._target is not None:
            return self._target[self._filled :]
        kept = len(self._stash)
        if kept:
            self._slab[:kept] = self._stash
        return self._slab[kept:HEADER_SIZE] if self._large and kept < HEADER_SIZE else self._slab[kept:]

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
        if self.summed:
            self._digest.update(payload)
            _compare(self._header, self._digest.intdigest())
        frames = self._completed(self._header, payload)
        if behind:
            self._slab[: len(behind)] = behind
            frames += self._scan(len(behind))
        return frames

    def _scan(self, end: int) -> list[Frame]:
        """Return the frames in the first ``end`` bytes of the slab.

        The beginning of another is put where it continues.
        """
        frames: list[Frame] = []
        slab, start = self._slab, 0
        self._stash = b""
        while end - start >= HEADER_SIZE:
            header = HEADER.unpack_from(slab, start)
            payload_start = start + HEADER_SIZE
            check = xxh3_64_intdigest(slab[start + CHECKED_FROM : payload_start]) & 0xFFFF
            _, expected, kind, flags, count, length, sequence, timestamp, _ = header
            if (
                check != expected
                or kind not in KINDS
                or length > self.payload_limit
                or sequence >= SEQUENCE_LIMIT
                or timestamp < 0
            ):
                raise _wrong(header, check, self.payload_limit)
            frame_end = payload_start + length
            if kind in _MESSAGES:
                self._large = length > DIRECT
            if frame_end > end:
                if length <= DIRECT:
                    break
                if self.summed:
                    self._digest = xxh3_64(slab[start + SUMMED_FROM : payload_start])
                self._receive_directly(header, slab[payload_start:end])
                return frames
            if self.summed:
                _compare(header, xxh3_64_intdigest(slab[start + SUMMED_FROM : frame_end]))
            if kind == _DATA and length <= COPIED and not self._piece:
                payload = memoryview(bytes(slab[payload_start:frame_end]))
                frames.append(Frame(kind, flags, count, sequence, timestamp, payload))
            else:
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
        """Return memory for the payload, with room for a header after it."""
        _, _, kind, _, piece, length, sequence, *_ = header
        if kind in IN_PIECES and piece:
            return self._room(piece, length, (kind, sequence))
        return self._pool.take(length + HEADER_SIZE)

    def _own(self, header: tuple[int, ...], payload: memoryview) -> memoryview:
        """The same in memory that nothing else will write to."""
        kind = header[_KIND]
        if kind != _DATA and kind not in IN_PIECES:
            return memoryview(bytes(payload))
        own = self._place(header)[: len(payload)]
        own[:] = payload
        return own

    def _completed(self, header: tuple[int, ...], payload: memoryview) -> list[Frame]:
        _, _, kind, flags, count, length, sequence, timestamp, extent = header
        in_pieces = kind in IN_PIECES
        if self._piece and not (in_pieces and count) and kind != _REFUSED:
            raise ProtocolError(
                f"a frame {Kind(kind).name} with number {sequence} arrived where {self._due()} was expected"
            )
        if not in_pieces:
            if kind == _DATA:
                payload = payload.toreadonly()
            return [Frame(kind, flags, count, sequence, timestamp, payload)]
        if not count:
            self._begin(kind, sequence, bytes(payload), extent)
            return []
        self._joined += length
        self._piece += 1
        if self._joined < self._extent:
            return []
        whole, self._whole, self._piece = self._whole[: self._extent], _NONE, 0
        return [Frame(kind, flags, count, sequence, timestamp, whole.toreadonly(), self._note)]

    def _begin(self, kind: int, sequence: int, note: bytes, extent: int) -> None:
        what = f"a {Kind(kind).name} with number {sequence}"
        most = NOTE_LIMIT if kind == _PART else 0
        if len(note) > most:
            raise ProtocolError(f"{what} has a note of {len(note)} bytes: the limit is {most}")
        if not 0 < extent <= self.message_limit:
            raise ProtocolError(f"{what} claims {extent} bytes in pieces: expected 1 to {self.message_limit}")
        try:
            self._whole = self._pool.take(extent + HEADER_SIZE)
        except MemoryError as error:
            raise ProtocolError(f"{what} claims {extent} bytes, for which there is no memory here") from error
        self._extent, self._note = extent, note
        self._joined, self._piece, self._of = 0, 1, (kind, sequence)

    def _due(self) -> str:
        kind, sequence = self._of
        return (
            f"piece {self._piece} of a {Kind(kind).name} with number {sequence}"
            if self._piece
            else "no piece"
        )

    def _room(self, piece: int, length: int, of: tuple[int, int]) -> memoryview:
        if piece != self._piece or of != self._of:
            kind, sequence = of
            raise ProtocolError(
                f"piece {piece} of a {Kind(kind).name} with number {sequence} arrived where {self._due()} was expected"
            )
        most = min(self._extent - self._joined, FRAME_LIMIT)
        if not 0 < length <= most:
            raise ProtocolError(
                f"piece {piece} of a {Kind(of[0]).name} has {length} bytes: expected 1 to {most}"
            )
        return self._whole[self._joined : self._joined + length + HEADER_SIZE]


def _wrong(header: tuple[int, ...], check: int, limit: int) -> ProtocolError:
    """Return the flaw of a header."""
    _, expected, kind, _, _, length, sequence, timestamp, _ = header
    if check != expected:
        return ProtocolError("a frame's header does not match its check: it was corrupted in transit")
    if kind not in KINDS:
        return ProtocolError(f"a frame has the unknown kind {kind}")
    if length > limit:
        return ProtocolError(f"a frame claims {length} bytes: the limit is {limit}")
    if sequence >= SEQUENCE_LIMIT:
        return ProtocolError(f"a frame has the number {sequence}: numbers end at {SEQUENCE_LIMIT}")
    return ProtocolError(f"a frame has the timestamp {timestamp}: timestamps begin at 0, in 1970")


def _compare(header: tuple[int, ...], digest: int) -> None:
    if header[0] != digest & 0xFFFFFFFF:
        raise ProtocolError(
            f"a frame of {header[_LENGTH]} bytes has the checksum {digest & 0xFFFFFFFF:08x}, but its sender "
            f"computed {header[0]:08x}: it was corrupted in transit"
        )
