"""Objects of JSON become rows by a rule of its own, whichever way they are read; Python's reader says which."""

import base64
import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.ingestion.decoding.json_decoder import JsonDecoder
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.of_messages import in_cuts, outcome, payloads

UTC_INSTANT = pa.timestamp("us", tz="UTC")
TYPES = {
    "t": pa.bool_(),
    "i": pa.int64(),
    "small": pa.int8(),
    "u": pa.uint64(),
    "f": pa.float64(),
    "g": pa.float32(),
    "s": pa.string(),
    "b": pa.binary(),
    "d": pa.date32(),
    "at": UTC_INSTANT,
    "l": pa.list_(pa.string()),
}
FLAT = pa.schema(list(TYPES.items()))
SCHEMA = pa.schema([*TYPES.items(), ("before", pa.struct(list(TYPES.items())))])


def decoded(messages: Messages, schema: pa.Schema = SCHEMA) -> list[tuple[int, dict[str, Any]]]:
    some = JsonDecoder(schema, source="orders")
    return outcome(lambda each: some.decode(each, {}), [messages])


def value_of(text: str, type_: pa.DataType) -> Any:
    """The one value in an object of one message."""
    ((_, row),) = decoded(payloads([b'{"x":%b}' % text.encode()]), pa.schema([("x", type_)]))
    return row["x"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_columns_are_found_by_name_also_in_objects_within(end: bytes) -> None:
    schema = pa.schema([("id", pa.int64()), ("before", pa.struct([("a", pa.string()), ("b", pa.float64())]))])
    lines = [b'{"before":{"b":1,"a":"x","c":[{}]},"other":null,"id":7}', b'{"before":null}', b'{"before":{}}']
    assert decoded(payloads([each + end for each in lines], lower=3), schema) == [
        (3, {"id": 7, "before": {"a": "x", "b": 1.0}}),
        (4, {"id": None, "before": None}),
        (5, {"id": None, "before": {"a": None, "b": None}}),
    ]


def test_a_file_may_begin_with_a_mark_and_no_other_message() -> None:
    lines = [b'\xef\xbb\xbf{"i":1}\n', b'{"i":2}\r\n']
    assert [row["i"] for _, row in decoded(payloads(lines))] == [1, 2]
    with pytest.raises(MessageInvalid, match="the message at 7: not JSON"):
        decoded(payloads(lines, lower=7))


def test_an_empty_message_is_no_row_and_moves_no_address() -> None:
    lines = [b"", b'{"i":1}\n', None, b"\n", b" \r\n", b'{"i":2}\n']
    assert [(address, row["i"]) for address, row in decoded(payloads(lines))] == [(1, 1), (5, 2)]


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("-9223372036854775808", pa.int64(), -(2**63)),
        ("18446744073709551615", pa.uint64(), 2**64 - 1),
        ("1e2", pa.float64(), 100.0),
        ("12345678901234567890123", pa.float64(), 1.2345678901234568e22),
        ("0.1", pa.float32(), 0.10000000149011612),
        ('"\\ud83d\\ude00"', pa.string(), "\U0001f600"),
        ('"2024-01-31T11:00:00+01:00"', UTC_INSTANT, datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ('"2024-01-31 10:00"', UTC_INSTANT, datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ("1706695200000000", UTC_INSTANT, datetime(2024, 1, 31, 10, tzinfo=UTC)),
        ('"2024-02-29"', pa.date32(), date(2024, 2, 29)),
        ("19782", pa.date32(), date(2024, 2, 29)),
        ('"/wA="', pa.binary(), b"\xff\x00"),
        ('["a",null]', pa.list_(pa.string()), ["a", None]),
        ('1,"x":2', pa.int64(), 2),
        ('"-Infinity"', pa.float64(), float("-inf")),
    ],
)
def test_values_by_the_rule(text: str, type_: pa.DataType, value: Any) -> None:
    assert value_of(text, type_) == value


@pytest.mark.parametrize(
    ("text", "type_", "complaint"),
    [
        ('"5"', pa.int64(), "column x: '5' is not a valid int64"),
        ("5.0", pa.int64(), "column x: 5.0 is not a valid int64"),
        ("9223372036854775808", pa.int64(), "is not a valid int64"),
        ("-1", pa.uint64(), "is not a valid uint64"),
        ("300", pa.int8(), "is not a valid int8"),
        ("true", pa.int64(), "column x: true is not a valid int64"),
        ('"1.5"', pa.float64(), "column x: '1.5' is not a valid float64"),
        ("1e999", pa.float64(), "is not a valid float64"),
        ("1e39", pa.float32(), "is not a valid float32"),
        ("NaN", pa.float64(), "NaN is not a number"),
        ("-Infinity", pa.float64(), "not JSON"),
        ("5", pa.string(), "is not a valid string"),
        ("{}", pa.string(), "column x: {} is not a valid string"),
        ('"\\ud800"', pa.string(), "is not a valid string"),
        ('"a\tb"', pa.string(), "not JSON"),
        ("1", pa.bool_(), "is not a valid bool"),
        ('"yesterday"', UTC_INSTANT, "column x: 'yesterday' is not a valid timestamp"),
        ("1.5", UTC_INSTANT, "is not a valid timestamp"),
        ('"31.1.2024"', pa.date32(), "is not a valid date"),
        ('"not base64!"', pa.binary(), "is not a valid binary"),
        ('"x"', pa.struct([("a", pa.int64())]), "column x: 'x' is not a valid struct"),
        ('{"a":"y"}', pa.struct([("a", pa.int64())]), "column x.a: 'y' is not a valid int64"),
    ],
)
def test_values_that_the_rule_refuses(text: str, type_: pa.DataType, complaint: str) -> None:
    with pytest.raises(MessageInvalid) as caught:
        value_of(text, type_)
    assert str(caught.value).startswith("orders: the message at 0: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"null\n", "an object was expected: 'null'"),
        (b"[1]\n", "an object was expected"),
        (b'{"i":1}{"i":2}\n', "not JSON"),
        (b'{"i":1} null {}\n', "not JSON"),
        (b'{"i":\n', "not JSON"),
        (b'{"s":"\xff"}\n', "not JSON"),
        (b'{"other":"\xff"}\n', "not JSON"),
        (b'{"other":NaN}\n', "not JSON"),
        (b'{"i":1}\0\n', "not JSON"),
        (b"\xef\xbb\xbf{}\n", "not JSON"),
        (b"{" * 100_000 + b"\n", "not JSON"),
        (b'{"a":' * 100_000 + b"\n", "not JSON"),
    ],
)
@pytest.mark.parametrize("before", [0, 3000])
def test_what_is_no_object_is_blamed_by_its_address(payload: bytes, complaint: str, before: int) -> None:
    """Arrow takes some of these, also two messages for one object, and ends the process at others."""
    lines = [*[b'{"i":1}\n'] * before, payload, b'{"i":1}\n', b'1}\n{"i":2}\n']
    with pytest.raises(MessageInvalid) as caught:
        decoded(payloads(lines, lower=2, part="p"))
    assert str(caught.value).startswith(f"orders: the message at {2 + before} of p: {complaint}")


