"""Queries in steps on the workers of a topology: two nodes, real workers, processes and workers that are killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shlex
import shutil
import signal
import socket
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pyarrow as pa
import pytest

from tests.support.fleet import Fleet, MakeFleet
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

ROWS = 200_000
RATE = 10_000
QUERY = {
    "operators": [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "parts", "type": "project", "input": "in", "columns": {"part": "n % 7", "n": "n"}},
        {
            "id": "sums",
            "type": "aggregate",
            "input": "parts",
            "by": ["part"],
            "aggregates": {"rows": "count(*)", "sum": "sum(n)"},
        },
        {"id": "out", "type": "sink", "input": "sums", "sink": "out"},
    ]
}


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    """The numbers below ROWS at the first node, twenty seconds long; their sums at the second."""
    found = make_fleet()
    found.data["nodes"][0]["physical"][0] |= {"count": ROWS, "rows_per_s": RATE}
    found.topology = found.written()
    found.query.write_text(json.dumps(QUERY), "utf-8")
    found.start()
    return found


def expected() -> list[tuple[int, int, int]]:
    return [(part, len(range(part, ROWS, 7)), sum(range(part, ROWS, 7))) for part in range(7)]


def found_in(file: Path) -> list[tuple[int, ...]]:
    with file.open(encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    assert header == ["part", "rows", "sum"]
    return sorted(tuple(map(int, row)) for row in rows)


def begun(fleet: Fleet, *options: str) -> str:
    ended = fleet.run("start", "--stepped", *options, fleet.topology, fleet.query)
    assert ended.exit_code == 0, ended.error
    return ended.stdout.strip()


def members(fleet: Fleet, id_: str) -> dict[str, dict[str, Any]]:
    return {each["fragment"]: each for each in fleet.json("status", id_)["fragments"]}


def read(fleet: Fleet, id_: str, beyond: int) -> None:
    """Wait until the source is read so far."""

    def is_read() -> bool:
        return (members(fleet, id_)["copy/member-1"]["rows_in"] or 0) > beyond

    wait_for(is_read, f"{beyond} rows are read")


def test_a_query_in_steps_survives_its_processes_and_its_workers(fleet: Fleet) -> None:
    """DBSP-REQ-2, FT-PR-9, FT-PR-10: a member's process is killed, and the coordinator's, which their workers replace.

    Then a worker at each end, with all that it runs, and is started again. The sums are exact.
    """
    id_ = begun(fleet, "--checkpoint-every", "0.5")
    assert list(members(fleet, id_)) == ["copy/member-0", "copy/member-1", "copy/coordinator"]
    for fragment in ("member-1", "coordinator"):
        read(fleet, id_, ROWS // 100)
        os.kill(fleet.pid_of(id_, fragment), signal.SIGKILL)
    for number, beyond in ((0, ROWS // 10), (1, ROWS // 4)):
        read(fleet, id_, beyond)
        fleet.kill(number)
        fleet.begin_again(number)
    fleet.wait_for_state(id_, "finished")
    assert found_in(fleet.out) == expected()
    assert {each["rows_in"] for each in members(fleet, id_).values()} == {0, ROWS}


def test_what_was_stopped_goes_on_when_it_is_started_again(fleet: Fleet) -> None:
    """FT-API-2: a checkpoint is made on demand, and one at the stop; nothing is read twice, and nothing left out."""
    id_ = begun(fleet, "--members", "3", "--checkpoint-every", "3600")
    read(fleet, id_, ROWS // 10)
    made = fleet.run("checkpoint", id_)
    assert made.exit_code == 0, made.error
    assert int(made.stdout) > 0
    assert fleet.run("stop", id_).exit_code == 0
    stopped = members(fleet, id_)
    assert {each["state"] for each in stopped.values()} == {"stopped"}
    assert {each["error"] for each in stopped.values()} == {""}, "a stop that was asked for is not an error"
    last = fleet.json("status", id_)["checkpoint"]
    assert last > int(made.stdout)
    assert f"its last checkpoint is at step {last:,}\n" in fleet.run("status", id_).stdout
    again = fleet.run("checkpoint", id_)
    assert again.exit_code == 1
    assert again.error == (
        f"query {id_} was stopped, and there is nothing to save: its last checkpoint is at step {last:,}; "
        f"'nebuli start {id_}' continues there"
    )
    assert not fleet.out.exists()
    assert fleet.run("start", id_).exit_code == 0
    fleet.wait_for_state(id_, "finished")
    assert found_in(fleet.out) == expected()
    assert fleet.run("unregister", id_).exit_code == 0
    assert not list(fleet.directory.glob("**/steps/*")), "what it kept is gone with it"


def test_a_checkpoint_while_a_worker_is_away_is_refused_and_says_which(fleet: Fleet) -> None:
    """And is made when it is there again."""
    id_ = begun(fleet, "--checkpoint-every", "3600")
    read(fleet, id_, ROWS // 100)
    fleet.kill(0)
    ended = fleet.run("checkpoint", id_)
    assert ended.exit_code == 1
    assert f"there is no checkpoint: member 1 (at {fleet.nodes[0]}) has been away for " in ended.error
    fleet.begin_again(0)
    wait_for(lambda: fleet.run("checkpoint", id_).exit_code == 0, "a checkpoint")


def test_what_still_runs_of_a_query_that_was_stopped_is_stopped_by_the_next_start(fleet: Fleet) -> None:
    """A worker that was away when it was stopped goes on with its member; a start while all run stays an error."""
    id_ = begun(fleet, "--checkpoint-every", "3600")
    read(fleet, id_, ROWS // 100)
    again = fleet.run("start", id_)
    assert (again.exit_code, "is running already" in again.error) == (1, True)
    step = int(fleet.run("checkpoint", id_).stdout)
    fleet.kill(0)
    assert fleet.run("stop", id_).exit_code == 3
    fleet.begin_again(0)
    fleet.wait_for_state(id_, "partially stopped")
    assert members(fleet, id_)["copy/member-1"]["state"] == "running"
    started = fleet.run("start", id_)
    assert started.exit_code == 0, started.stderr
    assert "still ran (copy/member-1)" in started.stderr
    assert f"resumes from its last checkpoint, at step {step:,}\n" in started.stderr
    fleet.wait_for_state(id_, "finished")
    assert found_in(fleet.out) == expected()


def test_nothing_is_unregistered_while_a_worker_is_away(fleet: Fleet) -> None:
    """Else what the others have kept is gone, and the query can never go on; it can, and it ends exact."""
    id_ = begun(fleet, "--checkpoint-every", "0.5")
    read(fleet, id_, ROWS // 100)
    assert fleet.run("stop", id_).exit_code == 0
    kept = sorted(fleet.directory.glob("**/steps/*"))
    assert len(kept) == 3, "of two members and the coordinator"
    fleet.kill(1)
    ended = fleet.run("unregister", id_)
    assert ended.exit_code == 3
    assert f"worker {fleet.nodes[1]} does not answer" in ended.stderr
    assert f"nothing was removed: run 'nebuli unregister {id_}' again" in ended.stderr
    assert sorted(fleet.directory.glob("**/steps/*")) == kept
    fleet.begin_again(1)
    assert fleet.run("start", id_).exit_code == 0
    running = fleet.run("unregister", id_)
    assert (running.exit_code, "running: stop it first" in running.error) == (1, True)
    assert sorted(fleet.directory.glob("**/steps/*")) == kept
    fleet.wait_for_state(id_, "finished")
    assert found_in(fleet.out) == expected()
    fleet.kill(1)
    forced = fleet.run("unregister", "--force", id_)
    assert (forced.exit_code, fleet.nodes[1] in forced.error) == (0, True)
    assert f"'nebuli unregister {id_}'" in forced.stderr
    assert len(list(fleet.directory.glob("**/steps/*"))) == 2, "at the node that is away"
    forgotten = fleet.run("unregister", "--force", id_)
    assert (forgotten.exit_code, "removed the query from this account" in forgotten.stderr) == (0, True)
    assert f"unknown query {id_!r}" in fleet.run("status", id_).stderr
    fleet.begin_again(1)


def test_what_a_worker_that_was_away_still_has_is_taken_away_when_it_is_back(fleet: Fleet) -> None:
    """Its member runs on, for a coordinator that is gone: until then the query has its name here."""
    id_ = begun(fleet, "--checkpoint-every", "3600")
    read(fleet, id_, ROWS // 100)
    fleet.kill(0)
    assert fleet.run("stop", id_).exit_code == 3
    assert fleet.run("unregister", "--force", id_).exit_code == 0
    fleet.begin_again(0)
    assert members(fleet, id_)["copy/member-1"]["state"] == "running"
    assert fleet.run("stop", id_).exit_code == 0
    assert fleet.run("unregister", id_).exit_code == 0
    assert not list(fleet.directory.glob("**/steps/*"))
    assert f"unknown query {id_!r}" in fleet.run("status", id_).stderr


def test_a_member_whose_state_is_gone_does_not_begin_anew(fleet: Fleet) -> None:
    """Before the first checkpoint, too: others have what came of its rows. With its folder put back, it ends exact."""
    id_ = begun(fleet, "--checkpoint-every", "3600")
    read(fleet, id_, ROWS // 100)
    fleet.kill(0)
    (member,) = fleet.directory.glob("**/steps/*member-1")
    steps = member.parent
    steps.rename(fleet.directory / "kept")
    fleet.begin_again(0)
    fleet.wait_for_state(id_, "failed")
    error = members(fleet, id_)["copy/member-1"]["error"]
    assert f"{member} must contain the state of copy/member-1, but is missing or empty" in error
    assert fleet.run("stop", id_).exit_code == 0
    (fleet.directory / "kept").rename(steps)
    assert fleet.run("start", id_).exit_code == 0
    fleet.wait_for_state(id_, "finished")
    assert found_in(fleet.out) == expected()


def test_a_member_that_has_the_state_of_another_one_leaves_its_sink_as_it_is(fleet: Fleet) -> None:
    """As where two folders were put back under each other's names; put right, it goes on."""
    fleet.data["nodes"][0]["physical"][0] |= {"count": 1000, "rows_per_s": None}
    fleet.data["nodes"][1]["sinks"][0]["mode"] = "changes"
    fleet.topology = fleet.written()
    id_ = begun(fleet, "--members", "4")
    fleet.wait_for_state(id_, "finished")
    before = fleet.out.read_bytes()
    (coordinator,) = fleet.directory.glob("**/steps/*coordinator")
    mine, other = sorted(coordinator.parent.glob("*member-*"))

    def exchange() -> None:
        fleet.kill(1)
        for there, then in ((mine, "aside"), (other, mine.name), (mine.with_name("aside"), other.name)):
            there.rename(there.with_name(then))
        fleet.begin_again(1)

    exchange()
    assert fleet.run("start", id_).exit_code == 0
    failed = fleet.wait_for_state(id_, "failed")
    assert any("it is the state of member" in each["error"] for each in failed["fragments"]), failed
    assert fleet.run("stop", id_).exit_code == 0
    assert fleet.out.read_bytes() == before
    exchange()
    assert fleet.run("start", id_).exit_code == 0
    fleet.wait_for_state(id_, "finished")
    assert fleet.out.read_bytes() == before


