"""Planning at the size that the benchmark goes up to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.planning import case, measured, table
from placement import decompose, place_bottom_up
from tests.placement.strategies.test_exact import assert_sound


@pytest.mark.long
def test_a_thousand_operators_on_ten_thousand_nodes() -> None:
    """PL-BIG-1: placed soundly, and cut into fragments; how long it takes, the benchmark tells."""
    topology, plan = case(10_000, 1_000)
    assert (len(topology.nodes), len(plan.operators)) == (10_000, 1_000)
    placement = place_bottom_up(plan, topology)
    assert_sound(placement, topology)
    assert len(decompose(placement).fragments) > 500


def test_the_table_has_a_line_for_each_size() -> None:
    rows = [measured(10, 10), measured(50, 20)]
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| 10 | ")


def test_the_page_has_the_figures_of_its_file() -> None:
    docs = Path(__file__).parents[2] / "docs"
    rows = json.loads((docs / "benchmarks-planning.json").read_text())
    assert table(rows) in (docs / "benchmarks-planning.md").read_text()
