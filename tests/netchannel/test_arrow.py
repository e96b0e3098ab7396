"""Arrow batches of every type arrive equal, dictionaries that change included, over reconnects too."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import gc
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import netchannel
from netchannel.servers.receiver import MESSAGE_LIMIT
from netchannel.wire.codec import SCATTER, ArrowDecoder, ArrowEncoder
from netchannel.wire.frames import Scattered
from tests.support.chaos import ChaosProxy
from tests.support.sizes import examples
from tests.support.world import World

INSTANTS = st.datetimes(
    datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)
)
HUNDREDTHS = st.decimals(-1_000_000, 1_000_000, places=2, allow_nan=False)

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=20)),
    (pa.large_string(), st.text(max_size=20)),
    (pa.string_view(), st.text(max_size=40)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.timestamp("ns"), st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))),
    (pa.duration("ms"), st.integers(-1000, 1000).map(lambda n: datetime.timedelta(milliseconds=n))),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.uint8(), st.integers(0, 2**8 - 1)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.float16(), st.floats(width=16, allow_nan=False)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary_view(), st.binary(max_size=40)),
    (pa.date64(), st.dates()),
    (pa.time32("s"), st.times().map(lambda at: at.replace(microsecond=0))),
    (pa.time32("ms"), st.times().map(lambda at: at.replace(microsecond=1000))),
    (pa.time64("us"), st.times()),
    (pa.time64("ns"), st.times()),
    (pa.timestamp("s", "Europe/Berlin"), INSTANTS.map(lambda at: at.replace(microsecond=0))),
    (pa.timestamp("ms", "+05:30"), INSTANTS.map(lambda at: at.replace(microsecond=1000))),
    (pa.duration("s"), st.integers(-1000, 1000).map(lambda n: datetime.timedelta(seconds=n))),
    (pa.duration("us"), st.integers(-1000, 1000).map(lambda n: datetime.timedelta(microseconds=n))),
    (pa.duration("ns"), st.integers(-1000, 1000).map(lambda n: datetime.timedelta(microseconds=n))),
    (pa.month_day_nano_interval(), st.tuples(*[st.integers(-1000, 1000)] * 3).map(pa.MonthDayNano)),
    (pa.decimal32(9, 2), HUNDREDTHS),
    (pa.decimal64(18, 2), HUNDREDTHS),
    (pa.decimal256(76, 2), HUNDREDTHS),
    (pa.decimal128(10, 2), st.decimals(-10_000_000, 10_000_000, places=2, allow_nan=False)),
    (pa.dictionary(pa.int8(), pa.string()), st.text("ab", max_size=2)),
    (pa.dictionary(pa.int32(), pa.binary()), st.binary(max_size=3)),
]


def _nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def listed(child: Any) -> Any:
        kind, values = child
        return pa.list_(kind), st.lists(st.none() | values, max_size=3)

    def structured(fields: list[Any]) -> Any:
        kind = pa.struct([(f"f{index}", kind) for index, (kind, _) in enumerate(fields)])
        return kind, st.fixed_dictionaries(
            {f"f{index}": st.none() | values for index, (_, values) in enumerate(fields)}
        )

    def viewed(child: Any) -> Any:
        kind, values = child
        return pa.list_view(kind), st.lists(st.none() | values, max_size=3)

    def large(child: Any) -> Any:
        kind, values = child
        return pa.large_list(kind), st.lists(st.none() | values, max_size=3)

    def sized(child: Any) -> Any:
        kind, values = child
        return pa.list_(kind, 2), st.lists(st.none() | values, min_size=2, max_size=2)

    def mapped(child: Any) -> Any:
        kind, values = child
        return pa.map_(pa.string(), kind), st.lists(
            st.tuples(st.text(max_size=3), st.none() | values), max_size=3
        )

    lists = st.one_of(*map(children.map, (listed, viewed, large, sized, mapped)))
    return lists | st.lists(children, min_size=1, max_size=3).map(structured)


EXTENSIONS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.uuid(), st.uuids().map(lambda each: each.bytes)),
    (pa.json_(), st.sampled_from(["{}", "[1]", "null"])),
    (pa.bool8(), st.integers(0, 1)),
]
"""These stand alone: pyarrow makes no arrays of Python's values that have them within."""

TYPES = st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=4) | st.sampled_from(EXTENSIONS)


def _runs(values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(values) + 1), pa.int32()), values)


