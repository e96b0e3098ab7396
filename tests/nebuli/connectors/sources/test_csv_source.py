from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import InputError, shown_names
from nebuli.connectors.sources import csv_source
from nebuli.connectors.sources.csv_source import CsvSource
from topology import Column, DataType
from topology import CsvSource as Settings

COLUMNS = (
    Column(name="origin", type=DataType.STRING),
    Column(name="delay", type=DataType.INT64),
)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(
    text: str | bytes, columns: tuple[Column, ...] = COLUMNS, nulls: tuple[str, ...] = ("NA",)
) -> pa.Table:
    Path("in.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_path("in.csv", columns, nulls)


def read_path(path: str, columns: tuple[Column, ...] = COLUMNS, nulls: tuple[str, ...] = ("NA",)) -> pa.Table:
    source = CsvSource(Settings(logical="l", type="CSV", path=path, nulls=nulls), columns, print)
    batches = []
    try:
        source.open()
        while isinstance(batch := source.poll(), pa.RecordBatch):
            batches.append(batch)
        assert batch is Signal.END
    finally:
        source.close("done")
    return pa.Table.from_batches(batches) if batches else pa.table({})


def message(text: str | bytes, **options: tuple[Column, ...]) -> str:
    with pytest.raises(InputError) as caught:
        read(text, **options)
    return str(caught.value)


def test_rows_have_the_logical_types_and_weight_one() -> None:
    table = read("delay,ignored,origin\n7,x,EWR\nNA,y,NA\n")
    assert table.to_pydict() == {"origin": ["EWR", None], "delay": [7, None], "_weight": [1, 1]}
    assert table.schema.types == [pa.string(), pa.int64(), pa.int64()]


def test_only_the_listed_texts_are_null() -> None:
    assert read("origin,delay\n,1\nNA,2\n", nulls=("",)).column("origin").to_pylist() == [None, "NA"]
    assert read("origin,delay\n,1\nNA,2\n", nulls=("NA",)).column("origin").to_pylist() == ["", None]


@pytest.mark.parametrize(
    "written",
    ["2013-01-01T10:00:00Z", "2013-01-01 12:00:00+02:00", "2013-01-01 10:00:00", "2013-01-01T10:00:00.000"],
)
def test_timestamps_are_instants_in_utc_with_or_without_a_zone(written: str) -> None:
    columns = (Column(name="at", type=DataType.TIMESTAMP),)
    table = read(f"at\nNA\n{written}\n", columns)
    assert table.column("at").type == pa.timestamp("us", tz="UTC")
    assert table.column("at").to_pylist() == [None, datetime(2013, 1, 1, 10, tzinfo=UTC)]


def test_the_only_file_of_a_zip_archive_is_read() -> None:
    with zipfile.ZipFile("in.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/", "")
        archive.writestr("data/in.csv", "origin,delay\nEWR,7\n")
    assert read_path("in.zip").column("delay").to_pylist() == [7]


def test_a_zip_archive_of_two_files_is_refused() -> None:
    with zipfile.ZipFile("in.zip", "w") as archive:
        archive.writestr("a.csv", "x")
        archive.writestr("b.csv", "x")
    with pytest.raises(InputError, match=r"^in.zip holds 2 files; expected one CSV file$"):
        read_path("in.zip")


def test_a_damaged_zip_archive_is_one_sentence() -> None:
    rows = "".join(f"EWR,{number}\n" for number in range(100_000))
    with zipfile.ZipFile("in.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in.csv", f"origin,delay\n{rows}")
    damaged = bytearray(Path("in.zip").read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    Path("in.zip").write_bytes(damaged)
    with pytest.raises(InputError, match=r"^in.zip"):
        read_path("in.zip")


@pytest.mark.parametrize("text", ["origin,delay\n", "origin,delay", "\ufefforigin,delay\r\n\r\n"])
def test_a_header_without_rows_is_an_empty_source(text: str) -> None:
    assert read(text).num_rows == 0


def test_values_of_many_blocks_come_once_and_in_order() -> None:
    rows = "".join(f"EWR,{number}\n" for number in range(300_000))
    assert read(f"origin,delay\n{rows}").column("delay").to_pylist() == list(range(300_000))


def test_a_missing_file_is_named_with_the_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_path("absent.csv")
    assert str(caught.value) == f"absent.csv: no such file in {tmp_path}"


def test_a_pipe_is_an_error_and_not_waited_for() -> None:
    """Nobody writes to it: opened, it would wait for ever."""
    os.mkfifo("in.csv")
    with pytest.raises(
        InputError, match=r"^in.csv is a named pipe, .*; expected a file: write the rows to a file$"
    ):
        read_path("in.csv")


def test_a_pattern_is_said_to_be_for_steps_alone(tmp_path: Path) -> None:
    """As it works there, and what matches it may be there to see."""
    (tmp_path / "a.csv").touch()
    with pytest.raises(InputError) as caught:
        read_path("*.csv")
    assert str(caught.value) == (
        f"*.csv: no such file in {tmp_path}; patterns apply to queries in steps only (--stepped)"
    )


def test_an_empty_file_is_an_error_that_names_the_columns() -> None:
    assert message("") == "in.csv is empty: expected a header with origin, delay"


def test_a_missing_column_is_named_with_those_of_the_file() -> None:
    assert message("origin,arr_delay\nEWR,1\n") == (
        "in.csv, line 1: no column delay, which the logical source has; "
        "the file's columns are origin, arr_delay"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"origin,delay\n"), "it is compressed with gzip: decompress it"),
        (bz2.compress(b"origin,delay\n"), "it is compressed with bzip2: decompress it"),
        (lzma.compress(b"origin,delay\n"), "it is compressed with xz: decompress it"),
        ("origin,delay\n".encode("utf-16"), "it is text in UTF-16: write it in UTF-8"),
        (b"PAR1" + bytes(8), "it is a Parquet file: give the source type: Parquet"),
    ],
    ids=["gzip", "bzip2", "xz", "UTF-16", "Parquet"],
)
def test_a_file_of_another_kind_is_named(content: bytes, said: str) -> None:
    Path("in.csv").write_bytes(content)
    with pytest.raises(InputError, match=f"^in.csv is not a CSV file: {re.escape(said)}") as caught:
        read_path("in.csv")
    assert str(caught.value).isprintable()


