from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest
import yaml

import netchannel
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_pb2_grpc import WorkerStub
from tests.support.commands import Command, Ended, arguments_of, measured, nebuli
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


class Case:
    """A query from a CSV file at one node, by another, to a sink at the third."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes = free_addresses(3)
        self.grpc = free_addresses(3)
        self.source: dict[str, Any] = {"type": "CSV", "path": "numbers.csv"}
        self.sink: dict[str, Any] = {"type": "CSV", "path": "out/result.csv"}
        self.result = directory / "out" / "result.csv"
        self.operators: list[dict[str, Any]] = [
            {"id": "numbers", "type": "source", "logical": "numbers"},
            {"id": "small", "type": "filter", "input": "numbers", "predicate": "n < 1000000000"},
            {"id": "result", "type": "sink", "input": "small", "sink": "result"},
        ]

    def write_numbers(self, rows: int) -> None:
        with (self.directory / "numbers.csv").open("w", encoding="utf-8") as file:
            file.write("n,name\n")
            file.writelines(f"{number},some text of row {number}\n" for number in range(rows))

    def arguments(self, *options: str) -> tuple[str | Path, ...]:
        """Write the files; the command."""
        source, middle, sink = (
            {"address": address, "grpc": grpc} for address, grpc in zip(self.nodes, self.grpc, strict=True)
        )
        source |= {"links": {"downstream": [self.nodes[1]]}, "capacity": 0}
        source |= {"physical": [{"logical": "numbers", **self.source}]}
        middle |= {"links": {"downstream": [self.nodes[2]]}}
        sink |= {"sinks": [{"name": "result", **self.sink}]}
        columns = [{"name": "n", "type": "int64"}, {"name": "name", "type": "string"}]
        topology = {"logical": [{"name": "numbers", "schema": columns}], "nodes": [source, middle, sink]}
        (self.directory / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")
        (self.directory / "query.json").write_text(json.dumps({"operators": self.operators}), "utf-8")
        return ("run", self.directory / "topology.yaml", self.directory / "query.json", *options)

    def start(self) -> Command:
        return Command(*self.arguments(), directory=self.directory)

    def run(self, *options: str) -> Ended:
        return nebuli(*self.arguments(*options), directory=self.directory)

    def stall(self) -> Command:
        """Start, with a result without an end that nobody reads: it runs until it is stopped."""
        self.source = {"type": "Generator"}
        self.sink = {"type": "Print", "mode": "append"}
        command = self.start()
        command.wait_until_said(*(f"{node}  running" for node in self.nodes))
        return command


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def assert_gone(processes: list[psutil.Process]) -> None:
    wait_for(lambda: not any(process.is_running() for process in processes), f"{processes} gone")


def test_a_result_is_in_its_file_and_progress_on_stderr(case: Case) -> None:
    case.write_numbers(1000)
    ended = case.run()
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout == ""
    lines = case.result.read_text("utf-8").splitlines()
    assert lines[0] == '"n","name"'
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1000))
    for node in case.nodes:
        assert f"{node}  finished  1,000 rows in, 1,000 out" in ended.stderr


@pytest.mark.parametrize("options", [(), ("--stepped", "--state", "state")], ids=["free", "stepped"])
@pytest.mark.parametrize("written", ["sink", "late"])
def test_a_query_that_would_write_over_its_source_changes_nothing(
    case: Case, written: str, options: tuple[str, ...]
) -> None:
    case.write_numbers(10)
    before = (case.directory / "numbers.csv").read_bytes()
    if written == "sink":
        case.sink["path"] = "./numbers.csv"
    else:
        window = {"id": "w", "type": "window", "input": "numbers", "time": "n", "size": "1 minute"}
        case.operators[1:2] = [window | {"late": "numbers.csv"}]
        case.operators[-1]["input"] = "w"
    ended = case.run(*options)
    assert (ended.exit_code, "numbers.csv" in ended.error) == (2, True), ended.stderr
    assert (case.directory / "numbers.csv").read_bytes() == before
    assert not (case.directory / "state").exists()


def test_a_strategy_is_said_with_what_it_found(case: Case) -> None:
    case.write_numbers(10)
    ended = case.run("--strategy", "optimal")
    assert ended.exit_code == 0, ended.stderr
    assert ended.stderr.splitlines()[0] == "2 hops, and no placement has less"
    assert len(case.result.read_text("utf-8").splitlines()) == 11


def test_quiet_prints_no_progress_but_errors(case: Case) -> None:
    case.write_numbers(10)
    done = nebuli("--quiet", *case.arguments(), directory=case.directory)
    assert (done.exit_code, done.stderr) == (0, "")
    case.source = {"type": "CSV", "path": "gone.csv"}
    done = nebuli("--quiet", *case.arguments(), directory=case.directory)
    assert done.exit_code != 0
    assert "gone.csv" in done.stderr


def test_as_json_it_says_how_it_ended(case: Case) -> None:
    case.write_numbers(10)
    done = case.run("--json")
    data = json.loads(done.stdout)
    assert (done.exit_code, data["exit_code"], data["error"]) == (0, 0, None)
    assert [(each["node"], each["state"], each["rows_in"]) for each in data["fragments"]] == [
        (node, "finished", 10) for node in case.nodes
    ]
    (case.directory / "numbers.csv").write_text("n,name\nx,y\n", "utf-8")
    failed = case.run("--json")
    data = json.loads(failed.stdout)
    assert (failed.exit_code, data["exit_code"]) == (2, 2)
    assert data["error"] == failed.error
    assert {each["state"] for each in data["fragments"]} >= {"failed"}
    case.sink = {"type": "Print"}
    assert "--json and the sink result (Print)" in case.run("--json").error


def test_print_is_all_of_stdout(case: Case) -> None:
    case.write_numbers(2)
    case.sink = {"type": "Print"}
    ended = case.run()
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "n  name",
        "-  ------------------",
        "0  some text of row 0",
        "1  some text of row 1",
    ]


def test_a_broken_row_fails_the_query_with_file_line_fragment_and_node(case: Case) -> None:
    case.write_numbers(50_000)
    with (case.directory / "numbers.csv").open("a", encoding="utf-8") as file:
        file.write("many,text\n")
    ended = case.run()
    assert ended.exit_code == 2
    assert ended.error.endswith("numbers.csv, line 50002, column n: 'many' is not a valid int64")
    assert case.nodes[0] in ended.error
    assert ended.error.startswith("fragment ")
    assert not case.result.exists()
    assert list(case.result.parent.glob(".*.partial")) == []


def test_an_operator_that_would_keep_too_much_fails_the_query(case: Case) -> None:
    """PL: past its state bound a fragment fails, naming operator and bytes."""
    case.write_numbers(10_000)
    case.operators[1] = {"id": "each", "type": "distinct", "input": "numbers"}
    case.operators[2]["input"] = "each"
    ended = nebuli(*case.arguments(), "--max-state-bytes", "20000", directory=case.directory)
    assert ended.exit_code == 1
    assert re.search(
        r"fragment query/each at \S+ failed: operator each: its state holds [\d,]+ bytes, above its bound of 20,000: "
        r"raise max_state_bytes .*--max-state-bytes",
        ended.stderr,
    )


def test_a_line_of_any_length_from_a_worker_holds_up_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written to its standard error, by libraries too: what comes after it is read."""
    (case.directory / "sitecustomize.py").write_text(
        "import sys\nif 'worker' in sys.argv:\n    sys.stderr.write('x' * 100_000 + '\\n')\n", "utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", f"{case.directory}:{os.environ.get('PYTHONPATH', '')}")
    case.write_numbers(10)
    ended = case.run()
    assert ended.exit_code == 0, ended.stderr[-1000:]
    assert case.result.read_text("utf-8").count("\n") == 11


