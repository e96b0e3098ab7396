"""Files that grow between runs whose members are tasks of Spark: windows stay open until ``--close``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Ended, nebuli

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(580)]

TOPOLOGY = """
logical:
  - {name: visits, schema: [{name: visitor, type: int64}, {name: at, type: timestamp}]}
nodes:
  - address: 127.0.0.1:27907
    engine: spark
    master: local[2]
    physical: [{logical: visits, type: CSV, path: visits.csv}]
    sinks: [{name: counts, type: CSV, path: counts.csv}]
"""
QUERY = {
    "operators": [
        {"id": "visits", "type": "source", "logical": "visits"},
        {"id": "hours", "type": "window", "input": "visits", "time": "at", "size": "1 hour"},
        {
            "id": "counts",
            "type": "aggregate",
            "input": "hours",
            "by": ["window_start"],
            "aggregates": {"n": "count(*)"},
        },
        {"id": "out", "type": "sink", "input": "counts", "sink": "counts"},
    ]
}


def test_windows_stay_open_until_later_rows_or_close(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    (tmp_path / "query.json").write_text(json.dumps(QUERY), "utf-8")
    visits, counts = tmp_path / "visits.csv", tmp_path / "counts.csv"
    visits.write_text("visitor,at\n", "utf-8")

    def run(*times: str, options: tuple[str, ...] = ()) -> Ended:
        with visits.open("a", encoding="utf-8") as file:
            file.writelines(f"1,2024-01-01T{time}\n" for time in times)
        files = tmp_path / "topology.yaml", tmp_path / "query.json"
        members = ("--on", "spark", "--members", "2", "--state", tmp_path / "state")
        ended = nebuli("run", "--stepped", *members, *options, *files, directory=tmp_path)
        assert ended.exit_code == 0, ended.stderr
        return ended

    def found() -> dict[str, int]:
        _, *lines = counts.read_text("utf-8").splitlines()
        return {line[11:13]: int(line.split(",")[1]) for line in lines}

    ended = run("00:00:00", "00:10:00")
    assert "open windows wait for rows of a further run, or for --close: 2024-01-01T00:00:00Z" in ended.stderr
    assert found() == {"00": 2}
    ended = run("00:20:00", "02:00:00", options=("--close", "--late", "fail"))
    assert ended.stderr.endswith(" s  done\n")
    assert found() == {"00": 3, "02": 1}
    ended = run("02:10:00", "03:00:00")
    assert "Warning: 1 late row " in ended.stderr
    assert found() == {"00": 3, "02": 1, "03": 1}