def _either(values: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """Every other one of ``values``, else a number."""
    chosen = pa.array([row % 2 for row in range(len(values))], pa.int8())
    return chosen, [values, pa.array(range(len(values)), pa.int32())]


def _sparse(values: pa.Array) -> pa.Array:
    return pa.UnionArray.from_sparse(*_either(values))


def _dense(values: pa.Array) -> pa.Array:
    chosen, children = _either(values)
    return pa.UnionArray.from_dense(chosen, pa.array(range(len(values)), pa.int32()), children)


LAYOUTS = st.sampled_from([lambda values: values, _runs, _sparse, _dense])
"""What else may be made of a column, that pyarrow does not make of Python's values."""


@st.composite
def streams(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches of one generated schema, some of them slices."""
    columns = draw(st.lists(st.tuples(TYPES, LAYOUTS), min_size=1, max_size=4))
    kinds = [layout(pa.array([], kind)).type for (kind, _), layout in columns]
    schema = pa.schema([(f"c{index}", kind) for index, kind in enumerate(kinds)])
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 6))
        plain = [
            pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
            for (kind, values), _ in columns
        ]
        assume(all(map(_valid, plain)))
        arrays = [layout(array) for array, (_, layout) in zip(plain, columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        assume(_valid(batch))
        start = draw(st.integers(0, rows))
        batches.append(batch.slice(start) if draw(st.booleans()) else batch)
    return batches


def _valid(batch: pa.RecordBatch | pa.Array) -> bool:
    """Whether pyarrow stands by what it has built: below a null struct it leaves indices into empty dictionaries."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@settings(max_examples=examples(150), deadline=None)
@given(streams(), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 1000))
def test_every_type_arrives_equal(batches: list[pa.RecordBatch], cuts: list[int], seed: int) -> None:
    """CH-ARW-1: nested types, slices and dictionaries, also when the connection is cut in mid-stream."""
    world = World(seed, chunk=500)
    consumer = world.inbox(world.receiver(), codec="arrow")
    producer = world.open(world.sender(), codec="arrow")
    for number, batch in enumerate(batches):
        producer.send(batch)
        for _ in range(cuts.count(number) * 20):
            world.step()
        if number in cuts:
            for wire in world.wires(control=False):
                world.cut(wire)
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal)
    consumer.read()
    received = [consumer.decoder.decode(item.body, item.context, MESSAGE_LIMIT) for item in consumer.items]
    assert len(received) == len(batches)
    for got, sent in zip(received, batches, strict=True):
        got.validate(full=True)
        assert got.schema == sent.schema
        assert got.to_pylist() == sent.to_pylist()


