"""A run over real processes, and what it tells; `make maelstrom` runs more of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from . import __main__ as command
from . import history as histories
from .anomalies import Violation
from .history import Append, Read, Transaction
from .outages import FAULTS
from .run import Tally, check_happened

ROOT = Path(__file__).parents[2]
_LOST = [
    Transaction("T1", "ok", 0, 1, (Append(1, 1),)),
    Transaction("T2", "ok", 2, 3, (Read(1, ()),)),
]


@pytest.mark.processes
@pytest.mark.long
def test_killed_and_stopped_nodes_tell_nothing_that_is_not_strictly_serializable() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.maelstrom", "--seeds", "1", "--first", "1", "--seconds", "10"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    for part in ("kill -9", "SIGSTOP", "1 runs, all of them strictly serializable"):
        assert part in run.stdout


def test_a_violation_is_told_with_its_seed_and_its_history_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(seed: int, seconds: float, folder: Path) -> tuple[list[Transaction], Tally]:
        return _LOST, Tally()

    monkeypatch.setattr(command, "run", run)
    with pytest.raises(
        Violation, match=r"lost append: T1 \[append 1 1\] was ok before T2 \[read 1 \[\]\] began"
    ) as broken:
        command.main(["--first", "7", "--keep", str(tmp_path)])
    assert "broken with seed 7; to run it again: make maelstrom SEEDS=1 FIRST=7" in capsys.readouterr().err
    kept = tmp_path / "maelstrom-7.jsonl"
    assert broken.value.__notes__ == [f"kept; to check it again: python -m tests.maelstrom --check {kept}"]
    assert histories.read(kept) == _LOST
    with pytest.raises(Violation, match="lost append"):
        command.main(["--check", str(kept)])


def test_a_run_whose_nodes_cannot_read_in_the_end_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(seed: int, seconds: float, folder: Path) -> tuple[list[Transaction], Tally]:
        return _LOST[:1], Tally(refusals=["a node could not read 50 times: no disk"])

    monkeypatch.setattr(command, "run", run)
    with pytest.raises(Violation, match="could not read 50 times: no disk"):
        command.main(["--keep", str(tmp_path)])


@pytest.mark.parametrize("missing", ["kill -9", "SIGSTOP", *FAULTS, "ok"])
def test_a_run_in_which_something_never_happened_fails(missing: str) -> None:
    happened = Counter({"kill -9", "SIGSTOP", *FAULTS, "ok", "info"})
    check_happened(Tally(happened, happened))
    del happened[missing]
    with pytest.raises(Violation, match=f"these never happened: .'{missing}'"):
        check_happened(Tally(happened, happened))
