"""Lines of CSV become rows, however they are cut; Python's own reader says which."""

import csv
import io
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.connectors.errors import RowInvalid
from nebuli.connectors.formats.csv_lines import CsvLines
from nebuli.ingestion.decoding.csv_decoder import CsvDecoder
from nebuli.ingestion.definition import CsvFormat
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.of_messages import in_cuts, outcome, payloads

UTC_INSTANT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", UTC_INSTANT)])
INSTANT = datetime(2024, 1, 31, 10, 0, tzinfo=UTC)


def decoder(
    schema: pa.Schema = SCHEMA, *, header: bool = False, nulls: tuple[str, ...] = ("",)
) -> CsvDecoder:
    return CsvDecoder(schema, CsvFormat(type="CSV", header=header, nulls=nulls), source="orders")


def decoded(messages: Messages, schema: pa.Schema = SCHEMA) -> list[tuple[int, dict[str, object]]]:
    return outcome(lambda each: decoder(schema).decode(each, {}), [messages])


async def test_a_header_is_no_row_and_finds_columns_by_name() -> None:
    by_header = decoder(header=True)
    messages = payloads(
        [b"at,other,name,id\n", b"2024-01-31T10:00:00Z,x,ann,1\n", b"2024-01-31 11:00+01:00,y,bob,2\n"]
    )
    facts = await by_header.facts(messages, {})
    assert facts == {"header/": b"at,other,name,id\n"}
    assert outcome(lambda each: by_header.decode(each, facts), [messages]) == [
        (1, {"id": 1, "name": "ann", "at": INSTANT}),
        (2, {"id": 2, "name": "bob", "at": INSTANT}),
    ]


async def test_who_begins_behind_the_header_knows_it_by_its_fact_and_asks_for_no_other() -> None:
    by_header = decoder(header=True)
    messages = payloads([b"7,x\n"], lower=5, part="a.csv")
    facts = {"header/a.csv": b"id,name,at\n"}
    assert await by_header.facts(messages, facts) == {}
    with pytest.raises(
        MessageInvalid, match=r"the message at 5 of a.csv: 2 values, but 3 are expected: '7,x'"
    ):
        by_header.decode(messages, facts)
    with pytest.raises(MessageInvalid, match="which has the header of the part, is missing"):
        by_header.decode(messages, {"header/b.csv": b"id,name,at\n"})


async def test_a_header_has_to_have_each_column_once() -> None:
    by_header = decoder(header=True)
    with pytest.raises(
        MessageInvalid, match=r"orders: the header of p has no column at; its columns are id, name$"
    ):
        await by_header.facts(payloads([b"id,name\n"], part="p"), {})
    with pytest.raises(
        MessageInvalid, match="the header has more than one column id; its columns are id, name, at, id"
    ):
        await by_header.facts(payloads([b"id,name,at,id\r\n"]), {})
    with pytest.raises(MessageInvalid, match="no column id; its columns are none"):
        await by_header.facts(payloads([b"\n"]), {})


def test_timestamps_with_a_zone_and_without_may_alternate() -> None:
    lines = [
        b"1,a,2024-01-31T10:00:00\n",
        b"2,b,2024-01-31T12:00:00+02:00\n",
        b"3,c,\n",
        b"4,d,2024-01-31 10:00Z\n",
    ]
    assert [row["at"] for _, row in decoded(payloads(lines))] == [INSTANT, INSTANT, None, INSTANT]


def test_blank_lines_are_no_rows_and_move_no_address() -> None:
    lines = [b"\n", b"1,a,\n", b"\r\n", b"", b"2,b,\n", b"\n"]
    assert [(address, row["id"]) for address, row in decoded(payloads(lines, lower=10))] == [(11, 1), (14, 2)]