def test_an_object_over_several_lines_in_its_message() -> None:
    assert decoded(payloads([b'{"i":\n 1}\n', b' {"i":2} ']), pa.schema([("i", pa.int64())])) == [
        (0, {"i": 1}),
        (1, {"i": 2}),
    ]


def test_a_message_may_be_longer_than_a_block() -> None:
    lines = [b'{"s":"%b"}\n' % (b"x" * 3_000_000), b'{"s":"y"}\n']
    assert [len(str(row["s"])) for _, row in decoded(payloads(lines), pa.schema([("s", pa.string())]))] == [
        3_000_000,
        1,
    ]


def test_many_odd_ones_among_many() -> None:
    """Twelve thousand, of which some alone are read one by one."""
    lines = [b'{"i":%d}\n' % each if each % 5000 else b' {"i":%d} \n' % each for each in range(12_000)]
    rows = decoded(payloads(lines), pa.schema([("i", pa.int64())]))
    assert [(address, row["i"]) for address, row in rows] == [(each, each) for each in range(12_000)]


INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=4)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "t": st.booleans(),
    "i": INT64,
    "small": st.integers(-128, 127),
    "u": st.integers(0, 2**64 - 1),
    "f": st.floats(allow_nan=False, allow_infinity=False),
    "g": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "s": TEXT,
    "b": st.binary(max_size=4),
    "d": st.dates(),
    "at": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    "l": st.lists(TEXT | st.none(), max_size=2),
}
ROWS = st.fixed_dictionaries({}, optional={name: each | st.none() for name, each in VALUES.items()})


