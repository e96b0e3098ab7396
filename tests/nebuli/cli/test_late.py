"""Rows that come when their window is over: a run says how many it has dropped, or fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.commands import Ended, nebuli
from tests.support.ports import free_addresses

pytestmark = pytest.mark.processes

ROWS = 200_000
LATE = 3


def run(directory: Path, *options: str) -> Ended:
    """One row per second, and at the end three of the first minute, which has long been over."""
    seconds = [*range(ROWS), *range(LATE)]
    times = (
        f"2024-01-{1 + s // 86400:02} {s // 3600 % 24:02}:{s // 60 % 60:02}:{s % 60:02}" for s in seconds
    )
    (directory / "rows.csv").write_text("at\n" + "".join(f"{time}\n" for time in times), "utf-8")
    first, second = free_addresses(2)
    physical = [{"logical": "rows", "type": "CSV", "path": "rows.csv"}]
    nodes = [
        {"address": first, "links": {"downstream": [second]}, "physical": physical},
        {"address": second, "capacity": 0, "sinks": [{"name": "out", "type": "CSV", "path": "out.csv"}]},
    ]
    logical = [{"name": "rows", "schema": [{"name": "at", "type": "timestamp"}]}]
    (directory / "topology.yaml").write_text(yaml.safe_dump({"logical": logical, "nodes": nodes}), "utf-8")
    operators = [
        {"id": "rows", "type": "source", "logical": "rows"},
        {"id": "minute", "type": "window", "input": "rows", "time": "at", "size": "1 minute"},
        {
            "id": "count",
            "type": "aggregate",
            "input": "minute",
            "by": ["window_start"],
            "aggregates": {"n": "count(*)"},
        },
        {"id": "out", "type": "sink", "input": "count", "sink": "out"},
    ]
    (directory / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    return nebuli("run", directory / "topology.yaml", directory / "query.json", *options, directory=directory)


def counted(directory: Path) -> int:
    lines = (directory / "out.csv").read_text("utf-8").splitlines()
    return sum(int(line.rpartition(",")[2]) for line in lines[1:])


def test_a_run_warns_of_rows_that_it_has_dropped(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert (ended.exit_code, counted(tmp_path)) == (0, ROWS)
    (warning,) = [line for line in ended.stderr.splitlines() if line.startswith("Warning: ")]
    assert warning.startswith(
        f"Warning: late rows, which are not in the result: {LATE}, as their windows were over: {LATE} at operator "
        "minute ("
    )


def test_a_run_that_is_to_ignore_them_says_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "--late", "ignore")
    assert (ended.exit_code, counted(tmp_path)) == (0, ROWS)
    assert "late" not in ended.stderr


def test_a_run_that_is_to_fail_publishes_nothing(tmp_path: Path) -> None:
    """The window is at another node than the sink, which hears of it before the end."""
    (tmp_path / "out.csv").write_text("as before", "utf-8")
    ended = run(tmp_path, "--late", "fail")
    assert ended.exit_code == 1
    assert f"rows came when their window was over: {LATE} at operator minute" in ended.error
    assert (tmp_path / "out.csv").read_text("utf-8") == "as before"
