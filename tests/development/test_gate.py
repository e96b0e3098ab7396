"""The gate leaves out what is named, gives a second chance where load may matter, and says which tests needed it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import everything
from tests.development.test_needs import ROOT, command_on, pytest_on
from tests.everything import Part
from tests.gate.__main__ import changed, parts, run
from tests.gate.choice import LEFT_OUT, is_named
from tests.gate.failures import Failure, Record
from tests.gate.left_out import row_of, table
from tests.gate.steady import Run, steady


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("tests/a/test_b.py::TestC::test_d[1::2/x]", True),
        ("tests/a/test_b.py::TestC::test_d", True),
        ("tests/a/test_b.py::TestC", True),
        ("tests/a/test_b.py", True),
        ("tests/a/", True),
        ("tests/a", False),
        ("tests/a/test_b.py::TestC::test_d[2]", False),
        ("tests/a/test_b.py::TestC::test", False),
    ],
)
def test_a_test_is_named_by_its_id_or_by_what_encloses_it(name: str, named: bool) -> None:
    assert is_named("tests/a/test_b.py::TestC::test_d[1::2/x]", {name}) is named


def test_all_that_is_left_out_is_there_and_stands_in_order() -> None:
    lines = [line for line in LEFT_OUT.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))
    for line in lines:
        path, *inner = line.partition("[")[0].split("::")
        assert Path(path).exists(), line
        assert all(name in Path(path).read_text("utf-8") for name in inner[:1]), line


def test_each_line_is_in_a_row_of_the_table_of_what_the_gate_leaves_out() -> None:
    lines = [line for line in LEFT_OUT.read_text("utf-8").splitlines() if not line.startswith("#")]
    rows = table()
    assert {row_of(line, (), rows) for line in lines} == {row for row in rows if row != ("timed",)}


@pytest.mark.story
@pytest.mark.processes(1)
def test_the_table_has_the_numbers_of_tests_within_a_tenth() -> None:
    """They are rounded, so that not every new test changes the page."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESTS_")}
    counted = [sys.executable, "-m", "tests.gate.left_out"]
    ended = subprocess.run(
        counted, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=True
    )
    lines = (line.strip().split(" ", 1) for line in ended.stderr.splitlines())
    counts = {tuple(row.split(", ")): int(number) for number, row in lines}
    rows = table()
    assert counts.keys() == rows.keys()
    wrong = {row: n for row, n in counts.items() if abs(rows[row] - n) > max(5, n / 10)}
    assert not wrong


