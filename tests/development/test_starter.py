"""A command that is forked from what is imported is one that was started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Command, nebuli
from tests.support.starter import Forked, start_program, starter

pytestmark = pytest.mark.processes


def worker(directory: Path) -> Command:
    addresses = ("--data", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    command = Command("worker", *addresses, directory=directory)
    command.wait_until_said("worker ready")
    return command


def test_what_an_interpreter_reads_as_it_begins_has_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that test is the first to need the starter, as this one is where the module runs alone."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not starter().can_start()
    command = Command("--version", directory=tmp_path)
    assert isinstance(command.process, subprocess.Popen)
    assert command.end().exit_code == 0
    monkeypatch.undo()
    assert starter().can_start()


@pytest.mark.parametrize(
    "arguments", [["--version"], ["validate", "nowhere.yaml"], ["nonsense"]], ids=lambda each: each[0]
)
def test_it_says_what_a_process_of_its_own_says(arguments: list[str], tmp_path: Path) -> None:
    ended = nebuli(*arguments, directory=tmp_path)
    own = subprocess.run(
        [sys.executable, "-m", "nebuli", *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert (ended.exit_code, ended.stdout, ended.stderr) == (own.returncode, own.stdout, own.stderr)


def test_it_has_the_directory_and_the_environment_of_who_starts_it_and_no_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", "elsewhere")
    assert "(in elsewhere/nebuli/queries)" in nebuli("status", "none", directory=tmp_path).error
    (tmp_path / "first").mkdir()
    first, second = worker(tmp_path / "first"), worker(tmp_path)
    found = psutil.Process(second.process.pid)
    assert found.cwd() == str(tmp_path)
    assert str(tmp_path / "first" / "stderr.txt") not in {each.path for each in found.open_files()}
    for command in (first, second):
        command.process.send_signal(signal.SIGTERM)
        assert command.end().exit_code == 0


def test_it_is_killed_as_others_are(tmp_path: Path) -> None:
    command = worker(tmp_path)
    assert isinstance(command.process, Forked)
    assert command.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        command.process.wait(0.01)
    (child,) = psutil.Process(command.process.pid).children()
    command.process.kill()
    assert command.end().exit_code == -signal.SIGKILL
    assert not psutil.pid_exists(command.process.pid), "somebody has waited for it"
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running()


def test_a_program_is_one_that_an_interpreter_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os, sys; print(__name__, sys.argv, os.getcwd(), os.environ['GIVEN']); sys.exit(3)"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIVEN", "so")
    own = subprocess.run([sys.executable, "-c", program, "a"], capture_output=True, check=False, timeout=60)
    process = start_program(program, "a")
    with process.stdout:
        assert (process.stdout.read(), process.wait()) == (own.stdout, own.returncode)
    assert own.returncode == 3