def test_what_has_failed_goes_on_when_it_is_started_again(make_fleet: MakeFleet) -> None:
    """FT-API-2: from its last checkpoint, whatever still waits for what has failed; and it says where to look."""
    fleet = make_fleet()
    file = fleet.directory / "numbers.csv"
    file.write_text("n\n1\n2\n", "utf-8")
    fleet.data["nodes"][0]["physical"] = [{"logical": "numbers", "type": "CSV", "path": str(file)}]
    fleet.data["nodes"][1]["sinks"][0]["mode"] = "append"
    fleet.topology = fleet.written()
    fleet.start()
    id_ = begun(fleet)
    step = fleet.wait_for_state(id_, "finished")["checkpoint"]
    ended = fleet.run("checkpoint", id_)
    assert ended.exit_code == 1
    assert ended.error == (
        f"query {id_} has finished, and there is nothing to save: its last checkpoint is at step {step}, with "
        f"all that was read"
    )
    file.write_text("n\n1\n2\nthree\n", "utf-8")
    started = fleet.run("start", id_)
    assert (started.exit_code, started.stdout) == (0, f"{id_}\n")
    assert f"started: 'nebuli status {id_}'" in started.stderr
    why = f"{file}, line 4, column n: 'three' is not a valid int64"
    failed = fleet.wait_for_state(id_, "failed")
    assert any(why in each["error"] for each in failed["fragments"])
    assert any(each["state"] == "running" for each in failed["fragments"]), (
        "it waits for the one that has failed"
    )
    assert failed["checkpoint"] == step
    ended = fleet.run("checkpoint", id_)
    assert ended.error == (
        f"query {id_} has failed, and there is nothing to save: its last checkpoint is at step {step}; 'nebuli "
        f"status {id_}' shows why, and 'nebuli start {id_}' continues there"
    )
    file.write_text("n\n1\n2\n3\n", "utf-8")
    started = fleet.run("start", id_)
    assert started.exit_code == 0, started.stderr
    assert why in started.stderr
    assert "and resumes from its last checkpoint" in started.stderr
    fleet.wait_for_state(id_, "finished")
    assert sorted(fleet.out.read_text("utf-8").split()[1:]) == ["1", "2", "3"]
    at = members(fleet, id_)
    counts = at["copy/member-1"]["rows_in"], at["copy/member-0"]["rows_out"]
    assert counts == (3, 3), "since the first step, in whatever process"


