"""Greetings, control messages and frames as docs/protocol/wire.md has them, for asyncio's streams."""

import asyncio
import hmac
import os
import struct
import time
from typing import Any, NamedTuple

import msgpack
import xxhash

CONTROL, DATA_CONNECTION = 0, 1
ATTACH, DATA, END, FAIL, ASK, ATTACHED, ACK, RECEIPT, FINISHED, CLOSED, REFUSED, STARVED = (
    *(1, 4, 6, 7, 10, 16, 17, 18, 19, 20, 21, 22),
)
HEADER = struct.Struct("<IHBBIIQqQ")
PAYLOAD_LIMIT = 1_310_720
DEAD_AFTER_S, HANDSHAKE_S = 5.0, 5.0


class BrokenRules(Exception):
    """The other side sent a message that is not allowed."""


def lowest(size: int, data: bytes) -> bytes:
    """The lowest bytes of XXH3-64, as checks and checksums are made."""
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")[:size]


def greeting(purpose: int) -> bytes:
    start = b"NETC" + bytes([1, 1, purpose])
    return start + lowest(1, start)


def message(**fields: Any) -> bytes:
    packed = msgpack.packb(fields)
    length = struct.pack("<I", len(packed))
    return length + lowest(2, length) + lowest(4, packed) + packed


def frame(kind: int, payload: bytes = b"", *, count: int = 0, sequence: int = 0, timestamp: int = 0) -> bytes:
    fields = HEADER.pack(0, 0, kind, 0, count, len(payload), sequence, timestamp, 0)[6:]
    rest = lowest(2, fields) + fields + payload
    return lowest(4, rest) + rest


class Frame(NamedTuple):
    kind: int
    count: int
    sequence: int
    payload: bytes


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    header = await reader.readexactly(HEADER.size)
    checksum, check, kind, _, count, length, sequence, _, _ = HEADER.unpack(header)
    if check.to_bytes(2, "little") != lowest(2, header[6:]) or length > PAYLOAD_LIMIT:
        raise BrokenRules(f"a header of kind {kind} that claims {length} bytes")
    payload = await reader.readexactly(length)
    if checksum.to_bytes(4, "little") != lowest(4, header[4:] + payload):
        raise BrokenRules(f"a frame of kind {kind} was corrupted in transit")
    return Frame(kind, count, sequence, payload)


def padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)


def pack(bodies: list[bytes]) -> bytes:
    """The payload of a DATA frame."""
    lengths = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
    return padded(lengths) + b"".join(map(padded, bodies))


def unpack(payload: bytes, count: int) -> list[bytes]:
    """Return the input of `pack`."""
    at = (4 * count + 7) & ~7
    if not count or at > len(payload):
        raise BrokenRules(f"{count} messages in {len(payload)} bytes")
    bodies = []
    for length in struct.unpack_from(f"<{count}I", payload):
        bodies.append(payload[at : at + length])
        at += (length + 7) & ~7
    if at != len(payload):
        raise BrokenRules(f"messages that end at byte {at} of {len(payload)}")
    return bodies


class Control:
    """One end of a control connection: its handshake, and its heartbeats, until it is lost."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        role: str,
        other: str,
        line: bytes | None,
    ) -> None:
        self._reader, self.writer = reader, writer
        self._role, self._other = role, other
        self.line = line
        self.heard = time.monotonic()

    def say(self, **fields: Any) -> None:
        self.writer.write(message(**fields))

    async def read(self) -> dict[str, Any]:
        """The next message but heartbeats. Raises OSError or EOFError when the connection is lost."""
        while True:
            prefix = await self._reader.readexactly(10)
            (length,) = struct.unpack_from("<I", prefix)
            if prefix[4:6] != lowest(2, prefix[:4]) or length > 4 << 20:
                raise BrokenRules(f"a control message that claims {length} bytes")
            packed = await self._reader.readexactly(length)
            if prefix[6:] != lowest(4, packed):
                raise BrokenRules("a control message was corrupted in transit")
            self.heard = time.monotonic()
            fields: dict[str, Any] = msgpack.unpackb(packed)
            match fields["t"]:
                case "ping":
                    self.say(t="pong", at=fields["at"])
                case "pong":
                    pass
                case "error":
                    raise ConnectionAbortedError(fields["message"])
                case _:
                    return fields

    async def shake_hands(self) -> None:
        """Exchange hellos, and prove that they were received. There is no secret, and no feature."""
        nonce = os.urandom(16)
        hello = {"version": 1, "node": "small", "dead_after_ms": int(DEAD_AFTER_S * 1000), "nonce": nonce}
        self.say(t="hello", **hello, line=self.line, secret=False, features=None)
        theirs = await self.read()
        if theirs["t"] != "hello" or theirs["version"] != 1 or theirs["secret"]:
            raise ConnectionAbortedError(f"no hello of version 1 without a secret, but {theirs}")
        self.line = self.line or theirs.get("line")
        mac = hmac.digest(b"", f"netchannel {self._role}".encode() + nonce + theirs["nonce"], "sha256")
        self.say(t="proof", mac=mac)
        proof = await self.read()
        expected = hmac.digest(b"", f"netchannel {self._other}".encode() + theirs["nonce"] + nonce, "sha256")
        if proof["t"] != "proof" or not hmac.compare_digest(proof["mac"], expected):
            raise ConnectionAbortedError("this side's hello was not read there")

    async def beat(self) -> None:
        """Send a ping each second, until the peer was silent for too long."""
        while time.monotonic() - self.heard < DEAD_AFTER_S:
            self.say(t="ping", at=int(time.monotonic() * 1e6))
            await asyncio.sleep(1)
        self.writer.transport.abort()