def test_a_missing_file_is_named(case: Case) -> None:
    ended = case.run()
    assert ended.exit_code == 2
    assert ended.error.endswith(f"numbers.csv: no such file in {case.directory}")
    assert ended.stderr.count("no such file") == 1
    assert case.nodes[0] in ended.error


def test_a_sink_that_cannot_be_written_fails_the_query(case: Case) -> None:
    case.write_numbers(1000)
    case.result.mkdir(parents=True)
    ended = case.run()
    assert ended.exit_code == 1
    assert ended.error.endswith("out/result.csv cannot be written: it is a directory")
    assert case.nodes[2] in ended.error


@pytest.mark.parametrize("which", ["nodes", "grpc"])
def test_a_port_in_use_is_named(case: Case, which: str) -> None:
    case.write_numbers(10)
    address = getattr(case, which)[1]
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        ended = case.run()
    assert ended.exit_code == 2
    assert case.nodes[1] in ended.error
    field = "address" if which == "nodes" else "grpc"
    assert f"the node's {field} {address}: the port is in use" in ended.error


@pytest.mark.story
def test_a_killed_worker_is_named_and_the_others_are_gone(case: Case) -> None:
    command = case.stall()
    workers = command.workers()
    assert len(workers) == 3
    victim = next(worker for worker in workers if case.nodes[1] in arguments_of(worker))
    victim.kill()
    ended = command.end()
    assert ended.exit_code == 3
    assert ended.error.startswith(f"worker {case.nodes[1]} died (killed by SIGKILL); run the query again: ")
    assert "--on-loss wait" in ended.error
    assert "--stepped" in ended.error
    assert_gone(workers)


@pytest.mark.story
def test_workers_end_with_the_killed_process_that_they_are_forked_from(case: Case) -> None:
    command = case.stall()
    workers = command.workers()
    (template,) = psutil.Process(command.process.pid).children()
    template.kill()
    ended = command.end()
    assert ended.exit_code == 3
    assert "died (killed by SIGKILL); run the query again" in ended.error
    assert_gone(workers)