@pytest.mark.processes(12)
def test_a_branch_runs_the_modules_that_it_changes_and_main_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)

    git("init")
    assert changed() == []
    for name in (
        "tests/test_a.py",
        "tests/test_gone.py",
        "tests/sub/test_b.py",
        "tests/benchmarks/test_c.py",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("1", "utf-8")
    git("add", ".")
    git("commit", "-m", "main")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed() == []
    for name in (
        "tests/sub/test_b.py",
        "tests/benchmarks/test_c.py",
        "tests/sub/test_new.py",
        "tests/helper.py",
    ):
        Path(name).write_text("2", "utf-8")
    Path("tests/test_gone.py").unlink()
    git("add", ".")
    git("commit", "-m", "branch")
    assert changed() == ["tests/sub/test_b.py", "tests/sub/test_new.py"]


FAILING = """
import os, socket, subprocess, time

import pytest

def test_that_passes():
    pass

def test_that_fails():
    assert not "alone"

def test_that_connects_and_fails():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
    assert not "connected"

@pytest.mark.processes
def test_that_starts_and_fails():
    subprocess.run(["true"])
    assert not "started"

@pytest.mark.processes
def test_that_crashes():
    os._exit(1)
"""


@pytest.mark.story
@pytest.mark.processes
def test_each_failure_is_recorded_with_its_error_and_may_run_again_where_load_matters(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    pytest_on(tmp_path, FAILING, "--failures", str(record), "--numprocesses", "1")
    found = {each.test.rpartition("::")[2]: each for each in Record.read(record).failures}
    assert {name: each.may_run_again for name, each in found.items()} == {
        "test_that_fails": False,
        "test_that_connects_and_fails": True,
        "test_that_starts_and_fails": True,
        "test_that_crashes": True,
    }
    assert "assert not 'alone'" in found["test_that_fails"].error


@pytest.mark.processes
def test_a_module_that_cannot_be_read_is_recorded(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    pytest_on(tmp_path, "import no_such_module", "--failures", str(record), "--numprocesses", "1")
    assert len(Record.read(record).not_collected) == 1


@pytest.mark.processes
@pytest.mark.parametrize(("time_s", "counts"), [(100, "1 passed, 1 deselected"), (0, "no time for 1 more")])
def test_what_the_gate_leaves_out_runs_while_there_is_time(tmp_path: Path, time_s: int, counts: str) -> None:
    patch = (
        "import tests.gate.choice as choice\n"
        "choice.names = lambda _: {'test_it.py::test_long'}\n"
        f"choice.LeftOut.__init__.__defaults__ = ({time_s},)\n"
    )
    (tmp_path / "patch.py").write_text(patch, "utf-8")
    text = "def test_short():\n    assert 0\n\ndef test_long():\n    pass\n"
    code, printed = pytest_on(tmp_path, text, "-p", "patch", "--left-out", path=tmp_path)
    assert (code, counts in printed) == (0, True), printed


BUSY = """
import time

def work():
    began = time.process_time()
    while time.process_time() - began < 0.5:
        pass

def test_that_is_busy():
    work()
"""


@pytest.mark.processes
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--gate",), 1)])
def test_a_gate_test_that_takes_long_and_is_no_story_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int
) -> None:
    monkeypatch.delenv("GATE_PATIENCE", raising=False)
    limited = f"import tests.support.marked\ntests.support.marked.CPU_S = 0.2\n{BUSY}"
    ended, printed = pytest_on(tmp_path, limited, *arguments)
    assert ended == code
    assert ("mark it as a story" in printed) is bool(code)


@pytest.mark.processes
def test_a_gate_test_starts_no_more_processes_than_its_mark_allows(tmp_path: Path) -> None:
    text = """
import subprocess

import pytest

def start_two():
    subprocess.run(["true"])
    subprocess.run(["true"])

@pytest.mark.processes(1)
def test_one():
    start_two()

@pytest.mark.processes(2)
def test_two():
    start_two()
"""
    code, printed = pytest_on(tmp_path, text, "--gate")
    assert code == 1
    assert "mark it `processes(2)`" in printed
    assert "2 passed, 1 error" in printed
    assert re.findall(r"^ERROR .*::(\w+)", printed, re.MULTILINE) == ["test_one"]


@pytest.mark.processes
def test_a_costly_test_is_recorded_with_what_its_processes_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""
import pytest
import tests.gate.failures
from tests.support.starter import start_program

tests.gate.failures.LISTED_S = 0.2

def started():
    process = start_program({BUSY + "work()"!r})
    with process.stdout:
        process.wait()

@pytest.mark.processes
def test_that_starts_what_is_busy():
    started()

@pytest.mark.processes
@pytest.mark.story
def test_story():
    started()
"""
    pytest_on(tmp_path, text, "--failures", str(tmp_path / "record.json"))
    ((test, cpu_s),) = Record.read(tmp_path / "record.json").costly.items()
    assert test.endswith("test_that_starts_what_is_busy")
    assert cpu_s >= 0.5


@pytest.mark.processes
def test_a_run_that_is_ended_early_names_the_tests_that_still_run(tmp_path: Path) -> None:
    text = "import time\n\ndef test_that_sleeps():\n    print('sleeps', flush=True)\n    time.sleep(60)\n"
    command = command_on(tmp_path, text, "--capture=no", "--failures", str(tmp_path / "record.json"))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        try:
            assert any("sleeps" in line for line in process.stdout)
            process.send_signal(signal.SIGUSR1)
            assert any("still running:" in line for line in process.stdout)
            assert "test_it.py::test_that_sleeps" in process.stdout.readline()
        finally:
            process.kill()


@pytest.fixture
def steady_runs(tmp_path: Path) -> Callable[..., tuple[int, list[Run], list[str]]]:
    """Call `steady` with a gate whose runs are given; return its code, the runs it took, and its lines."""

    def ran(*given: Run) -> tuple[int, list[Run], list[str]]:
        left, said = list(given), list[str]()

        def gate(busy: bool) -> Run:
            run = left.pop(0)
            assert run.busy is busy
            return run

        code = steady(tmp_path / "runs.jsonl", gate, said.append)
        return code, list(given[: len(given) - len(left)]), said

    return ran


def test_the_gate_runs_five_times_alone_and_five_times_busy_over_any_number_of_calls(
    steady_runs: Callable[..., tuple[int, list[Run], list[str]]], tmp_path: Path
) -> None:
    alone, busy = Run(False, 0, 500, ()), Run(True, 0, 900, ("tests/a.py::test_b",))
    with pytest.raises(IndexError):  # interrupted
        steady_runs(alone, alone)
    code, taken, said = steady_runs(alone, alone, alone, *[busy] * 5)
    assert (code, len(taken)) == (0, 8)
    assert said[0] == "alone: 5 of 5 green, in 500, 500, 500, 500, 500 s"
    assert said[-1] == "  failed 5 of 10 times: tests/a.py::test_b"
    assert steady_runs() == (0, [], said)
    (tmp_path / "runs.jsonl").unlink()
    assert steady_runs(*[alone] * 4, Run(False, 1, 500, ()), *[busy] * 5)[0] == 1


Python = Callable[[str], list[str]]


@pytest.fixture
def gate_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Python:
    """Run one part of the gate with a `python` that is a given script; return the faults."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    def gated(script: str) -> list[str]:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nfor each in "$@"; do last=$each; done\n{script}\n', "utf-8")
        python.chmod(0o755)
        (part,) = [each for each in parts(tmp_path, tmp_path) if each.name == "processes"]
        return run([part], tmp_path, tmp_path, everything.say)

    return gated


def fail(tmp_path: Path, *failures: Failure) -> str:
    """A script that fails with these at first, and with none when a test is run alone."""
    record = tmp_path / "failures"
    Record([*failures]).write(record)
    return f'case "$*" in *"-m processes"*) cp {record} "{tmp_path}/processes.json"; exit 1;; esac'


ONCE = Failure("tests/test_a.py::test_b", "assert 1 == 2", may_run_again=True)


@pytest.mark.processes
def test_who_passes_alone_is_unsteady_and_the_gate_green(gate_run: Python, tmp_path: Path) -> None:
    assert gate_run(f"{fail(tmp_path, ONCE)}\nexit 0") == []
    assert [json.loads(line) for line in (tmp_path / "unsteady.jsonl").read_text("utf-8").splitlines()] == [
        {"test": ONCE.test, "error": ONCE.error}
    ]


@pytest.mark.processes
def test_who_fails_twice_keeps_the_gate_red(gate_run: Python, tmp_path: Path) -> None:
    (fault,) = gate_run(f"{fail(tmp_path, ONCE)}\nexit 1")
    assert fault == "tests/test_a.py::test_b failed twice: assert 1 == 2"


@pytest.mark.processes
def test_nine_failures_are_no_chance(gate_run: Python, tmp_path: Path) -> None:
    nine = [Failure(f"tests/test_a.py::test_{index}", "no", may_run_again=True) for index in range(9)]
    assert gate_run(f"{fail(tmp_path, *nine)}\nexit 0") == ["9 tests failed; at most 8 run again"]


@pytest.mark.processes
def test_who_needs_no_load_to_fail_gets_no_second_chance(gate_run: Python, tmp_path: Path) -> None:
    alone = Failure("tests/test_a.py::test_b", "assert 1 == 2", may_run_again=False)
    assert gate_run(f"{fail(tmp_path, alone)}\nexit 0") == ["tests/test_a.py::test_b: assert 1 == 2"]


@pytest.mark.processes
def test_a_run_that_ends_without_a_record_keeps_the_gate_red(gate_run: Python) -> None:
    (fault,) = gate_run("exit 3")
    assert "pytest ended with exit code 3" in fault


@pytest.mark.processes
def test_a_part_that_goes_on_too_long_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    forever = Part("forever", "sleep", (("sleep", "60"),))
    (result,) = everything.run([forever], said.append, deadline=time.monotonic() + 0.2)
    assert result.took_s < 30
    assert result.failures == ("killed: the time for all parts had passed",)
