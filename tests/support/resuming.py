"""List of the tests that have passed, so that the next run of the same files leaves them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


class Resume:
    """Plugin that leaves out what a list names and, in the process that controls the run, adds what passes.

    The processes of a run get the list as it was at its start, also one that takes the place of a crashed one.
    """

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._path = path
        self._controls = not hasattr(config, "workerinput")
        self._failed: set[str] = set()
        self._passed: frozenset[str]
        if not self._controls:
            self._passed = frozenset(config.workerinput["passed"])
        elif path.exists():
            self._passed = frozenset(path.read_text("utf-8").splitlines())
        else:
            self._passed = frozenset()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give the list to another process."""
        node.workerinput["passed"] = sorted(self._passed)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what has passed."""
        left_out = [item for item in items if item.nodeid in self._passed]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test whose phases have all passed."""
        if not report.passed:
            self._failed.add(report.nodeid)
        if self._controls and report.when == "teardown" and report.nodeid not in self._failed:
            with self._path.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass a run in which everything had passed before."""
        if self._passed and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