def test_names_that_look_alike_or_move_the_cursor_are_escaped() -> None:
    assert message("dela\x1b[2J,orig\u0131n,dela\u0301y\n1,2,3\n") == (
        "in.csv, line 1: no column origin, delay, which the logical source has; "
        "the file's columns are dela\\x1b[2J, orig\u0131n, dela\u0301y"
    )
    assert shown_names(["caf\u00e9"], ["cafe\u0301", "b"]) == "caf\\xe9"
    assert shown_names(["cafe\u0301", "b"], ["caf\u00e9"]) == "cafe\\u0301, b"
    assert shown_names([str(number) for number in range(1000)]).endswith(", 49 and 950 more")


def test_a_column_that_is_there_twice_is_an_error() -> None:
    assert message("origin,delay,delay\nEWR,1,2\n") == "in.csv, line 1: more than one column is named delay"


def test_a_value_of_another_type_is_named_with_line_and_column() -> None:
    assert (
        message("origin,delay\nEWR,1\nJFK,soon\n")
        == "in.csv, line 3, column delay: 'soon' is not a valid int64"
    )


def test_a_broken_value_deep_in_the_file_is_found_at_its_line() -> None:
    rows = "".join(f"EWR,{number}\n" for number in range(300_000))
    text = f"origin,delay\n{rows}LGA,9x\n{rows}"
    assert message(text) == "in.csv, line 300002, column delay: '9x' is not a valid int64"


def test_lines_are_those_of_the_file_also_below_blank_lines_and_breaks_inside_quotes() -> None:
    text = 'origin,delay\n"E\nW\nR",1\n\n\nJFK,soon\n'
    assert message(text) == "in.csv, line 7, column delay: 'soon' is not a valid int64"


