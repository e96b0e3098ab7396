"""Files of sinks that something else cuts, extends, deletes or replaces: an error that names them, or a whole file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from nebuli.connectors.endpoints import Resumable, Sink
from nebuli.connectors.errors import OutputChanged, OutputError, OutputGone
from nebuli.connectors.provider import output_of, sink_over
from nebuli.connectors.sinks import outputs
from nebuli.connectors.sinks.outputs import WholeFile
from nebuli.dataflow.zset import weighted
from topology import CsvSink, ParquetSink, SinkConnector, SinkMode

SCHEMA = weighted(pa.schema([("n", pa.int64()), ("word", pa.string())]))
ROWS = 500
"""More bytes than any buffer above the file holds."""


def rows(first: int, until: int) -> pa.RecordBatch:
    numbers = range(first, until)
    words = [hashlib.sha256(b"%d" % number).hexdigest() for number in numbers]
    return pa.record_batch([list(numbers), words, [1] * len(numbers)], schema=SCHEMA)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def fill_with_zeros(file: Path) -> None:
    size = file.stat().st_size
    empty(file)
    os.truncate(file, size + 1)


def extend(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b'7,"a word of another program"\n')


def rename_over(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    other.replace(file)


def put_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def put_a_link(file: Path) -> None:
    file.rename(file.with_name("rotated"))
    file.symlink_to("other")
    file.write_bytes(b"")


def put_a_dangling_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def put_a_device(file: Path) -> None:
    file.unlink()
    file.symlink_to(os.devnull)


def put_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def delete_the_folder(file: Path) -> None:
    for each in file.parent.iterdir():
        each.unlink()
    file.parent.rmdir()


IN_PLACE = [cut, empty, fill_with_zeros, extend]
OTHERS = [
    Path.unlink,
    rename_over,
    put_a_directory,
    put_a_link,
    put_a_dangling_link,
    put_a_device,
    put_a_pipe,
    delete_the_folder,
]
DAMAGES: list[Callable[[Path], None]] = [*IN_PLACE, *OTHERS]
MODES: list[SinkMode] = ["append", "final"]
"""A file in mode changes is the one of append, with a column more."""


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a result that is written aside has its first rows in the file."""
    monkeypatch.setattr(outputs, "_PORTION_BYTES", 1)


class Written:
    """A sink that has some rows, of which all or most are in its file by now."""

    def __init__(self, folder: Path, type_: str, mode: SinkMode) -> None:
        self.path = folder / f"out.{type_}"
        self.output = output_of(target(self.path, type_, mode))
        # In mode final rows are written when all have come: so the output is written to in place of its mode.
        self.sink: Sink = sink_over(self.output, "append" if mode == "final" else mode)
        self.sink.open(SCHEMA)
        self.sink.write(rows(0, ROWS))
        if isinstance(self.output, WholeFile):
            self.output._join()

    @property
    def file(self) -> Path:
        """Where it is written by now."""
        (unfinished,) = [*self.path.parent.glob(".out.*.partial")] or [self.path]
        return unfinished


def target(path: Path, type_: str, mode: SinkMode) -> SinkConnector:
    if type_ == "csv":
        return CsvSink(name="out", type="CSV", path=str(path), mode=mode)
    return ParquetSink(name="out", type="Parquet", path=str(path), mode=mode)


def numbers_in(path: Path) -> list[int]:
    table = pc.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    found: list[int] = table["n"].to_pylist()
    return sorted(found)


def write(written: Written) -> None:
    written.sink.write(rows(ROWS, ROWS + 1))


def sync(written: Written) -> None:
    assert isinstance(written.output, Resumable)
    written.output.sync()


def finish(written: Written) -> None:
    written.sink.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "folder"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("type_", "mode", "then"),
    [
        *product(("csv", "parquet"), MODES, (write, finish)),
        ("csv", "append", sync),
    ],
)
def test_a_damaged_file_is_an_error_of_whatever_comes_next(
    folder: Path, damage: Callable[[Path], None], type_: str, mode: SinkMode, then: Callable[[Written], None]
) -> None:
    written = Written(folder, type_, mode)
    damage(written.file)
    with pytest.raises(OutputChanged, match=r"out\.(csv|parquet).* was .* while it was written") as raised:
        then(written)
    assert str(written.path) in str(raised.value)
    assert str(raised.value).endswith(
        ": keep other programs from it while the query runs, and run the query again"
    )
    written.sink.abort(str(raised.value))


@pytest.mark.parametrize("damage", IN_PLACE)
def test_a_damage_in_the_middle_of_a_write_is_not_covered_by_the_rest_of_it(
    folder: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written at its old place, the rest would give a file that was cut its old size, with a hole."""
    written = Written(folder, "csv", "append")
    checked = written.output.__class__._check

    def check(output: object, place: Path) -> None:
        checked(output, place)
        damage(place)

    with monkeypatch.context() as late:
        late.setattr(written.output.__class__, "_check", check)
        written.sink.write(rows(ROWS, ROWS + 1))
    with pytest.raises(OutputChanged, match="while it was written"):
        written.sink.finish()
    written.sink.abort("damaged")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("type_", "mode"), [*product(("csv", "parquet"), MODES)])
def test_whatever_comes_to_the_path_of_a_result_a_clean_end_leaves_it_whole(
    folder: Path, damage: Callable[[Path], None], type_: str, mode: SinkMode
) -> None:
    """A file that is written aside takes the place of a file, and of nothing else."""
    folder.mkdir()
    path = folder / f"out.{type_}"
    path.write_bytes(b"the result of yesterday\n")
    written = Written(folder, type_, mode)
    damage(path)
    try:
        written.sink.finish()
    except OutputError as error:
        assert str(path) in str(error)  # noqa: PT017 - one or the other, by what is there
        written.sink.abort(str(error))
    else:
        assert numbers_in(path) == [*range(ROWS)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_a_later_run_does_not_find_as_it_was_is_not_gone_on_with(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    """But for a copy, which is no less, and for bytes behind the position, which no run has kept."""
    written = Written(folder, "csv", "append")
    assert isinstance(written.output, Resumable)
    position = written.output.sync()
    written.sink.finish()
    damage(written.path)
    output = output_of(target(written.path, "csv", "append"))
    assert isinstance(output, Resumable)
    output.resume(position)
    sink = sink_over(output, "append")
    if damage in (extend, rename_over):
        sink.open(SCHEMA)
        sink.write(rows(ROWS, ROWS + 1))
        sink.finish()
        assert numbers_in(written.path) == [*range(ROWS + 1)]
        return
    is_gone = damage in (empty, Path.unlink, put_a_link, put_a_dangling_link, delete_the_folder)
    error = OutputGone if is_gone else OutputError
    with pytest.raises(error, match=str(written.path)):
        sink.open(SCHEMA)
    sink.abort("damaged")
