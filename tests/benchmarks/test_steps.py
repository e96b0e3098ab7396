"""Every row of circuits in steps is measured, here of next to nothing: what it shows, it has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.report import printed
from benchmarks.row import Row
from benchmarks.running import Measures, run
from benchmarks.steps.rows import FIRST, SECOND, STEP_ROWS

LITTLE: dict[str, Any] = {
    "steps": 5,
    "quiet_steps": 5,
    "after": 3,
    "rows": 10,
    "delta_rows": 20,
    "state_rows": 2_000,
    "bytes": 20_000_000,
    "times": 1,
    "events": 50_000,
    "checkpoint_s": 0.1,
    "behind": 1,
}
LITTLE_TO_BREAK = {"times": 10}
"""In so many times its rows there is a middle to kill somebody in."""


def little(row: Row, name: str) -> Measures:
    """A case of the row, of less."""
    case = row.contestants[name]
    options = {**row.work.options, **case.options}
    little = LITTLE | LITTLE_TO_BREAK if "behind" in options else LITTLE
    less = {key: min(value, little[key]) for key, value in options.items() if key in little}
    work = replace(row.work, options={**options, **less}, seconds=1.0)
    return run(replace(case, options={}), work, row.sides)


@pytest.mark.processes
@pytest.mark.parametrize("row", STEP_ROWS, ids=lambda row: row.name)
def test_every_case_has_all_columns_of_its_table(row: Row) -> None:
    found = {name: {key: [value] for key, value in little(row, name).items()} for name in row.contestants}
    for name, measures in found.items():
        assert set(row.columns) <= measures.keys(), name
    lines = printed(row, found, {}).splitlines()
    assert len([line for line in lines if line.startswith("- ")]) == len(row.targets)


@pytest.mark.processes
def test_a_second_checkpoint_writes_what_is_new() -> None:
    """Three steps of 1 000 rows of 48 bytes, and what they were merged with: not the 20 MB of the state."""
    (row,) = (each for each in STEP_ROWS if FIRST in each.contestants)
    first, second = (little(row, name)["written_MB"] for name in (FIRST, SECOND))
    assert first > 20
    assert second < first / 2
