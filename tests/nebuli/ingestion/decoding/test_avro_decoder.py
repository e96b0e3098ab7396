"""Avro becomes rows by the schemas of a registry, which is asked for each once; fastavro writes what is read."""

import builtins
import io
import json
import socket
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.ingestion.decoding import schema_registry
from nebuli.ingestion.decoding.avro_decoder import AvroDecoder
from nebuli.ingestion.definition import AvroFormat, DebeziumEnvelope
from nebuli.ingestion.envelopes.debezium import Debezium
from nebuli.ingestion.errors import MessageInvalid, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.decoding.registry_server import Registry, serving
from tests.nebuli.ingestion.of_messages import in_cuts, outcome, payloads
from tests.nebuli.ingestion.zsets import contents

UTC_INSTANT = pa.timestamp("us", tz="UTC")
INSTANT = datetime(2024, 1, 31, 10, 0, 0, 123000, tzinfo=UTC)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as some:
        yield some


def decoder(schema: pa.Schema, url: str = "http://registry") -> AvroDecoder:
    return AvroDecoder(schema, AvroFormat(type="Avro", registry=url), source="orders")


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": type_} for each, type_ in fields],
    }


def message(number: int, schema: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, value)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def value_of(avro: Any, value: Any, type_: pa.DataType) -> Any:
    """The one column of one message."""
    writer = record(("x", avro))
    some = decoder(pa.schema([("x", type_)]))
    made = some.decode(
        payloads([message(1, writer, {"x": value})]), {"schema/1": json.dumps(writer).encode()}
    )
    return made.rows.column("x")[0].as_py()


async def test_each_schema_is_asked_for_once_and_then_known_by_its_fact(registry: Registry) -> None:
    old, new = record(("a", "long")), record(("b", "string"), ("a", "int"))
    registry.add(7, old)
    registry.add(8, new)
    some = decoder(pa.schema([("a", pa.int64()), ("b", pa.string())]), registry.url + "/")
    messages = payloads(
        [message(7, old, {"a": 1}), b"", message(8, new, {"a": 2, "b": "x"}), message(7, old, {"a": 3})]
    )
    facts = await some.facts(messages, {})
    assert facts == {"schema/7": json.dumps(old).encode(), "schema/8": json.dumps(new).encode()}
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"]
    assert await some.facts(messages, facts) == {}
    assert len(registry.asked) == 2
    expected = [(0, {"a": 1, "b": None}), (2, {"a": 2, "b": "x"}), (3, {"a": 3, "b": None})]
    assert outcome(lambda each: some.decode(each, facts), [messages]) == expected


async def test_what_a_schema_refers_to_is_in_its_fact(registry: Registry) -> None:
    place = record(("street", "string"), name="shop.Street")
    address = record(("at", "shop.Street"), ("n", "int"), name="shop.Address")
    order = record(("to", ["null", "shop.Address"]), ("from", "shop.Address"), name="shop.Order")
    registry.refer("street%2Fname", 1, place)
    of_street = [{"name": "shop.Street", "subject": "street/name", "version": 1}]
    registry.refer("address", 3, address, references=of_street)
    registry.add(
        9, order, references=[{"name": "shop.Address", "subject": "address", "version": 3}, *of_street]
    )
    struct = pa.struct([("n", pa.int64()), ("at", pa.struct([("street", pa.string())]))])
    some = decoder(pa.schema([("to", struct), ("from", struct)]), registry.url)
    names: dict[str, Any] = {}
    for each in (place, address, order):
        written = fastavro.parse_schema(each, named_schemas=names)
    value = {"n": 5, "at": {"street": "Elm"}}
    messages = payloads([message(9, written, {"to": None, "from": value})])
    facts = await some.facts(messages, {})
    assert registry.asked == [
        "/schemas/ids/9",
        "/subjects/address/versions/3",
        "/subjects/street%2Fname/versions/1",
    ]
    assert some.decode(messages, facts).rows.to_pylist() == [{"to": None, "from": value}]


async def test_a_number_that_the_registry_does_not_have_is_the_messages_fault(registry: Registry) -> None:
    some = decoder(pa.schema([("a", pa.int64())]), registry.url)
    with pytest.raises(
        MessageInvalid, match=r"orders: the message at 5 of p: http://.*/schemas/ids/77 does not exist"
    ):
        await some.facts(payloads([b"", b"\0\0\0\0\x4d"], lower=4, part="p"), {})


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_registry_that_fails_is_away(registry: Registry, status: int) -> None:
    registry.status = status
    with pytest.raises(
        SourceAway, match=f"orders: the registry answers .*/schemas/ids/1 with status {status}"
    ):
        await decoder(pa.schema([("a", pa.int64())]), registry.url).facts(payloads([b"\0\0\0\0\1"]), {})


