"""What all tests share: what runs when, and that something runs at all."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.gate.choice import MARKS_OF_PARTS, Choice, LeftOut, has_mark
from tests.gate.failures import RecordFailures
from tests.support import spark_java
from tests.support.ending import EndsTests, SaysFailuresAtOnce
from tests.support.fleet import Fleet, MakeFleet
from tests.support.leftovers import ClosesLeftovers
from tests.support.marked import ProcessesAreMarked
from tests.support.needs import need_program
from tests.support.resuming import Resume
from tests.support.sizes import examples

settings.register_profile(
    "any machine", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("the gate", settings.get_profile("any machine"), derandomize=True)
settings.load_profile("any machine")  # how long an example takes, or making it, says how busy the machine is


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `tests/gate` and `tests/everything.py`."""
    parser.addoption("--gate", action="store_true", help="run the tests of the gate only")
    parser.addoption("--left-out", action="store_true", help="run tests that the gate leaves out, for 100 s")
    parser.addoption("--failures", type=Path, help="write what failed to this file")
    parser.addoption("--passed", type=Path, help="leave out the tests in this list, and add those that pass")


def pytest_configure(config: pytest.Config) -> None:
    """All that is started, by pages and examples too, begins with the tests' defaults."""
    os.environ.update(spark_java.environment())
    # Whoever imports Pydantic looks in all packages that are installed for its plugins, and finds none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    config.pluginmanager.register(ProcessesAreMarked())
    config.pluginmanager.register(EndsTests())
    config.pluginmanager.register(ClosesLeftovers())
    if config.option.gate:
        config.pluginmanager.register(Choice())
        settings.load_profile("the gate")
    if config.option.left_out:
        config.pluginmanager.register(LeftOut())
    if config.option.passed is not None:
        config.pluginmanager.register(Resume(config, config.option.passed))
    if not hasattr(config, "workerinput"):
        if config.option.failures is not None:
            config.pluginmanager.register(RecordFailures(config.option.failures))
        config.pluginmanager.register(SomethingRuns())
        config.pluginmanager.register(SaysFailuresAtOnce(config))
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As in the background of a shell: what tests start and interrupt would ignore it, too.
            signal.signal(signal.SIGINT, signal.default_int_handler)


class SomethingRuns:
    """A run in which every test was left out has shown nothing: it ends as one that found no test."""

    def __init__(self) -> None:
        self._found = self._ran = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of each test, wherever it was run."""
        self._found = True
        self._ran |= report.when == "call" and not report.skipped

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Behind the last test."""
        if self._found and not self._ran and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread the files without the mark that a run asks for: reading all takes each process many seconds."""
    wanted = config.option.markexpr.partition(" ")[0]
    if wanted not in MARKS_OF_PARTS or not collection_path.match("test_*.py"):
        return None
    return not has_mark(collection_path, wanted) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that have the longest tests."""
    longest: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0), limit.args[0] if limit else 0)
    items.sort(key=lambda item: longest[item.path], reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare Python's garbage collector the modules of all tests: it would look through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """See that Spark can run where a test needs it."""
    if item.get_closest_marker("spark") is not None:
        need_program("java")


@pytest.fixture
def make_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFleet]:
    """Makes fleets, whose workers end with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[Fleet] = []

    def make(kind: type[Fleet] = Fleet, **keys: Any) -> Fleet:
        made.append(kind(tmp_path, **keys))
        return made[-1]

    yield make
    for fleet in made:
        fleet.stop()


@pytest.fixture(scope="module")
def start_spark() -> Iterator[Callable]:
    """Starts a session with a given master; it ends with the module."""
    sessions = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")

        def start(master: str):
            from pyspark.sql import SparkSession

            settings = {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
                "spark.sql.session.timeZone": "Asia/Tokyo",
                "spark.log.level": "OFF",
            }
            builder = SparkSession.builder.master(master)
            for key, value in settings.items():
                builder = builder.config(key, value)
            sessions.append(builder.getOrCreate())
            return sessions[-1]

        yield start
        with warnings.catch_warnings():
            # py4j leaves its sockets to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            for session in sessions:
                session.stop()
            sessions.clear()
            gc.collect()
