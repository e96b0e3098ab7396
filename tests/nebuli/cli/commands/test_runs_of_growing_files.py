"""``nebuli run --stepped`` over files that grow between runs: windows stay open until later rows or ``--close``."""

from __future__ import annotations

import datetime as dt
import json
import re
import signal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nebuli import blocking as nebuli_client
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.test_split_runs import GROWS, Story, story
from tests.nebuli.dataflow.windowed import COLUMNS, EPOCH, Changes, Row, starts, table
from tests.support.commands import Command, Ended, nebuli
from tests.support.seeds import drawn_seed

pytestmark = [pytest.mark.processes, pytest.mark.long]


class Daily:
    """Rows of visitors, by their time, in a file; how many there are in each hour, in another one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mode = "final"
        self.sources = ["visits", "names"]
        self.operators: list[dict[str, Any]] = [
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
        (directory / "visits.csv").write_text("visitor,at\n", "utf-8")
        (directory / "names.csv").write_text("visitor,name\n", "utf-8")

    def append(self, *times: str, visitor: int = 1) -> None:
        with (self.directory / "visits.csv").open("a", encoding="utf-8") as file:
            file.writelines(f"{visitor},2024-01-01T{time}\n" for time in times)

    def arguments(self, *options: str) -> tuple[str | Path, ...]:
        logical = {
            "visits": [{"name": "visitor", "type": "int64"}, {"name": "at", "type": "timestamp"}],
            "names": [{"name": "visitor", "type": "int64"}, {"name": "name", "type": "string"}],
        }
        node = {
            "address": "127.0.0.1:27905",
            "physical": [{"logical": name, "type": "CSV", "path": f"{name}.csv"} for name in self.sources],
            "sinks": [{"name": "counts", "type": "CSV", "path": "counts.csv", "mode": self.mode}],
        }
        topology = {
            "logical": [{"name": name, "schema": schema} for name, schema in logical.items()],
            "nodes": [node],
        }
        (self.directory / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")
        (self.directory / "query.json").write_text(json.dumps({"operators": self.operators}), "utf-8")
        files = self.directory / "topology.yaml", self.directory / "query.json"
        return "run", "--stepped", "--state", self.directory / "state", *options, *files

    def run(self, *options: str) -> str:
        """Run it; the last line."""
        ended = self.ended(*options)
        assert ended.exit_code == 0, ended.stderr
        return ended.stderr.splitlines()[-1].partition(" s  ")[2]

    def ended(self, *options: str) -> Ended:
        return nebuli(*self.arguments(*options), directory=self.directory)

    @property
    def counts(self) -> dict[str, int]:
        """By hour; each stands once in the file."""
        _, *lines = (self.directory / "counts.csv").read_text("utf-8").splitlines()
        found = {line[11:13]: int(line.split(",")[1]) for line in lines}
        assert len(found) == len(lines)
        return found


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    return Daily(tmp_path)


def open_windows(first: int, last: int, operator: str = "counts") -> str:
    begin, end = (f"2024-01-01T{hour:02}:00:00Z" for hour in (first, last))
    return (
        f"done; open windows wait for rows of a further run, or for --close: {begin} to {end} at operator "
        f"{operator}"
    )


def test_appended_rows_are_not_late_and_the_last_line_names_the_windows_that_stay_open(daily: Daily) -> None:
    daily.append("00:00:00", "00:10:00")
    assert daily.run() == open_windows(0, 1)
    assert daily.counts == {"00": 2}
    daily.append("00:59:00", "02:00:00")
    ended = daily.ended("--json", "--late", "fail")
    assert "late" not in ended.stderr, "nothing is late"
    assert json.loads(ended.stdout)["open_windows"] == {
        "counts": ["2024-01-01T02:00:00Z", "2024-01-01T03:00:00Z"]
    }
    assert daily.counts == {"00": 3, "02": 1}
    assert daily.run() == open_windows(2, 3), "a run without new rows changes nothing"
    assert daily.counts == {"00": 3, "02": 1}


def test_the_row_of_the_next_day_is_not_late(daily: Daily) -> None:
    """Nothing is asked for but to run the same command again over the file that has grown."""
    daily.append("00:00:00", "00:10:00")
    daily.run()
    counts = daily.directory / "counts.csv"
    assert counts.read_text("utf-8") == '"window_start","n"\n2024-01-01 00:00:00.000000Z,2\n'
    with (daily.directory / "visits.csv").open("a", encoding="utf-8") as file:
        file.write("3,2024-01-02 00:00:00\n")
    ended = daily.ended()
    assert ended.exit_code == 0, ended.stderr
    assert "Warning" not in ended.stderr
    header, *rows = counts.read_text("utf-8").splitlines()
    assert (header, sorted(rows)) == (
        '"window_start","n"',
        ["2024-01-01 00:00:00.000000Z,2", "2024-01-02 00:00:00.000000Z,1"],
    )


def test_after_close_rows_of_closed_windows_are_late_and_later_ones_are_not(daily: Daily) -> None:
    daily.append("00:00:00", "01:10:00")
    assert daily.run() == open_windows(1, 2), "the one before is over"
    assert daily.run("--close") == "done"
    assert daily.counts == {"00": 1, "01": 1}
    daily.append("01:20:00", "02:00:00", "02:10:00")
    ended = daily.ended()
    assert "Warning: 1 late row " in ended.stderr
    assert ": 1 at operator hours; " in ended.stderr
    assert "another --state" not in ended.stderr
    assert ended.stderr.endswith(f"{open_windows(2, 3)}\n")
    assert daily.counts == {"00": 1, "01": 1, "02": 2}
    assert daily.run("--close", "--late", "ignore") == "done"
    daily.append("02:30:00", "04:00:00")
    assert "Warning: 2 late rows " in daily.ended("--close").stderr
    assert daily.counts == {"00": 1, "01": 1, "02": 2, "04": 1}


BIGGEST = 2**63 - 1


@pytest.mark.parametrize("members", ["1", "2"])
def test_windows_whose_sum_is_beyond_its_range_stay_open_by_skip_step_and_close_later(
    daily: Daily, members: str
) -> None:
    """The step that closes them has no rows, and is in the log: it would fail in each later run."""
    daily.operators[2] |= {"aggregates": {"n": "sum(visitor)"}}
    daily.append("03:00:00")
    options = ("--members", members)
    assert daily.run(*options) == open_windows(3, 4)
    before = daily.counts
    daily.append("03:10:00", visitor=BIGGEST)
    closed = daily.ended(*options, "--close")
    assert closed.exit_code == 2, closed.stderr
    said = re.search(r"step (\d+) of input visits cannot be computed: .* --skip-step \1 ", closed.error)
    assert said, closed.error
    skipped = daily.ended(*options, "--skip-step", said[1])
    assert (skipped.exit_code, "append them to the source's file" in skipped.error) == (2, True)
    assert daily.counts == before, "the file stays"
    daily.append("03:20:00", visitor=-5)
    ended = daily.ended(*options, "--close")
    assert f"step {said[1]} leaves windows open, because of --skip-step" in ended.stderr
    assert ended.stderr.endswith(" s  done\n")
    assert daily.counts == {"03": BIGGEST - 4}


def test_a_sink_that_is_appended_to_has_each_window_once_it_is_over(daily: Daily) -> None:
    daily.mode = "append"
    daily.append("00:00:00", "00:10:00")
    assert daily.run() == open_windows(0, 1)
    assert daily.counts == {}
    daily.append("00:20:00", "01:00:00")
    assert daily.run() == open_windows(1, 2)
    assert daily.counts == {"00": 3}
    for _ in range(2):
        assert daily.run("--close") == "done"
        assert daily.counts == {"00": 3, "01": 1}
    daily.append("02:00:00")
    assert daily.run() == open_windows(2, 3)
    assert daily.counts == {"00": 3, "01": 1}


def test_rows_of_a_joined_table_may_come_in_a_later_run(daily: Daily) -> None:
    """The windows above wait for more of them, as one of any window may match: until the run with --close."""
    daily.operators[2:3] = [
        {"id": "names", "type": "source", "logical": "names"},
        {"id": "named", "type": "join", "inputs": ["hours", "names"], "on": ["visitor"]},
        {**daily.operators[2], "input": "named"},
    ]
    daily.append("00:00:00", "00:10:00", "03:00:00")
    assert daily.run() == "done", "no row has a match"
    assert daily.counts == {}
    with (daily.directory / "names.csv").open("a", encoding="utf-8") as file:
        file.write("1,Ada\n")
    assert daily.run() == open_windows(0, 4)
    assert daily.counts == {"00": 2, "03": 1}
    daily.append("05:00:00")
    assert daily.run("--close", "--late", "fail") == "done"
    assert daily.counts == {"00": 2, "03": 1, "05": 1}


@pytest.mark.parametrize("members", ["1", "2"])
@pytest.mark.parametrize("options", [(), ("--close",)])
def test_a_run_that_is_killed_gives_the_same_when_it_is_started_again(
    daily: Daily, options: tuple[str, ...], members: str
) -> None:
    daily.append("00:00:00")
    daily.run("--members", members)
    daily.append(*(f"{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}" for n in range(0, 36_000, 2)))
    for number in range(6):
        command = Command(*daily.arguments("--checkpoint-every", "0.1", *options), directory=daily.directory)
        command.wait_until_said("running") if number % 2 else command.wait_until_said("all inputs have ended")
        command.process.send_signal(signal.SIGKILL)
        command.end()
    assert daily.run(*options, "--late", "fail").startswith("done" if options else open_windows(9, 10))
    assert daily.counts == {f"{hour:02}": 1800 + (hour == 0) for hour in range(10)}


def test_a_circuit_that_is_shut_down_shows_open_windows_and_closes_them_if_it_is_to(daily: Daily) -> None:
    """Rows that are pushed: without ``--close`` a further run may have more of each window."""
    daily.sources = []

    def pushed(*times: str, options: tuple[str, ...] = ()) -> Ended:
        command = Command(*daily.arguments("--serve", "127.0.0.1:0", *options), directory=daily.directory)
        command.wait_until_said("serving at", "running")
        said = (daily.directory / "stderr.txt").read_text("utf-8")
        address = said.partition("serving at ")[2].split()[0]
        with nebuli_client.Circuit(address, deadline_s=60.0) as circuit:
            schema = circuit.inputs["visits"]
            rows = [dt.datetime.fromisoformat(f"2024-01-01T{time}") for time in times]
            at = pa.array(rows, pa.timestamp("us")).cast(schema.field("at").type)
            columns = {"visitor": pa.array([1] * len(rows), pa.int64()), "at": at}
            batch = pa.record_batch([columns[name] for name in schema.names], names=schema.names)
            number = circuit.next_sequence("visits", producer="door")
            circuit.push("visits", batch, producer="door", sequence=number)
            circuit.shut_down()
        ended = command.end()
        assert ended.exit_code == 0, ended.stderr
        return ended

    assert open_windows(0, 1) in pushed("00:00:00", "00:10:00").stderr
    assert daily.counts == {"00": 2}
    assert open_windows(2, 3) in pushed("00:50:00", "02:00:00", options=("--late", "fail")).stderr
    assert daily.counts == {"00": 3, "02": 1}
    assert pushed("02:10:00", options=("--close", "--late", "fail")).stderr.endswith(" s  done\n")
    assert daily.counts == {"00": 3, "02": 2}
    ended = pushed("02:20:00", "04:00:00")
    assert "Warning: 1 late row " in ended.stderr
    assert open_windows(4, 5) in ended.stderr
    assert daily.counts == {"00": 3, "02": 2, "04": 1}


# -- the law, by the command


class _Files:
    """The sources of a story, as CSV files."""

    def __init__(self, directory: Path, story: Story) -> None:
        self.directory = directory
        self._sql = story.shape.sql
        self._slide = story.slide
        self._rows: dict[str, Changes] = {"a": [], "b": []}
        physical = []
        for input_, names in GROWS.items():
            for name in names:
                physical.append({"logical": input_, "type": "CSV", "path": f"{name}.csv"})
                (directory / f"{name}.csv").write_text("t,k,x\n", "utf-8")
        schema = [column.model_dump(mode="json") for column in COLUMNS]
        sink = {"name": "out", "type": "Parquet", "path": "out.parquet"}
        node = {"address": "127.0.0.1:27906", "physical": physical, "sinks": [sink]}
        topology = {"logical": [{"name": name, "schema": schema} for name in "ab"], "nodes": [node]}
        (directory / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
        sources = [{"id": name, "type": "source", "logical": name} for name in story.inputs]
        out = {"id": "out", "type": "sink", "input": story.shape.operators[-1]["id"], "sink": "out"}
        operators = [*sources, *story.shape.operators, out]
        (directory / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")

    def append(self, rows: dict[str, list[Changes]]) -> None:
        for input_, names in GROWS.items():
            for name in names:
                new = [row for piece in rows[name] for row in piece]
                self._rows[input_] += new
                with (self.directory / f"{name}.csv").open("a", encoding="utf-8") as file:
                    file.writelines(_line(row) for row, _ in new)

    def command(self, *options: str) -> Command:
        arguments = ["run", "--stepped", "--state", self.directory / "state", "--late", "fail", *options]
        files = self.directory / "topology.yaml", self.directory / "query.json"
        return Command(*arguments, *files, directory=self.directory)

    def check(self) -> None:
        """The result is DuckDB's of all rows so far."""
        tables = {name: table(rows) for name, rows in self._rows.items()}
        wanted = oracle.query(self._sql, {**tables, "starts": starts(self._slide)})[1]
        found = pq.read_table(self.directory / "out.parquet").to_pylist()
        assert oracle.multiset(tuple(row.values()) for row in found) == oracle.multiset(wanted)


