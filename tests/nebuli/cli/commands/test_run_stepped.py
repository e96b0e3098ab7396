"""``nebuli run --stepped`` as its users see it: what is said, exit codes, and what is left."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.commands import Command, Ended, nebuli
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]


class Case:
    """Sales in two files, and their totals by shop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sources: list[dict[str, Any]] = [
            {"type": "CSV", "path": "a.csv"},
            {"type": "CSV", "path": "b.csv"},
        ]
        self.sink: dict[str, Any] = {"type": "CSV", "path": "totals.csv"}
        self.operators: list[dict[str, Any]] = [
            {"id": "sales", "type": "source", "logical": "sales"},
            {
                "id": "totals",
                "type": "aggregate",
                "input": "sales",
                "by": ["shop"],
                "aggregates": {"amount": "sum(amount)"},
            },
            {"id": "out", "type": "sink", "input": "totals", "sink": "totals"},
        ]
        self.write("a.csv", "x,1,2024-01-01T00:00:00", "y,2,2024-01-01T00:00:01")
        self.write("b.csv", "x,10,2024-01-01T00:00:02")

    def write(self, name: str, *rows: str) -> None:
        (self.directory / name).write_text("\n".join(("shop,amount,at", *rows, "")), "utf-8")

    def arguments(self, *options: str, state: str = "state") -> tuple[str | Path, ...]:
        """Write the files; the command."""
        schema = [
            {"name": "shop", "type": "string"},
            {"name": "amount", "type": "int64"},
            {"name": "at", "type": "timestamp"},
        ]
        node = {
            "address": "127.0.0.1:27900",
            "physical": [{"logical": "sales", **source} for source in self.sources],
            "sinks": [{"name": "totals", **self.sink}],
        }
        topology = {"logical": [{"name": "sales", "schema": schema}], "nodes": [node]}
        (self.directory / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")
        (self.directory / "query.json").write_text(json.dumps({"operators": self.operators}), "utf-8")
        files = self.directory / "topology.yaml", self.directory / "query.json"
        return "run", "--stepped", "--state", self.directory / state, *options, *files

    def run(self, *options: str, state: str = "state") -> Ended:
        return nebuli(*self.arguments(*options, state=state), directory=self.directory)

    def start(self, *options: str) -> Command:
        return Command(*self.arguments(*options), directory=self.directory)

    @property
    def totals(self) -> set[str]:
        header, *rows = (self.directory / "totals.csv").read_text("utf-8").splitlines()
        assert header == '"shop","amount"'
        assert len(rows) == len(set(rows))
        return set(rows)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def without_times(stderr: str) -> list[str]:
    return [line.partition(" s  ")[2] for line in stderr.splitlines()]


def test_what_changes_is_said_and_the_result_is_in_its_file(case: Case) -> None:
    ended = case.run("--members", "2")
    assert (ended.exit_code, ended.stdout) == (0, ""), ended.stderr
    said = without_times(ended.stderr)
    assert said[:2] == ["starting 2 members", "2 members running, from the beginning"]
    assert said[-1] == "done"
    assert case.totals == {'"x",11', '"y",2'}


def test_none_of_its_processes_imports_pandas(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which Arrow would, in each process anew, to make an array of a list."""
    (case.directory / "pandas.py").write_text(
        f"open({str(case.directory / 'imported')!r}, 'w').close()", "utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(case.directory))
    ended = case.run("--members", "2")
    assert ended.exit_code == 0, ended.stderr
    assert not (case.directory / "imported").exists()


def test_run_again_it_goes_on_and_gives_the_same(case: Case) -> None:
    """Also what was written behind the end of a file meanwhile is read."""
    assert case.run().exit_code == 0
    case.write("b.csv", "x,10,2024-01-01T00:00:02", "z,5,2024-01-01T00:00:03")
    ended = case.run()
    assert ended.exit_code == 0, ended.stderr
    assert "1 member running, from step 2" in ended.stderr
    assert case.totals == {'"x",11', '"y",2', '"z",5'}


def test_as_json_it_says_how_it_ended(case: Case) -> None:
    ended = case.run("--json", "--members", "2")
    data = json.loads(ended.stdout)
    seconds = data.pop("seconds")
    assert 0 < seconds < 240
    assert data.pop("steps") >= 2
    assert data.pop("checkpoints") >= 1
    assert data == {
        "exit_code": 0,
        "error": None,
        "members": 2,
        "epochs": 1,
        "late_rows": {},
        "rows_without_time": {},
        "open_windows": {},
        "skipped_rows": [],
    }
    case.sink = {"type": "Print"}
    assert "--json and the sink out (Print)" in case.run("--json", state="other").error


def test_what_is_wrong_with_a_file_is_bad_input(case: Case) -> None:
    case.write("b.csv", "x,ten,2024-01-01T00:00:02")
    ended = case.run("--json")
    assert ended.exit_code == 2
    assert ended.error == (
        "b.csv, line 2, column amount: 'ten' is not a valid int64 (at member 0). When that is fixed, start the query "
        "again: it continues where it was"
    )
    data = json.loads(ended.stdout)
    assert (data["exit_code"], data["error"]) == (2, ended.error)
    assert not (case.directory / "totals.csv").exists()
    case.write("b.csv", "x,10,2024-01-01T00:00:02")
    assert case.run().exit_code == 0, "mended, it goes on"
    assert case.totals == {'"x",11', '"y",2'}


@pytest.mark.parametrize(
    "option",
    [("--on-loss", "fail"), ("--strategy", "optimal"), ("--seed", "1"), ("--engine", "spark")],
    ids=lambda option: option[0],
)
def test_an_option_of_free_queries_is_refused(case: Case, option: tuple[str, str]) -> None:
    ended = case.run(*option)
    assert ended.exit_code == 2
    assert ended.error.startswith(f"{option[0]} does not apply with --stepped")
    assert not (case.directory / "state").exists()


def test_options_of_stepped_queries_need_it_and_it_needs_a_folder(case: Case) -> None:
    *_, topology, query = case.arguments()
    alone = nebuli("run", "--stepped", topology, query, directory=case.directory)
    assert (alone.exit_code, "--stepped requires --state" in alone.error) == (2, True)
    free = nebuli("run", "--members", "2", topology, query, directory=case.directory)
    assert (free.exit_code, free.error.partition(" ")[0]) == (2, "--members")
    assert "add --stepped" in free.error


def with_windows(case: Case, *options: str, **more: str) -> Case:
    """A query of windows that a run has closed, and rows that come after that.

    ``more`` are settings of the window.
    """
    case.sources = [{"type": "CSV", "path": "a.csv"}]
    window = {
        "id": "hours",
        "type": "window",
        "input": "sales",
        "time": "at",
        "size": "1 hour",
        "lateness": "1 second",
        **more,
    }
    total = {
        "id": "totals",
        "type": "aggregate",
        "input": "hours",
        "by": ["shop", "window_start"],
        "aggregates": {"amount": "sum(amount)"},
    }
    case.operators = [case.operators[0], window, total, case.operators[2]]
    early = ["x,1,2024-01-01T00:30:00", "x,2,2024-01-01T05:00:00"]
    case.write("a.csv", *early)
    assert case.run(*options).exit_code == 0
    case.write("a.csv", *early, "y,3,2024-01-01T00:40:00", "y,4,2024-01-01T00:50:00", "y,5,")
    return case


def test_rows_that_were_late_are_said_at_the_end(case: Case) -> None:
    """Rows that came before them have closed their windows."""
    ended = with_windows(case).run("--json")
    assert ended.exit_code == 0, ended.stderr
    assert "Warning: 2 late rows " in ended.stderr
    assert ": 2 at operator hours" in ended.stderr
    assert "Warning: 1 row " in ended.stderr
    assert ": 1 at operator hours, where column at is NULL" in ended.stderr
    data = json.loads(ended.stdout)
    assert (data["late_rows"], data["rows_without_time"]) == ({"hours": 2}, {"hours": 1})
    again = case.run("--late", "ignore")
    assert again.exit_code == 0
    assert "Warning" not in again.stderr


@pytest.mark.parametrize("members", ["1", "2"])
def test_of_two_files_the_one_that_is_read_faster_makes_no_rows_late(case: Case, members: str) -> None:
    """Each is in the order of its times, as two stations' are; one has five hundred times as many rows in a day."""
    day, few, many = dt.datetime(2024, 1, 1), 240, 120_000
    for name, rows in (("a.csv", few), ("b.csv", many)):
        times = (day + dt.timedelta(seconds=86_400 * number // rows) for number in range(rows))
        case.write(name, *(f"x,1,{time.isoformat()}" for time in times))
    case.operators[1:2] = [
        {"id": "hours", "type": "window", "input": "sales", "time": "at", "size": "1 hour"},
        {
            "id": "totals",
            "type": "aggregate",
            "input": "hours",
            "by": ["window_start"],
            "aggregates": {"amount": "sum(amount)"},
        },
    ]
    ended = case.run("--members", members, "--late", "fail")
    assert ended.exit_code == 0, ended.stderr
    header, *rows = (case.directory / "totals.csv").read_text("utf-8").splitlines()
    assert header == '"window_start","amount"'
    assert sorted(rows) == [
        f"{day + dt.timedelta(hours=hour)}.000000Z,{(few + many) // 24}" for hour in range(24)
    ]


@pytest.mark.parametrize("members", ["1", "3"])
def test_late_rows_go_to_the_place_that_the_query_has_for_them(case: Case, members: str) -> None:
    """As in a query that runs free, by the same file; each once, however often the folder is run."""
    options = ("--members", members)
    case = with_windows(case, *options, late="late.csv")
    file = case.directory / "late.csv"
    header = '"shop","amount","at","window_start","window_end","_weight"'
    assert file.read_text("utf-8").splitlines() == [header]
    hour = "2024-01-01 00:00:00.000000Z,2024-01-01 01:00:00.000000Z"
    for _ in range(2):
        assert case.run(*options).exit_code == 0
        first, *rows = file.read_text("utf-8").splitlines()
        assert first == header
        assert sorted(rows) == [
            f'"y",3,2024-01-01 00:40:00.000000Z,{hour},1',
            f'"y",4,2024-01-01 00:50:00.000000Z,{hour},1',
            '"y",5,,,,1',
        ]


def test_a_late_row_fails_the_query_if_it_is_to(case: Case) -> None:
    ended = with_windows(case).run("--late", "fail")
    assert ended.exit_code == 1
    assert "rows arrived after their window had closed: 2 at operator hours" in ended.error
    assert case.run().exit_code == 0, "told otherwise, it goes on"


@pytest.mark.parametrize(
    ("by", "code", "said"), [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")]
)
def test_a_signal_ends_all_processes_and_it_is_said_how_to_go_on(
    case: Case, by: signal.Signals, code: int, said: str
) -> None:
    case.sources = [{"type": "Generator", "rows_per_s": 1000}]
    case.sink = {"type": "Print", "mode": "changes"}
    command = case.start("--members", "2")
    command.wait_until_said("2 members running")
    members = psutil.Process(command.process.pid).children(recursive=True)
    assert len(members) >= 2
    command.process.send_signal(by)
    ended = command.end()
    assert ended.exit_code == code
    assert f"{said}: all members are stopped. " in ended.stderr
    assert "with --state" in ended.stderr
    assert "Traceback" not in ended.stderr
    wait_for(lambda: not any(each.is_running() for each in members), f"{members} gone")


def test_a_member_that_is_killed_is_said_and_started_again(case: Case) -> None:
    case.sources = [{"type": "Generator", "rows_per_s": 1000}]
    case.sink = {"type": "Print", "mode": "changes"}
    command = case.start("--members", "2")
    command.wait_until_said("2 members running")
    children = psutil.Process(command.process.pid).children(recursive=True)
    member = next(each for each in children if "nebuli member" in " ".join(each.cmdline()))
    os.kill(member.pid, signal.SIGKILL)
    command.wait_until_said("running again")
    command.process.send_signal(signal.SIGINT)
    stderr = command.end().stderr
    (at,) = [line for line in without_times(stderr) if "it is started again" in line]
    assert at.endswith(": its process has ended (killed by SIGKILL); it is started again")
    (back,) = [
        line for line in without_times(stderr) if line.endswith("; all members return to the last checkpoint")
    ]
    assert "recover" not in back, "what they do is not advice to people"


def test_a_select_whose_processes_are_all_killed_continues_and_prints_its_whole_result(case: Case) -> None:
    case.sources = [{"type": "Generator", "count": 3000, "rows_per_s": 1000}]
    topology = case.arguments()[-2]
    statement = "SELECT count(*) AS n, min(amount) AS least, max(amount) AS greatest FROM sales"
    state = case.directory / "state"
    command = (
        *("run", "--stepped", "--members", "2", "--checkpoint-every", "0.2", "--state", state),
        *(topology, "-e", statement),
    )
    killed = Command(*command, directory=case.directory)
    killed.wait_until_said("checkpoint at step")
    processes = psutil.Process(killed.process.pid).children(recursive=True)
    for each in (killed.process, *processes):
        each.kill()
    assert killed.end().exit_code != 0
    ended = nebuli(*command, directory=case.directory)
    assert ended.exit_code == 0, ended.stderr
    assert "2 members running, from step " in ended.stderr
    assert ended.stdout.splitlines() == ['"n","least","greatest"', "3000,0,2999"]


def test_a_folder_that_is_not_this_querys_is_left_as_it_is(case: Case) -> None:
    assert case.run().exit_code == 0
    claim = (case.directory / "state" / "query.json").read_bytes()
    case.sources[1]["path"] = "c.csv"
    sources = case.run()
    assert "another list of sources" in sources.error
    assert "another list of sources: c.csv is new; b.csv is no longer among them. Run" in sources.error
    assert (case.directory / "state" / "query.json").read_bytes() == claim


def test_another_number_of_members_goes_on_and_stays(case: Case) -> None:
    """Where none is given, it is as many as before."""
    assert case.run().exit_code == 0
    for options in (("--members", "3"), ()):
        ended = case.run(*options)
        assert ended.exit_code == 0, ended.stderr
        assert "3 members running, from step" in ended.stderr
        assert case.totals == {'"x",11', '"y",2'}


def test_what_is_another_in_the_query_is_said_by_its_operators(case: Case) -> None:
    """DBSP-REQ-5: by what its file and the topology say, and not by the digest that is compared."""
    assert case.run("--members", "2").exit_code == 0
    sales, totals, out = case.operators
    state = f"the state in {case.directory}/state is that of another"

    def refused(*operators: dict[str, Any]) -> str:
        case.operators = [*operators]
        ended = case.run("--members", "2")
        assert ended.exit_code == 1
        assert ended.error.endswith(
            ". Run the query as before, or start it from scratch with another --state"
        )
        return ended.error

    few = totals | {"aggregates": {"amount": "sum(amount)", "rows": "count(*)"}}
    assert refused(sales, few, out).startswith(
        f"{state} query: operator totals (aggregate) had aggregates "
        '{"amount": "sum(amount)"}, and has {"amount": "sum(amount)", "rows": "count(*)"}. Run'
    )
    dear = {"id": "dear", "type": "filter", "input": "sales", "predicate": "amount > 1"}
    assert refused(sales, dear, totals | {"input": "dear"}, out).startswith(
        f"{state} query: operator dear (filter) is new; operator totals (aggregate) had input 'sales', and "
        "has 'dear'. Run"
    )
    case.sources[0] = {"type": "CSV", "path": "a.csv", "nulls": ["-"]}
    assert refused(sales, totals, out).startswith(f"{state} list of sources: a.csv had nulls ")


def test_a_folder_whose_owner_is_not_known_any_more_is_left_as_it_is(case: Case) -> None:
    """Any query would be taken for the one that it belongs to."""
    assert case.run().exit_code == 0
    claim = case.directory / "state" / "query.json"
    text = claim.read_text("utf-8")
    claim.unlink()
    ended = case.run()
    assert ended.exit_code == 1
    assert ended.error == (
        f"{claim} does not identify the query of this state: it is missing, although the state of members "
        "exists. Restore the folder from a copy, or start the query from scratch with another --state"
    )
    assert not claim.exists()
    claim.write_text(text, "utf-8")
    assert case.run().exit_code == 0


def test_before_the_first_step_a_folder_is_nobodys(case: Case) -> None:
    """What was wrong at the first try is corrected, and nothing that was computed is another query's."""
    (case.directory / "c.csv").write_text("name\nx\n", "utf-8")
    case.sources = [{"type": "CSV", "path": "c.csv"}]
    wrong = case.run()
    assert (wrong.exit_code, "no column shop" in wrong.error) == (2, True)
    case.sources = [{"type": "CSV", "path": "[ab].csv"}]
    right = case.run("--members", "2")
    assert right.exit_code == 0, right.stderr
    assert "2 members running, from the beginning" in right.stderr
    assert case.totals == {'"x",11', '"y",2'}
    assert "2 members running, from step" in case.run().stderr


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("/proc/state", "No such file or directory"),
        ("a.csv", "it is a file"),
        ("a.csv/state", "one of its parents is a file, not a folder"),
    ],
)
def test_a_folder_that_cannot_be_used_is_said_with_what_to_do(case: Case, state: str, why: str) -> None:
    ended = case.run(state=state)
    assert ended.exit_code == 2
    assert ended.error == (
        f"the state folder {case.directory / state} cannot be used: {why}. Give --state a folder "
        f"that can be created and written, and give the same folder at the next run"
    )


def test_a_port_in_use_is_bad_input(case: Case) -> None:
    """As for a worker."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = case.run("--serve", address)
    assert ended.exit_code == 2
    assert (
        ended.error
        == f"--serve {address}: the port is in use; stop the process that listens there, or choose another"
    )


def test_a_folder_with_other_files_is_left_as_it_is(case: Case) -> None:
    """That of the query, say, whose `query.json` would be taken for what a state folder says of itself."""
    case.arguments()
    before = {each: each.read_bytes() for each in case.directory.iterdir()}
    ended = case.run(state=".")
    assert ended.exit_code == 2
    assert ended.error == (
        f"{case.directory} has other files in it (a.csv, b.csv, query.json and 2 more), but the "
        f"state of a query in steps needs a folder of its own: give --state a folder that is "
        f"empty or does not exist yet, such as {case.directory}/state"
    )
    (case.directory / "stderr.txt").unlink()
    assert {each: each.read_bytes() for each in case.directory.iterdir()} == before
    (case.directory / "state" / "lost+found").mkdir(parents=True)
    assert case.run().exit_code == 0, "a disk of its own"


def test_a_damaged_claim_is_said_with_what_to_do(case: Case) -> None:
    assert case.run().exit_code == 0
    (case.directory / "state" / "query.json").write_text("[]", "utf-8")
    damaged = case.run()
    assert damaged.exit_code == 1
    assert (
        "query.json does not identify the query of this state: it is not a JSON object. Restore the folder"
        in damaged.error
    )


def test_files_that_match_a_pattern_are_divided_over_members(case: Case) -> None:
    """Each is a source of its own; the list of them belongs to the state."""
    case.sources = [{"type": "CSV", "path": "[ab].csv"}]
    ended = case.run("--members", "2")
    assert ended.exit_code == 0, ended.stderr
    assert case.totals == {'"x",11', '"y",2'}
    reads = json.loads((case.directory / "state" / "query.json").read_text("utf-8"))["reads"]
    assert reads == ["a.csv", "b.csv"]
    case.sources = [{"type": "CSV", "path": "[a-d]*.csv"}]
    (case.directory / "totals.csv").unlink()
    assert case.run("--members", "2").exit_code == 0, "another pattern of the same files"
    (case.directory / "totals.csv").unlink()
    case.write("c.csv", "z,1,2024-01-01T00:00:00")
    more = case.run("--members", "2")
    assert more.exit_code == 1
    assert "another list of sources" in more.error
    assert "another list of sources: c.csv is new. Run" in more.error
    for number in range(10):
        case.write(f"d{number}.csv", "z,1,2024-01-01T00:00:00")
    many = case.run("--members", "2")
    assert "c.csv, d0.csv, d1.csv, d2.csv, d3.csv and 6 more are new. Run" in many.error
    case.sources = [{"type": "CSV", "path": "b.csv"}, {"type": "CSV", "path": "a.csv"}]
    turned = case.run("--members", "2")
    assert "their order differs: a.csv, b.csv in the state, b.csv, a.csv in this run. Run" in turned.error


def test_a_file_that_is_gone_on_with_has_to_be_the_one_that_was_read(case: Case) -> None:
    """Also where nothing of it is read again: a shorter one, or another one in its place, would be half read."""
    case.sources = [{"type": "CSV", "path": "a.csv"}]
    rows = [f"x,{amount},2024-01-01T00:00:00" for amount in range(200)]
    case.write("a.csv", *rows)
    assert case.run().exit_code == 0
    assert case.totals == {'"x",19900'}
    for other, says in (
        (
            rows[:150],
            "a.csv: steps already contain its first 200 rows, but now the source has only 150: the source was replaced",
        ),
        ([], "steps already contain its first 200 rows, but now the source has only 0"),
        (
            [*reversed(rows), *rows],
            "steps already contain its first 200 rows, but now the last of them differ",
        ),
    ):
        case.write("a.csv", *other)
        ended = case.run()
        assert ended.exit_code == 2
        assert says in ended.error
    case.write("a.csv", *rows, "y,1,2024-01-01T00:00:00")
    assert case.run().exit_code == 0, "with what is new at its end it is the same"
    assert case.totals == {'"x",19900', '"y",1'}


def test_half_of_a_last_line_is_an_error_where_it_is_no_row_or_its_other_half_comes(case: Case) -> None:
    """A file may end without a line break: that a line is half of one is not to be seen where it reads like a row."""
    case.sources = [{"type": "CSV", "path": "a.csv"}]
    file = case.directory / "a.csv"
    whole = "at,shop,amount\n2024-01-01T00:00:00,x,1\n"
    for half, says in (
        ("2024-01-01T00:00:00,y", "a.csv, line 3: 2 values, but the header names 3: 2024-01-01T00:00:00,y"),
        ("2024-01-01T00:00:00,y,-", "a.csv, line 3, column amount: '-' is not a valid int64"),
    ):
        file.write_text(whole + half, "utf-8")
        ended = case.run()
        assert ended.exit_code == 2
        assert says in ended.error
    file.write_text(f"{whole}2024-01-01T00:00:00,y,4", "utf-8")
    assert case.run().exit_code == 0
    assert case.totals == {'"x",1', '"y",4'}
    file.write_text(f"{whole}2024-01-01T00:00:00,y,42\n", "utf-8")
    ended = case.run()
    assert ended.exit_code == 2
    assert "steps already contain its first 2 rows, but now the last of them differ" in ended.error


def test_a_pattern_without_a_file_is_bad_input(case: Case) -> None:
    case.sources = [{"type": "CSV", "path": "sales-*.csv"}]
    ended = case.run()
    assert ended.exit_code == 2
    assert ended.error == f"sales-*.csv: no file in {case.directory} matches it"
