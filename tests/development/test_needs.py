"""What a machine does not have is said by one line, and hides nothing on the build server."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs

ROOT = Path(__file__).parents[2]
SKIPS = {"skip", "skipif", "importorskip", "skipIf", "skipUnless", "skipTest", "SkipTest"}


def skips_of(path: Path) -> list[str]:
    """Where a file leaves something out by itself."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Attribute(
                value=ast.Name(id="pytest" | "unittest") | ast.Attribute(attr="mark"), attr=name
            ):
                names = {name}
            case ast.ImportFrom(module="pytest" | "unittest", names=aliases):
                names = {alias.name for alias in aliases}
            case _:
                continue
        if names & SKIPS:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_nothing_is_left_out_but_by_the_one_helper() -> None:
    folders = (ROOT / "tests", ROOT / "netchannel" / "testing", ROOT / "nebuli" / "connectors" / "testing")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    helper = ROOT / "tests" / "support" / "needs.py"
    assert skips_of(helper)
    assert [place for path in files if path != helper for place in skips_of(path)] == []


LACKING = """
import pytest
from tests.support.needs import leave_out, need_module

def test_that_has_what_it_needs():
    need_module("json", "xml.dom")

def test_that_lacks_a_module():
    need_module("no_such_module.within")

@pytest.fixture
def disk():
    leave_out("no disk can be mounted here", "run the tests as root")

def test_that_lacks_a_permission(disk):
    pass
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ci", "exit_code", "counts"), [("", 0, "1 passed, 2 skipped"), ("true", 1, "1 failed")]
)
def test_what_is_missing_is_left_out_here_and_fails_on_the_build_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, exit_code: int, counts: str
) -> None:
    monkeypatch.setenv("CI", ci)
    code, said = pytest_on(tmp_path, LACKING)
    assert code == exit_code
    assert counts in said
    for line in (
        "there is no Python module no_such_module.within: make setup",
        "no disk can be mounted here: run the tests as root",
    ):
        assert said.count(line) == 1 + 2 * (ci == "true"), said  # failures at once, behind all, and in short


@pytest.mark.processes
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_in_which_all_is_left_out_has_run_no_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv("CI", "")
    lacking = (
        "from tests.support.needs import need_module\ndef test_it():\n    need_module('no_such_module')\n"
    )
    assert pytest_on(tmp_path, lacking, "--numprocesses", workers)[0] == pytest.ExitCode.NO_TESTS_COLLECTED
    assert (
        pytest_on(tmp_path, "def test_it():\n    pass\n", "--numprocesses", workers)[0] == pytest.ExitCode.OK
    )


def command_on(folder: Path, text: str, *arguments: str) -> list[str]:
    """Return the command, for this project's root, that runs a text as tests of this project are run."""
    (folder / "test_it.py").write_text(text, "utf-8")
    (folder / "conftest.py").write_text("from tests.conftest import *\n", "utf-8")
    command = (sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder))
    return [*command, "-p", "no:cacheprovider", "--numprocesses", "0", *arguments, str(folder)]


def pytest_on(folder: Path, text: str, *arguments: str, path: Path = ROOT) -> tuple[int, str]:
    """Run a text as tests of this project are run; return the exit code and the output."""
    ended = subprocess.run(
        command_on(folder, text, *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return ended.returncode, ended.stdout


def test_a_module_that_lacks_something_is_left_out_whole() -> None:
    with pytest.raises(
        pytest.fail.Exception if needs.os.environ.get("CI") == "true" else needs.pytest.skip.Exception
    ):
        needs.need_module("no_such_module")