def test_a_message_without_its_line_end_and_one_with_several_rows() -> None:
    rows = decoded(payloads([b"1,a,", b'2,"b\nc",\n3,d,\n', None, b"4,e,"]))
    assert [(address, row["id"], row["name"]) for address, row in rows] == [
        (0, 1, "a"),
        (1, 2, "b\nc"),
        (1, 3, "d"),
        (3, 4, "e"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"x1,a,\n", "column id: 'x1' is not a valid int64"),
        (b"99999999999999999999,a,\n", "column id: '99999999999999999999' is not a valid int64"),
        (b"1,\xff,\n", "column name: '\ufffd' is not a valid string"),
        (b"1,a,yesterday\n", "column at: 'yesterday' is not a valid timestamp"),
        (b"1,a\n", "2 values, but 3 are expected: '1,a'"),
        (b'1,"a,\n', "a quoted value does not end in the message"),
        (b'1,a,"\n', "a quoted value does not end in the message"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 300])
def test_blame_names_source_part_address_column_and_value(line: bytes, complaint: str, before: int) -> None:
    lines = [*[b"1,ok,2024-01-31\n"] * before, line, b'2,"o",k\n', b'"\n']
    with pytest.raises(MessageInvalid) as caught:
        decoded(payloads(lines, lower=4, part="p"))
    assert str(caught.value).startswith(f"orders: the message at {4 + before} of p: ")
    assert complaint in str(caught.value)


def test_two_messages_that_quotes_would_make_one_row_of_stay_two() -> None:
    """The lines together are as many rows as messages: one is of two messages, another message has two."""
    lines = [b'1,"a,\n', b'",2,\n', b"3,b,\r4,c,\n"]
    with pytest.raises(MessageInvalid, match="the message at 0: a quoted value does not end"):
        decoded(payloads(lines))


def test_nulls_are_what_the_settings_say() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.float64())])
    some = CsvDecoder(schema, CsvFormat(type="CSV", header=False, nulls=("NULL", "-")), source="s")
    assert some.decode(payloads([b"NULL,-\n", b",1.5\n"]), {}).rows.to_pylist() == [
        {"a": None, "b": None},
        {"a": "", "b": 1.5},
    ]


def test_the_other_types() -> None:
    schema = pa.schema([("d", pa.date32()), ("b", pa.binary()), ("t", pa.bool_()), ("u", pa.uint64())])
    rows = decoded(payloads([b"2024-02-29,\xff\x00,true,18446744073709551615\n"]), schema)
    assert rows == [(0, {"d": date(2024, 2, 29), "b": b"\xff\x00", "t": True, "u": 2**64 - 1})]


def test_a_mark_is_of_the_file_at_its_begin_and_of_the_value_elsewhere() -> None:
    schema = pa.schema([("a", pa.string())])
    mark = "\ufeff".encode()
    rows = decoded(payloads([mark + b"x\n", mark + b"y\n", b"z\n"]), schema)
    assert [row["a"] for _, row in rows] == ["x", "\ufeffy", "z"]
    assert [row["a"] for _, row in decoded(payloads([mark + b"y\n"], lower=1), schema)] == ["\ufeffy"]


def test_a_line_may_be_longer_than_a_block() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    rows = decoded(payloads([b"x" * 3_000_000 + b",1\n", b"y,2\n"]), schema)
    assert [(len(str(row["a"])), row["b"]) for _, row in rows] == [(3_000_000, 1), (1, 2)]


VALUE = st.one_of(
    st.text(st.sampled_from('ab,"\n\r \u00e9'), max_size=4),
    st.integers(-9, 9).map(str),
)


