"""The driver as its worker has it, without Spark: what it says, and how it ends."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nebuli.connectors.errors import FragmentError
from nebuli.spark.driver_messages import DONE, FAILED, PHASE, Job, Report
from nebuli.spark.driver_process import DriverProcess
from tests.support.waiting import wait_for

JOB = Job("f", "sc://nowhere", True, (), (), "", "", "", "/", "")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("says", "reports"),
    [
        ("print(words); print(report)", [Report(DONE)]),
        (
            "print(report.replace('done', 'phase')); print(report)",
            [Report(PHASE), Report(DONE)],
        ),
        (
            "print(report.replace('done', 'phase'))",
            [Report(PHASE), Report(FAILED, "its driver ended with exit code 0")],
        ),
        ("print(words)", [Report(FAILED, "its driver ended with exit code 0: a library's own words")]),
        (
            # Whoever has its standard error, as Java has, may stay for longer.
            "subprocess.Popen(['sleep', '8'], stdout=subprocess.DEVNULL); sys.exit(3)",
            [Report(FAILED, "its driver ended with exit code 3")],
        ),
    ],
)
def test_however_a_driver_ends_there_is_one_last_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, reports: list[Report]
) -> None:
    driver = tmp_path / "driver"
    words = f'words, report = "a library\'s own words", {Report(DONE).to_line()!r}'
    driver.write_text(f"#!{sys.executable}\nimport subprocess, sys\n{words}\n{says}\n", "utf-8")
    driver.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(driver))
    found: list[Report] = []
    process = DriverProcess(JOB, found.append)
    wait_for(lambda: found and found[-1].event != PHASE, "the last report")
    process.end()
    assert found == reports


@pytest.mark.parametrize(
    ("home", "where"), [(None, "no Java in the PATH"), ("/nowhere", "no Java at /nowhere/bin/java")]
)
def test_without_a_java_the_error_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, home: str | None, where: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(FragmentError, match=where) as caught:
        DriverProcess(replace(JOB, master="local"), lambda _: None)
    assert "Debian: apt-get install default-jre-headless" in str(caught.value)
