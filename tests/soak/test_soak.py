"""That the soak runs, and tells what it finds; `make soak` runs it for longer."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import uvloop

from tests.soak import channels
from tests.soak import run as soak_run
from tests.soak.__main__ import main
from tests.soak.crowd import FAULTS as CROWD_FAULTS
from tests.soak.crowd import Crowd, Round
from tests.soak.faults import ENOUGH_TIMES, FAULTS, check_happened
from tests.soak.messages import Violation, check
from tests.soak.run import Soak

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_ten_seconds_of_faults_leave_nothing_behind() -> None:
    """CH-SEQ-2, CH-DUR-1, CH-FLT-3: every kind of channel is exact; the process holds what it held before."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.15", "--seed", "1"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    for part in (*channels.KINDS, "durable", "descriptors", "resident MiB", *FAULTS):
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
    told = capsys.readouterr().err
    assert told.startswith("seed 7\n")
    assert "broken with seed 7; to run it again: make soak MINUTES=0.05 LATENCY=0.0 SEED=7" in told


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ((), "no fault was asked for"),
        (("a fault that nobody can bring about",), "never happened: .'a fault that nobody"),
    ],
)
@pytest.mark.processes
def test_a_soak_without_its_faults_fails(
    faults: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all faults disabled every message arrives, and the run fails all the same: it has shown nothing."""
    monkeypatch.setattr(soak_run, "MORE_ROUNDS", 0)
    soak = Soak(3, faults=faults)
    with pytest.raises(Violation, match=told):
        uvloop.run(soak.run(1.0))
    assert sum(soak.tally.messages.values()) > 0


@pytest.mark.parametrize("missing", FAULTS)
def test_each_kind_of_fault_must_have_happened_and_had_an_effect(missing: str) -> None:
    """A kind that was asked for and never came, or came often and changed nothing for anybody, is named."""
    all_of_them = Counter(dict.fromkeys(FAULTS, ENOUGH_TIMES))
    check_happened(FAULTS, all_of_them, all_of_them)
    others = Counter({each: times for each, times in all_of_them.items() if each != missing})
    with pytest.raises(Violation, match=f"never happened: .'{missing}'"):
        check_happened(FAULTS, others, others)
    with pytest.raises(Violation, match=f"none of them had an effect: .'{missing}'"):
        check_happened(FAULTS, all_of_them, others)
    check_happened(FAULTS, others + Counter({missing: ENOUGH_TIMES - 1}), others)


@pytest.mark.processes
def test_a_crowd_comes_back_from_a_cut_of_all_and_from_a_kill() -> None:
    """CH-ACK-1: 800 channels of 40 senders, cut in one moment, their receiver killed: each message is taken once."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "tests.soak", "--minutes", "0", "--seed", "1"),
            *("--senders", "40", "--channels", "800", "--processes", "2"),
        ],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    for part in ("all connections cut", "receiver killed", "800 channels of 40 senders", "seed 1"):
        assert part in run.stdout


@pytest.mark.parametrize(
    ("cut", "reconnects", "told"),
    [(0, 0, "it had no effect"), (800, 799, "it had no effect"), (800, 800, "never happened")],
)
def test_a_crowd_without_its_faults_fails(cut: int, reconnects: int, told: str) -> None:
    """A cut that cut nothing, from which not everybody came back, or a kill that never was."""
    crowd = Crowd(seed=1, senders=40, channels=800)
    crowd.rounds.append(Round(CROWD_FAULTS[0], cut, reconnects, *[0] * 7))
    with pytest.raises(Violation, match=told):
        crowd.check_faults(CROWD_FAULTS)
