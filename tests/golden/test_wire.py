"""What went over the wire at 0.1.0 is what is written and understood now, and what the page shows."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from netchannel.core import control_connection
from netchannel.core.link import Core
from netchannel.errors import HandshakeError, ProtocolError
from netchannel.policies import Timing
from netchannel.transports.connection_binding import digest
from netchannel.wire import frames, messages
from netchannel.wire.declarations import Message, as_map
from netchannel.wire.envelope import MessageParser, encode
from netchannel.wire.frame_parser import SLAB, FrameParser
from netchannel.wire.frames import Kind
from netchannel.wire.pool import Pool
from tests.golden import wire

KNOWN = json.loads(wire.FILE.read_text("utf-8"))
FRAMES = [(wire.meant(each), bytes.fromhex(each["hex"])) for each in KNOWN["frames"]]
PIECES = [each for each in FRAMES if Kind[each[0]["kind"]] in frames.IN_PIECES]
WHOLE = [each for each in FRAMES if each not in PIECES]


def test_the_vectors_are_what_the_page_of_the_protocol_says() -> None:
    """Made anew of `struct`, msgpack, hmac and xxhash; and they are on the page of vectors."""
    assert wire.vectors() == KNOWN
    assert wire.PAGE.read_text("utf-8") == wire.page(KNOWN)


def test_there_are_vectors_of_everything() -> None:
    assert {each["fields"]["t"] for each in KNOWN["messages"]} == set(messages.MESSAGES)
    assert {each["kind"] for each in KNOWN["frames"]} == {kind.name for kind in Kind}
    assert len(KNOWN["greetings"]) == 5


@pytest.mark.parametrize("vector", KNOWN["greetings"], ids=lambda each: each["purpose"])
def test_greetings(vector: dict[str, Any]) -> None:
    purposes = {
        "control": control_connection.FOR_CONTROL,
        "data": control_connection.FOR_DATA,
        "member": control_connection.FOR_MEMBERS,
        "client": control_connection.FOR_REQUESTS,
        "reading": control_connection.FOR_READING,
    }
    assert control_connection.greeting(purposes[vector["purpose"]]).hex() == vector["hex"]


@pytest.mark.parametrize("vector", KNOWN["ends"], ids=lambda each: each["of"])
def test_ends_of_connections(vector: dict[str, Any]) -> None:
    assert digest(*map(bytes.fromhex, vector["parts"])).hex() == vector["hex"]


@pytest.mark.parametrize("vector", KNOWN["messages"], ids=lambda each: each["fields"]["t"])
def test_control_messages(vector: dict[str, Any]) -> None:
    fields, said = wire.meant(vector["fields"]), bytes.fromhex(vector["hex"])
    (message,) = MessageParser().received(memoryview(said))
    assert as_map(message) == fields
    assert encode(message) == said
    assert msgpack.unpackb(said[10:]) == fields


def made() -> Iterator[bytes]:
    """What our code writes, for each vector of a whole frame."""
    for fields, _ in WHOLE:
        kind = Kind[fields["kind"]]
        payload = fields.get("payload", b"")
        sequence, timestamp = fields.get("sequence", 0), fields.get("timestamp", 0)
        if kind is Kind.DATA and fields["count"] == 1:
            yield b"".join(frames.alone(b"hello", b"", sequence, timestamp))
        elif kind is Kind.DATA and sequence == 6:
            yield b"".join(frames.pack([b"one", b"", b"three"], {1: b"n2"}, sequence, timestamp))
        elif kind is Kind.DATA:
            notes = {0: b"a", 1: b"bcd", 2: b"efghi"}
            yield b"".join(frames.pack([b""] * 3, notes, sequence, timestamp))
        elif kind is Kind.REFUSED:
            code, _, text = payload.decode().partition(" ")
            yield frames.refused(code, text)
        elif kind is Kind.SHARED:
            offset, size = struct.unpack_from("<QQ", payload)
            yield frames.reference(offset, size, payload[16:], sequence, timestamp)
        else:
            count, flags = fields.get("count", 0), fields.get("flags", 0)
            yield frames.signal(kind, sequence=sequence, payload=payload, count=count, flags=flags)


def test_frames_that_are_written() -> None:
    for (fields, said), each in zip(WHOLE, made(), strict=True):
        assert each == said, fields


def test_pieces_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit at which even these are cut."""
    written = [
        *frames.cut(Kind.SCHEMA, wire.SCHEMA),
        *frames.cut(Kind.CONTEXT, b"contexts"),
    ]
    monkeypatch.setattr(frames, "FRAME_LIMIT", 7)
    written += frames.cut(Kind.PART, b"twelve bytes", b"note", 9, wire.AT)
    assert [b"".join(each) for each in written] == [said for _, said in PIECES]


def test_frames_that_are_read() -> None:
    """By one parser, all of a connection: what is in pieces comes out whole."""
    reader = FrameParser(memoryview(bytearray(SLAB)), Pool(), 1 << 20)
    said = b"".join(said for _, said in FRAMES)
    reader.get_buffer()[: len(said)] = said
    read = reader.received(len(said))
    whole = {Kind(frame.kind).name: frame for frame in read if frame.kind in frames.IN_PIECES}
    assert bytes(whole["SCHEMA"].payload) == wire.SCHEMA
    assert bytes(whole["CONTEXT"].payload) == b"contexts"
    assert (bytes(whole["PART"].payload), whole["PART"].note) == (b"twelve bytes", b"note")
    many = next(frame for frame in read if frame.kind == Kind.DATA and frame.items > 1)
    bodies, notes, _ = frames.unpack(many)
    assert [bytes(body) for body in bodies] == [b"one", b"", b"three"]
    assert notes == [b"", b"n2", b""]
    plain = [frame for frame in read if frame.kind not in frames.IN_PIECES]
    for frame, (fields, _) in zip(plain, WHOLE, strict=True):
        assert Kind(frame.kind).name == fields["kind"]
        assert (frame.items, frame.sequence, frame.timestamp, frame.flags, bytes(frame.payload)) == (
            *(fields.get(name, 0) for name in ("count", "sequence", "timestamp", "flags")),
            fields.get("payload", b""),
        )


@pytest.mark.parametrize("vector", KNOWN["wrong"], ids=lambda each: each["what"])
def test_what_is_against_the_rules(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        _understand(vector["of"], bytes.fromhex(vector["hex"]))


def _understand(what: str, said: bytes) -> None:
    if what == "message":
        list(MessageParser().received(memoryview(said)))
        return
    reader = FrameParser(memoryview(bytearray(SLAB)), Pool(), 1 << 20)
    reader.get_buffer()[: len(said)] = said
    for frame in reader.received(len(said)):
        frames.unpack(frame)


@pytest.mark.parametrize("vector", KNOWN["proofs"], ids=lambda each: f"{each['role']} {each['secret']}")
def test_proofs(vector: dict[str, Any]) -> None:
    """As a control connection makes them."""
    proof = wire.meant(vector)
    link = _Side(Core("n", Timing(), lambda: 0, bytes, proof["secret"].encode() or None), "r")
    assert link._mac(proof["role"].encode(), proof["own nonce"], proof["other nonce"]).hex() == vector["mac"]


class _Side(control_connection.ControlLink):
    def established(self, now: float) -> None: ...
    def told(self, message: Message, now: float) -> None: ...
    def refused(self, error: HandshakeError, now: float) -> None: ...
    def _lost(self, reason: str, now: float) -> None: ...
