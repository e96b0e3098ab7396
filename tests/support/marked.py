"""Marks that are true: a test that starts a process, and has no mark that says so, fails.

`make check` leaves out what starts processes, by the marks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest

_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
"""What the interpreter tells of (audit events) when it starts a process."""
_MARKS = ("processes", "spark")


class ProcessesAreMarked:
    """Looks at each test, and at its fixtures, from its beginning to its end."""

    def __init__(self) -> None:
        self._started: list[str] | None = None  # by the test that runs, if it should start none
        sys.addaudithook(self._told)
        os.register_at_fork(
            before=lambda: self._told("os.fork", ())
        )  # uvloop tells of its processes by this alone

    def _told(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._started is not None and event in _STARTS:
            self._started.append(" ".join(map(str, (event, *arguments[1:2]))))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Before its first fixture."""
        self._started = None if any(item.get_closest_marker(mark) for mark in _MARKS) else []
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        """Behind the end of its last fixture."""
        try:
            yield
        finally:
            started, self._started = self._started, None
        if started:
            pytest.fail(f"it is not marked `processes`, and has started one: {started[0]}", pytrace=False)
