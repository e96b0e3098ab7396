"""``python -m tests.gate``: run the gate, which is `make test`.

In-process tests run on two workers, then tests that start processes, stories and Spark on one: load is what breaks
timing. A test that failed runs again, alone and in a fresh process, when all parts have ended. If it passes then, the
gate is green and lists it; it also appends a line to `.venv/unsteady.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import everything
from tests.everything import Part
from tests.gate.choice import patience
from tests.gate.failures import LISTED_S, Failure, Record

_ENVIRONMENT = {"TESTS_ONE_IN": "10"}
"""The gate tries a tenth of what is drawn or swept (`tests/support/sizes.py`)."""
_TIME_S = 1800
"""Time for all parts, three times as much as they take, multiplied by ``GATE_PATIENCE``."""
_TO_COMPILE_S = 60
_CHANCES = 8
"""More failures than these are no chance."""
_TESTS_FAILED = "pytest ended with exit code 1"

_PARTS = (
    ("in process", "tests in process", "not (processes or spark or story or timed)", 2),
    ("processes", "tests that start processes", "processes and not (spark or story or timed)", 1),
    ("stories", "stories", "story and not (spark or timed)", 1),
    ("spark", "tests of Spark", "spark and not timed", 1),
)


def parts(folder: Path, records: Path) -> list[Part]:
    """All parts of the gate; ``folder`` has the programs, and ``records`` is to have the failures of each part."""
    parts = [everything.lint(folder)]
    for name, title, marks, jobs in _PARTS:
        command = _pytest(folder, records / f"{name}.json", marks, jobs)
        parts.append(Part(name, title, (command,), _ENVIRONMENT))
    if modules := changed():
        command = (
            *_pytest_alone(folder, records / "changed.json", "--left-out"),
            *("-m", "not (spark or timed)", *modules),
        )
        parts.append(Part("changed", "tests of this branch that the gate leaves out", (command,)))
    return parts


def changed() -> list[str]:
    """Return the modules of tests that the branch has changed; none on main, and where main is not known.

    Not those of the benchmarks, whose peers `make test` does not install.
    """
    tests = ("tests/*test_*.py", ":!tests/benchmarks")
    diff = ("git", "diff", "--name-only", "--diff-filter=d", "origin/main...HEAD", "--", *tests)
    return subprocess.run(diff, capture_output=True, encoding="utf-8", check=False).stdout.split()


def _pytest(folder: Path, record: Path, marks: str, jobs: int) -> tuple[str, ...]:
    side_by_side = ("--numprocesses", str(jobs), "--dist", "load", "-m", marks)
    return (*_pytest_alone(folder, record), *side_by_side)


def _pytest_alone(folder: Path, record: Path, chosen: str = "--gate") -> tuple[str, ...]:
    return (str(folder / "python"), "-m", "pytest", chosen, "--durations=15", "--failures", str(record))


@contextmanager
def compiled(folder: Path) -> Iterator[None]:
    """Have all tests read once meanwhile, on the core that the type checker leaves idle.

    In a fresh clone pytest compiles each module of tests; both workers of the first part would do so at once.
    """
    read = (str(folder / "python"), "-m", "pytest", "--gate", "--collect-only", "--quiet")
    with subprocess.Popen(
        read,
        env={**os.environ, **_ENVIRONMENT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield
            process.wait(_TO_COMPILE_S)
        except subprocess.TimeoutExpired:
            pass  # each part says itself what it cannot collect
        finally:
            process.kill()


def run(wanted: Sequence[Part], folder: Path, records: Path, say: Callable[[str], None]) -> list[str]:
    """Run the parts and then, alone, the tests that failed; return what keeps the gate from being green."""
    deadline = time.monotonic() + _TIME_S * patience()
    faults = []
    costly: dict[str, float] = {}
    failed: list[tuple[Failure, Part]] = []
    first = [part for part in wanted if part.name == "lint"]
    with compiled(folder):
        results = everything.run(first, say, deadline)
    results += everything.run([part for part in wanted if part not in first], say, deadline)
    for result in results:
        record = _read(records / f"{result.part.name}.json")
        if result.part.name != "changed":
            costly |= record.costly
        failed += [(each, result.part) for each in record.failures]
        explained = result.failures == (_TESTS_FAILED,) and record.failures
        if result.failures and not explained:
            faults.append(str(result))
        faults += [f"{module} cannot be collected" for module in record.not_collected]
    _list_costly(costly, say)
    if len(failed) > _CHANCES:
        return [*faults, f"{len(failed)} tests failed; at most {_CHANCES} run again"]
    faults += [f"{each.test}: {each.error}" for each, _ in failed if not each.may_run_again]
    return faults + _run_again([pair for pair in failed if pair[0].may_run_again], folder, deadline, say)


def _run_again(
    failed: Sequence[tuple[Failure, Part]], folder: Path, deadline: float, say: Callable[[str], None]
) -> list[str]:
    """Run these tests alone, each in a fresh process; return those that fail again."""
    faults, unsteady = [], []
    for each, part in failed:
        chosen = () if part.name == "changed" else ("--gate",)
        command = (str(folder / "python"), "-m", "pytest", *chosen, each.test)
        again = Part("again", f"{each.test}, again and alone", (command,), part.environment)
        (result,) = everything.run([again], say, deadline)
        if result.failures:
            faults.append(f"{each.test} failed twice: {each.error}")
        else:
            unsteady.append(each)
    _list_unsteady(unsteady, say)
    return faults


def _read(path: Path) -> Record:
    return Record.read(path) if path.exists() else Record()


def _list_costly(costly: Mapping[str, float], say: Callable[[str], None]) -> None:
    if costly:
        say(f"\ntests with more than {LISTED_S} s of CPU time, which are not stories:")
    for test, cpu_s in sorted(costly.items(), key=lambda pair: -pair[1]):
        say(f"{cpu_s:6.1f} s  {test}")


def _list_unsteady(unsteady: Sequence[Failure], say: Callable[[str], None]) -> None:
    if not unsteady:
        return
    say("\nunsteady tests, which failed and passed when they ran again alone:")
    with Path(sys.prefix, "unsteady.jsonl").open("a", encoding="utf-8") as lines:
        for each in unsteady:
            say(f"  {each.test}: {each.error}")
            lines.write(json.dumps({"test": each.test, "error": each.error}) + "\n")


def main(arguments: Sequence[str], folder: Path) -> int:
    """Return the exit code: 0 if the gate is green, 1 if it is red, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate")
    parser.add_argument("--only", nargs="+", choices=["lint", *(name for name, *_ in _PARTS), "changed"])
    only = parser.parse_args(arguments).only
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as records:
        wanted = [part for part in parts(folder, Path(records)) if only is None or part.name in only]
        try:
            faults = run(wanted, folder, Path(records), everything.say)
        except KeyboardInterrupt:
            everything.say("interrupted")
            return 130
    for fault in faults:
        everything.say(f"RED: {fault}")
    took_s = time.monotonic() - began
    everything.say(f"the gate is {'red' if faults else 'green'} after {took_s:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(sys.executable).parent))
