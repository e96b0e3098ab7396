"""Record of the tests that failed in a run, for the second chance that the gate gives each of them.

The plugin runs in the process that controls a run. It writes the record at the end, and, if the gate ends the run
early (SIGUSR1), prints the tests that still run.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import pytest

MARKS_OF_LOAD = ("processes", "spark", "story")
"""Marks of tests whose outcome may depend on what else the machine does."""

USES_SOCKETS = "uses sockets"
"""User property that `tests/support/marked.py` gives to a test that has opened a connection."""


COST = "CPU time in s"
"""User property that it gives to each test."""

LISTED_S = 3
"""A test in the gate that takes more CPU time, and is neither a story nor of Spark, is listed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed."""

    test: str
    error: str
    may_run_again: bool


@dataclass(slots=True)
class Record:
    """All that failed in one run."""

    failures: list[Failure] = field(default_factory=list)
    not_collected: list[str] = field(default_factory=list)
    costly: dict[str, float] = field(default_factory=dict)
    """CPU time, in s, of tests that have more than `LISTED_S` and are marked as neither story nor Spark."""

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what `write` has written."""
        read = json.loads(path.read_text("utf-8"))
        return cls([Failure(**each) for each in read["failures"]], read["not_collected"], read["costly"])

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1), "utf-8")


class RecordFailures:
    """Plugin that writes a `Record` to a path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = Record()
        self._running: dict[str, None] = {}
        signal.signal(signal.SIGUSR1, self._print_running)

    def _print_running(self, _number: int, _frame: FrameType | None) -> None:
        running = "\n".join(f"  {test}" for test in self._running) or "  no test"
        sys.__stdout__.write(f"\nstill running:\n{running}\n")
        sys.__stdout__.flush()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins, in whichever process."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note its end."""
        self._running.pop(nodeid, None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a module that cannot be read."""
        if report.failed:
            self._record.not_collected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failed phase, and costly tests; a worker that crashed makes a report of a failure, too."""
        cpu_s = dict(report.user_properties).get(COST, 0.0)
        if report.when == "call" and cpu_s > LISTED_S and not {"story", "spark"} & {*report.keywords}:
            self._record.costly[report.nodeid] = cpu_s
        if not report.failed or any(each.test == report.nodeid for each in self._record.failures):
            return
        crashed = report.when not in ("setup", "call", "teardown")
        again = (
            crashed
            or any(mark in report.keywords for mark in MARKS_OF_LOAD)
            or any(name == USES_SOCKETS for name, _ in report.user_properties)
        )
        self._record.failures.append(Failure(report.nodeid, _error(report), again))

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        self._record.write(self._path)


def _error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else report.longreprtext
    first, *_ = message.strip().splitlines() or ["no message"]
    return first[:300]
