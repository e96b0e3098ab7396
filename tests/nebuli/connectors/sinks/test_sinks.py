from __future__ import annotations

import errno
import gc
import io
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from nebuli.connectors.errors import OutputError, RowsUnfit, unwritable
from nebuli.connectors.sinks import modes, outputs
from nebuli.connectors.sinks.modes import AppendSink, ChangesSink, FinalSink
from nebuli.connectors.sinks.outputs import GrowingFile, Terminal, WholeFile, csv_rows, parquet_rows
from nebuli.dataflow.errors import DataflowError
from tests.support.arrow_memory import memory_pool
from topology import PrintSink

PRINT = PrintSink(name="out", type="Print")
SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64()), ("_weight", pa.int64())])


def zset(*rows: tuple[str | None, int | None, int]) -> pa.RecordBatch:
    names, numbers, weights = zip(*rows, strict=True)
    arrays = [pa.array(names, pa.string()), pa.array(numbers, pa.int64()), pa.array(weights, pa.int64())]
    return pa.record_batch(arrays, ["name", "n", "_weight"])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out" / "result.csv"


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_final_is_the_sum_of_all_changes_sorted(target: Path) -> None:
    sink = FinalSink(WholeFile(str(target), csv_rows))
    sink.open(SCHEMA)
    sink.write(zset(("b", 1, 1), ("a", 2, 2)))
    sink.write(zset(("b", 1, -1), ("b", 7, 1), (None, None, 1)))
    sink.finish()
    assert target.read_text("utf-8").splitlines() == ['"name","n"', '"a",2', '"a",2', '"b",7', ","]


def test_final_appears_at_the_clean_end_only(target: Path) -> None:
    target.parent.mkdir()
    target.write_text("yesterday's\n", "utf-8")
    sink = FinalSink(WholeFile(str(target), csv_rows))
    sink.open(SCHEMA)
    sink.write(zset(("a", 1, 1)))
    assert target.read_text("utf-8") == "yesterday's\n"
    sink.abort("broken")
    assert target.read_text("utf-8") == "yesterday's\n"
    assert names_in(target.parent) == ["result.csv"]


def test_final_as_parquet_keeps_the_types(tmp_path: Path) -> None:
    sink = FinalSink(WholeFile(str(tmp_path / "result.parquet"), parquet_rows))
    sink.open(SCHEMA)
    sink.write(zset(("b", 1, 1), ("a", 2, 1)))
    sink.finish()
    table = pq.read_table(tmp_path / "result.parquet")
    assert table.schema.equals(pa.schema([("name", pa.string()), ("n", pa.int64())]))
    assert table.to_pydict() == {"name": ["a", "b"], "n": [2, 1]}


def test_final_refuses_a_row_that_was_taken_back_and_never_given(target: Path) -> None:
    sink = FinalSink(WholeFile(str(target), csv_rows))
    sink.open(SCHEMA)
    sink.write(zset(("a", 1, -1)))
    with pytest.raises(DataflowError, match="retracted"):
        sink.finish()
    sink.abort("broken")
    assert names_in(target.parent) == []


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_MERGE_BYTES", 1000)
    monkeypatch.setattr(modes, "_MEMORY_BYTES", 4000)
    monkeypatch.setattr(modes, "_SORTED_BYTES", 4000)


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("rows", [100, 110, 120, 1000])
def test_a_large_final_that_only_grows_goes_through_a_file(target: Path, rows: int) -> None:
    sink = FinalSink(WholeFile(str(target), csv_rows))
    sink.open(SCHEMA)
    with memory_pool() as pool:
        for number in range(rows):
            sink.write(zset(("a", number, 1), ("b", number, 1)))
        assert pool.bytes_allocated() < 20_000
    sink.finish()
    found = pc.read_csv(target)
    assert sorted(found.column("n").to_pylist()) == sorted([*range(rows), *range(rows)])
    assert names_in(target.parent) == ["result.csv"]


