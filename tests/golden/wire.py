"""The wire's vectors: what is said, and its bytes, as docs/protocol/wire.md has them and not as our code does.

``python -m tests.golden.wire`` writes the vectors of this version, and the page that shows them. They are made of
`struct`, msgpack, hmac and xxhash alone. A vector that was released is never changed: another form on the wire is
another version of the protocol.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import xxhash

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "golden" / "0.1.0" / "wire.json"
PAGE = ROOT / "docs" / "protocol" / "vectors.md"

NONCE, OTHER_NONCE = bytes(range(16)), bytes(range(16, 32))
PLACE, MEETING = bytes([0x44] * 16), bytes([0x55] * 16)
LINE, TOKEN, ATTEMPT = bytes([0x11] * 16), bytes([0x22] * 16), bytes([0x33] * 16)
BOOT = b"8d4f9a0e-4299-46e5-b5bd-22e76f8056d0"
ENDS: list[dict[str, Any]] = [
    {"of": "TLS", "parts": [b"tls", bytes(range(0x40, 0x70))]},
    {"of": "TCP", "parts": [BOOT, b"1", b"127.0.0.1 40001", b"127.0.0.1 9000"]},
    {"of": "TCP", "parts": [BOOT, b"4026531840", b"::1 9000", b"::1 9001"]},
]  # fmt: skip
SCHEMA = b"a schema, shorter than any of Arrow's"
WINNERS = struct.pack("<QQQQ16s", 0, 2, 10, 0x1122334455667788, ATTEMPT)

PURPOSES = {"control": 0, "data": 1, "member": 2, "client": 3, "reading": 4}

PROOFS: list[dict[str, Any]] = [
    {"secret": secret, "role": role, "own nonce": NONCE, "other nonce": OTHER_NONCE}
    for secret, role in (
        ("", "sender"),
        ("", "receiver"),
        ("open sesame", "sender"),
        ("open sesame", "receiver"),
        ("grüße", "client"),
        ("", "member"),
        ("", "node"),
    )
]

_ANSWER = {"channel": "flights", "request": 7}
_ASKED = {"channel": "flights", "request": 9}
_GROUP = {"into": "flights", "application": "job", "epoch": 3, "partition": 0}

MESSAGES: list[dict[str, Any]] = [
    {"t": "hello", "version": 1, "node": "edge-1/4711", "dead_after_ms": 5000, "nonce": NONCE, "line": LINE,
     "secret": False, "features": "elsewhere ports"},
    {"t": "hello", "version": 1, "node": "hub/42", "dead_after_ms": 5000, "nonce": OTHER_NONCE, "line": None,
     "secret": True, "features": "contexts ends gaps notes parts"},
    {"t": "hello", "version": 1, "node": "hub/42", "dead_after_ms": 5000, "nonce": OTHER_NONCE, "line": None,
     "secret": False, "features": "contexts ends gaps memory notes parts"},
    {"t": "hello", "version": 1, "node": "loader", "dead_after_ms": 5000, "nonce": NONCE, "line": LINE,
     "secret": False, "features": None},
    {"t": "hello", "version": 1, "node": "edge-1/4711", "dead_after_ms": 5000, "nonce": NONCE, "line": LINE,
     "secret": False, "features": "elsewhere ports upqueries"},
    {"t": "proof", "mac": hmac.digest(b"", b"netchannel sender" + NONCE + OTHER_NONCE, "sha256")},
    {"t": "ping", "at": 1_000_000},
    {"t": "ping", "at": (1 << 64) - 1},
    {"t": "pong", "at": 1_000_000},
    {"t": "error", "message": "the sender speaks versions 9 to 9, the receiver version 1", "permanent": True},
    {"t": "open", **_ANSWER, "stream": "s", "codec": "bytes", "schema": None, "lossy": False,
     **dict.fromkeys(_GROUP)},
    {"t": "open", **_ANSWER, "stream": "33" * 16, "codec": "arrow", "schema": SCHEMA, "lossy": False, **_GROUP},
    {"t": "ok", **_ANSWER, "token": TOKEN, "port": None, "message_limit": 1 << 30},
    {"t": "ok", **_ANSWER, "token": TOKEN, "port": 40_001, "message_limit": 1 << 30},
    {"t": "deny", **_ANSWER, "code": "unregistered", "message": "channel 'flights' is not registered there"},
    {"t": "finished", **_ANSWER, "count": 3, "reason": "end", "message": "it ended cleanly"},
    {"t": "elsewhere", **_ANSWER, "port": 9002},
    {"t": "ready", "channel": "flights"},
    {"t": "share", "place": PLACE},
    {"t": "meet", "meeting": MEETING, "token": TOKEN, "size": 1 << 26},
    {"t": "shared", "size": 1 << 26},
    {"t": "shared", "size": 0},
    {"t": "holds", "token": TOKEN, "offsets": b""},
    {"t": "holds", "token": TOKEN, "offsets": struct.pack("<QQ", 0, 1 << 20)},
    {"t": "released", "offsets": struct.pack("<Q", 1 << 20)},
    {"t": "member", "port": 9002},
    {"t": "claim", "channel": "flights", "number": 1, "held": False},
    {"t": "release", "channel": "flights"},
    {"t": "over", "channel": "flights", "stream": "s", "count": 3, "reason": "end", "message": "it ended cleanly",
     "answers": None},
    {"t": "taken", "channel": "flights", "number": 1, "message": "hub/43 has it"},
    {"t": "provide", "service": "prices", "number": 2},
    {"t": "withdraw", "service": "prices"},
    {"t": "provided", "service": "prices", "number": 2, "message": "hub/43 has it"},
    {"t": "watch", **_ASKED},
    {"t": "locate", **_ASKED, "stream": "s", "first": 0, "max_rows": 1000, "max_bytes": None},
    {"t": "when", **_ASKED, "stream": "s", "at": 1_700_000_000_000_000},
    {"t": "read", **_ASKED, "stream": "s"},
    {"t": "hold", **_ASKED, "consumer": "loader", "holder": "host/77", "renew": False, "fresh": False},
    {"t": "acknowledge", **_ASKED, "consumer": "loader", "holder": "host/77", "stream": "s", "upto": 2},
    {"t": "forget", **_ASKED, "consumer": "loader"},
    {"t": "yield", "channel": "flights", "request": 0, "consumer": "loader", "holder": "host/77"},
    {"t": "unwatch", **_ASKED},
    {"t": "commit", **_ASKED, "application": "job", "epoch": 3, "winners": WINNERS, "end": False},
    {"t": "drop", **_ASKED, "application": "job", "epoch": 3},
    {"t": "epoch", **_ASKED, "application": "job"},
    {"t": "hello", "version": 1, "node": "hub/42", "dead_after_ms": 5000, "nonce": OTHER_NONCE, "line": None,
     "secret": False, "features": "calls ends"},
    {"t": "call", "service": "prices", "request": 10, "size": 3, "body": b"JFK"},
    {"t": "call", "service": "prices", "request": 11, "size": 6, "body": b"LGA,"},
    {"t": "piece", "request": 11, "body": b"EW"},
    {"t": "cancel", "request": 11},
    {"t": "returned", "request": 10, "size": 5, "body": b"12"},
    {"t": "piece", "request": 10, "body": b".50"},
    {"t": "deny", "channel": "prices", "request": 11, "code": "cancelled",
     "message": "the client wanted it no more"},
    {"t": "available", "service": "prices"},
    {"t": "heads", **_ASKED, "stream": "s", "codec": "bytes", "oldest": 0, "head": 3, "rows": 3, "bytes": 15,
     "ended": False, "failure": None, "schema": None},
    {"t": "located", **_ASKED, "until": 2, "rows": 2, "bytes": 10},
    {"t": "moment", **_ASKED, "since": 1, "before": 1},
    {"t": "reading", **_ASKED, "token": TOKEN},
    {"t": "held", **_ASKED, "stream": "s", "position": 0},
    {"t": "acknowledged", **_ASKED, "position": 2},
    {"t": "forgotten", **_ASKED},
    {"t": "committed", **_ASKED, "fresh": True},
    {"t": "dropped", **_ASKED},
    {"t": "epoch_is", **_ASKED, "epoch": 3, "full": None},
]  # fmt: skip

OPEN = next(each for each in MESSAGES if each["t"] == "open")

AT = 1_700_000_000_000_000


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)


def _lengths(*parts: bytes) -> bytes:
    return _padded(b"".join(struct.pack("<I", len(part)) for part in parts))


_NOTED = _lengths(b"one", b"", b"three") + _lengths(b"", b"n2", b"") + _padded(b"n2")
FRAMES: list[dict[str, Any]] = [
    {"kind": "ATTACH", "what": "the token, and the next new message's number", "sequence": 5,
     "payload": TOKEN + struct.pack("<Q", 8)},
    {"kind": "ATTACH", "what": "of a sender that takes the number that is wanted", "payload": TOKEN},
    {"kind": "ATTACH", "what": "the token, the next new message's number, and the connection's ends", "sequence": 5,
     "payload": TOKEN + struct.pack("<Q", 8) + bytes(range(0x70, 0x80))},
    {"kind": "SCHEMA", "what": "piece 0", "extent": len(SCHEMA)},
    {"kind": "SCHEMA", "what": "piece 1, and all of it", "count": 1, "payload": SCHEMA},
    {"kind": "CONTEXT", "what": "piece 0", "extent": 8},
    {"kind": "CONTEXT", "what": "piece 1, and all of it (shorter than any of Arrow's)", "count": 1,
     "payload": b"contexts"},
    {"kind": "DATA", "what": "one message", "count": 1, "sequence": 5, "timestamp": AT,
     "payload": _lengths(b"hello") + _padded(b"hello")},
    {"kind": "DATA", "what": "three messages, the second of which is empty and has the note n2", "flags": 1,
     "count": 3, "sequence": 6, "timestamp": AT, "payload": _NOTED + _padded(b"one") + _padded(b"three")},
    {"kind": "PART", "what": "piece 0, with a note", "sequence": 9, "timestamp": AT, "extent": 12,
     "payload": b"note"},
    {"kind": "PART", "what": "piece 1", "count": 1, "sequence": 9, "timestamp": AT, "payload": b"twelve "},
    {"kind": "PART", "what": "piece 2, the last", "count": 2, "sequence": 9, "timestamp": AT, "payload": b"bytes"},
    {"kind": "DATA", "what": "three empty messages, each with a note", "flags": 1, "count": 3, "sequence": 10,
     "timestamp": AT, "payload": _lengths(b"", b"", b"") + _lengths(b"a", b"bcd", b"efghi") + _padded(b"abcdefghi")},
    {"kind": "END", "sequence": 13},
    {"kind": "END", "what": "of a stream without messages"},
    {"kind": "FAIL", "sequence": 13, "payload": "die Platte ist voll: tschüss".encode()},
    {"kind": "GAP", "what": "two messages", "count": 2, "sequence": 10},
    {"kind": "BLOCKED", "what": "all below 10 is received, 4 of it not acknowledged", "count": 4, "sequence": 10},
    {"kind": "ASK", "what": "somebody waits until all below 10 is acknowledged", "sequence": 10},
    {"kind": "SHARED", "what": "a body of 1 MiB in shared memory", "sequence": 14, "timestamp": AT,
     "payload": struct.pack("<QQ", 1 << 20, 1 << 20)},
    {"kind": "SHARED", "what": "one of 65 537 bytes, with a note", "sequence": 15, "timestamp": AT,
     "payload": struct.pack("<QQ", 0, 65_537) + b"note"},
    {"kind": "ATTACHED", "what": "of a receiver that has nothing yet"},
    {"kind": "ATTACHED", "what": "with the last note that it has", "sequence": 7, "payload": b"n2"},
    {"kind": "ATTACHED", "what": "of a receiver that looks at no checksum behind it", "flags": 2, "sequence": 5},
    {"kind": "ACK", "sequence": 6},
    {"kind": "RECEIPT", "sequence": 10},
    {"kind": "FINISHED", "sequence": 10},
    {"kind": "CLOSED", "payload": b"enough"},
    {"kind": "REFUSED", "payload": b"protocol a frame has the unknown kind 99"},
    {"kind": "REFUSED", "payload": b"token the token is not, or no longer, good"},
    {"kind": "STARVED", "sequence": 10},
    {"kind": "RELEASED", "what": "two bodies", "count": 2, "payload": struct.pack("<QQ", 0, 1 << 20)},
    {"kind": "UPQUERY", "what": "of bytes that only consumer and producer understand", "payload": b"7 shop=12"},
    {"kind": "UPQUERY", "what": "of no bytes"},
    {"kind": "REQUEST", "what": "messages 5 to 10", "sequence": 5, "payload": struct.pack("<Q", 10)},
]  # fmt: skip


def _changed(said: bytes, at: int) -> bytes:
    return said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :]


def wrong() -> list[dict[str, Any]]:
    """What breaks the protocol, and why."""
    ping, ack = message({"t": "ping", "at": 1}), frame({"kind": "ACK", "sequence": 6})
    packed = msgpack.packb({"t": "ping", "at": 1})
    first = {"kind": "DATA", "count": 1}
    said = [
        ("message", "another check", _changed(ping, 4)),
        ("message", "another checksum", _changed(ping, 6)),
        ("message", "a length of 4 GiB", b"\xff" * 4 + lowest(2, b"\xff" * 4) + bytes(4)),
        ("message", "an unknown type", message({"t": "pang", "at": 1})),
        ("message", "a field that is missing", message({"t": "ping"})),
        ("message", "a number that is a float", message({"t": "ping", "at": 1.0})),
        ("message", "a number that is true", message({"t": "ping", "at": True})),
        ("message", "a number below zero", message({"t": "ping", "at": -1})),
        ("message", "a map in a field", message({"t": "ping", "at": {}})),
        ("message", "an array in a field that nobody knows", message({"t": "ping", "at": 1, "x": []})),
        ("message", "bytes behind the map", enclosed(packed + b"\xc0")),
        ("message", "no map", enclosed(msgpack.packb(["ping", 1]))),
        ("message", "an id with a space that is none", message({"t": "ready", "channel": "a\u00a0b"})),
        ("message", "features that are an empty text", message({**MESSAGES[0], "features": ""})),
        ("message", "a schema under bytes", message({**OPEN, "schema": SCHEMA})),
        ("frame", "another check", _changed(ack, 4)),
        ("frame", "another checksum", _changed(ack, 0)),
        ("frame", "an unknown kind", frame({"kind": 99})),
        ("frame", "a length above the limit", _claiming(1_310_721)),
        ("frame", "a number of 2^63", frame({"kind": "ACK", "sequence": 1 << 63})),
        ("frame", "a time before 1970", frame({**first, "timestamp": -1, "payload": bytes(8)})),
        ("frame", "no messages", frame({"kind": "DATA"})),
        ("frame", "no room for the lengths", frame({"kind": "DATA", "count": 3, "payload": bytes(8)})),
        ("frame", "parts that do not add up", frame({**first, "payload": _lengths(b"nine char") + bytes(8)})),
        ("frame", "a piece of nothing", frame({"kind": "PART", "count": 1, "payload": b"x"})),
        ("frame", "an end among pieces", frame({"kind": "PART", "extent": 8}) + frame({"kind": "END"})),
        ("frame", "pieces of nothing", frame({"kind": "SCHEMA"})),
    ]  # fmt: skip
    return [{"of": of, "what": what, "hex": each.hex()} for of, what, each in said]


KINDS = {
    "ATTACH": 1, "SCHEMA": 2, "CONTEXT": 3, "DATA": 4, "PART": 5, "END": 6, "FAIL": 7, "GAP": 8, "BLOCKED": 9,
    "ASK": 10, "SHARED": 11, "ATTACHED": 16, "ACK": 17, "RECEIPT": 18, "FINISHED": 19, "CLOSED": 20, "REFUSED": 21,
    "STARVED": 22,
    "RELEASED": 23, "UPQUERY": 24, "REQUEST": 32,
}  # fmt: skip


def lowest(size: int, data: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")[:size]


def ends(parts: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"\n".join((b"netchannel ends", *parts))).digest()[:16]


def greeting(purpose: int) -> bytes:
    start = b"NETC" + bytes([1, 1, purpose])
    return start + lowest(1, start)


def message(fields: Mapping[str, Any]) -> bytes:
    return enclosed(msgpack.packb(fields))


def enclosed(packed: bytes) -> bytes:
    length = struct.pack("<I", len(packed))
    return length + lowest(2, length) + lowest(4, packed) + packed


def frame(fields: Mapping[str, Any]) -> bytes:
    payload, kind = fields.get("payload", b""), fields["kind"]
    numbers = [fields.get(name, 0) for name in ("flags", "count", "sequence", "timestamp", "extent")]
    flags, count, sequence, timestamp, extent = numbers
    header = struct.pack(
        "<BBIIQqQ", KINDS.get(kind, kind), flags, count, len(payload), sequence, timestamp, extent
    )
    rest = lowest(2, header) + header + payload
    return lowest(4, rest) + rest


def _claiming(length: int) -> bytes:
    """A header alone."""
    header = struct.pack("<BBIIQqQ", KINDS["DATA"], 0, 1, length, 0, 0, 0)
    rest = lowest(2, header) + header
    return lowest(4, rest) + rest


def mac(proof: Mapping[str, Any]) -> bytes:
    said = f"netchannel {proof['role']}".encode() + proof["own nonce"] + proof["other nonce"]
    return hmac.digest(proof["secret"].encode(), said, "sha256")


def vectors() -> dict[str, list[dict[str, Any]]]:
    """All of them, as the file has them: bytes are hexadecimal digits."""
    return {
        "greetings": [{"purpose": name, "hex": greeting(number).hex()} for name, number in PURPOSES.items()],
        "proofs": [{**_shown(proof), "mac": mac(proof).hex()} for proof in PROOFS],
        "ends": [
            {
                "of": each["of"],
                "parts": [part.hex() for part in each["parts"]],
                "hex": ends(each["parts"]).hex(),
            }
            for each in ENDS
        ],
        "messages": [{"fields": _shown(each), "hex": message(each).hex()} for each in MESSAGES],
        "frames": [{**_shown(each), "hex": frame(each).hex()} for each in FRAMES],
        "wrong": wrong(),
    }


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"hex": value.hex()} if isinstance(value, bytes) else value for name, value in fields.items()
    }


def meant(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a vector, with bytes as such."""
    return {
        name: bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
        for name, value in shown.items()
    }


