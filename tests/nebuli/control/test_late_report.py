"""Rows that windows drop, as they are late or have no time: a run says how many these were, or fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from nebuli.connectors.errors import RowsWithoutTime
from nebuli.control.late_report import LateReport
from nebuli.rpc.status import FragmentState, FragmentStatus
from placement.plan import SparkEngine
from tests.nebuli.dataflow.windowed import fragment, source, window
from tests.support.commands import Ended, nebuli
from tests.support.ports import free_addresses

ROWS = 200_000
LATE = 3


SECONDS = [*range(ROWS), *range(LATE)]
"""One row per second, and at the end three of the first minute, which has long been over."""


def run(directory: Path, *options: str, seconds: Sequence[int | None] = SECONDS) -> Ended:
    """Rows at these seconds; None: without a time."""
    times = (
        "" if s is None else f"2024-01-{1 + s // 86400:02} {s // 3600 % 24:02}:{s // 60 % 60:02}:{s % 60:02}"
        for s in seconds
    )
    lines = "".join(f"{number},{time}\n" for number, time in enumerate(times))
    (directory / "rows.csv").write_text(f"id,at\n{lines}", "utf-8")
    first, second = free_addresses(2)
    physical = [{"logical": "rows", "type": "CSV", "path": "rows.csv"}]
    nodes = [
        {"address": first, "links": {"downstream": [second]}, "physical": physical},
        {"address": second, "capacity": 0, "sinks": [{"name": "out", "type": "CSV", "path": "out.csv"}]},
    ]
    columns = [{"name": "id", "type": "int64"}, {"name": "at", "type": "timestamp"}]
    logical = [{"name": "rows", "schema": columns}]
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


@pytest.mark.processes
def test_a_run_warns_of_rows_that_it_has_dropped(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert (ended.exit_code, counted(tmp_path)) == (0, ROWS)
    (warning,) = [line for line in ended.stderr.splitlines() if line.startswith("Warning: ")]
    assert warning.startswith(f"Warning: {LATE} late rows ")
    assert f"{LATE} at operator minute (" in warning


@pytest.mark.processes
def test_a_run_that_is_to_ignore_them_says_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, "--late", "ignore")
    assert (ended.exit_code, counted(tmp_path)) == (0, ROWS)
    assert "late" not in ended.stderr


@pytest.mark.processes
def test_a_run_that_is_to_fail_publishes_nothing(tmp_path: Path) -> None:
    """The window is at another node than the sink, which hears of it before the end."""
    (tmp_path / "out.csv").write_text("as before", "utf-8")
    ended = run(tmp_path, "--late", "fail")
    assert ended.exit_code == 1
    assert f"rows arrived after their window had closed: {LATE} at operator minute" in ended.error
    assert (tmp_path / "out.csv").read_text("utf-8") == "as before"


@pytest.mark.processes
def test_rows_without_a_time_are_not_late_and_fail_a_run_that_is_to_fail(tmp_path: Path) -> None:
    seconds = [0, None, 600, None]
    ended = run(tmp_path, "--json", seconds=seconds)
    assert (ended.exit_code, counted(tmp_path)) == (0, 2)
    (warning,) = [line for line in ended.stderr.splitlines() if line.startswith("Warning: ")]
    assert "late" not in warning
    assert "2 at operator minute, where column at is NULL (" in warning
    numbers = [
        (each["late_rows"], each["rows_without_time"]) for each in json.loads(ended.stdout)["fragments"]
    ]
    assert sorted(numbers) == [(0, 0), (0, 2)]
    (tmp_path / "out.csv").write_text("as before", "utf-8")
    failed = run(tmp_path, "--late", "fail", seconds=seconds)
    assert failed.exit_code == 1
    assert (
        "2 at operator minute, where column at is NULL; with --late fail, such rows make the query"
        in failed.error
    )
    assert (tmp_path / "out.csv").read_text("utf-8") == "as before"


def warnings(engine: SparkEngine | None = None, **dropped: dict[str, int]) -> list[str]:
    """Those of a fragment whose window goes by ``t``."""
    plan = fragment(source("a"), window("w", "a", 60, 60, 0)).model_copy(update={"engine": engine})
    rows = LateReport()
    rows.report(plan, FragmentStatus("1", plan.id, FragmentState.FINISHED, **dropped))
    return rows.warnings()


def test_each_reason_has_a_sentence_with_its_own_count_and_remedy() -> None:
    assert warnings() == []
    (late,) = warnings(late={"w": 1})
    assert late.startswith("1 late row ")
    assert ": 1 at operator w (" in late
    assert "lateness" in late
    (without_time,) = warnings(without_time={"w": 1200})
    assert without_time.startswith("1,200 rows ")
    assert ": 1,200 at operator w, where column t is NULL (" in without_time
    assert without_time.endswith("filter them out before the window (t IS NOT NULL), or fill in the time")
    assert warnings(late={"w": 1}, without_time={"w": 1200}) == [late, without_time]


@pytest.mark.parametrize("bounded", [False, True])
def test_rows_that_spark_drops_are_said_not_to_be_counted(bounded: bool) -> None:
    (unknown,) = warnings(SparkEngine(master="local[1]", bounded=bounded))
    assert "q/out at n:1" in unknown
    assert "Spark" in unknown


def test_the_columns_without_times_are_named_once_each_and_without_control_characters() -> None:
    times = {"v": "at", "w": "at", "x": "seen\x1b"}
    text = str(RowsWithoutTime({"v": 1, "w": 2, "x": 3}, times))
    assert "1 at operator v, where column at is NULL, 2 at operator w, where column at is NULL, 3 at" in text
    assert "(at IS NOT NULL, seen\\x1b IS NOT NULL)" in text
