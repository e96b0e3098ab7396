"""Memory that producers fill: when it is found again, what goes as one piece of it, and when it is forgotten."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from netchannel.wire.allocations import HEADER_ROOM, PADDING, Allocations
from netchannel.wire.codec import ArrowDecoder, ArrowEncoder
from netchannel.wire.frames import Scattered

ROWS = 1 << 15
LIMIT = 1 << 30


def given(allocations: Allocations, size: int) -> memoryview:
    return allocations.add(pa.py_buffer(bytearray(allocations.whole(size))), size)


def columns(encoder: ArrowEncoder, *kinds: tuple[pa.DataType, Any], rows: int = ROWS) -> list[pa.Array]:
    """Columns of ones, one behind the other in memory of the encoder's."""
    sizes = [rows * np.dtype(kind).itemsize for _, kind in kinds]
    padded = [-(-size // PADDING) * PADDING for size in sizes]
    memory, start, made = given(encoder.allocations, sum(padded)), 0, []
    for (kind, of), size, whole in zip(kinds, sizes, padded, strict=True):
        part = memory[start : start + size]
        np.frombuffer(part, of)[:] = 1
        made.append(pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(part)]))
        start += whole
    return made


def batch_of(arrays: list[pa.Array]) -> pa.RecordBatch:
    return pa.record_batch(arrays, names=[f"c{index}" for index in range(len(arrays))])


def decoded(encoder: ArrowEncoder, body: memoryview) -> pa.RecordBatch:
    decoder = ArrowDecoder(None)
    assert encoder.schema is not None
    decoder.learn(encoder.schema)
    decoder.check([body], None, LIMIT)
    return decoder.decode(body, None, LIMIT)


def address(buffer: Any) -> int:
    return int(pa.py_buffer(buffer).address)


INT64, FLOAT32, INT8 = (pa.int64(), np.int64), (pa.float32(), np.float32), (pa.int8(), np.int8)


@pytest.mark.parametrize(
    ("kinds", "rows"),
    [
        ([INT64], ROWS),
        ([INT64, INT64], ROWS),
        ([FLOAT32, INT64, FLOAT32, INT8], ROWS + 1),  # with gaps between them and behind
        ([(pa.timestamp("us"), np.int64), (pa.duration("s"), np.int64)], ROWS),
        ([FLOAT32] * 60, 1 << 10),
    ],
    ids=["one", "two", "odd", "times", "sixty"],
)
def test_a_batch_goes_from_where_its_columns_are(kinds: list[tuple[pa.DataType, Any]], rows: int) -> None:
    """As one piece, which Arrow reads, and which begins where messages may."""
    encoder = ArrowEncoder(None)
    arrays = columns(encoder, *kinds, rows=rows)
    batch = batch_of(arrays)
    body = encoder.encode(batch)
    assert isinstance(body, memoryview)
    first = address(arrays[0].buffers()[1])
    assert first - HEADER_ROOM <= address(body) < first < address(body) + len(body)
    assert (first - address(body)) % 64 == 0
    assert decoded(encoder, body).equals(batch)
    assert address(body) == address(encoder.encode(batch))


def _with_nulls(arrays: list[pa.Array]) -> list[pa.Array]:
    (values,) = arrays
    mask = pa.py_buffer(bytes([0b10101010]) * (len(values) // 8))
    return [pa.Array.from_buffers(values.type, len(values), [mask, values.buffers()[1]])]


def _reversed(arrays: list[pa.Array]) -> list[pa.Array]:
    return arrays[::-1]


def _second_alone(arrays: list[pa.Array]) -> list[pa.Array]:
    return arrays[1:]


def _one_more(arrays: list[pa.Array]) -> list[pa.Array]:
    return [*arrays, pa.array(np.ones(len(arrays[0])))]


def _one_before(arrays: list[pa.Array]) -> list[pa.Array]:
    return [pa.array(np.ones(len(arrays[0]), np.int8)), *arrays]


@pytest.mark.parametrize(
    ("kinds", "change"),
    [
        ([INT64], _with_nulls),
        ([INT64, INT64], _reversed),
        ([INT64, INT64], _second_alone),
        ([INT64, INT64], _one_more),
        ([INT64, INT64], _one_before),
        ([INT64] * 90, list),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_lies_otherwise_goes_as_ever(
    kinds: list[tuple[pa.DataType, Any]], change: Callable[[list[pa.Array]], list[pa.Array]]
) -> None:
    """Nulls, another order, something left out or from elsewhere, a header that is too large."""
    encoder = ArrowEncoder(None)
    batch = batch_of(change(columns(encoder, *kinds)))
    body = encoder.encode(batch)
    assert isinstance(body, Scattered)
    assert decoded(encoder, memoryview(b"".join(body.pieces))).equals(batch)


def test_text_goes_as_ever() -> None:
    """Its offsets could be changed after they were checked, and lead a reader out of the message."""
    encoder = ArrowEncoder(None)
    memory = given(encoder.allocations, 4 * (ROWS + 1))
    np.frombuffer(memory, np.int32)[:] = np.arange(ROWS + 1)
    buffers = [None, pa.py_buffer(memory), pa.py_buffer(b"x" * ROWS)]
    batch = batch_of([pa.Array.from_buffers(pa.string(), ROWS, buffers)])
    body = encoder.encode(batch)
    assert isinstance(body, Scattered)
    assert decoded(encoder, memoryview(b"".join(body.pieces))).equals(batch)


def test_a_header_that_may_be_in_use_is_not_written_over() -> None:
    """A slice from the first row on has another one."""
    encoder = ArrowEncoder(None)
    batch = batch_of(columns(encoder, INT64))
    body = encoder.encode(batch)
    before = bytes(body)  # type: ignore[arg-type]  # it is not a scattered one
    part = encoder.encode(batch.slice(0, ROWS - 100))
    assert isinstance(part, Scattered)
    assert bytes(body) == before  # type: ignore[arg-type]  # as above


def test_an_allocation_is_forgotten_with_the_last_that_refers_to_it() -> None:
    allocations = Allocations()
    memory = given(allocations, 100)
    array = np.frombuffer(memory, np.uint8)
    del memory
    gc.collect()
    assert len(allocations.known) == 1
    del array
    assert allocations.known == {}


def test_what_is_sent_is_taken_back() -> None:
    """The view that was given, and the part of it that was sent; another part is the caller's to forget."""
    allocations = Allocations()
    memory = given(allocations, 100)
    part, other = memory[:10], memory[50:]
    allocations.sent(part)
    for view in (memory, part):
        with pytest.raises(ValueError, match="released"):
            view[0] = 1
    other[0] = 1


def test_what_else_refers_to_it_is_left() -> None:
    """An array has a view of its own; and a buffer of Arrow's has the one that was given, which stays with it."""
    allocations = Allocations()
    memory, other = given(allocations, 100), given(allocations, 100)
    array, buffer = np.frombuffer(memory, np.uint8), pa.py_buffer(other)
    allocations.sent(memory)
    allocations.sent(other)
    assert (array[99], buffer.size, other[99]) == (0, 100, 0)


@pytest.mark.parametrize(
    "value",
    [b"x", memoryview(b"x"), memoryview(pa.py_buffer(b"x")), 5],
    ids=["bytes", "view", "of Arrow", "number"],
)
def test_what_is_not_of_them_is_left(value: Any) -> None:
    allocations = Allocations()
    memory = given(allocations, 100)
    allocations.sent(value)
    memory[0] = 1
    if isinstance(value, memoryview):
        assert len(value) == 1