def test_a_row_with_too_few_or_too_many_values_is_shown() -> None:
    assert message("origin,delay\nEWR,1\nJFK\n") == "in.csv, line 3: 1 value, but the header names 2: JFK"
    assert message("origin,delay\nEWR,1,2\n") == "in.csv, line 2: 3 values, but the header names 2: EWR,1,2"


def test_text_that_is_no_utf8_is_named_with_line_and_column() -> None:
    said = message(b"origin,delay\nEWR,1\n\xff\xfe,2\n")
    assert said.startswith("in.csv, line 3, column origin: ")
    assert said.endswith("a value is not UTF-8: write the file in UTF-8")


AT = (Column(name="at", type=DataType.TIMESTAMP), Column(name="delay", type=DataType.INT64))


def test_each_timestamp_of_a_column_may_have_a_zone_or_none() -> None:
    written = ["2013-01-01T10:00:00Z", "NA", "2013-01-01 10:00:00", "2013-01-01", "2013-01-01 12:00+02:00"]
    ten = datetime(2013, 1, 1, 10, tzinfo=UTC)
    read_as = [ten, None, ten, datetime(2013, 1, 1, tzinfo=UTC), ten]
    for turn in range(len(written)):
        values = [*written[turn:], *written[:turn]]
        table = read("at,delay\n" + "".join(f"{value},1\n" for value in values), AT)
        assert table.column("at").to_pylist() == [*read_as[turn:], *read_as[:turn]]


def test_a_column_of_dates_is_read_as_their_midnights() -> None:
    table = read("at,delay\n2013-01-01,1\n", AT)
    assert table.column("at").to_pylist() == [datetime(2013, 1, 1, tzinfo=UTC)]


def test_rows_before_a_timestamp_of_another_kind_come_once_and_in_order() -> None:
    rows = "".join(f"2013-01-01T10:00:00Z,{number}\n" for number in range(100_000))
    table = read(f"at,delay\n{rows}2013-01-01,100000\n", AT)
    assert table.column("delay").to_pylist() == list(range(100_001))
    said = message(f"at,delay\n{rows}2013-01-01,1\nsoon,2\n", columns=AT)
    assert said.startswith("in.csv, line 100003, column at: 'soon' is not a valid timestamp; ")


def test_a_text_that_is_no_timestamp_is_named_with_the_forms_that_are() -> None:
    said = message("at,delay\n2013-01-01,1\n1 May,2\n2 May,3\n", columns=AT)
    assert said == (
        "in.csv, line 3, column at: '1 May' is not a valid timestamp; expected a form such as "
        "2024-01-31, 2024-01-31T10:00:00, 2024-01-31T10:00:00Z or 2024-01-31T10:00:00+02:00"
    )


def test_a_row_longer_than_a_block_is_read_and_one_beyond_the_longest_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Longer than 128 KiB, where Python's own reader stops, and than 2 MiB, a block."""
    for long in ("x" * 300_000, "x" * 6_000_000):
        rows = f"origin,delay\nEWR,0\n{long},1\nJFK,2\n"
        assert read(rows).column("origin").to_pylist() == ["EWR", long, "JFK"]
    monkeypatch.setattr(csv_source, "_LONGEST_ROW", 1 << 22)
    said = message(f"origin,delay\n{'x' * 10_000_000},1\n")
    assert said == "in.csv: a row is longer than the limit of 4,194,304 bytes"


ONE = (Column(name="origin", type=DataType.STRING),)


