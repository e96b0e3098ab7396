"""The messages of control connections: a prefix and a msgpack map.

The prefix is the map's length (u32, little-endian), a check of it (u16, the lowest quarter of XXH3-64 over the four
bytes of the length) and a checksum (u32, the lower half of XXH3-64 over the map).

Every message has a type under ``t``; `FIELDS` lists the fields of each and what they hold. Unknown fields are
ignored, so that a later version can add some; a missing or mistyped one is a ProtocolError.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgpack
from xxhash import xxh3_64_intdigest

from netchannel.errors import HandshakeError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
"""Of the protocol; what a ``hello`` of another one looks like beside its version is not ours to say."""

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_PREFIX = struct.Struct("<IHI")
MESSAGE_LIMIT = 4 << 20
"""The largest control message in bytes; an open request carries a schema."""

STRANGER_LIMIT = 64 << 10
"""The same before the peer has said who it is."""

FIELDS_LIMIT = 64
"""The most fields in a control message, known or not."""

TEXT_LIMIT = 4096
"""The longest text in a control message, in characters."""

_CONTAINERS = frozenset(bytes([first]) for first in [*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""First bytes of maps and arrays in msgpack."""
_Optional = type(None)
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    # both directions
    "hello": {
        "version": (int,),
        "node": (str,),
        "dead_after_ms": (int,),
        "nonce": (bytes,),
        "secret": (bool,),
    },
    "proof": {"mac": (bytes,)},
    "ping": {"at": (int,)},
    "pong": {"at": (int,)},
    "error": {"message": (str,), "permanent": (bool,)},
    # sender to receiver
    "open": {
        "channel": (str,),
        "request": (int,),
        "stream": (str,),
        "codec": (str,),
        "schema": (bytes, _Optional),
        "oldest": (int,),
        "head": (int, _Optional),
        "lossy": (bool,),
        "into": (str, _Optional),
        "application": (str, _Optional),
        "epoch": (int, _Optional),
        "partition": (int, _Optional),
    },
    # receiver to sender
    "ok": {
        "channel": (str,),
        "request": (int,),
        "attempt": (int,),
        "token": (bytes,),
        "port": (int, _Optional),
        "message_limit": (int,),
    },
    "deny": {"channel": (str,), "request": (int,), "code": (str,), "message": (str,)},
    "finished": {"channel": (str,), "request": (int,), "count": (int,), "reason": (str,), "message": (str,)},
    "elsewhere": {"channel": (str,), "request": (int,), "port": (int,)},
    "ready": {"channel": (str,)},
    # member to node
    "member": {"port": (int,)},
    "claim": {"channel": (str,), "number": (int,), "held": (bool,)},
    "release": {"channel": (str,)},
    "over": {
        "channel": (str,),
        "stream": (str,),
        "count": (int,),
        "reason": (str,),
        "message": (str,),
        "answers": (bool, _Optional),
    },
    # node to member
    "taken": {"channel": (str,), "number": (int,), "message": (str,)},
    # client to receiver
    "watch": {"channel": (str,), "request": (int,)},
    "locate": {
        "channel": (str,),
        "request": (int,),
        "stream": (str,),
        "first": (int,),
        "max_rows": (int, _Optional),
        "max_bytes": (int, _Optional),
    },
    "read": {"channel": (str,), "request": (int,), "stream": (str,)},
    "hold": {
        "channel": (str,),
        "request": (int,),
        "consumer": (str,),
        "holder": (str,),
        "renew": (bool,),
    },
    "acknowledge": {
        "channel": (str,),
        "request": (int,),
        "consumer": (str,),
        "holder": (str,),
        "stream": (str,),
        "upto": (int,),
    },
    "forget": {"channel": (str,), "request": (int,), "consumer": (str,)},
    "yield": {"channel": (str,), "request": (int,), "consumer": (str,), "holder": (str,)},
    "unwatch": {"channel": (str,), "request": (int,)},
    "commit": {
        "channel": (str,),
        "request": (int,),
        "application": (str,),
        "epoch": (int,),
        "winners": (bytes,),
        "end": (bool,),
    },
    "drop": {"channel": (str,), "request": (int,), "application": (str,), "epoch": (int,)},
    "epoch": {"channel": (str,), "request": (int,), "application": (str,)},
    # receiver to client
    "heads": {
        "channel": (str,),
        "request": (int,),
        "stream": (str,),
        "codec": (str,),
        "oldest": (int,),
        "head": (int,),
        "rows": (int,),
        "bytes": (int,),
        "ended": (bool,),
        "failure": (str, _Optional),
        "schema": (bytes, _Optional),
    },
    "located": {"channel": (str,), "request": (int,), "until": (int,), "rows": (int,), "bytes": (int,)},
    "reading": {"channel": (str,), "request": (int,), "token": (bytes,)},
    "held": {"channel": (str,), "request": (int,), "stream": (str,), "position": (int,)},
    "acknowledged": {"channel": (str,), "request": (int,), "position": (int,)},
    "forgotten": {"channel": (str,), "request": (int,)},
    "committed": {"channel": (str,), "request": (int,), "fresh": (bool,)},
    "dropped": {"channel": (str,), "request": (int,)},
    "epoch_is": {"channel": (str,), "request": (int,), "epoch": (int, _Optional)},
}


