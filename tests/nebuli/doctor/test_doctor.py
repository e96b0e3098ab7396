"""``nebuli doctor`` on fleets of real workers: well, and with one thing wrong each, which is red and has its remedy."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.authority import HOUR, Authority
from tests.support.fleet import Fleet, MakeFleet, kept_secret, tls_keys
from tests.support.ports import free_addresses

pytestmark = pytest.mark.processes


def diagnosed(fleet: Fleet, topology: Path | None = None, *query: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of the doctor, and what it found; the text says the same as the JSON."""
    ended = fleet.run("doctor", topology or fleet.topology, *query, "--json")
    assert "Traceback" not in ended.stderr, ended.stderr
    found = json.loads(ended.stdout)
    assert found["ok"] == all(check["ok"] for check in found["checks"]) == (ended.exit_code == 0)
    return ended.exit_code, found["checks"]


def red(checks: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """The lines that are red, by subject and name; each has its remedy."""
    bad = {(check["subject"], check["name"]): check for check in checks if not check["ok"]}
    assert all(check["remedy"] for check in bad.values())
    return bad


@pytest.mark.parametrize("secured", [False, True])
def test_a_fleet_that_is_well(secured: bool, make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Every kind of check is there, in green, and the edge's round trip and throughput are measured."""
    keys: dict[str, Any] = {}
    if secured:
        tls = Authority(tmp_path, ends=400 * 24 * HOUR).issue("node", ends=300 * 24 * HOUR)
        keys = {"tls": tls_keys(tls), "secret": kept_secret(tmp_path)}
    fleet = make_fleet(**keys)
    fleet.start()
    code, checks = diagnosed(fleet)
    assert (code, red(checks)) == (0, {})
    names = {"port", "version", "clock", "descriptors", "congestion control"}
    names |= {"TLS", "certificate", "authority"} if secured else set()
    for node in fleet.nodes:
        assert {check["name"] for check in checks if check["subject"] == f"worker {node}"} == names
    (edge,) = [check for check in checks if check["subject"].startswith("edge")]
    assert edge["subject"] == f"edge {fleet.nodes[0]} -> {fleet.nodes[1]}"
    assert 0 < edge["values"]["round_trip_min_s"] <= edge["values"]["round_trip_s"]
    assert edge["values"]["throughput_bytes_per_s"] > 0
    # The channel that was measured by is gone, and a query finds the worker as it was.
    text = fleet.run("doctor", fleet.topology, fleet.query)
    assert text.exit_code == 0
    assert text.stdout.count("  ok    ") == len(checks)
    assert f"edge {fleet.nodes[0]} -> {fleet.nodes[1]}\n  ok    channel: opens in " in text.stdout


def test_a_worker_that_is_down(make_fleet: MakeFleet) -> None:
    """DP-6: it is named, the others are examined, and its edge is not measured."""
    fleet = make_fleet()
    fleet.start()
    fleet.workers[1].process.kill()
    fleet.workers[1].process.wait()
    code, checks = diagnosed(fleet)
    bad = red(checks)
    down, edge = f"worker {fleet.nodes[1]}", f"edge {fleet.nodes[0]} -> {fleet.nodes[1]}"
    assert (code, set(bad)) == (3, {(down, "port"), (edge, "channel")})
    assert bad[down, "port"]["found"] == f"{fleet.grpc[1]}: connection refused"
    assert f"nebuli worker --topology topology.yaml --node {fleet.nodes[1]}" in bad[down, "port"]["remedy"]
    text = fleet.run("doctor", fleet.topology)
    assert text.stdout.count("  FAIL  ") == text.stdout.count("        -> ") == 2
    assert text.exit_code == 3


@pytest.mark.parametrize("shown", ["another", None])
def test_a_wrong_secret_and_none(shown: str | None, make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet(secret=kept_secret(tmp_path))
    fleet.start()
    secret = None if shown is None else kept_secret(tmp_path, shown, "other.txt")
    code, checks = diagnosed(fleet, fleet.written("other.yaml", secret=secret))
    bad = red(checks)
    assert code == 3
    for node in fleet.nodes:
        line = bad[f"worker {node}", "secret"]
        assert "another secret" in line["found"] or "the call has none" in line["found"]
        assert "the same secret" in line["remedy"]


def test_a_key_and_a_secret_that_others_can_read(make_fleet: MakeFleet, tmp_path: Path) -> None:
    tls = Authority(tmp_path, ends=400 * 24 * HOUR).issue("node", ends=300 * 24 * HOUR)
    fleet = make_fleet(tls=tls_keys(tls), secret=kept_secret(tmp_path))
    fleet.start()
    for path in (Path(tls.key), tmp_path / "secret.txt"):
        path.chmod(0o644)
    code, checks = diagnosed(fleet)
    bad = red(checks)
    assert (code, set(bad)) == (1, {("here", "key"), ("here", "secret's file")})
    assert bad["here", "key"]["found"] == f"{tls.key} has mode 644"


def test_a_secret_that_is_missing_here(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(secret={"env": "NO_SUCH_SECRET_HERE"})
    _, checks = diagnosed(fleet)
    assert "environment variable NO_SUCH_SECRET_HERE has no secret" in red(checks)["here", "secret"]["found"]


def test_workers_with_secrets_of_their_own(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Each answers the command; between them there is no channel."""
    fleet = make_fleet()
    fleet.data["nodes"][0]["secret"] = kept_secret(tmp_path)
    fleet.data["nodes"][1]["secret"] = kept_secret(tmp_path, "another", "other.txt")
    fleet.topology = fleet.written()
    fleet.start()
    code, checks = diagnosed(fleet)
    edge = f"edge {fleet.nodes[0]} -> {fleet.nodes[1]}"
    bad = red(checks)
    assert (code, set(bad)) == (3, {(edge, "channel")})
    assert bad[edge, "channel"]["remedy"].startswith("give both workers the same secret")


def test_a_certificate_of_the_command_that_has_expired(make_fleet: MakeFleet, tmp_path: Path) -> None:
    authority = Authority(tmp_path, ends=400 * 24 * HOUR)
    fleet = make_fleet(tls=tls_keys(authority.issue("node", ends=300 * 24 * HOUR)))
    fleet.start()
    old = authority.issue("old", begins=-2 * HOUR, ends=-HOUR)
    code, checks = diagnosed(fleet, fleet.written("old.yaml", tls=tls_keys(old)))
    bad = red(checks)
    assert code == 3
    assert bad["here", "certificate"]["found"].startswith("expired on ")
    assert bad["here", "certificate"]["remedy"].startswith(f"renew {old.certificate}")
    assert "expired on" in bad[f"worker {fleet.nodes[0]}", "TLS"]["found"]


def test_a_workers_certificate_that_ends_soon_or_has_ended_on_its_disk(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    """The worker goes on with what it has read, and would not start again."""
    authority = Authority(tmp_path, ends=400 * 24 * HOUR)
    good = authority.issue("good", ends=300 * 24 * HOUR)
    soon = authority.issue("soon", ends=50 * HOUR)
    used = authority.issue("used", ends=300 * 24 * HOUR)
    fleet = make_fleet(tls=tls_keys(good))
    fleet.start(
        fleet.written("soon.yaml", tls=tls_keys(soon)),
        fleet.written("used.yaml", tls=tls_keys(used)),
    )
    old = authority.issue("old", begins=-2 * HOUR, ends=-HOUR)
    for name in ("certificate", "key"):
        os.replace(getattr(old, name), getattr(used, name))  # noqa: PTH105 - either may be a text
    code, checks = diagnosed(fleet)
    bad = red(checks)
    first, second = (f"worker {node}" for node in fleet.nodes)
    edge = (f"edge {fleet.nodes[0]} -> {fleet.nodes[1]}", "channel")
    assert set(bad) == {(first, "certificate"), (second, "certificate"), edge}
    assert (
        "used.pem expired on " in bad[edge]["found"]
    )  # as for a process of a fragment, which reads it again
    assert re.fullmatch(
        rf"renew {soon.certificate} in time: (49|50) h are left; .*", bad[first, "certificate"]["remedy"]
    )
    assert bad[second, "certificate"]["found"].startswith("expired on ")
    assert code == 3


def test_certificates_of_another_authority(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet(
        tls=tls_keys(Authority(tmp_path, ends=400 * 24 * HOUR).issue("node", ends=300 * 24 * HOUR))
    )
    fleet.start()
    (tmp_path / "strange").mkdir()
    strange = Authority(tmp_path / "strange", ends=400 * 24 * HOUR).issue("strange", ends=300 * 24 * HOUR)
    code, checks = diagnosed(fleet, fleet.written("other.yaml", tls=tls_keys(strange)))
    line = red(checks)[f"worker {fleet.nodes[0]}", "TLS"]
    assert "is not signed by an authority in" in line["found"]
    assert "of one authority" in line["remedy"]
    assert code == 3


def test_tls_at_one_side_only(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Whichever of the two it is."""
    tls = tls_keys(Authority(tmp_path, ends=400 * 24 * HOUR).issue("node", ends=300 * 24 * HOUR))
    fleet = make_fleet(tls=tls)
    plain = fleet.written("plain.yaml", tls=None)
    fleet.start(plain, fleet.topology)
    for topology, worker, name in ((fleet.topology, 0, "TLS"), (plain, 1, "answer")):
        code, checks = diagnosed(fleet, topology)
        line = red(checks)[f"worker {fleet.nodes[worker]}", name]
        assert "TLS" in line["found"] + line["remedy"]
        assert "nebuli doctor" not in line["found"]
        assert code == 3


def test_a_data_port_that_the_other_worker_cannot_reach(make_fleet: MakeFleet) -> None:
    """Both workers answer; what the topology says of the second one's address leads nowhere."""
    fleet = make_fleet()
    fleet.start()
    (nowhere,) = free_addresses(1)
    wrong = fleet.topology.read_text("utf-8").replace(fleet.nodes[1], nowhere)
    other = fleet.directory / "wrong.yaml"
    other.write_text(wrong, "utf-8")
    code, checks = diagnosed(fleet, other)
    bad = red(checks)
    edge = bad[f"edge {fleet.nodes[0]} -> {nowhere}", "channel"]
    assert edge["found"] == f"{nowhere}: Connection refused"
    assert f"let the first node reach port {nowhere.rpartition(':')[2]}" in edge["remedy"]
    address = bad[f"worker {nowhere}", "address"]
    assert address["found"] == f"the worker reports that others reach it at {fleet.nodes[1]}"
    assert code == 3


@contextmanager
def forwarded(to: str) -> Iterator[str]:
    """An address where connections go on to ``to``, as behind a firewall that lets one port through."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            host, _, port = to.rpartition(":")
            with socket.create_connection((host, int(port))) as other:
                back = threading.Thread(target=self.copy, args=(other, self.request))
                back.start()
                self.copy(self.request, other)
                back.join()

        def copy(self, start: socket.socket, end: socket.socket) -> None:
            with suppress(OSError):
                while data := start.recv(1 << 16):
                    end.sendall(data)
            with suppress(OSError):
                end.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_ports_of_fragments_that_the_other_worker_cannot_reach(make_fleet: MakeFleet) -> None:
    """Its address is reached; a query would be sent on from there to a port that is not."""
    fleet = make_fleet()
    listens = f"127.0.0.5:{fleet.nodes[1].rpartition(':')[2]}"
    with forwarded(listens) as address:
        fleet.nodes[1] = fleet.data["nodes"][1]["address"] = address
        fleet.data["nodes"][0]["links"]["downstream"] = [address]
        fleet.data["nodes"][1]["listen"] = listens
        fleet.topology = fleet.written()
        fleet.start()
        code, checks = diagnosed(fleet)
    edge = red(checks)[f"edge {fleet.nodes[0]} -> {address}", "channel"]
    assert f"named by {address}" in edge["found"]
    assert "let the first node reach the ephemeral ports of the second" in edge["remedy"]
    assert code == 3


def test_too_few_descriptors(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.start()
    (worker,) = psutil.Process(fleet.workers[0].process.pid).children()  # of its template
    worker.rlimit(psutil.RLIMIT_NOFILE, (200, 200))
    code, checks = diagnosed(fleet)
    bad = red(checks)
    assert (code, list(bad)) == (1, [(f"worker {fleet.nodes[0]}", "descriptors")])
    assert "of 200 descriptors" in bad[f"worker {fleet.nodes[0]}", "descriptors"]["found"]


def test_a_node_without_a_grpc_address(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    del fleet.data["nodes"][1]["grpc"]
    other = fleet.written("other.yaml")
    fleet.data["nodes"][1]["grpc"] = fleet.grpc[1]
    fleet.start()
    code, checks = diagnosed(fleet, other)
    assert red(checks)[f"worker {fleet.nodes[1]}", "port"]["remedy"] == "add grpc: host:port to the node"
    assert code == 3


def test_with_a_query_only_its_own_workers_and_edges_are_examined(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    (third,) = free_addresses(1)
    fleet.data["nodes"].append({"address": third})
    fleet.data["nodes"][0]["links"]["downstream"].append(third)
    fleet.topology = fleet.written()
    fleet.start()
    code, checks = diagnosed(fleet, None, fleet.query)
    assert code == 0
    assert not any(third in check["subject"] for check in checks)
    assert diagnosed(fleet)[0] == 3


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_go_to_terminals_that_want_them(
    environment: dict[str, str], coloured: bool, make_fleet: MakeFleet
) -> None:
    fleet = make_fleet()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nebuli", "doctor", str(fleet.topology)]
    known = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, env=known | environment, check=False)
    os.close(theirs)
    said = os.read(ours, 65536)
    os.close(ours)
    assert b"FAIL" in said
    assert (b"\x1b" in said) is coloured


def test_bad_input_is_told_as_everywhere(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.topology.write_text("nodes: [{address: a}]\n", "utf-8")
    ended = fleet.run("doctor", fleet.topology)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ":1:19: expected host:port" in ended.stderr
