"""Parts of the tests, run one after the other to the end, with a line for each result.

``python -m tests.everything [--jobs N] [--spark-jobs N] [--only lint|quick|tests|spark|timed ...]`` is `make test-all`,
`make measure`, `make check` and `make lint`; `tests/gate` runs parts of its own. The next `make test-all` of the same
files leaves out the tests that have passed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

_ONE_IN = 10
"""Of what is drawn at random or swept, the quick tests try so much (`tests/support/sizes.py`)."""
_DRAWN_ONE_IN = "3"
"""Of what is drawn at random, all tests try so much, unless ``TESTS_DRAWN_ONE_IN`` is set."""
_EVERYTHING = ("lint", "tests", "spark", "timed")
"""The quick tests are among them."""
_NO_TESTS = 5
"""Pytest's exit code where no test was run (`tests/conftest.py` sees to that where all were left out)."""
_ROOT = Path(__file__).parents[1]
_TO_PRINT_S = 3
"""Time that pytest has to print which tests still run, before it is killed."""


class DeadlinePassed(Exception):
    """A command was killed because the time for all parts had passed."""


@dataclass(frozen=True, slots=True)
class Part:
    """Commands that belong together."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a part: its failures in words (none: it passed), and its time."""

    part: Part
    failures: tuple[str, ...]
    took_s: float

    def __str__(self) -> str:
        ended = f"FAILED: {'; '.join(self.failures)}" if self.failures else "passed"
        return f"{self.part.title}: {ended} ({self.took_s:.0f} s)"


def lint(folder: Path) -> Part:
    """Style, types and imports; ``folder`` has the programs."""
    # A rule that ruff has in preview, which as a setting would change other rules.
    encodings = ("ruff", "check", "--preview", "--select", "PLW1514")
    checks = (("ruff", "check"), encodings, ("ruff", "format", "--check"), ("mypy",), ("lint-imports",))
    return Part(
        "lint", "style, types and imports", tuple((str(folder / name), *rest) for name, *rest in checks)
    )


def parts(folder: Path, jobs: int, spark_jobs: int) -> list[Part]:
    """All parts, the quick ones first."""
    pytest = (str(folder / "python"), "-m", "pytest")
    # In one word: pytest would take a file that exists for a file of tests, and then not know the option.
    resumed = (*pytest, f"--passed={passed_tests()}")
    side_by_side = ("--numprocesses", str(jobs), "--dist", "loadgroup")
    fewer = {"TESTS_DRAWN_ONE_IN": os.environ.get("TESTS_DRAWN_ONE_IN", _DRAWN_ONE_IN)}
    by_file = ("--numprocesses", str(spark_jobs), "--dist", "loadfile", "--no-loadscope-reorder")
    return [
        lint(folder),
        Part(
            "quick",
            "quick tests",
            ((*pytest, *side_by_side, "-m", "not (processes or spark or long or timed)"),),
            {"TESTS_ONE_IN": str(_ONE_IN)},
        ),
        Part(
            "tests", "tests without Spark", ((*resumed, *side_by_side, "-m", "not (spark or timed)"),), fewer
        ),
        Part("spark", "tests of Spark", ((*resumed, *by_file, "-m", "spark"),)),
        Part("timed", "tests that judge speed and memory", ((*pytest, "-m", "timed"),)),
    ]


def passed_tests() -> Path:
    """Return the path of the list of tests that have passed with the files as they are now.

    Files that git does not track are among them. Where there is no git, the list is a new one each time.
    """
    with tempfile.TemporaryDirectory() as folder:
        index = {**os.environ, "GIT_INDEX_FILE": str(Path(folder, "index"))}
        git = partial(
            subprocess.run, cwd=_ROOT, env=index, capture_output=True, encoding="utf-8", check=False
        )
        git(["git", "add", "--all"])
        tree = git(["git", "write-tree"]).stdout.strip()
    return Path(sys.prefix, f"passed-{tree or time.time_ns()}.txt")


def run(wanted: Sequence[Part], say: Callable[[str], None], deadline: float | None = None) -> list[Result]:
    """Run all parts, whatever fails, and print a line for each.

    A command that still runs at ``deadline``, by the monotonic clock, is killed, and no further one is started.
    """
    results = []
    for part in wanted:
        began = time.monotonic()
        failures: list[str] = []
        for command in part.commands:
            try:
                failure = _failure(command, part.environment, say, deadline)
            except DeadlinePassed:
                failure = "killed: the time for all parts had passed"
            if failure:
                failures.append(failure)
        results.append(Result(part, tuple(failures), time.monotonic() - began))
    say("")
    for result in results:
        say(str(result))
    return results


def _failure(
    command: tuple[str, ...],
    environment: Mapping[str, str],
    say: Callable[[str], None],
    deadline: float | None,
) -> str | None:
    say(" ".join((*(f"{key}={value}" for key, value in environment.items()), *command)))
    code = _run(command, environment, deadline)
    if code == _NO_TESTS and "pytest" in command:
        return "no test was run"
    called = "pytest" if "pytest" in command else Path(command[0]).name
    return f"{called} ended with exit code {code}" if code else None


def _run(command: tuple[str, ...], environment: Mapping[str, str], deadline: float | None) -> int:
    if deadline is None:
        return subprocess.run(command, check=False, env={**os.environ, **environment}).returncode
    if time.monotonic() >= deadline:
        raise DeadlinePassed
    # A session of its own, so that all that the command has started is killed with it.
    with subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True) as process:
        try:
            return process.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            if "pytest" in command:
                process.send_signal(signal.SIGUSR1)
                time.sleep(_TO_PRINT_S)
            raise DeadlinePassed from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str], folder: Path) -> int:
    """Return the exit code: 0, 1 if something failed, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.everything")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--spark-jobs", type=int, default=2)
    parser.add_argument(
        "--only", nargs="+", choices=["lint", "quick", "tests", "spark", "timed"], default=_EVERYTHING
    )
    given = parser.parse_args(arguments)
    every = parts(folder, given.jobs, given.spark_jobs)
    wanted = [part for part in every if part.name in given.only]
    try:
        return 1 if any(result.failures for result in run(wanted, say)) else 0
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(sys.executable).parent))
