"""Every row of collections is measured, here of next to nothing; what writers are told has to be there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import printed
from benchmarks.row import Row
from benchmarks.running import Failed, Measures, run
from benchmarks.storage.appends import append
from benchmarks.storage.data import row_of
from benchmarks.storage.followed import read
from benchmarks.storage.rows import COLLECTION_ROWS
from benchmarks.storage.tables import FOLLOWED, SqliteTable
from benchmarks.work import Work, Wrong

LITTLE: dict[str, Any] = {
    "rows": 1_000,
    "reads": 1,
    "inserts": 5,
    "collections": 5,
    "batch": 50,
    "writers": 2,
    "settle_s": 0.1,
    "idle_s": 1.5,
}
DIFFERENT = [row for row in COLLECTION_ROWS if row.work.options.get("batch") in {None, 1_000}]
"""Other batches are the same code."""


def little(row: Row, name: str) -> Measures:
    """A case of the row, of less."""
    options = row.work.options
    less = {key: min(value, LITTLE.get(key, value)) for key, value in options.items()}
    return run(row.contestants[name], replace(row.work, options=less, seconds=0.1), row.sides)


@pytest.mark.processes
@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: row.name)
def test_every_case_has_all_columns_of_its_table(row: Row) -> None:
    found = {name: {key: [value] for key, value in little(row, name).items()} for name in row.contestants}
    for name, measures in found.items():
        assert set(row.columns) <= measures.keys(), name
        assert all(value > 0 for column in row.columns for value in measures[column]), name
    lines = printed(row, found, {}).splitlines()
    assert len([line for line in lines if line.startswith("- ")]) == len(row.targets)


@pytest.mark.processes
def test_an_append_that_is_not_there_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writers are other processes; what is read at the end lacks a row here."""
    all_of_it = SqliteTable.read
    monkeypatch.setattr(SqliteTable, "read", lambda self: all_of_it(self) - 1)
    work = Work(1, seconds=0.05, options={"table": "SQLite, FULL", "batch": 10, "writers": 2})
    with pytest.raises(Failed, match=r"told that (\d+) rows are there, and (?!\1)\d+ are"):
        append(work, "")


@pytest.mark.parametrize("name", ["collection", "SQLite, FULL"])
def test_a_row_that_comes_twice_is_heard(name: str, tmp_path: Path) -> None:
    FOLLOWED[name].create(tmp_path)

    def insert_twice(_: str) -> None:
        with FOLLOWED[name](tmp_path) as writer:
            for _ in range(2):
                writer.append(writer.taken(row_of(0, 0)))

    work = Work(1, options={"table": name, "inserts": 5, "folder": str(tmp_path)})
    with pytest.raises(Wrong, match="row 0 came, and row 1 was due"):
        read(work, insert_twice)
