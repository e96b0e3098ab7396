"""Choice of the gate's tests: all tests but those that `left_out.txt` names.

A line of that file is a test's id, an id without its parameters, a class, a module, or a folder that ends in a slash.
`make test-all` runs what it names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

LIMIT_S = 60
"""A gate test's own limit."""

LEFT_OUT = Path(__file__).with_name("left_out.txt")
"""The tests that `make test-all` alone runs."""

MARKS_OF_PARTS = ("processes", "spark", "story")
"""Where a run's ``-m`` begins with one of these, it reads only the files in which the mark is written."""


def has_mark(path: Path, mark: str) -> bool:
    """Report if a file of tests has a mark in its own text."""
    return f"mark.{mark}" in path.read_text("utf-8")


def patience() -> float:
    """Return the factor of all limits of time, from ``GATE_PATIENCE``: 1 unless the machine is kept busy."""
    return float(os.environ.get("GATE_PATIENCE", "1"))


def names(text: str) -> frozenset[str]:
    """Read the lines of a `left_out.txt`, without comments."""
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def is_named(node_id: str, wanted: Collection[str]) -> bool:
    """Report if a test, its function, class, module or one of its folders is named."""
    return any(each in wanted for each in _enclosing(node_id))


def _enclosing(node_id: str) -> Iterator[str]:
    yield node_id
    plain, _, _ = node_id.partition("[")
    module, *inner = plain.split("::")
    for end in range(len(inner), -1, -1):
        yield "::".join((module, *inner[:end]))
    parts = module.split("/")
    for end in range(1, len(parts)):
        yield "/".join(parts[:end]) + "/"


class LeftOut:
    """Plugin that runs what the gate leaves out, and begins no further test after some time."""

    def __init__(self, time_s: float = 100) -> None:
        self._left_out = names(LEFT_OUT.read_text("utf-8"))
        self._until = time.monotonic() + time_s
        self._not_run = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what the gate runs anyway."""
        gone = [item for item in items if not is_named(item.nodeid, self._left_out)]
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if is_named(item.nodeid, self._left_out)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Pass over a test for which there is no time."""
        if time.monotonic() < self._until:
            return None
        self._not_run += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Count the tests that there was no time for."""
        if self._not_run:
            terminalreporter.write_line(f"no time for {self._not_run} more: make test-all runs them")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass a run that has nothing to do."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


class Choice:
    """Plugin that leaves tests to `make test-all` and bounds the time of each of the others."""

    def __init__(self) -> None:
        self._left_out = names(LEFT_OUT.read_text("utf-8"))
        self._limit_s = LIMIT_S * patience()

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Leave modules and folders unread that are left out whole."""
        if not collection_path.is_relative_to(config.rootpath):
            return None
        relative = collection_path.relative_to(config.rootpath).as_posix()
        name = f"{relative}/" if collection_path.is_dir() else relative
        return True if name in self._left_out else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what is left out."""
        left_out = [item for item in items if is_named(item.nodeid, self._left_out)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            gone = set(left_out)
            items[:] = [item for item in items if item not in gone]
        for item in items:
            for mark in MARKS_OF_PARTS:
                if item.get_closest_marker(mark) is not None and not has_mark(item.path, mark):
                    raise pytest.UsageError(
                        f"{item.nodeid} would not run: write `mark.{mark}` in its own file"
                    )
            item.add_marker(pytest.mark.timeout(self._limit_s), append=False)