def encode(message: Message) -> bytes:
    """The bytes of one message on the wire."""
    payload: bytes = msgpack.packb(message)
    return _PREFIX.pack(len(payload), _check(len(payload)), _checksum(payload)) + payload


def check_sendable(message: Message) -> None:
    """Raise ProtocolError for a message that no peer would take: each that is sent it would close the connection."""
    try:
        payload: bytes = msgpack.packb(message)
    except (OverflowError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"a control message {message['t']!r} cannot hold {str(message)[:200]}: {error}"
        ) from error
    if len(payload) > MESSAGE_LIMIT:
        raise ProtocolError(
            f"a control message {message['t']!r} has {len(payload)} bytes: the limit is {MESSAGE_LIMIT}"
        )
    decode(payload)


def _check(length: int) -> int:
    return xxh3_64_intdigest(_LENGTH.pack(length)) & 0xFFFF


def _checksum(payload: bytes) -> int:
    return xxh3_64_intdigest(payload) & 0xFFFFFFFF


def decode(payload: bytes) -> Message:
    """Read and check one message. Raises ProtocolError naming the message, the field and what it holds."""
    try:
        message = _unpacked(payload)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(
            f"a control message of {len(payload)} bytes is no map in msgpack: {str(error) or type(error).__name__}"
        ) from error
    if not isinstance(message.get("t"), str):
        raise ProtocolError(f"a control message is {str(message)[:80]!r}: it has no type under 't'")
    fields = FIELDS.get(message["t"])
    if fields is None:
        raise ProtocolError(f"a control message of unknown type {message['t'][:40]!r}")
    if message["t"] == "hello" and isinstance(version := message.get("version"), int) and version != VERSION:
        raise HandshakeError(f"the peer speaks version {version}, this side version {VERSION}")
    for field, types in fields.items():
        value = message.get(field)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ProtocolError(
                f"the field {field!r} of a control message {message['t']!r} holds {str(value)[:80]!r}: "
                f"expected {' or '.join(kind.__name__ for kind in types)}"
            )
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            raise ProtocolError(
                f"the field {field!r} of a control message {message['t']!r} has {len(value)} characters: the limit is "
                f"{TEXT_LIMIT}"
            )
        if isinstance(value, int) and value < 0:
            raise ProtocolError(
                f"the field {field!r} of a control message {message['t']!r} is {value}: negative"
            )
    return message


def _unpacked(payload: bytes) -> Message:
    """A map of scalars. Nothing nested, of which a message of 4 MiB would take hundreds of MiB of memory."""
    size = max(1, len(payload))
    unpacker = msgpack.Unpacker(read_size=size, max_buffer_size=size)
    unpacker.feed(payload)
    count = unpacker.read_map_header()
    if count > FIELDS_LIMIT:
        raise ValueError(f"it has {count} fields, the limit is {FIELDS_LIMIT}")
    message: Message = {}
    for _ in range(count):
        key = _scalar(unpacker, payload)
        message[key] = _scalar(unpacker, payload)
    if unpacker.tell() != len(payload):
        raise ValueError("something follows the map")
    return message


def _scalar(unpacker: msgpack.Unpacker, payload: bytes) -> Any:
    at = unpacker.tell()
    if payload[at : at + 1] in _CONTAINERS:
        raise ValueError("a map or an array is inside the map")
    return unpacker.unpack()


class MessageParser:
    """Bytes in, control messages out. A claim above ``limit`` bytes is refused before anything is allocated.

    Each message may change the limit for those behind it, be they in the same bytes.
    """

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self.limit = limit
        self._kept = bytearray()

    def received(self, data: memoryview) -> Iterator[Message]:
        """The messages that ``data`` completes."""
        self._kept += data
        start = 0
        try:
            while (end := self._next_end(start)) is not None:
                payload = bytes(self._kept[start + _PREFIX.size : end])
                _, _, checksum = _PREFIX.unpack_from(self._kept, start)
                if _checksum(payload) != checksum:
                    raise ProtocolError(
                        f"a control message of {len(payload)} bytes was changed on the way: its checksum differs"
                    )
                start = end
                yield decode(payload)
        finally:
            del self._kept[:start]

    def _next_end(self, start: int) -> int | None:
        """Where the message ends that begins at ``start``, if all of it is there."""
        if len(self._kept) - start < _PREFIX.size:
            return None
        length, check, _ = _PREFIX.unpack_from(self._kept, start)
        if check != _check(length):
            raise ProtocolError(
                "a control message's length does not match its check: it was changed on the way"
            )
        if length > self.limit:
            raise ProtocolError(f"a control message claims {length} bytes: the limit is {self.limit}")
        end: int = start + _PREFIX.size + length
        return end if end <= len(self._kept) else None