def test_rows_that_cannot_be_computed_are_left_out_and_the_state_is_kept(make_fleet: MakeFleet) -> None:
    """At workers as in `nebuli run`: the rows that fail go to a file at their member's node, all others count."""
    fleet = make_fleet()
    file = fleet.directory / "numbers.csv"
    file.write_text("n\n1\n2\n", "utf-8")
    fleet.data["nodes"][0]["physical"] = [{"logical": "numbers", "type": "CSV", "path": str(file)}]
    fleet.data["nodes"][1]["sinks"][0]["mode"] = "append"
    fleet.topology = fleet.written()
    operators = [
        QUERY["operators"][0],
        {"id": "cut", "type": "project", "input": "in", "columns": {"n": "CAST(n AS TINYINT)"}},
        {"id": "out", "type": "sink", "input": "cut", "sink": "out"},
    ]
    fleet.query.write_text(json.dumps({"operators": operators}), "utf-8")
    fleet.start()
    id_ = begun(fleet)
    fleet.wait_for_state(id_, "finished")
    file.write_text("n\n1\n2\n3\n128\n4\n-129\n", "utf-8")
    assert fleet.run("start", id_).exit_code == 0
    failed = fleet.wait_for_state(id_, "failed")
    said = [
        re.search(r"step (\d+) of input in cannot .*--skip-step \1", each["error"])
        for each in failed["fragments"]
    ]
    (step,) = {each[1] for each in said if each}
    refused = fleet.run("start", id_, "--skip-step", str(int(step) + 1))
    assert refused.exit_code == 2
    assert f"query {id_} has not failed at that step" in refused.error
    for more in (("--skip-step", step), ()):  # a later start is told of it by the members' notes
        started = fleet.run("start", id_, *more)
        assert started.exit_code == 0, started.stderr
        fleet.wait_for_state(id_, "finished")
        assert fleet.out.read_text("utf-8").split() == ['"n"', "1", "2", "3", "4"]
    logged = fleet.run("logs", id_).stdout
    told = re.findall(
        rf"step {step} is computed without 2 row\(s\) of input in, as --skip-step asked: see (.*)", logged
    )
    assert len(told) == 2, logged
    with pa.ipc.open_file(fleet.directory / told[0]) as rows:
        assert rows.read_all().column("n").to_pylist() == [128, -129]


