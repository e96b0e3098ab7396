"""Queries in steps at workers whose files grow between starts: windows stay open until ``nebuli start ID --close``."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.fleet import Fleet, MakeFleet

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

QUERY = {
    "operators": [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "hours", "type": "window", "input": "in", "time": "t", "size": "1 hour"},
        {
            "id": "counts",
            "type": "aggregate",
            "input": "hours",
            "by": ["window_start"],
            "aggregates": {"rows": "count(*)"},
        },
        {"id": "out", "type": "sink", "input": "counts", "sink": "out"},
    ]
}


class Hours:
    """Rows in a file at one node, and how many there are in each hour in a file at another one."""

    def __init__(self, fleet: Fleet, mode: str) -> None:
        self.fleet = fleet
        self._file = fleet.directory / "numbers.csv"
        self._file.write_text("n,t\n", "utf-8")
        columns = [{"name": "n", "type": "int64"}, {"name": "t", "type": "timestamp"}]
        fleet.data["logical"][0]["schema"] = columns
        fleet.data["nodes"][0]["physical"] = [{"logical": "numbers", "type": "CSV", "path": str(self._file)}]
        fleet.data["nodes"][1]["sinks"][0]["mode"] = mode
        fleet.topology = fleet.written()
        fleet.query.write_text(json.dumps(QUERY), "utf-8")
        fleet.start()
        self._id = ""

    def append(self, *times: str, n: int = 1) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(f"{n},2024-01-01T{time}\n" for time in times)

    def run(self, *options: str, state: str = "finished") -> dict[str, Any]:
        """To its end: its status then."""
        which = (
            [self._id] if self._id else ["--stepped", "--members", "3", self.fleet.topology, self.fleet.query]
        )
        ended = self.fleet.run("start", *options, *which)
        assert ended.exit_code == 0, ended.stderr
        self._id = ended.stdout.strip()
        status: dict[str, Any] = self.fleet.wait_for_state(self._id, state)
        return status

    @property
    def logs(self) -> str:
        return str(self.fleet.run("logs", self._id).stdout)

    @property
    def counts(self) -> dict[str, int]:
        _, *lines = self.fleet.out.read_text("utf-8").splitlines()
        assert len(lines) == len({line[:13] for line in lines})
        return {line[11:13]: int(line.split(",")[1]) for line in lines}


def late(status: dict[str, Any]) -> int:
    return sum(each["late_rows"] for each in status["fragments"])


@pytest.mark.parametrize("mode", ["final", "append"])
def test_windows_stay_open_until_later_rows_or_close(make_fleet: MakeFleet, mode: str) -> None:
    hours = Hours(make_fleet(), mode)
    is_final = mode == "final"
    hours.append("00:00:00", "00:10:00")
    hours.run()
    assert hours.counts == ({"00": 2} if is_final else {})
    assert "2024-01-01T00:00:00Z to 2024-01-01T01:00:00Z at operator counts" in hours.logs
    hours.append("00:20:00", "02:00:00")
    assert late(hours.run()) == 0
    assert hours.counts == {"00": 3} | ({"02": 1} if is_final else {})
    hours.append("02:10:00")
    assert late(hours.run("--close")) == 0
    assert hours.counts == {"00": 3, "02": 2}
    hours.append("02:20:00", "03:00:00")
    assert late(hours.run()) == 1, "of what was closed"
    assert hours.counts == {"00": 3, "02": 2} | ({"03": 1} if is_final else {})
    hours.append("03:10:00")
    assert late(hours.run("--close")) == 1
    assert hours.counts == {"00": 3, "02": 2, "03": 2}


def test_a_step_that_cannot_close_windows_leaves_them_open_by_skip_step(make_fleet: MakeFleet) -> None:
    """A sum is beyond its range, and rows of a later start bring it back."""
    hours = Hours(make_fleet(), "final")
    query = json.loads(json.dumps(QUERY))
    query["operators"][2]["aggregates"] = {"sum": "sum(n)"}
    hours.fleet.query.write_text(json.dumps(query), "utf-8")
    hours.append("00:00:00", n=2**63 - 1)
    hours.run()
    hours.append("00:10:00")
    errors = [each["error"] for each in hours.run("--close", state="failed")["fragments"]]
    (step,) = {
        found[1] for each in errors if (found := re.match(r"step (\d+) of .* This step closes windows", each))
    }
    hours.append("00:20:00", n=-5)
    hours.run("--skip-step", step)
    assert hours.counts == {"00": 2**63 - 5}, "in a window that stays open"
    hours.append("00:30:00", n=-1)
    assert late(hours.run("--close")) == 0
    assert hours.counts == {"00": 2**63 - 6}
