"""That the soak runs, and tells what it finds; `make soak` runs it for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import channels
from tests.soak.__main__ import main
from tests.soak.messages import Violation, check

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_ten_seconds_of_faults_leave_nothing_behind() -> None:
    """CH-SEQ-2, CH-DUR-1, CH-FLT-3: every kind of channel is exact; the process holds what it held before."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.15", "--seed", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    for part in (*channels.KINDS, "durable", "descriptors", "resident MiB", "2 rounds"):
        assert part in run.stdout


@pytest.mark.processes
def test_a_broken_promise_is_told_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The consumers check: one that takes message 100 for another ends the run."""
    monkeypatch.setattr(
        channels,
        "check",
        lambda where, due, sequence, given: check(where, due, sequence + (due == 100), given),
    )
    with pytest.raises(ExceptionGroup) as broken:
        main(["--minutes", "0.05", "--seed", "7"])
    assert broken.group_contains(Violation, match="number 101 came where 100 was due")
    assert "broken with seed 7" in capsys.readouterr().err