class Lines:
    """Whoever listens at the address of a TCP sink: what came on each connection, and is heard of it.

    The first one is not closed here, so the sink's member waits for a while before it makes its last version.
    """

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.at_ends: list[list[int]] = []
        self.first: socket.socket | None = None

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        if self.first is not None:
            self.first.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was left
            while True:
                connection, _ = self.server.accept()
                self.first = self.first or connection
                Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):  # that is not an end
            while some := connection.recv(1 << 16):
                data += some
            self.at_ends.append(sorted(map(int, data.split())))
        if connection is not self.first:
            connection.close()


def into(lines: Lines, fleet: Fleet) -> Fleet:
    """The numbers below 1000 go there, within five seconds."""
    fleet.data["nodes"][0]["physical"][0] |= {"rows_per_s": 200}
    fleet.data["nodes"][1]["sinks"] = [{"name": "out", "type": "TCP", "address": lines.address}]
    fleet.topology = fleet.written()
    fleet.start()
    return fleet


def test_a_member_that_is_killed_before_it_is_dismissed_is_dismissed_in_its_next_process(
    make_fleet: MakeFleet,
) -> None:
    """It has made its last version, and its coordinator is stopped by a signal until it is killed."""
    with Lines() as lines:
        fleet = into(lines, make_fleet())
        id_ = begun(fleet)
        pids = {each: fleet.pid_of(id_, each) for each in ("member-0", "coordinator")}
        wait_for(lambda: lines.at_ends, "the sink is at its end")
        os.kill(pids["coordinator"], signal.SIGSTOP)
        wait_for(lambda: list(fleet.directory.glob("**/published")), "the sink's result counts")
        os.kill(pids["member-0"], signal.SIGKILL)
        os.kill(pids["coordinator"], signal.SIGCONT)
        fleet.wait_for_state(id_, "finished")
        assert lines.at_ends == [[*range(1000)]] * len(lines.at_ends)


