"""A test that fails with a command that runs makes no later test fail, and leaves no process."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from tests.development.test_needs import pytest_on

FAILS = """
import gc

import pytest

from tests.support.starter import start_program

pytestmark = pytest.mark.processes

def test_first():
    process = start_program("import time; time.sleep(600)")
    print("process", process.pid)
    {ending}

def test_second():
    gc.collect()
"""
SECOND = """
import gc

def test_third():
    gc.collect()
"""


@pytest.mark.processes
def test_a_failed_test_fails_no_later_one_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_later.py").write_text(SECOND, "utf-8")
    code, said = pytest_on(tmp_path, FAILS.format(ending="raise AssertionError"))
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 2 passed" in said
    (pid,) = re.findall(r"^process (\d+)", said, re.MULTILINE)
    assert not psutil.pid_exists(int(pid))


@pytest.mark.processes
def test_a_passed_test_that_leaves_a_command_is_found(tmp_path: Path) -> None:
    ending = "process.kill()"
    code, said = pytest_on(tmp_path, FAILS.format(ending=ending))
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "ResourceWarning: unclosed file" in said