@pytest.mark.parametrize("which", [1, 2])
def test_a_killed_worker_is_started_again(case: Case, which: int) -> None:
    """DP-7: the bridge goes on, and of the sink's node the query begins again; both to the same result."""
    case.write_numbers(1_000_000)
    command = Command(*case.arguments(), "--on-loss", "wait", directory=case.directory)
    command.wait_until_said(*(f"{node}  running" for node in case.nodes))
    next(worker for worker in command.workers() if case.nodes[which] in arguments_of(worker)).kill()
    ended = command.end()
    assert ended.exit_code == 0, ended.stderr
    assert f"worker {case.nodes[which]} does not answer" in ended.stderr
    assert ("the query starts over" in ended.stderr) == (which == 2)
    with case.result.open(encoding="utf-8") as file:
        assert next(file) == '"n","name"\n'
        assert sorted(int(line.split(",")[0]) for line in file) == list(range(1_000_000))


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_query_leaves_no_process(case: Case, number: signal.Signals, exit_code: int) -> None:
    command = case.stall()
    workers = command.workers()
    assert len(workers) == 3
    command.process.send_signal(number)
    ended = command.end()
    assert ended.exit_code == exit_code
    assert not any(worker.is_running() for worker in workers)
    assert "Traceback" not in ended.stderr


def test_its_workers_let_in_nobody_who_does_not_know_the_secret_of_this_run(case: Case) -> None:
    """Any user of the machine can connect; what opens the door is in a file that no other user can read."""
    command = case.stall()
    for node, address in zip(case.nodes, case.grpc, strict=True):
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            WorkerStub(channel).Register(wire.RegisterRequest(fragment="{}"), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(netchannel.HandshakeError):
            asyncio.run(_send_without_a_secret(node))
    shown = [arguments_of(worker) for worker in command.workers()]
    (path,) = {Path(each[each.index("--secret-file") + 1]) for each in shown}
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert len(path.read_text("utf-8")) >= 43  # 32 random bytes
    assert path.read_text("utf-8") not in str(shown)
    command.process.send_signal(signal.SIGINT)
    command.end()
    assert not path.exists()


async def _send_without_a_secret(node: str) -> None:
    async with netchannel.SenderServer() as sender:
        channel = sender.register_channel("query/numbers>small", to=node)
        await channel.send(pa.record_batch({"n": [1]}))
        await channel.flush()


def test_interrupted_while_workers_start(case: Case) -> None:
    case.write_numbers(10)
    command = case.start()
    workers = wait_for(command.workers, "a worker")
    os.kill(command.process.pid, signal.SIGINT)
    ended = command.end()
    assert ended.exit_code == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert_gone(workers)


def test_workers_end_with_a_run_that_was_killed(case: Case) -> None:
    command = case.stall()
    workers = command.workers()
    assert len(workers) == 3
    command.process.kill()
    command.end()
    assert_gone(workers)


@pytest.mark.timed
@pytest.mark.parametrize("sink", [{"mode": "append"}, {"mode": "final"}])
def test_the_memory_of_a_stateless_plan_does_not_grow_with_its_input(
    case: Case, sink: dict[str, Any]
) -> None:
    case.sink |= sink
    peaks = []
    for rows in (1_500_000, 6_000_000):
        case.write_numbers(rows)
        ended, peak_bytes = measured(*case.arguments(), directory=case.directory)
        assert ended.exit_code == 0, ended.stderr
        peaks.append(peak_bytes)
        with case.result.open("rb") as file:
            assert sum(1 for _ in file) == rows + 1
    small, large = peaks
    # Four times the rows are 180 MiB more; buffers, which the shorter run has filled, are 8 MiB each.
    assert large - small < 64 << 20, f"{small >> 20} MiB for 1 500 000 rows, {large >> 20} MiB for 6 000 000"


@pytest.mark.parametrize(("closed", "exit_code"), [("<&-", 0), ("2>&-", 0), ("<&- 2>&-", 0), (">&-", 1)])
def test_with_closed_standard_streams_only_the_result_is_missed(
    case: Case, closed: str, exit_code: int
) -> None:
    """Whatever is opened next would be taken for them."""
    case.write_numbers(2)
    case.sink = {"type": "Print"}
    command = shlex.join([sys.executable, "-m", "nebuli", *map(str, case.arguments())])
    ended = subprocess.run(
        f"{command} {closed}", shell=True, capture_output=True, encoding="utf-8", check=False
    )
    assert ended.returncode == exit_code
    assert len(ended.stdout.splitlines()) == (4 if exit_code == 0 else 0)
    assert "Traceback" not in ended.stderr
    assert "Assertion" not in ended.stderr
    if exit_code:
        assert "standard output cannot be written: Bad file descriptor" in ended.stderr
