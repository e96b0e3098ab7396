"""The level and the form of log lines are those that the command line was given, also in processes that it starts."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import datetime

import pytest
from click.testing import CliRunner

from nebuli import log_output
from nebuli.cli import nebuli

pytestmark = pytest.mark.processes

LOGS = """
import logging
from nebuli.log_output import log_to_stderr
log_to_stderr("%(levelname)s %(message)s")
for name in ("nebuli.node", "netchannel", "another"):
    logging.getLogger(name).info("%s begins", name)
    logging.getLogger(name).warning("%s waits", name)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("nebuli").exception("the query has failed\\n\\u00e9")
"""


def lines(**environment: str) -> list[str]:
    """The lines on the standard error of a process."""
    asked = [sys.executable, "-c", LOGS]
    given = {**os.environ, "PYTHONUTF8": "1", **environment}
    done = subprocess.run(asked, check=True, capture_output=True, encoding="utf-8", env=given, timeout=60)
    return done.stderr.splitlines()


def test_warnings_and_errors_are_logged_as_text_by_default() -> None:
    found = lines()
    assert found[:4] == [
        "WARNING nebuli.node waits",
        "WARNING netchannel waits",
        "WARNING another waits",
        "ERROR the query has failed",
    ]
    assert found[-1] == "ZeroDivisionError: division by zero"


def test_verbose_has_more_of_these_packages_and_json_is_a_line_for_each_record() -> None:
    found = [json.loads(line) for line in lines(NEBULI_LOG_LEVEL="info", NEBULI_LOG_FORMAT="json")]
    assert [(each["level"], each["logger"], each["message"]) for each in found] == [
        ("info", "nebuli.node", "nebuli.node begins"),
        ("warning", "nebuli.node", "nebuli.node waits"),
        ("info", "netchannel", "netchannel begins"),
        ("warning", "netchannel", "netchannel waits"),
        ("warning", "another", "another waits"),
        ("error", "nebuli", "the query has failed\né"),
    ]
    assert found[-1]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert all(datetime.fromisoformat(each["time"]).utcoffset() is not None for each in found)
    assert len({each["process"] for each in found}) == 1


@pytest.mark.parametrize("variable", ["NEBULI_LOG_LEVEL", "NEBULI_LOG_FORMAT"])
def test_a_setting_without_meaning_is_invalid_input(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "loud")
    done = CliRunner().invoke(nebuli, ["list"])
    assert done.exit_code == 2
    assert f"{variable} is 'loud': expected " in done.output


@pytest.mark.parametrize(("level", "quiet"), [("", False), ("error", True), ("info", False)])
def test_quiet_has_errors_only(monkeypatch: pytest.MonkeyPatch, level: str, quiet: bool) -> None:
    monkeypatch.setenv(log_output.LEVEL_VARIABLE, level)
    assert log_output.is_quiet() is quiet
    assert log_output.stderr_handler().level >= (logging.ERROR if quiet else logging.INFO)
