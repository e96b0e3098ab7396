"""Marks that are true, by counts and CPU time; wall time decides nothing.

A test that starts a process, and has no mark that says so, fails: `make check` leaves out what starts processes. In
the gate a test fails, unless it is marked as a ``story``, if it itself starts more processes than its mark allows
(``processes(n)``; 8 where it names no number), or takes more than ten seconds of CPU time. The gate lists those that
take more than three.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Generator

import pytest

from tests.gate.choice import patience
from tests.gate.failures import COST, USES_SOCKETS
from tests.support.starter import Forked, Starter

_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
"""Audit events of an interpreter that starts a process."""
_CONNECTS = {"socket.bind", "socket.connect"}
_MARKS = ("processes", "spark")
_STORIES = ("story", "spark")
CPU_S = 10
"""CPU time of a gate test, its processes included, unless it is a story."""
_MOST = 8
"""Processes that a test starts itself if its mark names no number."""


def _cpu_s() -> float:
    """CPU time of this process, and of the processes that it or the starter has waited for."""
    used = (resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used) + Forked.reaped_cpu_s


class ProcessesAreMarked:
    """Plugin that follows each test, with its fixtures, from its beginning to its end."""

    def __init__(self) -> None:
        self._started: list[str] = []
        self._connected = False
        self._cpu_s = 0.0
        self._by_call = 0
        sys.addaudithook(self._note)
        # uvloop's processes raise no audit event.
        os.register_at_fork(before=lambda: self._note("os.fork", ()))

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        # A template is this process', as the starter is, and not of the test that needs it first.
        if event in _STARTS and not Starter.begins and "serve_commands" not in str(arguments):
            self._started.append(" ".join(map(str, (event, *arguments[1:2]))))
        if event in _CONNECTS:
            self._connected = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """Begin before the first fixture."""
        self._started, self._connected, self._cpu_s, self._by_call = [], False, 0.0, 0
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure the call alone: a process that a fixture started may have run for many tests."""
        before, began_s = len(self._started), _cpu_s()
        try:
            return (yield)
        finally:
            self._cpu_s, self._by_call = _cpu_s() - began_s, len(self._started) - before
            item.user_properties.append((COST, self._cpu_s))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note if the test has opened a connection until now."""
        if self._connected and (USES_SOCKETS, True) not in item.user_properties:
            item.user_properties.append((USES_SOCKETS, True))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Judge after the end of the last fixture."""
        try:
            yield
        finally:
            marked = item.get_closest_marker("processes")
        bounded = item.config.option.gate and not _has(item, _STORIES)
        if bounded and self._cpu_s > CPU_S * patience():
            pytest.fail(f"it took {self._cpu_s:.0f} s of CPU time: mark it as a story", pytrace=False)
        if self._started and not _has(item, _MARKS):
            pytest.fail(
                f"it is not marked `processes`, and has started one: {self._started[0]}", pytrace=False
            )
        most = marked.args[0] if marked is not None and marked.args else _MOST
        if bounded and self._by_call > most:
            text = f"it has started {self._by_call} processes, and its mark allows {most}"
            pytest.fail(f"{text}: mark it `processes({self._by_call})`", pytrace=False)


def _has(item: pytest.Item, marks: tuple[str, ...]) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)