def test_a_member_that_has_closed_is_there_when_another_is_killed_before_it_has(
    make_fleet: MakeFleet,
) -> None:
    """DBSP-REQ-2: all are needed for another epoch, in which they come to their end once more.

    One member waits before its last version, and is stopped there by a signal. The other one has closed long before
    the coordinator has lost the first, which is killed then.
    """
    with Lines() as lines:
        fleet = into(lines, make_fleet())
        id_ = begun(fleet)
        pid = fleet.pid_of(id_, "member-0")
        wait_for(lambda: lines.at_ends, "the sink is at its end")
        os.kill(pid, signal.SIGSTOP)

        def is_lost() -> bool:
            return "a member was lost while all members were ending" in fleet.run("logs", id_).stdout

        wait_for(is_lost, "the coordinator has lost the member")
        os.kill(pid, signal.SIGKILL)
        fleet.wait_for_state(id_, "finished")
        assert lines.at_ends == [[*range(1000)]] * 2


def test_what_has_no_checkpoint_yet_is_said_to_begin(fleet: Fleet) -> None:
    """Of a query that was never started, and of one that has failed before its first checkpoint."""
    id_ = fleet.run("register", "--stepped", fleet.topology, fleet.query).stdout.strip()
    ended = fleet.run("checkpoint", id_)
    assert ended.exit_code == 1
    assert ended.error == (
        f"query {id_} was not started, and there is nothing to save: it has no checkpoint yet; 'nebuli start "
        f"{id_}' begins it"
    )
    file = fleet.directory / "numbers.csv"
    file.write_text("n\nthree\n", "utf-8")
    fleet.data["nodes"][0]["physical"] = [{"logical": "numbers", "type": "CSV", "path": str(file)}]
    fleet.topology = fleet.written("files.yaml")
    id_ = begun(fleet, "--checkpoint-every", "3600")
    fleet.wait_for_state(id_, "failed")
    file.write_text("n\n3\n", "utf-8")
    started = fleet.run("start", id_)
    assert started.exit_code == 0, started.stderr
    assert "had failed (fragment copy/" in started.stderr
    assert "no checkpoint yet" in started.stderr
    fleet.wait_for_state(id_, "finished")
    assert found_in(fleet.out) == [(3, 1, 3)]


