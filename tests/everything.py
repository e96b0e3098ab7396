"""All that `make test`, `make check` and `make lint` run, to the end whatever fails, with a line for each result.

``python -m tests.everything [--jobs N] [--spark-jobs N] [--only lint|quick|tests|spark ...]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_ONE_IN = 10
"""Of what is drawn at random or swept, the quick tests try so much (`tests/support/sizes.py`)."""
_DRAWN_ONE_IN = "3"
"""Of what is drawn at random, all tests try so much, unless ``TESTS_DRAWN_ONE_IN`` is set."""
_EVERYTHING = ("lint", "tests", "spark")
"""What is quick is among it, and more of it."""
_NO_TESTS = 5
"""Pytest's exit code where no test was run (`tests/conftest.py` sees to that where all were left out)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Commands that belong together, and what they are called."""

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]


def parts(folder: Path, jobs: int, spark_jobs: int) -> list[Part]:
    """In their order: first what is quick. ``folder`` has the programs."""
    pytest = (str(folder / "python"), "-m", "pytest")
    checks = (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",), ("lint-imports",))
    side_by_side = ("--numprocesses", str(jobs), "--dist", "loadgroup")
    few = ("env", f"TESTS_ONE_IN={_ONE_IN}")
    fewer = ("env", f"TESTS_DRAWN_ONE_IN={os.environ.get('TESTS_DRAWN_ONE_IN', _DRAWN_ONE_IN)}")
    by_file = ("--numprocesses", str(spark_jobs), "--dist", "loadfile", "--no-loadscope-reorder")
    return [
        Part(
            "lint", "style, types and imports", tuple((str(folder / name), *rest) for name, *rest in checks)
        ),
        Part(
            "quick",
            "quick tests",
            ((*few, *pytest, *side_by_side, "-m", "not (processes or spark or long)"),),
        ),
        Part("tests", "tests without Spark", ((*fewer, *pytest, *side_by_side, "-m", "not spark"),)),
        Part("spark", "tests of Spark", ((*pytest, *by_file, "-m", "spark"),)),
    ]


def run(wanted: Sequence[Part], say: Callable[[str], None]) -> bool:
    """Run all of them one after the other; whether all went well."""
    results = []
    for part in wanted:
        began = time.monotonic()
        failures = [failure for command in part.commands if (failure := _failure(command, say))]
        took = f"{time.monotonic() - began:.0f} s"
        results.append((part, failures, took))
    say("")
    for part, failures, took in results:
        said = f"FAILED: {'; '.join(failures)}" if failures else "passed"
        say(f"{part.title}: {said} ({took})")
    return not any(failures for _, failures, _ in results)


def _failure(command: tuple[str, ...], say: Callable[[str], None]) -> str | None:
    say(" ".join(command))
    code = subprocess.run(command, check=False).returncode
    if code == _NO_TESTS and "pytest" in command:
        return "no test was run"
    called = "pytest" if "pytest" in command else Path(command[0]).name
    return f"{called} ended with exit code {code}" if code else None


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str], folder: Path) -> int:
    """The exit code: 0, 1 where something failed, 130 where it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.everything")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--spark-jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=["lint", "quick", "tests", "spark"], default=_EVERYTHING)
    given = parser.parse_args(arguments)
    every = parts(folder, given.jobs, given.spark_jobs)
    wanted = [part for part in every if part.name in given.only]
    try:
        return 0 if run(wanted, _say) else 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(sys.executable).parent))
