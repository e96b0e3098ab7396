"""The wire formats: what is packed is parsed, however the bytes are cut; noise is a typed error."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from itertools import chain

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from netchannel.errors import ProtocolError
from netchannel.wire import messages
from netchannel.wire.envelope import MESSAGE_LIMIT, MessageParser, _check, decode
from netchannel.wire.frame_parser import SLAB, FrameParser
from netchannel.wire.frames import (
    FRAME_LIMIT,
    HEADER,
    PACK_COUNT,
    SEQUENCE_LIMIT,
    Buffer,
    Frame,
    Kind,
    Scattered,
    blob,
    cut,
    pack,
    signal,
    unpack,
)
from netchannel.wire.pool import Pool
from tests.support.forged import forged
from tests.support.sizes import examples


def parser(limit: int = 1 << 28) -> FrameParser:
    return FrameParser(memoryview(bytearray(SLAB)), Pool(), limit)


def feed(reader: FrameParser, data: bytes, chunk: int) -> list[Frame]:
    frames = []
    while data:
        buffer = reader.get_buffer()
        size = min(chunk, len(buffer), len(data))
        buffer[:size] = data[:size]
        data = data[size:]
        frames += reader.received(size)
    return frames


def packed(messages: Sequence[tuple[bytes, bytes]], first: int, timestamp: int) -> list[Buffer]:
    notes = {index: note for index, (_, note) in enumerate(messages) if note}
    return pack([data for data, _ in messages], notes, first, timestamp)


def in_parts(data: bytes, note: bytes, sequence: int, timestamp: int) -> bytes:
    return b"".join(chain.from_iterable(cut(Kind.PART, in_two(data), note, sequence, timestamp)))


def unpacked(frame: Frame) -> list[tuple[bytes, bytes]]:
    bodies, notes, _ = unpack(frame)
    return list(zip(map(bytes, bodies), notes or [b""] * len(bodies), strict=True))


def in_two(data: bytes) -> Scattered:
    half = len(data) // 2
    return Scattered((data[:half], data[half:]))


MESSAGES = st.lists(
    st.tuples(st.binary(max_size=50) | st.integers(0, 40_000).map(bytes), st.binary(max_size=9)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(100), deadline=None)
@given(MESSAGES, st.integers(0, SEQUENCE_LIMIT - 1), st.integers(1, 1 << 17))
def test_frames_are_the_same_however_they_are_cut(
    messages: list[tuple[bytes, bytes]], first: int, chunk: int
) -> None:
    """CH-BAD-1: one chunk equals byte by byte; bodies begin at multiples of 8 in their frame."""
    data, note = messages[0]
    wire = b"".join(packed(messages, first, 5)) + in_parts(data, note, 7, 6) * bool(data)
    wire += b"".join(blob(Kind.SCHEMA, b"s" * 100)) + signal(Kind.END, sequence=9)
    whole = feed(parser(), wire, len(wire))
    assert feed(parser(), wire, chunk) == whole
    frame = whole[0]
    assert (frame.kind, frame.sequence, frame.timestamp) == (Kind.DATA, first, 5)
    assert unpacked(frame) == messages
    assert (whole[-1].kind, whole[-1].sequence) == (Kind.END, 9)
    if data:
        assert (whole[1].note, bytes(whole[1].payload)) == (note, data)


def test_a_small_payload_behind_a_large_message_comes_in_any_number_of_reads() -> None:
    """Its header may come alone: there is always room for what follows."""
    large = b"".join(packed([(bytes(1 << 16), b"")], 0, 0))
    failed = signal(Kind.FAIL, sequence=1, payload=b"no disk")
    reader = parser()
    frames = feed(reader, large, 1 << 20) + feed(reader, failed, HEADER.size)
    assert [(frame.kind, len(frame.payload)) for frame in frames] == [
        (Kind.DATA, (1 << 16) + 8),
        (Kind.FAIL, 7),
    ]


def test_byte_by_byte() -> None:
    """CH-BAD-1: a session of every kind of frame, a byte at a time."""
    wire = b"".join(
        [
            signal(Kind.ATTACH, payload=b"t" * 16),
            *blob(Kind.SCHEMA, b"schema"),
            *blob(Kind.CONTEXT, b"c" * (FRAME_LIMIT + 1)),
            *packed([(b"one", b""), (b"", b"note"), (b"x" * 20_000, b"")], 0, 1),
            in_parts(bytes(range(256)) * 8200, b"n", 3, 2),
            signal(Kind.FAIL, sequence=4, payload=b"why"),
        ]
    )
    reader = parser()
    frames = []
    for byte in wire:
        reader.get_buffer()[0] = byte
        frames += reader.received(1)
    assert frames == feed(parser(), wire, 1 << 16)
    assert [frame.kind for frame in frames] == [
        Kind.ATTACH, Kind.SCHEMA, Kind.CONTEXT, Kind.DATA, Kind.PART, Kind.FAIL,
    ]  # fmt: skip
    assert [bytes(frames[index].payload) for index in (1, 2, 4)] == [
        b"schema",
        b"c" * (FRAME_LIMIT + 1),
        bytes(range(256)) * 8200,
    ]
    assert frames[4].note == b"n"


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=400), MESSAGES, st.data())
def test_noise_is_a_typed_error(
    noise: bytes, messages: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """CH-BAD-1: any bytes are, and a good frame with any byte changed is never taken for another."""
    try:
        for frame in feed(parser(), noise, 1000):
            unpack(frame)
    except ProtocolError:
        pass
    wire = bytearray(b"".join(packed(messages, 0, 0)))
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):  # a changed length too, before it is waited for
        feed(parser(), bytes(wire), 1000)


@pytest.mark.parametrize(
    "fields",
    [
        (Kind.DATA, 0, 2**32 - 1, FRAME_LIMIT, 0, 0, 0),
        (Kind.DATA, 0, PACK_COUNT + 1, 8 * (PACK_COUNT + 1), 0, 0, 0),
        (Kind.DATA, 0, 1, FRAME_LIMIT * 2, 0, 0, 0),
        (Kind.DATA, 0, 1, 8, SEQUENCE_LIMIT, 0, 0),
        (Kind.PART, 0, 0, 0, 0, 0, 2**63),
        (Kind.PART, 0, 5, 100, 0, 0, 0),
        (99, 0, 0, 0, 0, 0, 0),
    ],
)
def test_no_claim_is_believed(fields: tuple[int, ...]) -> None:
    """CH-BAD-1: a header's claim costs at most a frame's memory."""
    tracemalloc.start()
    reader = parser(limit=1 << 30)
    head = HEADER.pack(0, 0, *fields)[6:]
    frame = xxh3_64_intdigest(head).to_bytes(8, "little")[:2] + head + bytes(fields[3])
    wire = xxh3_64_intdigest(frame).to_bytes(8, "little")[:4] + frame
    with pytest.raises(ProtocolError):
        [unpack(frame) for frame in feed(reader, wire, 1 << 16)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * FRAME_LIMIT


OPEN = {
    "t": "open",
    "channel": "c",
    "request": 1,
    "stream": "s",
    "codec": "arrow",
    "schema": None,
    "lossy": False,
}


def test_control_messages_are_the_same_however_they_are_cut() -> None:
    """CH-BAD-1: byte by byte, and all at once."""
    wire = forged(OPEN) * 3
    at_once = list(MessageParser().received(memoryview(wire)))
    bytewise = MessageParser()
    assert [
        m for index in range(len(wire)) for m in bytewise.received(memoryview(wire[index : index + 1]))
    ] == at_once
    assert at_once == [messages.Open(**{name: value for name, value in OPEN.items() if name != "t"})] * 3


@settings(max_examples=examples(300), deadline=None)
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.integers(-5, 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["t", *OPEN]) | st.integers(0, 9), inner, max_size=5)
        ),
    ).map(msgpack.packb)
)
def test_noise_on_control_is_a_typed_error(payload: bytes) -> None:
    """CH-BAD-1: any msgpack value, and any bytes."""
    try:
        message = decode(payload)
    except ProtocolError:
        return
    assert message.kind in messages.MESSAGES


@pytest.mark.parametrize("field", ["channel", "request", "stream", "codec", "lossy"])
def test_a_wrong_field_is_named(field: str) -> None:
    """A missing or mistyped field is named, with what it holds."""
    for wrong in ({**OPEN, field: 1.5}, {k: v for k, v in OPEN.items() if k != field}):
        with pytest.raises(ProtocolError, match=f"'{field}'"):
            decode(msgpack.packb(wrong))


def test_a_long_control_message_is_refused_before_it_is_kept() -> None:
    """CH-BAD-1: the claim alone is enough."""
    with pytest.raises(ProtocolError, match=str(MESSAGE_LIMIT)):
        list(
            MessageParser().received(
                memoryview(struct.pack("<IHI", MESSAGE_LIMIT + 1, _check(MESSAGE_LIMIT + 1), 0))
            )
        )


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,
        b"\x81\xa1t" + b"\x91" * 100_000,
        b"\x81\xa1t\xdd" + struct.pack(">I", 4_000_000) + b"\x80" * 4_000_000,
        b"\xdf"
        + struct.pack(">I", 800_000)
        + b"".join(b"\xce%s\xc0" % struct.pack(">I", n) for n in range(800_000)),
    ],
    ids=["nested", "nested inside", "wide inside", "wide"],
)
def test_what_takes_far_more_memory_than_its_bytes_is_refused(payload: bytes) -> None:
    """CH-BAD-1: nested, or with very many fields, a control message would take sixty times its size."""
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="is not a map in msgpack"):
        decode(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(payload)


FLAT = st.dictionaries(
    st.text(max_size=40).filter(lambda name: name not in {field.name for field in messages.Open.fields}),
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    max_size=20,
)


@given(FLAT)
def test_what_this_page_does_not_know_is_passed_over(extra: dict[str, object]) -> None:
    """Other fields, whatever they hold."""
    assert decode(msgpack.packb({**extra, **OPEN})) == decode(msgpack.packb(OPEN))