def _line(row: Row) -> str:
    seconds, key, value = row
    time = "" if seconds is None else (EPOCH + dt.timedelta(seconds=seconds)).isoformat()
    return f"{time},{'' if key is None else key},{'' if value is None else value}\n"


@pytest.mark.parametrize("part", range(10))
def test_rows_split_over_runs_of_the_command_give_the_table_of_one_run(part: int, tmp_path: Path) -> None:
    """In parts, each of a few queries. Some runs are killed, and started again; the last one closes what is open."""
    with drawn_seed() as first:
        for number in range(3):
            (folder := tmp_path / str(number)).mkdir()
            _check(story(first + 3 * part + number), folder)


def _check(told: Story, folder: Path) -> None:
    random = Random(told.seed)
    files = _Files(folder, told)
    for rows in told.runs:
        files.append(rows)
        options = ["--members", str(told.members), "--checkpoint-every", "0.1"]
        if random.random() < 0.3:
            command = files.command(*options)
            command.wait_until_said(random.choice(["starting", "running", "all inputs have ended"]))
            command.process.send_signal(signal.SIGKILL)
            command.end()
        ended = files.command(*options).end()
        assert ended.exit_code == 0, ended.stderr
        files.check()
    ended = files.command("--close").end()
    assert ended.stderr.splitlines()[-1].endswith("s  done"), ended.stderr
    files.check()
