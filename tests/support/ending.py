"""Runs of tests that end, and say of each failure at once: one that is ended from outside shows no summary."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest

BEYOND_S = float(os.environ.get("TESTS_BEYOND_S", "120"))
"""How long a test may take beyond its timeout, which ends neither a fixture's end nor a call that no signal reaches."""
_LINES = 60


class SaysFailuresAtOnce:
    """Writes each failure to the terminal as soon as it is heard of."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of each test, wherever it was run."""
        if report.failed:
            terminal = self._config.get_terminal_writer()
            lines = report.longreprtext.splitlines()
            terminal.line()
            terminal.line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            for line in lines[-_LINES:]:
                terminal.line(f"| {line}")
            terminal.flush()


class EndsTests:
    """Ends the process of a test that goes on beyond its timeout, and writes where each of its threads is."""

    def __init__(self) -> None:
        self._errors = os.dup(2)  # before what tests write is captured

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """From before its first fixture to behind the end of the last."""
        limit = item.get_closest_marker("timeout")
        self._end_after(limit.args[0] if limit else float(item.config.getini("timeout")))
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        """Once more: pytest itself has cancelled it, where the test has failed."""
        self._end_after(0)
        yield

    def _end_after(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds + BEYOND_S, exit=True, file=self._errors)
