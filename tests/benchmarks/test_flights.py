"""The flights demo, many times over, beside other engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.flights import (
    CONTESTANTS,
    DUCKDB,
    THREE,
    measured,
    prepare,
    read_result,
    same,
)


@pytest.mark.processes
def test_all_contestants_give_the_same_table(tmp_path: Path) -> None:
    rows = prepare(tmp_path, 2)
    assert rows == 2 * (336_776 + 26_115)
    found = {}
    for name in CONTESTANTS:
        assert measured(tmp_path, name)["cpu_s"] > 0
        found[name] = read_result(tmp_path, name)
        assert same(found[name], found[THREE])
    # As in the example's own test, twice.
    assert sum(row[0] for row in found[DUCKDB].values()) == 2 * sum(
        row[0] for row in _once(tmp_path).values()
    )


def _once(folder: Path) -> dict[tuple[str, str], tuple[float, ...]]:
    prepare(folder, 1)
    measured(folder, DUCKDB)
    return read_result(folder, DUCKDB)


def test_tables_that_differ_are_told_apart() -> None:
    table_of = {("EWR", "24+ mph"): (3.0, 1.5, 7.0)}
    assert same(table_of, {("EWR", "24+ mph"): (3.0, 1.5 + 1e-12, 7.0)})
    assert not same(table_of, {("EWR", "24+ mph"): (4.0, 1.5, 7.0)})
    assert not same(table_of, {})
