from __future__ import annotations

from pathlib import Path

import pytest

from nebuli.connectors.errors import OutputError
from nebuli.free.late_rows import LateRows
from tests.nebuli.dataflow.windowed import change, circuit, fragment, source, window


def test_late_rows_are_in_the_file_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "made" / "late.csv"
    plan = fragment(source("a"), window("w", "a", 60, 60, 0, late=str(path)))
    running = circuit(plan)
    late = LateRows(plan, running)
    late.open()
    for seconds in (10, 100, 20):
        running.push("a", change([((seconds, 1, 0.5), 1)]))
        late.write()
    rows = path.read_text("utf-8").splitlines()
    assert len(rows) == 2
    assert rows[1].startswith("2024-01-01 00:00:20")
    late.abort("the fragment was stopped")
    assert path.read_text("utf-8").splitlines() == rows


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_file_of_late_rows_that_is_deleted_is_an_error(tmp_path: Path, at_the_end: bool) -> None:
    path = tmp_path / "late.csv"
    plan = fragment(source("a"), window("w", "a", 60, 60, 0, late=str(path)))
    running = circuit(plan)
    late = LateRows(plan, running)
    late.open()
    for seconds in (100, 20):
        running.push("a", change([((seconds, 1, 0.5), 1)]))
        late.write()
    path.unlink()
    running.push("a", change([((20, 1, 0.5), 1)]))
    with pytest.raises(OutputError, match=f"{path} was deleted or moved while it was written"):
        late.finish() if at_the_end else late.write()
    late.abort("it is gone")


def test_without_a_place_they_are_only_counted(tmp_path: Path) -> None:
    plan = fragment(source("a"), window("w", "a", 60, 60, 0))
    running = circuit(plan)
    late = LateRows(plan, running)
    late.open()
    for seconds in (100, 20):
        running.push("a", change([((seconds, 1, 0.5), 1)]))
    late.write()
    late.finish()
    assert running.statistics()["w"].late_rows == 1
    assert list(running.take_late()) == []


def test_a_place_that_cannot_be_written_is_an_error_before_any_row(tmp_path: Path) -> None:
    plan = fragment(source("a"), window("w", "a", 60, 60, 0, late=str(tmp_path)))
    late = LateRows(plan, circuit(plan))
    with pytest.raises(OutputError, match=f"{tmp_path} cannot be written: it is a directory"):
        late.open()
    late.abort("it cannot be written")