class Celsius(pa.ExtensionType):
    """A type of somebody's own."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


@pytest.fixture
def celsius() -> Iterator[Celsius]:
    """Known to pyarrow, so that what arrives is of it again."""
    kind = Celsius()
    pa.register_extension_type(kind)
    yield kind
    pa.unregister_extension_type(kind.extension_name)


def of_every_type(number: int, celsius: Celsius) -> pa.RecordBatch:
    """Batch ``number`` of a stream whose dictionaries change. Of the intervals, pyarrow makes one."""
    day, second = datetime.date(2024, 2, 29), datetime.timedelta(seconds=number)
    at = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    words, numbers = [f"word {number}", None, "ü" * 30], [number, None, -1]
    tenths = [decimal.Decimal(number) / 10, None, decimal.Decimal("-0.1")]
    noon = [datetime.time(12, 0, number % 60), None, datetime.time(0)]
    columns: dict[str, pa.Array] = {
        str(kind): pa.array(values, kind)
        for values, kinds in (
            ([None] * 3, [pa.null()]),
            ([True, None, False], [pa.bool_()]),
            (numbers, [pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
            ([number, None, 0], [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]),
            ([0.5, None, float(number)], [pa.float16(), pa.float32(), pa.float64()]),
            (words, [pa.string(), pa.large_string(), pa.string_view()]),
            ([b"abc", None, b"xyz"], [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]),
            (tenths, [pa.decimal32(9, 1), pa.decimal64(18, 1), pa.decimal128(38, 1), pa.decimal256(76, 1)]),
            ([day, None, day], [pa.date32(), pa.date64()]),
            (noon, [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
            ([at, None, at + second], [pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")]),
            ([second, None, -second], [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]),
            ([pa.MonthDayNano((1, number, 3)), None, pa.MonthDayNano((0, 0, 0))], [pa.month_day_nano_interval()]),
            (words, [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_string())]),
            (
                [numbers, None, []],
                [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_view(pa.int32()),
                 pa.large_list_view(pa.int32())],
            ),
            ([[1, None], None, [number, 2]], [pa.list_(pa.int16(), 2)]),
            ([[("a", number)], None, []], [pa.map_(pa.string(), pa.int64())]),
            ([[f"in {number}"], None, [None]], [pa.list_(pa.dictionary(pa.int16(), pa.string()))]),
            ([{"a": number, "b": words}, None, {"a": None, "b": []}],
             [pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])]),
        )
        for kind in kinds
    }  # fmt: skip
    plain = columns["string"]
    columns |= {"runs": _runs(plain), "sparse union": _sparse(plain), "dense union": _dense(plain)}
    columns["celsius"] = pa.ExtensionArray.from_storage(
        celsius, pa.array([20.5, None, float(number)], pa.float32())
    )
    columns["uuid"] = pa.array([bytes(16), None, bytes([number % 256] * 16)], pa.uuid())
    return pa.record_batch(columns)


@pytest.mark.uvloop
async def test_every_type_arrives_equal_over_connections_that_are_cut(
    chaos: Callable[[str], ChaosProxy], celsius: Celsius
) -> None:
    """CH-ARW-1: each type there is, with dictionaries that change, through resets: equal, once, in order."""
    sent = [of_every_type(number, celsius) for number in range(40)]
    timing = netchannel.Timing(backoff_s=0.01, backoff_limit_s=0.05)
    async with (
        netchannel.ReceiverServer(timing=timing) as receiver,
        chaos(receiver.address) as proxy,
        netchannel.SenderServer(timing=timing) as sender,
        asyncio.timeout(60),
    ):
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=proxy.address)

        async def produce() -> None:
            for batch in sent:
                await outbox.send(batch)
            await outbox.close()

        producing = asyncio.create_task(produce())
        received = [batch async for batch in inbox]
        await producing
        assert proxy.resets >= 5
    assert [batch.schema for batch in received] == [batch.schema for batch in sent]
    assert [number for number, batch in enumerate(sent) if not received[number].equals(batch)] == []


@pytest.mark.parametrize("cut_after", range(12))
def test_dictionaries_that_change_survive_reconnects(cut_after: int) -> None:
    """CH-ARW-3: cut at every message: growing, replaced and unchanged dictionaries decode to the same strings."""
    kind = pa.dictionary(pa.int32(), pa.string())
    words = [
        ["a"],
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
        ["z"],
        ["z"],
        ["a"],
        [None],
        [],
        ["q"] * 3,
        ["q"],
        ["a"],
    ]
    world = World(chunk=200)
    consumer = world.inbox(world.receiver(), codec="arrow", explicit=True)
    producer = world.open(world.sender(), codec="arrow")
    for number, values in enumerate(words):
        column = pa.array(values, pa.string()).cast(kind)
        producer.send(
            pa.record_batch({"w": column, "nested": pa.array([[v] for v in values], pa.list_(kind))})
        )
        if number == cut_after:
            world.settle()
            for wire in world.wires(control=False):
                world.cut(wire)
    world.run(lambda: len(consumer.channel.queue) == len(words))
    consumer.read()
    batches = [consumer.decoder.decode(item.body, item.context, MESSAGE_LIMIT) for item in consumer.items]
    assert [batch.column("w").to_pylist() for batch in batches] == words
    assert [batch.column("nested").to_pylist() for batch in batches] == [[[v] for v in row] for row in words]


def test_an_unchanged_dictionary_travels_once() -> None:
    """A context is made anew only when a dictionary changes."""
    encoder = ArrowEncoder(None)
    column = pa.array(["a", "b"] * 100).dictionary_encode()
    encoder.encode(pa.record_batch({"w": column}))
    first = encoder.context
    encoder.encode(pa.record_batch({"w": column.take(pa.array([1, 0]))}))
    assert encoder.context is first
    encoder.encode(pa.record_batch({"w": pa.array(["c"]).dictionary_encode()}))
    assert encoder.context is not first


def test_large_columns_are_sent_from_their_own_memory() -> None:
    """The pieces of a large batch are the columns' buffers, not copies of them."""
    values = pa.array(range(SCATTER), pa.int64())
    body = ArrowEncoder(None).encode(pa.record_batch({"n": values}))
    assert isinstance(body, Scattered)
    addresses = {pa.py_buffer(piece).address for piece in body.pieces}
    assert values.buffers()[1].address in addresses


