"""What a sink writes, the source of the same type reads back, however the bytes are cut."""

from __future__ import annotations

import gzip
from datetime import UTC
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.connectors.endpoints import Output, Signal, Source
from nebuli.connectors.errors import InputError, OutputError
from nebuli.connectors.sinks import tcp_output
from nebuli.connectors.sinks.outputs import csv_file, parquet_file
from nebuli.connectors.sources import csv_source, parquet_source, tcp_source
from nebuli.dataflow.types import arrow_schema
from tests.support.sizes import in_full
from topology import Column, CsvSink, CsvSource, DataType, ParquetSink, ParquetSource, TcpSink, TcpSource

ODD_TEXTS = ["", '"', '""', ",", "\n", "\r", "\r\n", "\0", " ", "\ufeff", "\\N", "NA", "nan"]
ODD_TEXTS += ["\u00e9", "e\u0301"]  # one letter, in NFC and in NFD
INTEGERS = {
    DataType(f"{sign}int{bits}"): (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.BOOL: st.booleans(),
    **{type_: st.integers(*bounds) for type_, bounds in INTEGERS.items()},
    DataType.FLOAT32: st.floats(width=32),
    DataType.FLOAT64: st.floats(),
    DataType.STRING: st.lists(st.sampled_from(ODD_TEXTS) | st.text(max_size=5), max_size=4).map("".join),
    DataType.BINARY: st.binary(max_size=5),
    DataType.DATE: st.dates(),
    DataType.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
}


class Wire:
    """A connection: ``data`` comes in pieces of such sizes, in turn."""

    def __init__(self, sizes: list[int], data: bytes = b"") -> None:
        self._sizes = sizes
        self._turn = 0
        self._data = bytearray(data)
        self.sent = bytearray()

    def send(self, data: memoryview) -> int:
        self.sent += data
        return len(data)

    def recv(self, limit: int) -> bytes:
        size = min(limit, self._sizes[self._turn % len(self._sizes)])
        self._turn += 1
        piece = bytes(self._data[:size])
        del self._data[:size]
        return piece

    def setsockopt(self, *_: object) -> None:
        pass

    settimeout = shutdown = setsockopt

    def close(self) -> None:
        pass


def write(output: Output, batches: list[pa.RecordBatch]) -> None:
    output.open(batches[0].schema)
    try:
        for batch in batches:
            output.write(batch)
        output.publish()
    finally:
        output.discard()


def read(source: Source) -> pa.Table:
    batches = []
    try:
        source.open()
        while (batch := source.poll()) is not Signal.END:
            if isinstance(batch, pa.RecordBatch):
                batches.append(batch.select(batch.schema.names[:-1]))
    finally:
        source.close("done")
    return pa.Table.from_batches(batches) if batches else None


class Round:
    """A file, or connection, of a type, and of the sizes in which its bytes are cut."""

    def __init__(self, kind: str, sizes: list[int], nulls: tuple[str, ...] = ("",)) -> None:
        self._kind = kind
        self._sizes = sizes
        self._nulls = nulls

    def write(self, folder: str, batches: list[pa.RecordBatch]) -> bytes:
        path = f"{folder}/file"
        match self._kind:
            case "Parquet":
                write(parquet_file(ParquetSink(type="Parquet", name="s", path=path)), batches)
            case "CSV":
                write(csv_file(CsvSink(type="CSV", name="s", path=path, nulls=self._nulls)), batches)
            case _:
                wire = Wire(self._sizes)
                sink = TcpSink(
                    type="TCP", name="s", address="there:1", format=self._kind[4:], nulls=self._nulls
                )
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(tcp_output, "connect", lambda _: wire)
                    write(tcp_output.TcpOutput(sink), batches)
                return bytes(wire.sent)
        return Path(path).read_bytes()

    def read(self, folder: str, data: bytes, columns: tuple[Column, ...]) -> pa.Table:
        path = f"{folder}/file"
        Path(path).write_bytes(data)
        match self._kind:
            case "Parquet":
                settings = ParquetSource(type="Parquet", logical="l", path=path)
                return read(parquet_source.ParquetSource(settings, columns, print))
            case "CSV":
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(csv_source, "_BLOCK_BYTES", self._sizes[0])
                    settings = CsvSource(type="CSV", logical="l", path=path, nulls=self._nulls)
                    return read(csv_source.CsvSource(settings, columns, print))
            case _:
                settings = TcpSource(
                    type="TCP", logical="l", address="there:1", format=self._kind[4:], nulls=self._nulls
                )
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(tcp_source, "connect", lambda _: Wire(self._sizes, data))
                    return read(tcp_source.TcpSource(settings, columns, lambda: None))


def shown(rows: pa.Table | None) -> list[str]:
    """All values, so that NaN is NaN, and -0.0 not 0.0."""
    return [] if rows is None else [repr(row) for row in rows.to_pylist()]


KINDS = ("Parquet", "CSV", "TCP CSV", "TCP JSON")


@st.composite
def tables(draw: st.DrawFn, kind: str) -> tuple[tuple[Column, ...], list[pa.RecordBatch]]:
    types = [each for each in DataType if kind == "Parquet" or each != DataType.BINARY]
    names = draw(
        st.lists(st.sampled_from("ab") | st.text(min_size=1, max_size=3), min_size=1, max_size=3, unique=True)
    )
    columns = tuple(Column(name=name, type=draw(st.sampled_from(types))) for name in names)
    rows = st.tuples(*(st.none() | VALUES[column.type] for column in columns))
    schema = arrow_schema(columns)
    batches = [
        pa.record_batch(list(map(pa.array, zip(*some, strict=True), schema.types)), schema=schema)
        for some in draw(st.lists(st.lists(rows, min_size=1, max_size=5), min_size=1, max_size=3))
    ]
    return columns, batches


SIZES = st.lists(st.integers(2, 60) | st.just(1 << 18), min_size=1, max_size=4)


@given(kind=st.sampled_from(KINDS), data=st.data(), sizes=SIZES, null=st.sampled_from(["", "\\N", "NA"]))
@settings(max_examples=in_full(2000), deadline=None)
def test_what_a_sink_writes_its_source_reads_back(
    kind: str, data: st.DataObject, sizes: list[int], null: str
) -> None:
    columns, batches = data.draw(tables(kind))
    round_ = Round(kind, sizes, (null,))
    with TemporaryDirectory() as folder:
        written = round_.write(folder, batches)
        found = round_.read(folder, written, columns)
    assert shown(found) == shown(pa.Table.from_batches(batches))
    assert found.schema.equals(arrow_schema(columns))


def test_another_reader_of_csv_tells_nulls_from_empty_texts(tmp_path: Path) -> None:
    columns = (Column(name="b", type=DataType.STRING),)
    rows = pa.record_batch({"b": ["x", None, "", "y"]})
    written = Round("CSV", [1 << 18]).write(str(tmp_path), [rows])
    assert written == b'"b"\n"x"\n\n""\n"y"\n'
    query = (
        "SELECT b FROM read_csv($file, header = true, allow_quoted_nulls = false, columns = {'b': 'VARCHAR'})"
    )
    found = duckdb.sql(query, params={"file": f"{tmp_path}/file"}).fetchall()
    assert found == [("x",), (None,), ("",), ("y",)]
    assert shown(Round("CSV", [1 << 18]).read(str(tmp_path), written, columns)) == shown(rows)


FARTHEST = 253_402_300_799_999_999
BAD: list[tuple[DataType, pa.Array, str, tuple[str, ...]]] = [
    (DataType.STRING, pa.array([b"a", b"\xff\x1b"]).view(pa.string()), "'\\\\xff\\x1b' is not UTF-8", KINDS),
    (
        DataType.DATE,
        pa.array([None, 2_932_897], pa.int32()).view(pa.date32()),
        "2,932,897 days from",
        KINDS[1:],
    ),
    (DataType.DATE, pa.array([0, -719_163], pa.int32()).view(pa.date32()), "-719,163 days from", KINDS[1:]),
    (
        DataType.TIMESTAMP,
        pa.array([FARTHEST, FARTHEST + 1]).view(pa.timestamp("us", "UTC")),
        "253,402,300,800,000,000 microseconds from",
        KINDS[1:],
    ),
]


@pytest.mark.parametrize(("type_", "values", "said", "kinds"), BAD)
def test_a_value_that_would_not_be_read_back_is_refused_with_row_and_column(
    type_: DataType, values: pa.Array, said: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    batch = pa.record_batch({"n": pa.array([1, 2]), "x": values})
    for kind in kinds:
        place = "TCP there:1" if kind.startswith("TCP") else f"{tmp_path}/file"
        with pytest.raises(OutputError) as caught:
            Round(kind, [1 << 18]).write(str(tmp_path), [batch.slice(0, 1), batch])
        assert str(caught.value).startswith(f"{place}, row 3, column x: {said}"), kind
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("type_", "forms"),
    [
        (DataType.DATE, "2024-01-31"),
        (
            DataType.TIMESTAMP,
            "2024-01-31, 2024-01-31T10:00:00, 2024-01-31T10:00:00Z or 2024-01-31T10:00:00+02:00",
        ),
    ],
)
@pytest.mark.parametrize(
    ("kind", "data"),
    [("CSV", "x\n31.1.2024\n"), ("TCP CSV", "31.1.2024\n"), ("TCP JSON", '{"x": "31.1.2024"}\n')],
)
def test_a_text_that_is_no_date_is_refused_with_the_forms_of_dates_by_each_source(
    kind: str, data: str, type_: DataType, forms: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        Round(kind, [1 << 18]).read(str(tmp_path), data.encode(), (Column(name="x", type=type_),))
    said = f"column x: '31.1.2024' is not a valid {type_}; expected a form such as {forms}"
    assert str(caught.value).endswith(said), caught.value


@pytest.mark.parametrize(
    "null", ['a"', "a,b", "a\n", "\r", "1", "-1", ".5", "NaN", "true", "2024-01-01", "-Infinity"]
)
@pytest.mark.parametrize("sink", [CsvSink, TcpSink])
def test_a_null_is_not_written_as_what_would_be_read_as_a_value(sink: Any, null: str) -> None:
    where = {"path": "out.csv", "type": "CSV"} if sink is CsvSink else {"address": "there:1", "type": "TCP"}
    with pytest.raises(ValueError, match="null"):
        sink(name="s", nulls=[null], **where)
    assert sink(name="s", nulls=["\\N", ""], **where).nulls[0] == "\\N"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('"Ada","first\nsecond, third"\n"Bob","ok"\n', [("Ada", "first\nsecond, third"), ("Bob", "ok")]),
        (
            '"a","x\n\n"\n"",""\n,\n5" x,"y',
            [("a", "x\n\n"), ("", ""), (None, None), "line 6: the quote that opens"],
        ),
        ('a,b\n\ufeffc,"d\r\n"\n', [("a", "b"), ("\ufeffc", "d\r\n")]),
        ('\ufeff"a","b\n"\n', [("a", "b\n")]),
        ('\n"a",b\n\n', [("a", "b")]),
    ],
)
def test_rows_over_tcp_do_not_depend_on_how_they_come(text: str, rows: list[Any]) -> None:
    columns = (Column(name="who", type=DataType.STRING), Column(name="text", type=DataType.STRING))
    data = text.encode()
    for size in range(1, len(data) + 1):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tcp_source, "connect", lambda _, size=size: Wire([size], data))
            source = TcpSource(type="TCP", logical="l", address="there:1")
            found: list[Any] = []
            reader = tcp_source.TcpSource(source, columns, lambda: None)
            try:
                reader.open()
                while (batch := reader.poll()) is not Signal.END:
                    if isinstance(batch, pa.RecordBatch):
                        found += zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True)
            except InputError as error:
                found.append(str(error).removeprefix("TCP there:1, ")[: len(rows[-1])])
            finally:
                reader.close("done")
        assert found == rows, size


@pytest.mark.parametrize("kind", ["Parquet", "TCP CSV", "TCP JSON"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"a,b\n1,2\n"), "it is compressed with gzip"),
        ("a,b\n1,2\n".encode("utf-16"), "it is text in UTF-16"),
        (b"\x1b[2J,\x07\n\0", ""),
    ],
    ids=["gzip", "UTF-16", "control characters"],
)
def test_what_cannot_be_read_is_named_and_never_shown_raw(
    kind: str, content: bytes, said: str, tmp_path: Path
) -> None:
    columns = (Column(name="a", type=DataType.INT64), Column(name="b", type=DataType.INT64))
    with pytest.raises(InputError) as caught:
        Round(kind, [1 << 18]).read(str(tmp_path), content, columns)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
