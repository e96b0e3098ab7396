"""From ``nebuli start`` to the first row."""

from __future__ import annotations

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