def test_what_does_not_go_with_steps_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    """Each with the reason and what to do."""
    for options, text in (
        (("--members", "2"), "add --stepped"),
        (("--stepped", "--on-loss", "replace"), "--on-loss replace does not apply with --stepped"),
        (("--stepped", "--engine", "spark"), "--engine does not apply with --stepped"),
        (
            ("--stepped", "--members", "1"),
            "1 member is too few: each sink, and each node with a source, needs its own member",
        ),
    ):
        ended = fleet.run("register", *options, fleet.topology, fleet.query)
        assert ended.exit_code == 2
        assert text in ended.stderr
    id_ = fleet.run("register", fleet.topology, fleet.query).stdout.strip()
    ended = fleet.run("checkpoint", id_)
    assert ended.exit_code == 2
    assert "does not run in steps" in ended.error


def commands_in(error: str) -> list[list[str]]:
    """The `nebuli` commands of the last quotation with some, as arguments."""
    *_, quoted = re.findall(r"'(nebuli [^']+)'", error)
    return [shlex.split(each)[1:] for each in quoted.split(" && ")]


def test_an_error_of_start_names_the_commands_that_do_what_was_asked_for(fleet: Fleet) -> None:
    """From one refusal to the next, nobody goes round in a circle."""
    nobody = fleet.run("start", "--stepped", "abc")
    assert nobody.exit_code == 2
    assert "'nebuli start TOPOLOGY QUERY'" in nobody.error
    free = fleet.run("register", fleet.topology, fleet.query).stdout.strip()
    for options in (("--stepped",), ("--members", "2"), ("--stepped", "--members", "2")):
        ended = fleet.run("start", *options, free)
        assert ended.exit_code == 2
        assert f"query {free} was registered without --stepped: " in ended.error
    for arguments in commands_in(ended.error):
        ended = fleet.run(*arguments)
        assert ended.exit_code == 0, ended.stderr
    stepped = ended.stdout.strip()
    assert len(members(fleet, stepped)) == 3
    running = fleet.run("start", "--stepped", stepped)
    assert running.exit_code == 1
    assert f"is running already; 'nebuli status {stepped}' " in running.error
    (stop,) = commands_in(running.error)
    assert fleet.run(*stop).exit_code == 0
    others = fleet.run("start", "--members", "3", "--keep-output", "all", stepped)
    assert others.exit_code == 2
    assert f"'nebuli start {stepped}' starts it with them" in others.error
    for arguments in commands_in(others.error):
        ended = fleet.run(*arguments)
        assert ended.exit_code == 0, ended.stderr
    assert len(members(fleet, ended.stdout.strip())) == 4


def test_what_a_worker_does_not_know_any_more_is_begun_anew_by_the_commands_that_are_said(
    fleet: Fleet,
) -> None:
    id_ = fleet.run("register", "--stepped", fleet.topology, fleet.query).stdout.strip()
    fleet.kill(0)
    for state in fleet.directory.glob("**/workers/*"):
        if state.name.endswith(fleet.nodes[0].replace(":", "_")):
            shutil.rmtree(state)
    fleet.begin_again(0)
    lost = fleet.run("start", id_)
    assert lost.exit_code == 1
    assert f"no fragment {id_}/copy/member-" in lost.error
    for arguments in commands_in(lost.error):
        ended = fleet.run(*arguments)
        assert ended.exit_code == 0, ended.stderr
    assert len(members(fleet, ended.stdout.strip())) == 3