@pytest.mark.usefixtures("_little_memory")
def test_a_large_final_can_still_take_rows_back(target: Path) -> None:
    sink = FinalSink(WholeFile(str(target), csv_rows))
    sink.open(SCHEMA)
    for number in range(1000):
        sink.write(zset(("a", number, 1)))
    for number in range(995):
        sink.write(zset(("a", number, -1)))
    sink.finish()
    assert pc.read_csv(target).column("n").to_pylist() == [995, 996, 997, 998, 999]


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_large_final_of_which_no_row_is_taken_back_is_written_as_it_comes(
    target: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aside, in portions: of the result nothing is at its path, and of its rows few in memory."""
    monkeypatch.setattr(modes, "_MEMORY_BYTES", 1 << 30)  # of results that may be sorted
    monkeypatch.setattr(outputs, "_PORTION_BYTES", 3000)
    target = target.with_suffix(f".{suffix}")
    rows_of = csv_rows if suffix == "csv" else parquet_rows
    sink = FinalSink(WholeFile(str(target), rows_of), only_grows=True)
    sink.open(SCHEMA)
    given = 0
    for number in range(4000):
        given += sink.write(zset(("a", number, 1), ("b", number, 2)))
    (aside,) = target.parent.iterdir()
    assert aside.name.endswith(".partial")
    assert aside.stat().st_size > 4000
    assert given == 0
    assert sink.finish() == 12_000
    table = pc.read_csv(target) if suffix == "csv" else pq.read_table(target)
    names, numbers = table.column("name").to_pylist(), table.column("n").to_pylist()
    expected = sorted((name, n) for n in range(4000) for name in "abb")
    assert sorted(zip(names, numbers, strict=True)) == expected
    assert names_in(target.parent) == [target.name]
    if suffix == "parquet":
        assert 10 < pq.ParquetFile(target).num_row_groups < 200


@pytest.mark.usefixtures("_little_memory")
def test_a_large_final_fails_where_a_row_is_taken_back_against_its_plan(target: Path) -> None:
    sink = FinalSink(WholeFile(str(target), csv_rows), only_grows=True)
    sink.open(SCHEMA)
    for number in range(1000):
        sink.write(zset(("a", number, 1)))
    with pytest.raises(RowsUnfit, match="retracted"):
        sink.write(zset(("a", 0, -1)))
    sink.abort("broken")
    assert names_in(target.parent) == []


_TEXTS = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
_TIMES = pa.array([0, 1 << 62]).cast(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize("rows", [1, 100_000])
@pytest.mark.parametrize("values", [_TEXTS, _TIMES], ids=["text", "time"])
def test_a_value_that_cannot_be_written_ends_the_sink(
    target: Path, rows: int, values: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a thread writes it, with its row: some other row would be looked at in vain."""
    monkeypatch.setattr(outputs, "_PORTION_BYTES", 1000)
    output = WholeFile(str(target), csv_rows)
    output.open(pa.schema([("v", values.type)]))
    for _ in range(3):
        output.write(pa.record_batch([values.take(pa.array([0] * rows))], ["v"]))

    def end() -> None:
        output.write(pa.record_batch([values], ["v"]))
        output.publish()

    with pytest.raises(OutputError, match=f"row {3 * rows + 2},"):
        end()
    output.discard()
    assert names_in(target.parent) == []


def test_changes_are_readable_as_they_come_with_their_weights(target: Path) -> None:
    sink = ChangesSink(GrowingFile(str(target), csv_rows))
    sink.open(SCHEMA)
    sink.write(zset(("a", 1, 1)))
    sink.write(zset(("a", 1, -1)))
    assert target.read_text("utf-8").splitlines() == ['"name","n","_weight"', '"a",1,1', '"a",1,-1']
    sink.finish()
    assert target.read_text("utf-8").splitlines() == ['"name","n","_weight"', '"a",1,1', '"a",1,-1']


def test_append_to_a_pipe_ends_well(tmp_path: Path) -> None:
    """There is nothing to sync, which the system says with an error."""
    target = tmp_path / "pipe"
    os.mkfifo(target)
    reader = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    sink = AppendSink(GrowingFile(str(target), csv_rows))
    sink.open(SCHEMA)
    sink.write(zset(("a", 1, 1)))
    sink.finish()
    assert os.read(reader, 100).splitlines() == [b'"name","n"', b'"a",1']
    os.close(reader)


def test_append_writes_rows_and_refuses_to_take_one_back(target: Path) -> None:
    sink = AppendSink(GrowingFile(str(target), csv_rows))
    sink.open(SCHEMA)
    sink.write(zset(("a", 1, 2)))
    with pytest.raises(OutputError, match="retracted"):
        sink.write(zset(("a", 1, -1)))
    sink.abort("broken")
    assert target.read_text("utf-8").splitlines() == ['"name","n"', '"a",1', '"a",1']


def test_a_file_that_was_there_is_said_to_be_gone(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Append does not append to it, as who gave it may think; one that is gone on with is not a new file."""
    target.parent.mkdir(exist_ok=True)
    target.write_text("no rows of ours\n", "utf-8")
    file = GrowingFile(str(target), csv_rows)
    sink = AppendSink(file)
    sink.open(SCHEMA)
    assert f"{target}: its previous 16 bytes are deleted" in caplog.text
    caplog.clear()
    sink.write(zset(("a", 1, 1)))
    position = file.sync()
    sink.finish()
    assert target.read_text("utf-8").splitlines() == ['"name","n"', '"a",1']
    for new in (False, True):
        again = GrowingFile(str(target), csv_rows)
        if new:
            target.unlink()
        else:
            again.resume(position)
        again.open(SCHEMA)
        again.discard()
    assert caplog.text == ""


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        FinalSink(WholeFile(str(tmp_path), csv_rows)).open(SCHEMA)
    assert str(caught.value) == f"{tmp_path} cannot be written: it is a directory"
    (tmp_path / "file").touch()
    with pytest.raises(OutputError) as caught:
        FinalSink(WholeFile(str(tmp_path / "file" / "x.csv"), csv_rows)).open(SCHEMA)
    assert str(caught.value) == f"{tmp_path}/file/x.csv cannot be written: {tmp_path}/file is not a directory"


def test_print_is_an_aligned_table(capsys: pytest.CaptureFixture[str]) -> None:
    schema = pa.schema(
        [
            ("place", pa.string()),
            ("n", pa.int64()),
            ("mean", pa.float64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("open", pa.bool_()),
            ("_weight", pa.int64()),
        ]
    )
    sink = FinalSink(Terminal())
    sink.open(schema)
    at = datetime(2013, 1, 1, 10, tzinfo=UTC)
    rows = {
        "place": ["EWR", "new\nline"],
        "n": [40_437, None],
        "mean": [12.4183, 1e-9],
        "at": [at, None],
        "open": [True, False],
        "_weight": [1, 1],
    }
    sink.write(pa.record_batch(rows, schema))
    sink.finish()
    assert capsys.readouterr().out.splitlines() == [
        "place          n    mean  at                    open",
        "---------  -----  ------  --------------------  -----",
        "EWR        40437  12.418  2013-01-01 10:00:00Z  true",
        "new\\nline   null   1e-09  null                  false",
    ]


def test_print_without_rows_has_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    sink = FinalSink(Terminal())
    sink.open(SCHEMA)
    sink.finish()
    assert capsys.readouterr().out.splitlines() == ["name  n", "----  -"]


@pytest.mark.parametrize("rows_of", [csv_rows, parquet_rows])
def test_an_abort_lets_go_of_the_file_without_a_word(tmp_path: Path, rows_of: Any) -> None:
    """Rows that are collected later must not write to a file that is closed; pytest would warn of that."""
    sink = ChangesSink(WholeFile(str(tmp_path / "result"), rows_of))
    sink.open(SCHEMA)
    sink.write(zset(("a", 1, 1)))
    sink.abort("broken")
    del sink
    gc.collect()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("path", ["file/x.csv", "file/x/y.csv", "x" * 250])
def test_an_abort_of_what_could_not_be_opened_does_nothing(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    sink = FinalSink(WholeFile(str(tmp_path / path), csv_rows))
    with pytest.raises(OutputError, match="cannot be written"):
        sink.open(SCHEMA)
    sink.abort("broken")
    assert names_in(tmp_path) == ["file"]


def test_a_full_disk_below_a_growing_file_is_one_sentence() -> None:
    sink = AppendSink(GrowingFile("/dev/full", csv_rows))
    sink.open(SCHEMA)
    with pytest.raises(
        OutputError, match=r"^/dev/full cannot be written: No space left on device; free some space$"
    ):
        sink.write(zset(("a", 1, 1)))
    sink.abort("broken")


@pytest.mark.usefixtures("_little_memory")
def test_a_full_disk_below_a_large_result_is_one_sentence(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        modes.tempfile, "TemporaryFile", lambda **_: os.fdopen(os.open("/dev/full", os.O_RDWR), "w+b")
    )
    sink = FinalSink(WholeFile(str(target), csv_rows))
    sink.open(SCHEMA)
    said = (
        rf"^a temporary file in {target.parent} cannot be written: No space left on device; free some space$"
    )
    with pytest.raises(OutputError, match=said):
        sink.write(zset(*(("a", number, 1) for number in range(2000))))
    sink.abort("broken")
    assert names_in(target.parent) == []


def test_print_shows_what_the_terminal_cannot_in_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    sink = FinalSink(Terminal())
    sink.open(SCHEMA)
    sink.write(zset(("Größe", 1, 1)))
    sink.finish()
    assert written.getvalue().decode().splitlines()[2].split() == [r"Gr\xf6\xdfe", "1"]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "allow this user to write there, or give another path",
        ),
        (
            OSError(errno.EROFS, "Read-only file system"),
            "allow this user to write there, or give another path",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "free some space"),
    ],
)
def test_the_error_of_a_file_that_is_not_written_has_a_remedy(error: OSError, remedy: str) -> None:
    assert str(unwritable("out.csv", error)) == f"out.csv cannot be written: {error.strerror}; {remedy}"