def page(known: Mapping[str, list[dict[str, Any]]]) -> str:
    """The page that shows them."""
    return "\n".join(_lines(known)) + "\n"


def _lines(known: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "# Vectors of the protocol"
    yield ""
    yield (
        "This page has the bytes of every message and frame of [the protocol](wire.md), to test another "
        "implementation: the bytes that it writes, and its reading of these. "
        "[A JSON file](../../tests/golden/0.1.0/wire.json) has the "
        'same vectors. In the fields, bytes are `{"hex": ...}`; unlisted fields of a frame are zero. The fields of a '
        "control message may come in any order, and nil fields may be left out, so other bytes may encode the same "
        "message."
    )
    yield ""
    yield "## Greetings"
    yield ""
    yield "| purpose | bytes |"
    yield "|---|---|"
    for each in known["greetings"]:
        yield f"| {each['purpose']} | `{each['hex']}` |"
    yield ""
    yield "## Proofs"
    yield ""
    yield "| secret | role | own nonce | other nonce | `mac` |"
    yield "|---|---|---|---|---|"
    for each in known["proofs"]:
        nonces = [each[name]["hex"] for name in ("own nonce", "other nonce")]
        yield f"| {each['secret'] or 'none'} | {each['role']} | `{nonces[0]}` | `{nonces[1]}` | `{each['mac']}` |"
    yield ""
    yield "## Ends of connections"
    yield ""
    yield "| connection | parts after `netchannel ends` | ends |"
    yield "|---|---|---|"
    for each in known["ends"]:
        yield f"| {each['of']} | {', '.join(f'`{part}`' for part in each['parts'])} | `{each['hex']}` |"
    yield ""
    yield "## Control messages"
    for each in known["messages"]:
        yield ""
        yield f"**{each['fields']['t']}** `{json.dumps(each['fields'], ensure_ascii=False)}`"
        yield ""
        yield from _block(each["hex"])
    yield ""
    yield "## Frames"
    for each in known["frames"]:
        fields = {name: value for name, value in each.items() if name not in {"kind", "what", "hex"}}
        yield ""
        what = f", {each['what']}:" if "what" in each else ""
        yield f"**{each['kind']}**{what} `{json.dumps(fields)}`"
        yield ""
        yield from _block(each["hex"])

    yield ""
    yield "## Against the rules"
    yield ""
    yield "A control message of this list, after the handshake, is answered by `error`. A frame, on a data connection"
    yield "after `ATTACHED`, is answered by `REFUSED`, `protocol`, if the receiver gets it."
    for each in known["wrong"]:
        yield ""
        yield f"A {each['of']} with {each['what']}:"
        yield ""
        yield from _block(each["hex"])


def _block(digits: str) -> Iterator[str]:
    yield "```text"
    for start in range(0, len(digits), 80):
        line = digits[start : start + 80]
        yield " ".join(line[at : at + 8] for at in range(0, len(line), 8))
    yield "```"


def main() -> None:
    FILE.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(vectors()), "utf-8")


if __name__ == "__main__":
    main()