def test_files_that_match_a_pattern_are_divided_over_the_members_of_their_node(make_fleet: MakeFleet) -> None:
    """They are looked up where they are, once: what comes later is warned of, and not read, whoever begins again."""
    fleet = make_fleet()
    folder = fleet.directory
    for number in range(6):
        rows = range(number, ROWS, 12)
        (folder / f"part-{number}.csv").write_text("n\n" + "".join(f"{row}\n" for row in rows), "utf-8")
    source = {"logical": "numbers", "type": "CSV", "path": str(folder / "part-*.csv")}
    slow = {"logical": "numbers", "type": "Generator", "count": 5000, "rows_per_s": 1000}
    fleet.data["nodes"][0]["physical"] = [source, slow]
    fleet.topology = fleet.written()
    fleet.query.write_text(json.dumps(QUERY), "utf-8")
    fleet.start()
    id_ = begun(fleet, "--members", "4", "--checkpoint-every", "0.2")
    wait_for(
        lambda: fleet.json("status", id_)["checkpoint"], "steps were made of what both members have found"
    )
    for number in range(6, 12):
        (folder / f"part-{number}.csv").write_text("n\n1000000\n", "utf-8")
    os.kill(fleet.pid_of(id_, "member-3"), signal.SIGKILL)
    fleet.wait_for_state(id_, "finished")
    found = [*range(5000), *(row for number in range(6) for row in range(number, ROWS, 12))]
    parts = [[row for row in found if row % 7 == part] for part in range(7)]
    assert found_in(fleet.out) == [(part, len(rows), sum(rows)) for part, rows in enumerate(parts)]
    rows_in = [each["rows_in"] for each in members(fleet, id_).values()]
    assert sum(rows_in) == len(found)
    said = fleet.run("logs", "--level", "warning", id_).stdout
    assert {line.split()[1] for line in said.splitlines()} == {"WARNING"}, "and no line of channels buries it"
    assert "part-11.csv" in "".join(line for line in said.splitlines() if "does not read" in line)
    assert rows_in[0] == rows_in[2] == 0, "they are at the other node"


def test_a_result_that_never_comes_is_warned_of(fleet: Fleet) -> None:
    """As for a query that runs free: the sink gives its result at the end, and the source has none."""
    del fleet.data["nodes"][0]["physical"][0]["count"]
    ended = fleet.run("register", "--stepped", fleet.written("endless.yaml"), fleet.query)
    assert ended.exit_code == 0, ended.stderr
    assert "Warning: the sink out (mode final) writes its result after all sources have ended" in ended.stderr


def test_a_file_stays_its_querys_own_when_its_worker_was_killed(fleet: Fleet) -> None:
    """The worker that takes a member up again takes the lock of its sink's file again: a second query is refused."""
    first = begun(fleet)
    read(fleet, first, 0)
    fleet.kill(1)
    fleet.begin_again(1)
    read(fleet, first, ROWS // 100)
    second = fleet.run("start", "--stepped", fleet.topology, fleet.query)
    assert second.exit_code != 0
    assert f"query {first}, fragment copy/member-0" in second.error


def test_a_member_that_was_dismissed_ends_though_it_is_killed_before_that_is_recorded(fleet: Fleet) -> None:
    """Its coordinator has ended, so nobody dismisses the process that takes its place, which does not wait for that."""
    fleet.data["nodes"][0]["physical"][0]["count"] = 1000
    fleet.topology = fleet.written()
    id_ = begun(fleet)
    fleet.wait_for_state(id_, "finished")
    before = fleet.out.read_bytes()
    fleet.kill(1)
    (record,) = (
        path
        for path in fleet.directory.rglob("*.json")
        if f'"id":"{id_}/copy/member-0"' in path.read_text("utf-8")
    )
    assert '"state":"finished"' in record.read_text("utf-8")
    record.write_text(record.read_text("utf-8").replace('"state":"finished"', '"state":"running"'), "utf-8")
    fleet.begin_again(1)
    fleet.wait_for_state(id_, "finished")
    assert fleet.out.read_bytes() == before