async def test_a_registry_that_is_not_there_or_slow_is_away(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "_ANSWER_S", 0.05)
    registry.may_answer.clear()
    with pytest.raises(SourceAway, match=r"does not answer .* within 0.05 s"):
        await decoder(pa.schema([("a", pa.int64())]), registry.url).facts(payloads([b"\0\0\0\0\1"]), {})
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(SourceAway, match="does not answer"):
        await decoder(pa.schema([("a", pa.int64())]), f"http://127.0.0.1:{port}").facts(
            payloads([b"\0\0\0\0\1"]), {}
        )


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (401, b"", "status 401; expected a registry"),
        (200, b"<html>", "something other than JSON"),
        (200, b"[]", "JSON that is not an object"),
        (200, b'{"schema":"x","schemaType":"PROTOBUF"}', "has the type PROTOBUF; expected AVRO"),
        (200, b"{}", "expected AVRO"),
    ],
)
async def test_what_is_no_registry_of_avro_cannot_be_used(
    registry: Registry, status: int, body: bytes, complaint: str
) -> None:
    registry.status, registry.body = status, body
    with pytest.raises(SourceUnusable, match=complaint):
        await decoder(pa.schema([("a", pa.int64())]), registry.url).facts(payloads([b"\0\0\0\0\1"]), {})


def test_a_registry_has_an_address_of_http() -> None:
    with pytest.raises(SourceUnusable, match="expected one such as http://host:8081"):
        decoder(pa.schema([("a", pa.int64())]), "file:///etc")


def test_without_fastavro_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "fastavro":
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SourceUnusable, match=r"pip install 'nebuli\[avro\]'"):
        decoder(pa.schema([("a", pa.int64())]))


def decimal(scale: int, **more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": scale, **more}


LONG = "1234567890123456789012345678901234567.89"


@pytest.mark.parametrize(
    ("avro", "value", "type_", "expected"),
    [
        ("int", 5, pa.uint8(), 5),
        ("long", -(2**63), pa.int64(), -(2**63)),
        ("long", 3, pa.float64(), 3.0),
        ("float", 0.5, pa.float64(), 0.5),
        ("double", 0.1, pa.float32(), 0.10000000149011612),
        ("boolean", True, pa.bool_(), True),
        ("string", "\u00e9", pa.string(), "\u00e9"),
        ("bytes", b"\xff", pa.binary(), b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        (["null", "long"], None, pa.int64(), None),
        (["long", "null"], 4, pa.int64(), 4),
        (["null"], None, pa.string(), None),
        ("null", None, pa.int64(), None),
        ({"type": "array", "items": ["null", "string"]}, ["a", None], pa.list_(pa.string()), ["a", None]),
        ({"type": "long", "logicalType": "timestamp-millis"}, INSTANT, UTC_INSTANT, INSTANT),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], INSTANT, UTC_INSTANT, INSTANT),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            INSTANT.replace(tzinfo=None),
            UTC_INSTANT,
            INSTANT,
        ),
        ({"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}, -1, UTC_INSTANT, -1),
        ({"type": "int", "logicalType": "date"}, date(2024, 2, 29), pa.date32(), date(2024, 2, 29)),
        ({"type": "string", "connect.name": "x"}, "2024-01-31T10:00:00.123Z", UTC_INSTANT, INSTANT),
        ("string", "2024-02-29", pa.date32(), date(2024, 2, 29)),
        (decimal(2), Decimal(LONG), pa.string(), LONG),
        (decimal(2), Decimal("-0.05"), pa.string(), "-0.05"),
        (decimal(0), Decimal(7), pa.string(), "7"),
        (decimal(2), Decimal("-2.50"), pa.float64(), -2.5),
        ({"type": "string", "logicalType": "uuid"}, "not one", pa.string(), "not one"),
    ],
)
def test_values_are_what_their_types_say(avro: Any, value: Any, type_: pa.DataType, expected: Any) -> None:
    if expected == -1:
        expected = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert value_of(avro, value, type_) == expected


@pytest.mark.parametrize(
    ("avro", "value", "type_", "complaint"),
    [
        ("long", 2**40, pa.int32(), "column x: '1099511627776' is not a valid int32"),
        ("int", -1, pa.uint64(), "column x: '-1' is not a valid uint64"),
        ("double", 1e39, pa.float32(), "column x: '1e[+]39' is not a valid float32"),
        ("string", "soon", UTC_INSTANT, "column x: 'soon' is not a valid timestamp"),
        ("long", 1, UTC_INSTANT, "schema 1: column x: Avro's long is not a valid timestamp"),
        (
            {"type": "int", "logicalType": "time-millis"},
            1,
            UTC_INSTANT,
            r"Avro's int \(time-millis\) is not a valid timestamp",
        ),
        (decimal(2), Decimal(1), pa.int64(), r"Avro's bytes \(decimal\) is not a valid int64"),
        ("string", "5", pa.int64(), "Avro's string is not a valid int64"),
        (
            ["null", "int", "string"],
            "x",
            pa.string(),
            "a union of null, int, string; expected null and one other",
        ),
    ],
)
def test_values_that_a_column_cannot_have(avro: Any, value: Any, type_: pa.DataType, complaint: str) -> None:
    with pytest.raises(MessageInvalid, match=f"orders: the message at 0: .*{complaint}"):
        value_of(avro, value, type_)


WRITER = record(("a", "long"), ("s", "string"))
GOOD = message(1, WRITER, {"a": 1, "s": "abc"})


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"\1" + GOOD[1:], "begins with 01 00 00 00 01; expected a zero"),
        (b"\0\0", "begins with 00 00; expected"),
        (b'{"a":1}', "begins with 7b 22"),
        (GOOD[:-1], "was not written with schema 1: EOFError"),
        (GOOD[:5], "was not written with schema 1"),
        (GOOD + b"x", "has 11 bytes, but schema 1 reads only 10"),
        (GOOD[:-1] + b"\xff", "was not written with schema 1: UnicodeDecodeError"),
        (b"\0\0\0\0\2" + GOOD[5:], "schema 2 is not among the given facts"),
        (b"\0\0\0\0\3", "schema 3 cannot be used: UnknownType"),
        (b"\0\0\0\0\4\0", "schema 4: its schema is long; expected a record"),
    ],
)
async def test_what_was_not_written_so_is_blamed_by_its_address(payload: bytes, complaint: str) -> None:
    some = decoder(pa.schema([("a", pa.int64()), ("s", pa.string())]))
    facts = {
        "schema/1": json.dumps(WRITER).encode(),
        "schema/3": json.dumps(record(("a", "Unknown"))).encode(),
        "schema/4": b'"long"',
    }
    assert await some.facts(payloads([payload]), {**facts, "schema/2": b""}) == {}
    with pytest.raises(MessageInvalid) as caught:
        some.decode(payloads([GOOD, payload], lower=3, part="p"), facts)
    assert str(caught.value).startswith(f"orders: the message at 4 of p: {complaint}")


