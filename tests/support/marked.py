"""Marks that are true: a test that starts a process, and has no mark that says so, fails.

`make check` leaves out what starts processes, by the marks. A test that takes more than ten seconds of CPU time, and is
not marked as a story, fails in the gate.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Generator

import pytest

from tests.gate.failures import USES_SOCKETS

_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
"""What the interpreter tells of (audit events) when it starts a process."""
_CONNECTS = {"socket.bind", "socket.connect"}
_MARKS = ("processes", "spark")
_STORIES = ("story", "spark")
CPU_S = 10
"""CPU time of a gate test, its processes included, unless it is a story."""


def _cpu_s() -> float:
    used = (resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class ProcessesAreMarked:
    """Looks at each test, and at its fixtures, from its beginning to its end."""

    def __init__(self) -> None:
        self._started: list[str] | None = None  # by the test that runs, if it should start none
        self._connected = False
        self._began_s = self._took_s = 0.0
        sys.addaudithook(self._told)
        os.register_at_fork(
            before=lambda: self._told("os.fork", ())
        )  # uvloop tells of its processes by this alone

    def _told(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._started is not None and event in _STARTS:
            self._started.append(" ".join(map(str, (event, *arguments[1:2]))))
        if event in _CONNECTS:
            self._connected = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Before its first fixture."""
        self._started = None if any(item.get_closest_marker(mark) for mark in _MARKS) else []
        self._connected, self._took_s = False, 0.0
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Measure the call alone: what is reaped later may have run for many tests."""
        self._began_s = _cpu_s()
        try:
            return (yield)
        finally:
            self._took_s = _cpu_s() - self._began_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """With what the test has used until now."""
        if self._connected and (USES_SOCKETS, True) not in item.user_properties:
            item.user_properties.append((USES_SOCKETS, True))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Behind the end of its last fixture."""
        try:
            yield
        finally:
            started, self._started = self._started, None
        is_story = any(item.get_closest_marker(mark) for mark in _STORIES)
        if item.config.option.gate and self._took_s > CPU_S and not is_story:
            pytest.fail(f"it took {self._took_s:.0f} s of CPU time: mark it as a story", pytrace=False)
        if started:
            pytest.fail(f"it is not marked `processes`, and has started one: {started[0]}", pytrace=False)
