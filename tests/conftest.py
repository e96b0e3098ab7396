"""What all tests share: what runs side by side and when, and whether Spark can run here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import Fleet, MakeFleet

_HOW = (
    "install a Java runtime 17 or later (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
)


_PAGES = ("tests/docs/test_snippets.py", "tests/examples/")
"""What pages and examples do, they do at ports of their own: one after the other, where tests run side by side."""


def pytest_configure() -> None:
    """All sessions of Spark, those of pages and examples too, start with the tests' defaults."""
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "support" / "spark_conf"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what cannot run side by side, and begin with the modules that have the longest tests."""
    longest: dict[Path, float] = {}
    for item in items:
        if item.nodeid.startswith(_PAGES):
            item.add_marker(pytest.mark.xdist_group("pages"))
        limit = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0), limit.args[0] if limit else 0)
    items.sort(key=lambda item: longest[item.path], reverse=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out tests of Spark where it cannot run, but not on the build server: there that is a failure."""
    if item.get_closest_marker("spark") is None:
        return
    reason = _why_no_spark()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@cache
def _why_no_spark() -> str | None:
    if importlib.util.find_spec("pyspark") is None:
        return "Spark tests need PySpark: make setup"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        return f"Spark tests need Java, and there is none: {_HOW}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < 17:
        found = version[1] if version else said.strip()
        return f"Spark tests need Java 17 or later, and {java} is {found}: {_HOW}"
    return None


@pytest.fixture
def make_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFleet]:
    """Makes fleets, whose workers end with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[Fleet] = []

    def make(**keys: Any) -> Fleet:
        made.append(Fleet(tmp_path, **keys))
        return made[-1]

    yield make
    for fleet in made:
        fleet.stop()
