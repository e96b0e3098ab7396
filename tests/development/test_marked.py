"""What starts a process is marked, so that `make check` can leave it out; what is not marked, and starts one, fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.development.test_needs import pytest_on

TESTS = """
import asyncio, os, subprocess, sys

import pytest
import uvloop

@pytest.fixture
def started():
    subprocess.run(["true"])

def test_of_a_fixture(started):
    pass

def test_of_its_own():
    subprocess.run(["true"])

def test_fork():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)

def test_uvloop():
    async def run():
        await (await asyncio.create_subprocess_exec("true")).wait()
    uvloop.run(run())

@pytest.mark.processes
def test_marked(started):
    subprocess.run(["true"])

def test_none():
    pass
"""


@pytest.mark.processes
def test_a_test_that_starts_a_process_without_saying_so_fails(tmp_path: Path) -> None:
    code, said = pytest_on(tmp_path, TESTS)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "6 passed, 4 errors" in said  # each passes, and then it is looked at
    for name in ("of_a_fixture", "of_its_own", "fork", "uvloop"):
        assert f"ERROR at teardown of test_{name}" in said
    assert said.count("it is not marked `processes`, and has started one: subprocess.Popen ['true']") >= 2