def spelled(value: Any) -> Any:
    """As JSON has it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case dict():
            return {name: spelled(each) for name, each in value.items()}
    return value


def whole(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in TYPES}


@given(
    rows=st.lists(st.tuples(ROWS, ROWS | st.none()), max_size=6),
    end=st.sampled_from(["", "\n", "\r\n"]),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 6), max_size=3),
)
@settings(deadline=None)
def test_what_the_json_module_writes_is_read_however_it_is_cut(
    rows: list[tuple[dict[str, Any], dict[str, Any] | None]], end: str, ascii_only: bool, cuts: list[int]
) -> None:
    lines, expected = [], []
    for address, (row, before) in enumerate(rows):
        value = {**spelled(row), "before": spelled(before), "other": [{"x": None}]}
        lines.append((json.dumps(value, ensure_ascii=ascii_only) + end).encode())
        expected.append((address, {**whole(row), "before": None if before is None else whole(before)}))
    some = JsonDecoder(SCHEMA, source="s")
    assert outcome(lambda each: some.decode(each, {}), in_cuts(payloads(lines), cuts)) == expected


ATOMS = [
    *[
        "1",
        "-0",
        "01",
        "1.5",
        "1e2",
        "1E400",
        "300",
        "9223372036854775808",
        "NaN",
        "Inf",
        "-Infinity",
        "null",
        "true",
    ],
    *[
        '"x"',
        '"1"',
        '"2024-01-31"',
        '"2024-01-31T10:00:00Z"',
        '"\\ud800"',
        '"\\udc00"',
        '"YQ=="',
        '""',
        '"\t"',
    ],
    *["{}", "[]", "{", "}", "[", "]", ",", ":", " ", "\n", "\r\n", "\r", "\x00", "\u00e9", '"', "\\", "//"],
    *[
        '{"i":1}',
        '"i":1',
        '"i":',
        '"f":',
        '"s":',
        '"at":',
        '"d":',
        '"b":',
        '"g":',
        '"before":{"i":1}',
        '"i":null',
    ],
]
BYTES = st.lists(st.sampled_from(ATOMS), max_size=7).map("".join)
OBJECTS = st.lists(
    st.tuples(st.sampled_from([*SCHEMA.names, "other", "\\u0069"]), st.sampled_from(ATOMS[:25])), max_size=4
).map(lambda pairs: "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}")


@given(
    lines=st.lists(st.tuples(BYTES | OBJECTS, st.sampled_from(["", "\n"])).map("".join), max_size=5),
    cuts=st.lists(st.integers(0, 5), max_size=5),
)
@settings(deadline=None, max_examples=500)
def test_whatever_bytes_there_are_rows_and_blame_are_those_of_the_slow_way(
    lines: list[str], cuts: list[int]
) -> None:
    messages = payloads([each.encode() for each in lines])

    def seen(pieces: list[Messages], *, slow: bool) -> object:
        some = JsonDecoder(SCHEMA, source="s")
        if slow:
            some._at_once = lambda payloads: None  # type: ignore[method-assign]
        try:
            return repr(outcome(lambda each: some.decode(each, {}), pieces))
        except MessageInvalid as error:
            return str(error)

    expected = seen([messages], slow=True)
    assert seen([messages], slow=False) == expected
    assert seen(in_cuts(messages, cuts), slow=False) == expected
