"""Parts as messages, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nebuli.steps.member.part_messages import (
    LAST,
    NOTE,
    PIECE_BYTES,
    STREAM,
    PartDecoder,
    PartEncoder,
    Unreadable,
)

LIMIT = 1 << 16  # bytes of values that go as one message


class Pair:
    """Two ends, and what went from one to the other."""

    def __init__(self) -> None:
        self.encoder, self.decoder = PartEncoder(), PartDecoder()

    def messages(self, part: pa.RecordBatch | None, index: int = 0) -> list[tuple[bytes, bytes]]:
        made = self.encoder.messages(5, index, part)
        return [made] if isinstance(made, tuple) else list(made)  # type: ignore[list-item]

    def cross(self, part: pa.RecordBatch | None, index: int = 0) -> pa.RecordBatch | None:
        came = None
        for body, note in self.messages(part, index):
            assert came is None, "whole before its last message"
            step, size, at, flags = NOTE.unpack(note)
            assert (step, at) == (5, index)
            came = self.decoder.add(index, size, flags, memoryview(bytes(body)))
        assert came is not None
        return came[0]


N = 40_000
WIDE = np.arange(N)
COLUMNS = {
    "numbers": pa.array(WIDE),
    "nulls": pa.array([None] * N, pa.null()),
    "some nulls": pa.array(np.where(WIDE % 3, WIDE, 0), mask=WIDE % 3 == 0),
    "text": pa.array([f"row {number}" for number in range(N)]),
    "large text": pa.array([f"row {number}" for number in range(N)], pa.large_string()),
    "views": pa.array([f"a long text of row {number}" for number in range(N)], pa.string_view()),
    "dictionary": pa.array([f"k{number % 7}" for number in range(N)]).dictionary_encode(),
    "lists": pa.array([[number, None] for number in range(N)]),
    "structs": pa.array([{"a": number, "b": str(number)} for number in range(N)]),
    "bools": pa.array(WIDE % 2 == 0),
    "instants": pa.array(WIDE, pa.timestamp("us", tz="UTC")),
    "bytes": pa.array([b"%d" % number for number in range(N)]),
    "decimals": pa.array(WIDE).cast(pa.decimal128(30, 2)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_kind_of_column_crosses_small_large_empty_and_sliced(name: str) -> None:
    pair = Pair()
    whole = pa.record_batch(
        {"key": COLUMNS["numbers"], name: COLUMNS[name], "w": pa.array(np.ones(N, np.int64))}
    )
    for begin, length in ((0, 3), (0, N), (0, 0), (5, 7), (13, N - 100), (N - 1, 1)):
        part = whole.slice(begin, length)
        came = pair.cross(part)
        assert came is not None
        came.validate(full=True)
        assert came.schema == part.schema
        assert came.equals(part)


def test_no_message_is_larger_than_a_piece_and_only_a_large_part_is_cut() -> None:
    pair = Pair()
    small = pa.record_batch({"a": np.zeros(LIMIT // 8, np.int64)})
    assert len(pair.messages(small)) == 1
    for rows in (LIMIT // 8 + 1, 3 * PIECE_BYTES // 8, 1_000_003):
        sizes = [
            len(body)
            for body, _ in pair.messages(pa.record_batch({f"c{n}": np.zeros(rows) for n in range(5)}))
        ]
        assert max(sizes) <= PIECE_BYTES
        assert len(sizes) <= sum(sizes) // PIECE_BYTES + 2 * 5 + 1


def test_many_small_buffers_go_together() -> None:
    part = pa.record_batch({f"c{number}": np.arange(300) for number in range(100)})
    assert len(Pair().messages(part)) == 1 + part.nbytes // PIECE_BYTES


def test_a_large_part_goes_out_without_a_copy() -> None:
    values = np.arange(1 << 20)
    low, high = values.ctypes.data, values.ctypes.data + values.nbytes
    addresses = [
        np.frombuffer(body, np.uint8).ctypes.data
        for body, _ in Pair().messages(pa.record_batch({"a": values}))
    ]
    assert sum(low <= address < high for address in addresses) == values.nbytes // PIECE_BYTES


def test_a_small_part_is_read_where_it_was_received() -> None:
    pair = Pair()
    part = pa.record_batch({"a": np.arange(100)})
    pair.cross(part)
    ((body, note),) = pair.messages(part)
    received = memoryview(bytes(body))
    _, size, _, flags = NOTE.unpack(note)
    came = pair.decoder.add(0, size, flags, received)
    assert came is not None
    assert came[0] is not None
    begin = np.frombuffer(received, np.uint8).ctypes.data
    assert begin <= came[0].column(0).buffers()[1].address < begin + len(received)


def test_a_schema_goes_once_for_each_exchange() -> None:
    pair = Pair()
    part = pa.record_batch({"a_column_with_a_name": [1]})
    flags = [[NOTE.unpack(note)[3] for _, note in pair.messages(part, index)] for index in (0, 1, 0, 1, 0)]
    assert flags == [[STREAM | LAST], [STREAM | LAST], [LAST], [LAST], [LAST]]
    assert b"a_column_with_a_name" not in bytes(pair.messages(part)[0][0])
    assert [body for body, _ in pair.messages(part.slice(0, 0))] == [b""]


def test_another_schema_is_told_when_it_comes() -> None:
    pair = Pair()
    for part in (pa.record_batch({"a": [1]}), pa.record_batch({"b": ["x"]}), pa.record_batch({"a": [2]})):
        assert pair.cross(part) == part
        assert pair.cross(part.slice(0, 0)) == part.slice(0, 0)


def test_a_part_with_dictionaries_can_be_read_alone() -> None:
    encoder = PartEncoder()
    for values in (["x", "y"], ["z"], ["z"]):
        part = pa.record_batch({"d": pa.array(values).dictionary_encode()})
        body, note = encoder.messages(0, 0, part)  # type: ignore[misc]
        _, size, _, flags = NOTE.unpack(note)
        assert PartDecoder().add(0, size, flags, memoryview(bytes(body))) == (part,)


def test_none_is_none_and_needs_no_schema() -> None:
    pair = Pair()
    assert pair.cross(None) is None
    assert pair.cross(pa.record_batch({"a": [1]}).slice(0, 0)) is not None
    assert pair.cross(None) is None


def test_what_is_no_valid_batch_is_not_given_out() -> None:
    pair = Pair()
    part = pa.record_batch({"text": ["abc"]})
    ((body, note),) = pair.messages(part)
    _, size, _, flags = NOTE.unpack(note)
    assert bytes(body).count(b"abc") == 1
    with pytest.raises(Unreadable, match="not a batch"):
        pair.decoder.add(0, size, flags, memoryview(bytes(body).replace(b"abc", b"\xff\xfe\xfd")))


def test_a_part_that_ends_early_or_goes_on_is_not_given_out() -> None:
    part = pa.record_batch({"a": np.arange(LIMIT)})
    pair = Pair()
    first, *_, last = pair.messages(part)
    for body, note in (first, last):
        _, size, _, flags = NOTE.unpack(note)
        if flags & LAST:
            with pytest.raises(
                Unreadable, match=rf"ended after {len(first[0]) + len(last[0])} bytes of {size}"
            ):
                pair.decoder.add(0, size, flags, memoryview(bytes(body)))
        else:
            assert pair.decoder.add(0, size, flags, memoryview(bytes(body))) is None
    pair = Pair()
    assert pair.decoder.add(0, 10, 0, memoryview(b"12345")) is None
    with pytest.raises(Unreadable, match="received 12 bytes of a part of 10"):
        pair.decoder.add(0, 10, 0, memoryview(b"1234567"))