def test_records_of_debezium_are_decoded_to_what_its_envelope_wants() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", UTC_INSTANT)])
    envelope = Debezium(schema, DebeziumEnvelope(type="debezium", key=("k",)), source="orders")
    instant = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    row = {**record(("k", "int"), ("at", ["null", instant]), name="Value"), "namespace": "shop.orders"}
    block = record(("id", "string"), ("total_order", "long"), ("data_collection_order", "long"), name="block")
    writer = {
        **record(
            ("before", ["null", row]),
            ("after", ["null", "Value"]),
            ("op", "string"),
            ("transaction", ["null", block]),
        ),
        "name": "Envelope",
        "namespace": "shop.orders",
    }
    values = [
        {"before": None, "after": {"k": 1, "at": 1706695200123000}, "op": "c", "transaction": None},
        {
            "before": {"k": 1, "at": None},
            "after": {"k": 2, "at": None},
            "op": "u",
            "transaction": {"id": "7", "total_order": 1, "data_collection_order": 1},
        },
    ]
    some = AvroDecoder(envelope.wants, AvroFormat(type="Avro", registry="http://r"), source="orders")
    made = some.decode(
        payloads([message(3, writer, each) for each in values]), {"schema/3": json.dumps(writer).encode()}
    )
    assert made.rows.column("transaction").to_pylist() == [None, {"id": "7", "total_order": 1}]
    assert contents(envelope.apply({"": [made.below(1)]}).output) == {(1, INSTANT): 1}
    assert contents(envelope.apply({"": [made.since(1)]}).output) == {(1, INSTANT): -1, (2, None): 1}


ROWS = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.text(max_size=4),
        "f": st.floats(allow_nan=False),
        "in": st.none() | st.fixed_dictionaries({"b": st.binary(max_size=4)}),
    }
)


@given(
    rows=st.lists(st.none() | st.tuples(st.integers(0, 1), ROWS), max_size=8),
    cuts=st.lists(st.integers(0, 8), max_size=3),
)
@settings(deadline=None)
def test_what_fastavro_writes_is_read_however_it_is_cut(
    rows: list[tuple[int, dict[str, Any]] | None], cuts: list[int]
) -> None:
    inner = record(("b", "bytes"), name="In")
    fields: list[tuple[str, Any]] = [
        ("n", ["null", "long"]),
        ("s", "string"),
        ("f", "double"),
        ("in", ["null", inner]),
    ]
    writers = [record(*fields), record(*fields[2:], ("other", "string"), *fields[:1])]
    lines, expected = [], []
    for address, each in enumerate(rows):
        if each is None:
            lines.append(b"")
            continue
        which, row = each
        lines.append(message(which, writers[which], {**row, "other": "x"}))
        expected.append((address, {**row, "s": None} if which else row))
    schema = pa.schema(
        [("s", pa.string()), ("n", pa.int64()), ("in", pa.struct([("b", pa.binary())])), ("f", pa.float64())]
    )
    some = decoder(schema)
    facts = {f"schema/{number}": json.dumps(writer).encode() for number, writer in enumerate(writers)}

    def decode(messages: Messages) -> Messages:
        return some.decode(messages, facts)

    assert outcome(decode, in_cuts(payloads(lines), cuts)) == expected