@pytest.mark.parametrize(
    ("columns", "text", "line"),
    [
        (COLUMNS, 'origin,delay\n"x,1\n' + "EWR,2\n" * 999, 2),
        (COLUMNS, 'origin,delay\n"E\nW",1\nJFK,2\n"cut in the mid', 5),
        (COLUMNS, 'origin,delay\r\n5" pipe,1\r\n"cut,2\r\n', 3),
        (COLUMNS, '\n\norigin,delay\nEWR,1\nJFK,"2', 5),
        (COLUMNS, 'origin,"delay\nEWR,1\n', 1),
        (COLUMNS, 'origin,delay\nEWR,1\n"' + "JFK,2\n" * 500_000, 3),
        (ONE, 'origin,"delay', 1),
        (ONE, 'origin\n\n"', 3),
        (ONE, 'origin,delay\nEWR,1\nJFK,"2\n', 3),
    ],
)
def test_a_quote_that_is_never_closed_is_named_with_its_line(
    columns: tuple[Column, ...], text: str, line: int
) -> None:
    """Of a column that is not read, too; no row of a block that it swallows is given before."""
    assert message(text, columns=columns).startswith(
        f"in.csv, line {line}: the quote that opens there is never closed: "
    )


def test_a_quote_within_a_value_without_quotes_is_a_character() -> None:
    assert read('origin,delay\n5" pipe,1\n"a"b"c,2\n').column("origin").to_pylist() == ['5" pipe', 'ab"c']


@pytest.mark.parametrize("block_bytes", [1 << 21, 16])
def test_quotes_tell_a_text_from_a_null(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other types a null may be in quotes: there is no value that it could be taken for."""
    monkeypatch.setattr(csv_source, "_BLOCK_BYTES", block_bytes)
    columns = (*COLUMNS, Column(name="at", type=DataType.TIMESTAMP))
    text = 'origin,delay,at\nNA,1,"NA"\n"NA","NA",2013-01-01\n,2,NA\n"",3,2013-01-01T00:00:00Z\n'
    table = read(text, columns)
    day = datetime(2013, 1, 1, tzinfo=UTC)
    assert table.column("origin").to_pylist() == [None, "NA", "", ""]
    assert table.column("delay").to_pylist() == [1, None, 2, 3]
    assert table.column("at").to_pylist() == [None, day, None, day]


def test_a_blank_line_is_a_row_where_there_is_one_column() -> None:
    """As DuckDB has it."""
    text = '\n\norigin\n\nEWR\n""\n\n'
    assert read(text, ONE, ("",)).column("origin").to_pylist() == [None, "EWR", "", None]
    n = (Column(name="n", type=DataType.INT64),)
    assert message("\nn\n1\n\nx\n", columns=n) == "in.csv, line 4, column n: '' is not a valid int64"
    assert read("origin,delay\n\nEWR,1\n\n", ONE).column("origin").to_pylist() == ["EWR"]


def test_a_line_break_in_quotes_is_whole_where_a_block_ends_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'origin\r\n"a\r\nb"\r\n"c\r\n"\r\n'
    for block_bytes in range(2, len(text)):
        monkeypatch.setattr(csv_source, "_BLOCK_BYTES", block_bytes)
        assert read(text, ONE).column("origin").to_pylist() == ["a\r\nb", "c\r\n"]


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        (b"origin;delay", "origin;delay: its values are separated by semicolons; separate them by commas"),
        (b"delay|x|origin", "delay|x|origin: its values are separated by bars; separate them by commas"),
        (b"origin , delay", "origin ,  delay: remove the spaces around them"),
        (b"Origin,DELAY", "Origin, DELAY: upper and lower case differ"),
        (b"a,b", "a, b"),
    ],
)
def test_columns_that_are_missing_are_told_with_what_to_do_if_the_header_shows_it(
    header: bytes, remedy: str
) -> None:
    assert message(header + b"\nEWR,1\n").endswith(f"the file's columns are {remedy}")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("origin,delay\n".encode("utf-16-le"), "text in UTF-16"),
        (b"\x7fELF\x02\x01\x01\0\0", "a program"),
        (b"<html>", "a page"),
        (b"x\0\0y", "binary"),
    ],
)
def test_a_file_that_is_no_csv_is_named(data: bytes, kind: str) -> None:
    assert message(data).startswith(f"in.csv is not a CSV file: it is {kind}")
