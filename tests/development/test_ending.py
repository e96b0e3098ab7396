"""Tests end, and what fails is said at once: a run that is killed from outside has said why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.development.test_needs import pytest_on

TESTS = """
import threading, time

import pytest

@pytest.fixture
def held():
    yield
    threading.Event().wait()  # as a loop that waits for a task which never ends

@pytest.mark.timeout(0.5)
def test_first(held):
    time.sleep(60)

def test_second():
    pass
"""


@pytest.mark.processes
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_fixture_that_never_ends_ends_its_process_and_says_where(
    tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTS_BEYOND_S", "1")
    code, said = pytest_on(tmp_path, TESTS, "--numprocesses", workers)
    assert code != pytest.ExitCode.OK
    assert re.search(r"^FAILED \S+::test_first \(call, \d s\)", said, re.MULTILINE)
    assert "Timeout (0:00:01)!" in said
    assert re.search(r'File ".*test_.*\.py", line \d+ in held', said)
    if workers != "0":
        assert "1 passed" in said  # by the process that takes its place
