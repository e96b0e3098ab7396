"""What a sender may say on a data connection that it should not: each is refused, and none of it acknowledged."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from netchannel.core.control_connection import FOR_DATA
from netchannel.core.link import Closing
from netchannel.core.states import ReceiverState
from netchannel.wire.frames import (
    CHECKED_FROM,
    FRAME_LIMIT,
    HEADER_SIZE,
    NOTE_LIMIT,
    PACK_LIMIT,
    WHOLE_LIMIT,
    Kind,
    reference,
)
from tests.support.dialed import LIMIT, Dialed, body_of, data, frame, pieces, schema_of, streamed

BATCH = pa.record_batch({"n": pa.array([1, 2, 3]), "s": pa.array(["a", "b", "c"])})
DICTIONARIES = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()})


ZEROS = pa.record_batch({"n": pa.array([0] * (LIMIT // 4), pa.int64())})
WORDS = pa.array([f"{number:054d}" for number in range(LIMIT // 32)])
MANY = pa.record_batch({"d": WORDS.dictionary_encode()})
OTHERS = pa.record_batch({"e": pa.array([1, 2, 1]).dictionary_encode()})
BEGUN = frame(Kind.PART, extent=8)
NULLS = bytes(8)

WRONG: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "a gap of a sender without": ({}, frame(Kind.GAP, count=2), "2 dropped messages from number 0"),
    "the same, acknowledged explicitly": ({"explicit": True}, frame(Kind.GAP, count=2), "as lossless"),
    "a gap of nothing": ({"lossy": True}, frame(Kind.GAP), "a gap of 0 messages"),
    "a time before 1970": (
        {},
        frame(Kind.DATA, bytes(8), count=1, timestamp=-7),
        "a frame has the timestamp -7: timestamps begin at 0, in 1970",
    ),
    "no messages": ({}, frame(Kind.DATA), "claims 0 messages, the first with number 0"),
    "a message in a message": (
        {},
        BEGUN + data(b"x"),
        "frame DATA with number 0 arrived where piece 1 of a PART with number 0",
    ),
    "the end in a message": ({}, BEGUN + frame(Kind.END), "frame END .* where piece 1 of a PART "),
    "a message in pieces in another": ({}, BEGUN * 2, "frame PART .* where piece 1 of a PART "),
    "a piece of another message": (
        {},
        BEGUN + frame(Kind.PART, NULLS, count=1, sequence=1),
        "piece 1 of a PART with number 1 arrived where piece 1 of a PART with number 0 was expected",
    ),
    "a piece of none": ({}, frame(Kind.PART, NULLS, count=1), "piece 1 of a PART .* where no piece "),
    "a piece that is left out": (
        {},
        frame(Kind.PART, extent=16) + frame(Kind.PART, NULLS, count=2),
        "piece 2 of a PART .* where piece 1 of a PART ",
    ),
    "a large piece": (
        {},
        frame(Kind.PART, extent=LIMIT) + frame(Kind.PART, bytes(FRAME_LIMIT + 8), count=1),
        f"{FRAME_LIMIT + 8} bytes: expected 1 to {FRAME_LIMIT}",
    ),
    "more than was said": (
        {},
        BEGUN + frame(Kind.PART, bytes(9), count=1),
        "piece 1 of a PART has 9 bytes: expected 1 to 8",
    ),
    "an empty piece": (
        {},
        BEGUN + frame(Kind.PART, count=1),
        "piece 1 of a PART has 0 bytes: expected 1 to 8",
    ),
    "a large message": (
        {},
        frame(Kind.PART, extent=LIMIT + 1),
        f"a PART with number 0 claims {LIMIT + 1} bytes in pieces: expected 1 to {LIMIT}",
    ),
    "pieces of nothing": ({}, frame(Kind.PART), f"claims 0 bytes in pieces: expected 1 to {LIMIT}"),
    "a large note in front of pieces": (
        {},
        frame(Kind.PART, bytes(NOTE_LIMIT + 1), extent=8),
        f"a note of {NOTE_LIMIT + 1} bytes: the limit is {NOTE_LIMIT}",
    ),
    "a large note": (
        {},
        data(b"x", notes={0: bytes(NOTE_LIMIT + 1)}),
        f"{NOTE_LIMIT + 1} bytes.*{NOTE_LIMIT}",
    ),
    "a pack that is too large": (
        {},
        data(*[bytes(PACK_LIMIT // 2)] * 3),
        f"3 messages from number 0 on, of {PACK_LIMIT // 2 * 3} bytes together: the limit is {PACK_LIMIT}",
    ),
    "a body that should go in pieces": (
        {},
        data(bytes(WHOLE_LIMIT + 8)),
        f"{WHOLE_LIMIT + 8} bytes: the limit is {WHOLE_LIMIT}",
    ),
    "a reference to memory that nobody shares": (
        {},
        reference(0, 10, b"", 0, 0),
        "referred to shared memory, but has shared none",
    ),
    "a reference that is cut off": ({}, frame(Kind.SHARED, bytes(15)), "SHARED has 15 bytes: expected 16"),
    "a reference with a large note": (
        {},
        reference(0, 10, bytes(NOTE_LIMIT + 1), 0, 0),
        f"has {NOTE_LIMIT + 17} bytes: expected 16, and a note of at most {NOTE_LIMIT}",
    ),
    "a schema under bytes": ({}, pieces(Kind.SCHEMA, b"schema"), "a schema of 6 bytes"),
    "a context under bytes": ({}, pieces(Kind.CONTEXT, b"context"), "a context of 7 bytes"),
    "a batch before its schema": (
        {"codec": "arrow"},
        data(body_of(BATCH)),
        "from message 0 on: a batch arrived before",
    ),
    "a batch before its dictionaries": (
        {"codec": "arrow", "schema": schema_of(DICTIONARIES)},
        data(streamed(DICTIONARIES)[-1]),
        "from message 0 on: a batch with dictionaries arrived before its dictionaries",
    ),
    "junk": (
        {"codec": "arrow", "schema": schema_of(BATCH)},
        data(body_of(BATCH), b"junk, and no batch"),
        "from message 0 on: a body of 18 bytes is not a record batch",
    ),
    "a batch that is not all there": (
        {"codec": "arrow", "schema": schema_of(BATCH), "explicit": True},
        data(body_of(BATCH), body_of(BATCH)[:-8]),
        f"a body of {len(body_of(BATCH)) - 8} bytes is not a record batch: it claims",
    ),
    "a schema as a batch": (
        {"codec": "arrow", "schema": schema_of(BATCH)},
        data(schema_of(BATCH)),
        "it is a message of kind 1",
    ),
    **{
        f"a batch that {how} hides": (
            {"codec": "arrow", "schema": schema_of(ZEROS)},
            data(streamed(ZEROS, how)[-1]),
            f"a body of {len(streamed(ZEROS, how)[-1])} bytes decompresses to {2 * LIMIT}: .* {LIMIT}",
        )
        for how in ("lz4", "zstd")
    },
    "dictionaries that compression hides": (
        {"codec": "arrow", "schema": schema_of(MANY)},
        pieces(Kind.CONTEXT, b"".join(streamed(MANY, "zstd")[:-1])),
        f"a context of .* bytes decompresses to .*: the limit here is {LIMIT}",
    ),
    "a context of another schema": (
        {"codec": "arrow", "schema": schema_of(DICTIONARIES)},
        pieces(Kind.CONTEXT, b"".join(streamed(OTHERS)[:-1])),
        "a context has the schema .*, but the channel",
    ),
    "a batch among dictionaries": (
        {"codec": "arrow", "schema": schema_of(DICTIONARIES)},
        pieces(Kind.CONTEXT, b"".join(streamed(DICTIONARIES))),
        "a message of kind 3 is among its dictionaries",
    ),
    "pieces of two things": (
        {"codec": "arrow"},
        frame(Kind.SCHEMA, extent=8) + frame(Kind.CONTEXT, NULLS, count=1),
        "piece 1 of a CONTEXT .* where piece 1 of a SCHEMA ",
    ),
    "a large schema": (
        {"codec": "arrow"},
        frame(Kind.SCHEMA, extent=LIMIT + 1),
        f"a SCHEMA with number 0 claims {LIMIT + 1} bytes",
    ),
    "a schema with a note": (
        {"codec": "arrow"},
        frame(Kind.SCHEMA, b"note", extent=8),
        "a SCHEMA with number 0 has a note of 4 bytes: the limit is 0",
    ),
}


@pytest.mark.parametrize(("how", "said", "why"), WRONG.values(), ids=WRONG)
def test_what_breaks_the_rules_is_not_taken(how: dict[str, Any], said: bytes, why: str) -> None:
    """It is refused by a sentence that has the numbers; nothing is queued, acknowledged or finished, nor goes on."""
    dialed = Dialed(**how)
    dialed.say(dialed.data, said + frame(Kind.END, sequence=1))
    refusal = dialed.said(dialed.data)
    dialed.say(dialed.data, data(b"x"))
    assert re.search(why, dialed.data.cause)
    assert refusal[CHECKED_FROM] == Kind.REFUSED
    assert bytes(refusal[HEADER_SIZE:]) == f"protocol {dialed.data.cause}".encode()[:1000]
    assert dialed.channel.expected == 0
    assert not dialed.channel.queue
    assert dialed.channel.state is ReceiverState.REGISTERED
    assert not dialed.answers()


RIGHT: dict[str, tuple[dict[str, Any], Callable[[], bytes]]] = {
    "gaps of a sender that drops": ({"lossy": True}, lambda: frame(Kind.GAP, count=2)),
    "a pack as large as may be": ({}, lambda: data(*[bytes(PACK_LIMIT // 2)] * 2)),
    "padding that is not zero": (
        {},
        lambda: frame(Kind.DATA, struct.pack("<II", 1, 7) + b"xPADDING"[:8], count=1) + data(b"y", first=1),
    ),
    "compressed batches": (
        {"codec": "arrow", "schema": schema_of(BATCH)},
        lambda: data(body_of(BATCH), streamed(BATCH, "zstd")[-1]),
    ),
    "compressed dictionaries": (
        {"codec": "arrow", "schema": schema_of(DICTIONARIES)},
        lambda: (
            pieces(Kind.CONTEXT, b"".join(streamed(DICTIONARIES, "lz4")[:-1]))
            + data(*[streamed(DICTIONARIES, "lz4")[-1]] * 2)
        ),
    ),
}


@pytest.mark.parametrize(("how", "said"), RIGHT.values(), ids=RIGHT)
def test_what_is_beside_it_is_taken(how: dict[str, Any], said: Callable[[], bytes]) -> None:
    dialed = Dialed(**how)
    dialed.say(dialed.data, said() + frame(Kind.END, sequence=2))
    assert dialed.answers() == [(Kind.ACK, 2), (Kind.FINISHED, 2)]


@pytest.mark.parametrize("explicit", [False, True])
def test_what_the_consumer_cannot_read_is_not_acknowledged(explicit: bool) -> None:
    """A batch of the right form whose text is none: the consumer gets nothing behind it, and the sender is told."""
    dialed = Dialed("arrow", schema=schema_of(BATCH), explicit=explicit)
    broken = body_of(BATCH).replace(b"abc", b"a\xff\xfe")
    dialed.say(dialed.data, data(body_of(BATCH), broken, body_of(BATCH)))
    dialed.answers()
    channel, now = dialed.channel, dialed.world.now
    channel.take()
    item = channel.take()
    assert item is not None
    if explicit:
        channel.ack(1, now)
    with pytest.raises(Exception, match="not a batch of the channel's schema") as caught:
        channel.decoder.decode(item.body, item.context, LIMIT)
    channel.unreadable(item.sequence, caught.value, now)
    assert channel.state is ReceiverState.BROKEN
    last = [(Kind.RECEIPT, 3), (Kind.ACK, 1)] if explicit else [(Kind.ACK, 3)]
    assert dialed.answers() == [*last, (Kind.REFUSED, 0)]
    with pytest.raises(Exception, match="message 1 cannot be read"):
        channel.take()


def test_lengths_in_front_of_compressed_buffers_are_what_arrow_allocates() -> None:
    """What the limit rests on: a claim that is too low, or too high, is an error of Arrow's."""
    body = streamed(ZEROS, "zstd")[-1]
    claim = struct.pack("<q", ZEROS.nbytes)
    assert claim in body
    for wrong in (ZEROS.nbytes - 8, 8, ZEROS.nbytes + 8):
        lying = body.replace(claim, struct.pack("<q", wrong))
        with pytest.raises((OSError, pa.ArrowInvalid)):
            pa.ipc.read_record_batch(pa.py_buffer(lying), ZEROS.schema)


def test_nothing_in_pieces_is_begun_without_a_token() -> None:
    """Whoever has shown none would fill memory with what has no end."""
    dialed = Dialed()
    stranger = dialed._linked(FOR_DATA)
    dialed.say(stranger, frame(Kind.PART, extent=LIMIT))
    assert "claims 1048576 bytes in pieces: expected 1 to 0" in stranger.cause
    assert stranger.closing is Closing.FLUSH


def test_who_is_refused_again_and_again_keeps_nobody_out() -> None:
    """Connections that have had the last word are closed first where there are too many."""
    dialed = Dialed()
    dialed.core.connections.limit = 3
    dialed.say(dialed.data, frame(Kind.DATA))
    assert dialed.data in dialed.core.connections.farewells
    for _ in range(2):
        dialed._linked(FOR_DATA)
    assert dialed.data.closing is Closing.ABORT
