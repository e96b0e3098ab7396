"""Arrow streams become rows; anything else is told with its place, and never read as something."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from nebuli.ingestion.decoding.arrow_decoder import ArrowDecoder
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.of_messages import payloads

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string())])


def stream(*batches: pa.RecordBatch, schema: pa.Schema | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema) as writer:
        for each in batches:
            writer.write_batch(each)
    return bytes(sink.getvalue())


def decoded(some: list[bytes]) -> Messages:
    return ArrowDecoder(SCHEMA, source="orders").decode(payloads(some, lower=5), {})


def test_all_rows_of_a_message_have_its_address() -> None:
    """Columns by name, others are passed over; a narrower type and a dictionary are taken; an empty one has no row."""
    first = pa.record_batch({"shop": ["a", None], "more": [1, 2], "id": pa.array([1, 2], pa.int16())})
    second = pa.record_batch({"id": [3], "shop": pa.array(["b"]).dictionary_encode()})
    found = decoded([stream(first, first), b"", stream(schema=SCHEMA), stream(second)])
    assert found.addresses.tolist() == [5, 5, 5, 5, 8]
    assert found.rows.schema.equals(SCHEMA)
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == [(1, "a"), (2, None)] * 2 + [(3, "b")]
    assert decoded([]).rows.num_rows == 0


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"id": 1}\n', "is not an Arrow stream"),
        (stream(pa.record_batch({"id": [1], "shop": ["a"]}))[:-40], "is not an Arrow stream"),
        (stream(pa.record_batch({"id": [1]})), "no column shop, which source orders has"),
        (
            stream(pa.record_batch({"id": ["1"], "shop": ["a"]})),
            "column id is string, but int64 in source orders",
        ),
    ],
)
def test_anything_else_is_told_with_its_place(payload: bytes, said: str) -> None:
    good = stream(pa.record_batch({"id": [1], "shop": ["a"]}))
    with pytest.raises(MessageInvalid, match=f"orders: the message at 6.*{said}"):
        decoded([good, payload])


def test_a_damaged_stream_is_told_or_read_and_nothing_else() -> None:
    """2,000 streams with a flipped byte, by a seed."""
    draw = random.Random(7)
    good = stream(pa.record_batch({"id": [1, 2, 3], "shop": ["a", None, "ccc"]}))
    told = 0
    for _ in range(2000):
        damaged = bytearray(good)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        try:
            decoded([bytes(damaged)])
        except MessageInvalid:
            told += 1
    assert told > 100
