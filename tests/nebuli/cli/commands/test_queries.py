"""Queries on workers that run already, by commands of their own: each finds by its id what another has registered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from nebuli.cli import saved_queries
from nebuli.cli.commands import queries
from nebuli.control import deployment
from nebuli.control.deployed_queries import DeployedFragment, DeployedQuery, GivenFile, Workers
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_pb2_grpc import WorkerStub
from tests.support.commands import Command, Ended, nebuli
from tests.support.fleet import MakeFleet
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


class Site:
    """Two workers: a source here, a sink there, and a query that copies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.out = directory / "out.csv"
        first, second, *self.grpc = free_addresses(4)
        self.nodes = [first, second]
        (directory / "numbers.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(1000)), "utf-8")
        self.topology = directory / "topology.yaml"
        source = {"logical": "numbers", "type": "CSV", "path": str(directory / "numbers.csv")}
        sink = {"name": "out", "type": "CSV", "path": str(self.out)}
        nodes = [
            {
                "address": first,
                "grpc": self.grpc[0],
                "links": {"downstream": [second]},
                "physical": [source],
            },
            {"address": second, "grpc": self.grpc[1], "sinks": [sink]},
        ]
        logical = [{"name": "numbers", "schema": [{"name": "n", "type": "int64"}]}]
        self.topology.write_text(yaml.safe_dump({"logical": logical, "nodes": nodes}), "utf-8")
        self.query = directory / "copy.json"
        operators = [
            {"id": "in", "type": "source", "logical": "numbers"},
            {"id": "out", "type": "sink", "input": "in", "sink": "out"},
        ]
        self.query.write_text(json.dumps({"operators": operators}), "utf-8")
        self.workers: list[Command] = []
        for number, (node, address) in enumerate(zip(self.nodes, self.grpc, strict=True)):
            folder = directory / f"worker{number}"
            folder.mkdir()
            self.workers.append(Command("worker", "--data", node, "--grpc", address, directory=folder))
        for worker in self.workers:
            worker.wait_until_said("worker ready")

    def run(self, *arguments: str | Path) -> Ended:
        return nebuli(*arguments, directory=self.directory)

    def status(self, id_: str) -> dict[str, Any]:
        return json.loads(self.run("status", id_, "--json").stdout)

    def wait_for_state(self, id_: str, state: str) -> None:
        wait_for(lambda: self.status(id_)["state"] == state, f"{id_} {state}")

    def hold_the_sink(self) -> None:
        """A file that nothing is written to before somebody reads it."""
        data = yaml.safe_load(self.topology.read_text("utf-8"))
        data["nodes"][1]["sinks"][0]["mode"] = "changes"
        self.topology.write_text(yaml.safe_dump(data), "utf-8")
        os.mkfifo(self.out)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    site = Site(tmp_path)
    yield site
    for worker in site.workers:
        worker.process.send_signal(signal.SIGCONT)
        worker.process.kill()
        worker.end()


def test_one_id_for_all_fragments_from_start_to_end(site: Site) -> None:
    """DP-2: `nebuli start` prints one id, `status` shows every fragment under it."""
    started = site.run("start", site.topology, site.query)
    id_ = started.stdout.strip()
    assert (started.exit_code, started.stderr.count("\n")) == (0, 1), started.stderr
    assert started.stderr.startswith(f"started: 'nebuli status {id_}'")
    assert f"'nebuli watch {id_}'" in started.stderr
    site.wait_for_state(id_, "finished")
    fragments = site.status(id_)["fragments"]
    assert [(each["node"], each["state"], each["rows_in"]) for each in fragments] == [
        (site.nodes[0], "finished", 1000),
        (site.nodes[1], "finished", 1000),
    ]
    assert site.out.read_text("utf-8").count("\n") == 1001
    assert json.loads(site.run("list", "--json").stdout)[0]["id"] == id_
    assert site.run("unregister", id_[:4]).exit_code == 0
    assert site.run("list").stdout == ""
    assert f"unknown query {id_!r}" in site.run("status", id_).error


def test_a_query_that_is_started_twice_has_channels_of_its_own_each_time(make_fleet: MakeFleet) -> None:
    """PL-DEC-3: the same files on the same workers, side by side."""
    fleet = make_fleet()
    first, second = fleet.data["nodes"]
    first["physical"] = [{"logical": "numbers", "type": "Generator", "rows_per_s": 1000.0}]
    second["sinks"] = [{"name": "out", "type": "Null", "mode": "append"}]
    fleet.topology = fleet.written()
    fleet.start()
    ids = [fleet.run("start", fleet.topology, fleet.query).stdout.strip() for _ in range(2)]
    with grpc.insecure_channel(fleet.grpc[1]) as channel:
        stub = WorkerStub(channel)

        def received() -> dict[str, int]:
            found = stub.Channels(wire.ChannelsRequest(), timeout=60).channels
            return {each.id: each.received for each in found if each.received}

        channels = wait_for(lambda: found if len(found := received()) == 2 else None, "rows of both")
    assert sorted(id_.partition("/")[0] for id_ in channels) == sorted(ids)
    assert {id_.partition("/")[2] for id_ in channels} == {"copy/in>out"}


def test_a_statement_counts_as_it_was_when_it_was_registered(make_fleet: MakeFleet) -> None:
    """It begins with its text of then, whatever its file says now."""
    fleet = make_fleet()
    statement = fleet.directory / "evens.sql"
    statement.write_text(
        "INSERT INTO out SELECT n * 10 AS tens FROM numbers WHERE n % 2 = 0 AND n < 5", "utf-8"
    )
    fleet.start()
    registered = fleet.run("register", fleet.topology, statement)
    assert registered.exit_code == 0, registered.stderr
    statement.write_text("INSERT INTO out SELECT n FROM numbers", "utf-8")
    started = fleet.run("start", registered.stdout.strip(), "--watch")
    assert (started.exit_code, f"{statement} has changed" in started.stderr) == (0, True), started.stderr
    assert sorted(fleet.out.read_text("utf-8").split()) == ['"tens"', "0", "20", "40"]


def test_register_and_start_apart_and_stop_twice(site: Site) -> None:
    """DP-5: stopped by its id from any later invocation; stopping twice is harmless."""
    site.hold_the_sink()
    id_ = site.run("register", site.topology, site.query).stdout.strip()
    assert site.status(id_)["state"] == "registered"
    assert site.run("start", id_).exit_code == 0
    assert site.status(id_)["state"] == "running"
    assert "running: stop it first" in site.run("unregister", id_).error
    for _ in range(2):
        assert site.run("stop", id_).exit_code == 0
        assert site.status(id_)["state"] == "stopped"
    again = site.run("start", id_).error
    assert "already: unregister the query, and start it from its files" in again
    assert (
        f"'nebuli stop {id_} && nebuli unregister {id_} && nebuli start {site.topology} {site.query}'"
        in again
    )
    assert site.run("unregister", id_).exit_code == 0


def test_a_query_that_begins_again_meanwhile_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher deploys it anew while its old deployment is stopped."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def deployed(deployment: str) -> DeployedQuery:
        fragment = DeployedFragment(
            fragment="f", node="127.0.0.1:1", grpc="127.0.0.1:1", id=f"{deployment}/f"
        )
        return DeployedQuery(
            id="first",
            name="q",
            topology=GivenFile(path="/t.yaml", text=""),
            query=GivenFile(path="/q.json", text=""),
            registered="2026-01-01T00:00:00+00:00",
            deployment=deployment,
            fragments=(fragment,),
            plan=(),
        )

    stopped = []

    async def stop(fragments: tuple[DeployedFragment, ...], fleet: Workers, *, at_once: bool) -> list[Any]:
        stopped.extend(each.id for each in fragments)
        saved_queries.save(deployed("second"))
        return []

    async def running_after(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(deployment, "stop", stop)
    monkeypatch.setattr(deployment, "running_after", running_after)
    saved_queries.save(deployed("first"))
    assert queries.stop.main(["first"], standalone_mode=False) == 0
    assert stopped == ["first/f", "second/f"]


def test_what_workers_log_is_read_in_one_place(site: Site) -> None:
    """DP-8: `nebuli logs ID`."""
    first = site.run("start", site.topology, site.query).stdout.strip()
    site.wait_for_state(first, "finished")
    site.run("unregister", first)
    second = site.run("start", site.topology, site.query).stdout.strip()
    site.wait_for_state(second, "finished")
    lines = [json.loads(line) for line in site.run("logs", second, "--json").stdout.splitlines()]
    assert {line["node"] for line in lines} == set(site.nodes)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    for node in site.nodes:
        told = [line["text"] for line in lines if line["node"] == node]
        assert any(text.endswith("finished") for text in told)
        assert any(f"{second}/" in text for text in told), "the channel's own lines"
    assert not any(f"{first}/" in line["text"] for line in lines)


def until_told(command: Command, text: str) -> str:
    """Read its lines up to one with this text."""
    assert command.process.stdout is not None
    for line in command.process.stdout:
        if text in line.decode():
            return line.decode()
    raise AssertionError(f"{text!r} was not said: {command.end()}")


def test_what_is_followed_is_in_the_order_of_the_workers_clocks(site: Site) -> None:
    id_ = site.run("start", site.topology, site.query).stdout.strip()
    site.wait_for_state(id_, "finished")
    following = Command("logs", id_, "--follow", "--json", directory=site.directory)
    lines: list[dict[str, Any]] = []
    assert following.process.stdout is not None
    while sum("finished" in line["text"] for line in lines) < 2:
        lines.append(json.loads(following.process.stdout.readline()))
    following.process.send_signal(signal.SIGINT)
    following.end()
    assert {line["node"] for line in lines} == set(site.nodes)
    times = [line["time"] for line in lines]
    assert times == sorted(times)


def test_what_a_lost_node_may_still_have_is_no_error_of_a_stop(site: Site) -> None:
    """As a watcher leaves it that has replaced the node: any later invocation stops all there is."""
    site.hold_the_sink()
    id_ = site.run("start", site.topology, site.query).stdout.strip()
    site.wait_for_state(id_, "running")
    gone, grpc = free_addresses(2)
    file = site.directory / "state" / "nebuli" / "queries" / f"{id_}.json"
    data = json.loads(file.read_text("utf-8"))
    data["left"] = [{"fragment": "old", "node": gone, "grpc": grpc, "id": "before/old"}]
    file.write_text(json.dumps(data), "utf-8")
    stopped = site.run("stop", id_)
    assert stopped.exit_code == 0
    assert stopped.stderr.startswith(f"worker {gone} does not answer at {grpc}")
    assert site.status(id_)["state"] == "stopped"


def test_a_misspelt_name_is_answered_with_what_was_meant(site: Site) -> None:
    id_ = site.run("register", site.topology, site.query).stdout.strip()
    wrong = f"{id_[:-1]}x"
    assert f"unknown query {wrong!r} (did you mean {id_!r}?)" in site.run("status", wrong).error
    assert "no such command 'regster' (did you mean 'register'?)" in site.run("regster").error
    assert "--strategy" in site.run("place", "--stratgy", "optimal", "t", "q").error


def test_what_one_worker_has_logged_is_shown_though_another_is_gone(site: Site) -> None:
    """DP-8: the one that is gone is named, and so is one that knows nothing of the query any more."""
    id_ = site.run("start", site.topology, site.query).stdout.strip()
    site.wait_for_state(id_, "finished")
    site.workers[1].process.kill()
    site.workers[1].process.wait()
    ended = site.run("logs", id_, "--json")
    assert (ended.exit_code, site.nodes[1] in ended.error) == (3, True)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {line["node"] for line in lines} == {site.nodes[0]}
    assert any(line["text"].endswith("finished") for line in lines)
    addresses = ("--data", site.nodes[1], "--grpc", site.grpc[1], "--state", "none")
    site.workers[1].end()
    site.workers[1] = Command("worker", *addresses, directory=site.directory / "worker1")
    site.workers[1].wait_until_said("worker ready")
    ended = site.run("logs", id_, "--json")
    assert ended.exit_code == 1
    assert ended.error.startswith("no fragment ")
    assert len(ended.stdout.splitlines()) == len(lines)


def test_what_is_followed_goes_on_without_a_worker_that_is_gone(site: Site) -> None:
    """DP-8: `nebuli logs --follow ID`."""
    id_ = site.run("register", site.topology, site.query).stdout.strip()
    (site.directory / "follow").mkdir()
    following = Command("logs", id_, "--follow", directory=site.directory / "follow")
    site.workers[1].process.kill()
    following.wait_until_said(f"Error: worker {site.nodes[1]} does not answer at {site.grpc[1]}")
    ended = site.run("start", id_)
    assert ended.exit_code == 3
    assert f"'nebuli watch {id_} --on-loss replace', which places the query without it" in ended.stderr
    assert site.status(id_)["fragments"][0]["state"] == "registered"  # where one cannot be started, none is
    assert site.run("stop", id_).exit_code == 3
    assert "copy/in" in until_told(following, "stopped")
    site.workers[0].process.kill()
    ended = following.end()
    assert ended.exit_code == 3
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("Error: ") == 2


def test_a_worker_that_is_gone_is_named_and_the_others_are_shown(site: Site) -> None:
    """DP-6: the dead worker is named as unreachable, the others stay up."""
    site.hold_the_sink()
    id_ = site.run("start", site.topology, site.query).stdout.strip()
    site.workers[1].process.kill()
    site.workers[1].process.wait()
    ended = site.run("status", id_)
    assert ended.exit_code == 3
    assert "is unreachable" in ended.stdout
    _, shown, said = ended.stdout.split("\n\n")
    assert max(map(len, shown.splitlines())) < 150  # columns; a long error is below them
    assert f"worker {site.nodes[1]} does not answer at {site.grpc[1]}" in said
    states = [each["state"] for each in site.status(id_)["fragments"]]
    assert (states[0] != "unreachable", states[1]) == (True, "unreachable")
    stopped = site.run("stop", id_)
    assert (stopped.exit_code, site.nodes[1] in stopped.error) == (3, True)
    # The fragment that lives tells its reader why it ends, for a while; then it can be taken away.
    wait_for(lambda: site.run("unregister", id_, "--force").exit_code == 0, "unregistered")


def test_a_second_query_for_the_same_file_is_refused_and_names_the_first(site: Site) -> None:
    """Registered at the same workers, or run beside them; when the first has ended, the second starts."""
    site.hold_the_sink()
    first = site.run("start", site.topology, site.query).stdout.strip()
    ended = site.run("start", site.topology, site.query)
    second = ended.stdout.strip()
    assert ended.exit_code == 1
    says = (
        f"{site.out} is in use as a sink by query {first}, fragment copy/out at {site.nodes[1]}, as {site.out}: stop "
        "that query, wait for its end, or give this sink another path"
    )
    assert ended.error == says
    assert [each["state"] for each in site.status(second)["fragments"]] == ["registered", "registered"]
    (site.directory / "link").symlink_to(site.directory)
    text = site.topology.read_text("utf-8").replace(str(site.out), "link/out.csv")
    for old, new in zip((*site.nodes, *site.grpc), free_addresses(4), strict=True):
        text = text.replace(old, new)
    (site.directory / "beside.yaml").write_text(text, "utf-8")
    ended = site.run("run", site.directory / "beside.yaml", site.query)
    assert (ended.exit_code, ended.error) == (1, says.replace(str(site.out), "link/out.csv", 1))
    assert site.run("stop", first).exit_code == 0
    assert site.run("start", second).exit_code == 0
    assert site.out.read_text("utf-8").count("\n") == 1001


def test_a_node_without_a_grpc_address_is_named(site: Site) -> None:
    data = yaml.safe_load(site.topology.read_text("utf-8"))
    del data["nodes"][1]["grpc"]
    site.topology.write_text(yaml.safe_dump(data), "utf-8")
    ended = site.run("register", site.topology, site.query)
    assert ended.exit_code == 2
    assert f"{site.topology}: {site.nodes[1]} has no grpc address" in ended.error


def test_of_a_query_that_cannot_be_registered_whole_nothing_stays(site: Site) -> None:
    site.workers[1].process.kill()
    site.workers[1].process.wait()
    ended = site.run("start", site.topology, site.query)
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert site.nodes[1] in ended.error
    assert site.run("list").stdout == ""


def test_commands_without_certificates_start_without_what_moves_data() -> None:
    """Importing pyarrow and the channels would take as long as all the rest of `nebuli start`."""
    code = (
        "import sys, nebuli.cli.files, nebuli.cli.commands.queries, nebuli.control.deployed_queries; "
        "print(sorted({'netchannel', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "[]\n"
