"""What `make test-all` runs: all of it, whatever fails, with the result of each part at the end."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.development.test_needs import pytest_on
from tests.everything import main

ROOT = Path(__file__).parents[2]
PROGRAMS = ("lint-imports", "mypy", "python", "ruff")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Programs that say in a file what they were asked for, and fail where a file says with what exit code."""
    for name in PROGRAMS:
        (tmp_path / name).write_text(
            "#!/bin/sh\n"
            'cd "$(dirname "$0")"\n'
            'echo "$(basename "$0") $*" >> ran\n'
            'case "$*" in *"not (spark"*) part=tests;; *"-m timed") part=timed;; *spark*) part=spark;; '
            '*) part=$(basename "$0");; esac\n'
            '[ ! -e "$part.code" ] || exit "$(cat "$part.code")"\n',
            "utf-8",
        )
        (tmp_path / name).chmod(0o755)
    return tmp_path


def ran(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "ran").read_text("utf-8").splitlines()]


def results(said: str) -> list[str]:
    """The last lines, without their times."""
    return [re.sub(r" \(\d+ s\)$", "", line) for line in said.splitlines()[-4:]]


ALL = ["ruff", "ruff", "ruff", "mypy", "lint-imports", "python", "python", "python"]


@pytest.mark.processes(10)
def test_all_is_run_and_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--jobs", "7", "--spark-jobs", "5"], folder) == 0
    assert ran(folder) == ALL
    tests, spark, timed = (folder / "ran").read_text("utf-8").splitlines()[-3:]
    assert re.fullmatch(
        r"python -m pytest --passed=\S+ --numprocesses 7 --dist loadgroup -m not \(spark or timed\)", tests
    )
    assert re.match(r"python -m pytest --passed=\S+ --numprocesses 5 ", spark)
    assert timed == "python -m pytest -m timed"
    assert results(capsys.readouterr().out) == [
        "style, types and imports: passed",
        "tests without Spark: passed",
        "tests of Spark: passed",
        "tests that judge speed and memory: passed",
    ]


@pytest.mark.processes(10)
def test_what_is_quick_starts_no_process_and_tries_less_of_what_is_drawn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "python").write_text(
        '#!/bin/sh\necho "one in $TESTS_ONE_IN: $*" >> "$(dirname "$0")/asked"\n', "utf-8"
    )
    assert main(["--only", "lint", "quick", "--jobs", "7"], folder) == 0
    assert ran(folder) == ["ruff", "ruff", "ruff", "mypy", "lint-imports"]
    assert (folder / "asked").read_text("utf-8") == (
        "one in 10: -m pytest --numprocesses 7 --dist loadgroup -m not (processes or spark or long or timed)\n"
    )
    assert results(capsys.readouterr().out)[-2:] == [
        "style, types and imports: passed",
        "quick tests: passed",
    ]


@pytest.mark.processes(10)
@pytest.mark.parametrize(("wanted", "number"), [(None, "3"), ("1", "1")])
def test_all_tests_try_a_part_of_what_is_drawn_or_all_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None, number: str
) -> None:
    (folder / "python").write_text(
        '#!/bin/sh\necho "$TESTS_DRAWN_ONE_IN" > "$(dirname "$0")/asked"\n', "utf-8"
    )
    monkeypatch.delenv("TESTS_DRAWN_ONE_IN", raising=False)
    if wanted is not None:
        monkeypatch.setenv("TESTS_DRAWN_ONE_IN", wanted)
    assert main(["--only", "tests"], folder) == 0
    assert (folder / "asked").read_text("utf-8") == f"{number}\n"


@pytest.mark.processes(10)
@pytest.mark.parametrize(
    ("part", "code", "number", "said"),
    [
        ("mypy", 2, 0, "style, types and imports: FAILED: mypy ended with exit code 2"),
        ("tests", 1, 1, "tests without Spark: FAILED: pytest ended with exit code 1"),
        ("tests", 5, 1, "tests without Spark: FAILED: no test was run"),
        ("spark", 5, 2, "tests of Spark: FAILED: no test was run"),
    ],
)
def test_what_fails_is_said_and_the_rest_is_run(
    folder: Path, capsys: pytest.CaptureFixture[str], part: str, code: int, number: int, said: str
) -> None:
    (folder / f"{part}.code").write_text(str(code), "utf-8")
    assert main([], folder) == 1
    assert ran(folder) == ALL
    found = results(capsys.readouterr().out)
    assert found.pop(number) == said
    assert all(line.endswith(": passed") for line in found)


SOME = """
import os

def test_that_passes():
    with open("ran", "a") as ran:
        ran.write("passes ")

def test_that_fails():
    with open("ran", "a") as ran:
        ran.write("fails ")
    assert os.path.exists("mended")
"""


@pytest.mark.processes(10)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_second_run_of_the_same_files_leaves_out_what_has_passed(tmp_path: Path, workers: str) -> None:
    ran, mended = tmp_path / "ran", tmp_path / "mended"
    text = SOME.replace('"ran"', repr(str(ran))).replace('"mended"', repr(str(mended)))
    again = ("--passed", str(tmp_path / "passed.txt"), "--numprocesses", workers)
    assert pytest_on(tmp_path, text, *again)[0] == pytest.ExitCode.TESTS_FAILED
    mended.touch()
    assert pytest_on(tmp_path, text, *again)[0] == pytest.ExitCode.OK
    assert pytest_on(tmp_path, text, *again)[0] == pytest.ExitCode.OK
    assert ran.read_text("utf-8") == "passes fails fails "


@pytest.mark.processes(10)
def test_make_test_and_the_build_server_run_it(tmp_path: Path) -> None:
    """With a python that says what it was asked for, and fails at the first of it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "CI=$CI: $*"\n[ "$2" != tests.gate ] || exit 1\n', "utf-8")
    python.chmod(0o755)
    installed = [tmp_path / "demo", tmp_path / "tests"]  # in this order, as make goes by when each was made
    for stamp in installed:
        stamp.touch()
    given = [f"BIN={tmp_path}", f"DEMO_READY={installed[0]}", f"TESTS_READY={installed[1]}"]
    (tmp_path / "make").write_text(
        f'#!/bin/sh\nexec {shutil.which("make")} "$@" {" ".join(given)}\n', "utf-8"
    )
    (tmp_path / "make").chmod(0o755)
    ended = subprocess.run(
        [ROOT / ".ci" / "run"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ended.returncode == 2, ended.stderr  # make's own
    assert ended.stdout.splitlines() == [
        "CI=true: -m tests.support.programs",
        "CI=true: examples/flights/prepare.py",
        "CI=true: -m tests.gate",
    ]
