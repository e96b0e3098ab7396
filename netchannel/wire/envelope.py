"""Control messages as bytes: a prefix and a msgpack map. Input is checked here, and nowhere else.

The prefix is the map's length (u32, little-endian), a check of it (u16, the lowest quarter of XXH3-64 over
the four bytes of the length) and a checksum (u32, the lower half of XXH3-64 over the map). The map has the
message's type under ``t``, and its fields.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgpack
from xxhash import xxh3_64_intdigest

from netchannel.errors import HandshakeError, ProtocolError

from .declarations import as_map, read
from .messages import MESSAGES, VERSION, Hello

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .declarations import Message
    from .frames import Buffer

_LENGTH = struct.Struct("<I")
_PREFIX = struct.Struct("<IHI")
MESSAGE_LIMIT = 4 << 20
"""The largest control message in bytes; an open request carries a schema."""

STRANGER_LIMIT = 64 << 10
"""The same before the peer has identified itself."""

FIELDS_LIMIT = 64
"""The most fields in a control message, known or not."""

_SMALL = 4 << 10
"""Payloads up to so many bytes may hold anything while they are read: it takes no memory worth speaking of."""

_CONTAINERS = frozenset(bytes([first]) for first in [*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""First bytes of maps and arrays in msgpack."""
_NESTED = frozenset((dict, list))
"""Their types in Python."""


def encode(message: Message) -> bytes:
    """The bytes of one message on the wire."""
    return enclosed(msgpack.packb(as_map(message)))


def enclosed(payload: bytes) -> bytes:
    """Return a msgpack map after its prefix."""
    return _PREFIX.pack(len(payload), _check(len(payload)), _checksum(payload)) + payload


def check_sendable(message: Message) -> None:
    """Raise ProtocolError for a message that no peer would take: each that is sent it would close the connection."""
    try:
        payload: bytes = msgpack.packb(as_map(message))
    except (OverflowError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"a control message {message.kind!r} cannot hold {str(as_map(message))[:200]}: {error}"
        ) from error
    if len(payload) > MESSAGE_LIMIT:
        raise ProtocolError(
            f"a control message {message.kind!r} has {len(payload)} bytes: the limit is {MESSAGE_LIMIT}"
        )
    decode(payload)


def _check(length: int) -> int:
    return xxh3_64_intdigest(_LENGTH.pack(length)) & 0xFFFF


def _checksum(payload: bytes) -> int:
    return xxh3_64_intdigest(payload) & 0xFFFFFFFF


def decode(payload: bytes) -> Message:
    """Read and check one message. Raises ProtocolError naming the message, the field and what it holds."""
    try:
        held = _unpacked(payload)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(
            f"a control message of {len(payload)} bytes is not a map in msgpack: {str(error) or type(error).__name__}"
        ) from error
    if not isinstance(held.get("t"), str):
        raise ProtocolError(f"a control message is {str(held)[:80]!r}: it has no type under 't'")
    kind = MESSAGES.get(held["t"])
    if kind is None:
        raise ProtocolError(f"a control message of unknown type {held['t'][:40]!r}")
    if kind is Hello and type(version := held.get("version")) is int and version != VERSION:
        raise HandshakeError(f"the peer speaks version {version}, this side version {VERSION}")
    return read(kind, held)


def _unpacked(payload: bytes) -> dict[Any, Any]:
    """A map of scalars. Nothing nested, of which a message of 4 MiB would take hundreds of MiB of memory."""
    if len(payload) <= _SMALL:
        try:
            small = msgpack.unpackb(payload, strict_map_key=False, max_map_len=FIELDS_LIMIT, max_array_len=0)
        except (TypeError, ValueError, msgpack.exceptions.UnpackException):
            small = None
        if type(small) is dict and _NESTED.isdisjoint(map(type, small.values())):
            return small
    # Field by field: large or wrong ones, for which the error has to name the flaw.
    size = max(1, len(payload))
    unpacker = msgpack.Unpacker(read_size=size, max_buffer_size=size)
    unpacker.feed(payload)
    count = unpacker.read_map_header()
    if count > FIELDS_LIMIT:
        raise ValueError(f"it has {count} fields, the limit is {FIELDS_LIMIT}")
    held: dict[Any, Any] = {}
    for _ in range(count):
        key = _scalar(unpacker, payload)
        held[key] = _scalar(unpacker, payload)
    if unpacker.tell() != len(payload):
        raise ValueError("bytes follow the map")
    return held


def _scalar(unpacker: msgpack.Unpacker, payload: bytes) -> Any:
    at = unpacker.tell()
    if payload[at : at + 1] in _CONTAINERS:
        raise ValueError("the map contains a map or an array")
    return unpacker.unpack()


class MessageParser:
    """Bytes in, control messages out. A claim above ``limit`` bytes is refused before anything is allocated.

    Each message may change the limit for later ones, even in the same bytes.
    """

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self.limit = limit
        self._kept = bytearray()
        self._spoken = False  # there was a message before

    def received(self, data: memoryview) -> Iterator[Message]:
        """The messages that ``data`` completes."""
        held: Buffer = data
        if self._kept:
            self._kept += data
            held = self._kept
        start = 0
        try:
            while (found := self._next(held, start)) is not None:
                payload, start = found
                self._spoken = True
                yield decode(payload)
        finally:
            if held is data:
                self._kept += data[start:]
            else:
                del self._kept[:start]

    def _next(self, held: Buffer, start: int) -> tuple[bytes, int] | None:
        """The message that begins at ``start``, if all of it is there, and its end."""
        if len(held) - start < _PREFIX.size:
            return None
        length, check, checksum = _PREFIX.unpack_from(held, start)
        if check != _check(length):
            if not self._spoken:
                raise ProtocolError(
                    f"its first bytes, {bytes(held[:16])!r}, are not a control message: the server there is not a "
                    f"netchannel server (check the port), or the bytes were corrupted in transit"
                )
            raise ProtocolError(
                "a control message's length does not match its check: the message was corrupted in transit"
            )
        if length > self.limit:
            raise ProtocolError(f"a control message claims {length} bytes: the limit is {self.limit}")
        begin = start + _PREFIX.size
        end = begin + length
        if end > len(held):
            return None
        payload = bytes(held[begin:end])
        if _checksum(payload) != checksum:
            raise ProtocolError(
                f"a control message of {length} bytes was corrupted in transit: its checksum differs"
            )
        return payload, end