def test_a_received_batch_owns_its_memory() -> None:
    """Batches stay what they were while later ones arrive."""
    world = World()
    consumer = world.inbox(world.receiver(), codec="arrow")
    producer = world.open(world.sender(), codec="arrow")
    sent = [pa.record_batch({"n": pa.array([number] * 5000)}) for number in range(50)]
    received = []
    for batch in sent:
        producer.send(batch)
        world.run(lambda: len(consumer.channel.queue) == 1)
        item = consumer.channel.take()
        assert item is not None
        received.append(consumer.decoder.decode(item.body, item.context, MESSAGE_LIMIT))
    del producer, world
    gc.collect()
    assert received == sent


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300), st.data())
def test_hostile_bodies_are_typed_errors(noise: bytes, data: st.DataObject) -> None:
    """CH-BAD-1: no sequence of bytes in a body, nor a changed byte in a good one, gets past as anything else."""
    encoder, decoder = ArrowEncoder(None), ArrowDecoder(None)
    batch = pa.record_batch({"s": ["one", "two", None], "l": [[1], [], [2, 3]]})
    body = bytearray(encoder.encode(batch))
    assert encoder.schema is not None
    decoder.learn(encoder.schema)
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    for hostile in (bytes(body), bytes(body[:place]), noise):
        try:
            received = decoder.decode(memoryview(hostile), None, MESSAGE_LIMIT)
        except netchannel.ProtocolError:
            continue
        received.validate(full=True)
        received.to_pylist()


# -- views that share their bytes

TEXT = 1 << 19
"""The bytes that all views refer to."""
WITHIN = 1 << 20
"""The limit here."""


def views(count: int, length: int = TEXT, validity: bytes | None = None) -> pa.Array:
    """So many views of one text, the first of them null if there is a validity."""
    each = struct.pack("<i4sii", length, b"aaaa", 0, 0)
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(each * count)]
    return pa.Array.from_buffers(pa.string_view(), count, [*buffers, pa.py_buffer(b"a" * TEXT)])


def number_of(count: int) -> pa.Array:
    return pa.array(range(count), pa.int32())


def in_a_map(values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays([0, len(values)], number_of(len(values)), values)


NESTED: dict[str, Any] = {
    "a column": lambda values: values,
    "a list": lambda values: pa.ListArray.from_arrays([0, len(values)], values),
    "a list view": lambda values: pa.ListViewArray.from_arrays([0], [len(values)], values),
    "a list of a size": lambda values: pa.FixedSizeListArray.from_arrays(values, len(values)),
    "a struct": lambda values: pa.StructArray.from_arrays([number_of(len(values)), values], ["n", "s"]),
    "a map": in_a_map,
    "runs": lambda values: pa.RunEndEncodedArray.from_arrays(range(1, len(values) + 1), values),
    "a sparse union": lambda values: pa.UnionArray.from_sparse(
        pa.array([0] * len(values), pa.int8()), [values, number_of(len(values))]
    ),
    "a dense union": lambda values: pa.UnionArray.from_dense(
        pa.array([0] * len(values), pa.int8()), number_of(len(values)), [values]
    ),
    "lists in a struct": lambda values: pa.StructArray.from_arrays(
        [pa.LargeListArray.from_arrays([0, len(values)], values)], ["l"]
    ),
}


def read(column: pa.Array) -> tuple[bytes, pa.RecordBatch]:
    batch = pa.record_batch({"c": column})
    decoder = ArrowDecoder(None)
    decoder.learn(batch.schema.serialize().to_pybytes())
    body = batch.serialize().to_pybytes()
    return body, decoder.decode(memoryview(body), None, WITHIN)


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
def test_views_that_share_their_bytes_count_as_often_as_they_do(nested: Any) -> None:
    """CH-BAD-1: validation looks at each value, so at half the limit for each view here; two of them are taken."""
    size = len(pa.record_batch({"c": nested(views(32))}).serialize())
    said = (
        f"a body of {size} bytes has string views that refer to {32 * TEXT} bytes in total: "
        f"the limit here is {WITHIN}"
    )
    with pytest.raises(netchannel.ProtocolError, match=said):
        read(nested(views(32)))
    _, batch = read(nested(views(2)))
    assert batch.equals(pa.record_batch({"c": nested(views(2))}))


def test_a_small_body_of_very_many_views_is_refused() -> None:
    """CH-BAD-1: within 1 MiB, 16 GiB of text; making sure of it took nine seconds."""
    with pytest.raises(
        netchannel.ProtocolError, match=f"has string views that refer to {(1 << 15) * TEXT} bytes"
    ):
        read(views(1 << 15))


def test_what_is_no_value_may_have_any_length() -> None:
    """Arrow leaves open what is in a view that is null."""
    column = views(3, validity=b"\x04" + bytes(7))
    _, batch = read(column)
    assert batch.column(0).to_pylist() == [None, None, "a" * TEXT]


@pytest.mark.parametrize("length", [-1, -(2**31), TEXT + 1])
def test_lengths_that_are_none_do_not_make_up_for_others(length: int) -> None:
    with pytest.raises(netchannel.ProtocolError):
        read(views(1, length))