@given(
    rows=st.lists(st.tuples(VALUE, VALUE), max_size=12),
    ends=st.lists(st.sampled_from(["\n", "\r\n", ""]), min_size=12, max_size=12),
    blank=st.sets(st.integers(0, 11), max_size=3),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
@settings(deadline=None)
def test_what_the_csv_module_writes_is_read_however_it_is_cut(
    rows: list[tuple[str, str]], ends: list[str], blank: set[int], cuts: list[int]
) -> None:
    """With line ends in quotes, and without; None is an empty value without quotes. Two of them are a row, too."""
    lines, expected = [], []
    for address, row in enumerate(rows):
        if address in blank:
            lines.append(ends[address].encode())
            continue
        text = io.StringIO()
        breaks = {*"".join(row)} & {*"\r\n"}  # which it leaves without quotes if it ends lines otherwise
        quoting = csv.QUOTE_ALL if breaks else csv.QUOTE_MINIMAL
        csv.writer(text, lineterminator=ends[address], quoting=quoting).writerow(row)
        lines.append(text.getvalue().encode())
        empty = "" if breaks else None  # in quotes it is a text
        expected.append((address, {"a": row[0] or empty, "b": row[1] or empty}))
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    some = decoder(schema)
    assert outcome(lambda each: some.decode(each, {}), in_cuts(payloads(lines), cuts)) == expected


QUOTED = st.sampled_from(["", '""', "NA", '"NA"', "7", '"7"', '"a\nb"', '"a""b"'])
"""Values as they may be written."""
NUMBERS = st.sampled_from(["", '""', "NA", '"NA"', "7", '"7"'])
TIMES = st.sampled_from(["", '""', "NA", '"NA"', "2026-01-31 10:00:00", '"2026-01-31T10:00:00Z"'])


@pytest.mark.parametrize(
    "types",
    [
        (pa.string(),),
        (pa.int64(),),
        (pa.string(), pa.int64()),
        (pa.string(), pa.timestamp("us", "UTC"), pa.int64(), pa.binary()),
        (pa.timestamp("us", "UTC"), pa.int64()),
    ],
    ids=str,
)
@given(data=st.data(), nulls=st.sampled_from([("",), ("NA",), ("", "NA"), ()]))
@settings(deadline=None, max_examples=60)
def test_rows_are_those_that_a_source_of_a_topology_reads(
    types: tuple[pa.DataType, ...], data: st.DataObject, nulls: tuple[str, ...]
) -> None:
    """Nulls and texts in quotes, and blank lines where a row has one value; also what is refused."""
    schema = pa.schema([(f"c{place}", type_) for place, type_ in enumerate(types)])
    values = [
        TIMES if pa.types.is_timestamp(type_) else NUMBERS if pa.types.is_integer(type_) else QUOTED
        for type_ in types
    ]
    rows = data.draw(st.lists(st.tuples(*values), max_size=6))
    lines = [(",".join(row) + "\n").encode() for row in rows]
    settings_ = CsvFormat(type="CSV", header=False, nulls=nulls)
    try:
        expected = (
            CsvLines(schema, nulls, "fail").read(b"".join(lines), begins=True).to_pylist() if lines else []
        )
    except RowInvalid:
        with pytest.raises(MessageInvalid):
            CsvDecoder(schema, settings_, source="s").decode(payloads(lines), {})
        return
    assert CsvDecoder(schema, settings_, source="s").decode(payloads(lines), {}).rows.to_pylist() == expected


@given(
    lines=st.lists(st.text(st.sampled_from('1x,"\n\r'), max_size=8), max_size=6),
    cuts=st.lists(st.integers(0, 6), max_size=6),
)
@settings(deadline=None, max_examples=300)
def test_whatever_bytes_there_are_rows_and_blame_are_those_of_each_message_alone(
    lines: list[str], cuts: list[int]
) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int8())])
    messages = payloads([each.encode() for each in lines])

    def seen(pieces: list[Messages]) -> object:
        some = decoder(schema)
        try:
            return outcome(lambda each: some.decode(each, {}), pieces)
        except MessageInvalid as error:
            return str(error)

    alone = seen(in_cuts(messages, range(len(lines))))
    assert seen([messages]) == alone
    assert seen(in_cuts(messages, cuts)) == alone
