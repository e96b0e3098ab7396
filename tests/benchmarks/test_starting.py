"""From ``nebuli start`` to the first row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.starting import KINDS, run, table


@pytest.mark.processes
def test_all_kinds_are_measured(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    figures = run(1)
    (seconds,) = figures["rounds"]
    assert all(seconds[kind] > 0 for kind in KINDS)
    assert all(f"| {kind} |" in table(figures) for kind in KINDS)


def test_the_page_has_the_figures_of_its_file() -> None:
    docs = Path(__file__).parents[2] / "docs"
    figures = json.loads((docs / "benchmarks-starting.json").read_text())
    assert table(figures) in (docs / "benchmarks-flights.md").read_text()
