from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import enumerate as enumerate_threads

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import InputError
from nebuli.connectors.sources import row_groups
from nebuli.connectors.sources.parquet_source import ParquetSource
from topology import Column, DataType
from topology import ParquetSource as Settings

COLUMNS = (
    Column(name="origin", type=DataType.STRING),
    Column(name="delay", type=DataType.INT64),
    Column(name="at", type=DataType.TIMESTAMP),
)
AT = datetime(2013, 1, 1, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(delay: pa.Array, origin: pa.Array, at: pa.Array) -> pa.Table:
    return pa.table({"at": at, "ignored": delay, "delay": delay, "origin": origin})


def plain(rows: int = 1) -> pa.Table:
    return table(
        pa.array(range(rows), pa.int64()),
        pa.array(["EWR"] * rows),
        pa.array([AT] * rows, pa.timestamp("us", tz="UTC")),
    )


def read(path: str = "in.parquet") -> pa.Table:
    source = ParquetSource(Settings(logical="l", type="Parquet", path=path), COLUMNS, print)
    batches = []
    try:
        source.open()
        while isinstance(batch := source.poll(), pa.RecordBatch):
            batches.append(batch)
        assert batch is Signal.END
    finally:
        source.close("done")
    return pa.Table.from_batches(batches)


def test_row_groups_are_read_in_order() -> None:
    pq.write_table(plain(50_000), "in.parquet", row_group_size=7_000)
    assert read().column("delay").to_pylist() == list(range(50_000))


def test_a_file_that_another_one_replaces_meanwhile_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As programs publish a file by renaming it: no thread opens the new one, whose row groups look the same."""
    monkeypatch.setattr(row_groups, "_THREADS", 4)
    monkeypatch.setattr(row_groups, "_AHEAD_BYTES", 1)
    for name, delay in (("in.parquet", 1), ("next.parquet", 2)):
        rows = table(pa.array([delay] * 10_000), pa.array(["EWR"] * 10_000), pa.array([AT] * 10_000))
        pq.write_table(rows, name, row_group_size=1_000)
    source = ParquetSource(Settings(logical="l", type="Parquet", path="in.parquet"), COLUMNS, print)
    source.open()
    Path("next.parquet").rename("in.parquet")
    batches = [*iter(source.poll, Signal.END)]
    source.close("done")
    assert {value for batch in batches for value in batch.column("delay").to_pylist()} == {1}  # type: ignore[union-attr]
    assert sum(batch.num_rows for batch in batches) == 10_000  # type: ignore[union-attr]


def test_no_more_is_read_ahead_than_fits_and_a_source_that_is_left_ends_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two batches of the row group that is due may wait, and of others as many as fit."""
    monkeypatch.setattr(row_groups, "_THREADS", 4)
    monkeypatch.setattr(row_groups, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(row_groups, "_BATCH_ROWS", 100)
    pq.write_table(plain(10_000), "in.parquet", row_group_size=1_000)
    converted: list[int] = []

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        converted.append(batch.num_rows)
        return batch

    file = pa.OSFile("in.parquet")
    groups = row_groups.RowGroups(file, row_groups.opened(file).metadata, ["delay"], convert)
    for taken in range(1, 40):
        batch = groups.next()
        assert batch is not None
        assert batch.column("delay").to_pylist() == [*range(taken * 100 - 100, taken * 100)]
        time.sleep(0.002)
        assert len(converted) <= taken + 2 + 1 + 4  # one of another group, and one in each thread
    groups.close()
    file.close()
    assert [each.name for each in enumerate_threads() if "parquet" in each.name] == []


def test_a_damaged_page_is_an_error_where_its_rows_are_due_though_it_was_read_ahead() -> None:
    """The rows before it count, and nothing is left of the thread that reads."""
    pq.write_table(plain(200_000), "in.parquet", row_group_size=100_000, use_dictionary=False)
    second = pq.ParquetFile("in.parquet").metadata.row_group(1).column(2)
    whole = bytearray(Path("in.parquet").read_bytes())
    whole[second.data_page_offset : second.data_page_offset + 200] = b"\xff" * 200
    Path("in.parquet").write_bytes(whole)
    source = ParquetSource(Settings(logical="l", type="Parquet", path="in.parquet"), COLUMNS, print)
    source.open()
    rows: list[int] = []
    with pytest.raises(InputError, match=r"^in.parquet"):
        rows.extend(batch.num_rows for batch in iter(source.poll, Signal.END))  # type: ignore[union-attr]
    source.close("failed")
    assert 0 < sum(rows) <= 100_000
    assert [each.name for each in enumerate_threads() if "parquet" in each.name] == []


def test_narrower_and_other_forms_of_the_same_are_taken() -> None:
    pq.write_table(
        table(
            pa.array([7], pa.int16()),
            pa.array(["EWR"], pa.large_string()).dictionary_encode(),
            pa.array([datetime(2013, 1, 1, 10)], pa.timestamp("ms")),
        ),
        "in.parquet",
    )
    assert read().to_pylist() == [{"origin": "EWR", "delay": 7, "at": AT, "_weight": 1}]


FAR = [datetime(1, 1, 1, tzinfo=UTC), AT, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]


def test_times_in_96_bits_are_read_from_the_first_year_to_the_last() -> None:
    """Nanoseconds since 1970, in which pyarrow reads them otherwise, end in 2262."""
    times = pa.array(FAR, pa.timestamp("us", tz="UTC"))
    rows = table(pa.array([1, 2, 3]), pa.array(["EWR"] * 3), times)
    pq.write_table(rows, "in.parquet", use_deprecated_int96_timestamps=True)
    assert read().column("at").to_pylist() == FAR


@pytest.mark.parametrize("name", ["origin", "delay", "at"])
def test_a_column_of_nulls_alone_is_one_of_any_type(name: str) -> None:
    """As pandas and pyarrow write one in which every value is None."""
    place = plain().schema.get_field_index(name)
    pq.write_table(plain().set_column(place, name, pa.nulls(1)), "in.parquet")
    (row,) = read().to_pylist()
    assert row == {"origin": "EWR", "delay": 0, "at": AT, "_weight": 1, name: None}


def test_another_type_is_an_error_that_names_both() -> None:
    pq.write_table(table(pa.array(["7"]), pa.array(["EWR"]), pa.array([AT])), "in.parquet")
    with pytest.raises(
        InputError, match=r"^in.parquet: column delay is string, but int64 in the logical source$"
    ):
        read()


def test_a_missing_column_is_named_with_those_of_the_file() -> None:
    pq.write_table(pa.table({"origin": ["EWR"], "at": [AT]}), "in.parquet")
    with pytest.raises(InputError, match=r"no column delay, .*; the file's columns are origin, at$"):
        read()


def test_a_file_of_another_format_and_a_missing_one_are_one_sentence(tmp_path: Path) -> None:
    Path("in.parquet").write_text("origin,delay\n", "utf-8")
    with pytest.raises(InputError, match=r"^in.parquet is not a Parquet file: it does not begin with PAR1"):
        read()
    with pytest.raises(InputError) as caught:
        read("absent.parquet")
    assert str(caught.value) == f"absent.parquet: no such file in {tmp_path}"


def test_a_pipe_is_an_error_and_not_waited_for() -> None:
    os.mkfifo("in.parquet")
    with pytest.raises(InputError, match=r"^in.parquet is a named pipe, "):
        read("in.parquet")


def test_a_column_that_is_there_twice_is_an_error() -> None:
    columns = [pa.array(["EWR"]), pa.array([7]), pa.array([8]), pa.array([AT])]
    pq.write_table(pa.table(columns, ["origin", "delay", "delay", "at"]), "in.parquet")
    with pytest.raises(InputError, match=r"^in.parquet: more than one column is named delay$"):
        read()


def test_an_empty_file_and_one_that_was_cut_are_named() -> None:
    Path("in.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"^in.parquet is not a Parquet file: it is empty$"):
        read()
    pq.write_table(pa.table({"origin": ["EWR"] * 1000, "delay": [7] * 1000, "at": [AT] * 1000}), "in.parquet")
    whole = Path("in.parquet").read_bytes()
    for size in (4, 12, len(whole) // 2, len(whole) - 1):
        Path("in.parquet").write_bytes(whole[:size])
        with pytest.raises(
            InputError, match=r"^in.parquet is damaged or truncated: write it again \("
        ) as caught:
            read()
        assert str(caught.value).isprintable()
