"""Every row of views is measured, here of next to nothing; what is read has to be right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.report import printed
from benchmarks.row import Row
from benchmarks.running import Failed, Measures, run
from benchmarks.views.graphs import check
from benchmarks.views.rows import VIEW_ROWS

LITTLE: dict[str, Any] = {
    "keys": 2_000,
    "each": 2,
    "reads": 200,
    "before": 4_000,
    "stories": 500,
    "requests": 400,
    "max_bytes": 50_000,
    "writes": 3,
    "at_once": 100,
    "callers": 20,
}
DIFFERENT = [row for row in VIEW_ROWS if not row.name.startswith("lookups of 500")]
"""That is the same code as a lookup of one."""


def little(row: Row, name: str) -> Measures:
    """A case of the row, of less."""
    contestant = row.contestants[name]
    options = {**row.work.options, **contestant.options}
    less = {key: min(value, LITTLE.get(key, value)) for key, value in options.items()}
    return run(replace(contestant, options=less), row.work, row.sides)


@pytest.mark.processes
@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: row.name)
def test_every_case_has_all_columns_of_its_table(row: Row) -> None:
    found = {name: {key: [value] for key, value in little(row, name).items()} for name in row.contestants}
    for name, measures in found.items():
        lacking = {"hits_percent", "view_MB"} if "SQLite" in name else set()
        assert set(row.columns) - lacking <= measures.keys(), name
    lines = printed(row, found, {}).splitlines()
    assert len([line for line in lines if line.startswith("- ")]) == len(row.targets)


def test_a_row_that_is_wrong_is_heard() -> None:
    rows = pa.record_batch([np.array([1, 2]), np.array([1, 3])], ["key", "total"])
    with pytest.raises(Failed, match="key 2 should have 2, and has 3"):
        check(rows, [1, 2], 1)
