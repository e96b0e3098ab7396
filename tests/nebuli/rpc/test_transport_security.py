"""A fleet with certificates and a secret from its topology: who can talk to its workers, and who cannot."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from nebuli.rpc import transport_security
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.trust import Trust
from nebuli.rpc.worker_pb2_grpc import WorkerStub
from netchannel import Tls
from tests.support.authority import HOUR, Authority
from tests.support.commands import Command
from tests.support.fleet import Fleet, MakeFleet, kept_secret, tls_keys
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def copies(fleet: Fleet) -> None:
    """A query goes through the fleet, from its start to its end, by commands of their own."""
    started = fleet.run("start", fleet.topology, fleet.query)
    assert started.exit_code == 0, started.stderr
    assert started.stderr.startswith("started: ")
    assert started.stderr.count("\n") == 1, "nothing else is said"
    id_ = started.stdout.strip()
    fleet.wait_for_state(id_, "finished")
    assert fleet.out.read_text("utf-8") == '"n"\n' + "".join(f"{n}\n" for n in range(1000))
    logs = fleet.run("logs", id_)
    assert any(line.endswith("finished") for line in logs.stdout.splitlines()), logs
    assert fleet.run("stop", id_).exit_code == 0
    assert fleet.run("unregister", id_).exit_code == 0


@pytest.mark.parametrize("given", [("tls",), ("secret",), ("tls", "secret")])
def test_a_query_runs_over_a_secured_fleet(
    given: tuple[str, ...], make_fleet: MakeFleet, authority: Authority, tmp_path: Path
) -> None:
    """All commands take TLS and secret from the topology; relative paths start at its directory."""
    files = {key: Path(path).name for key, path in tls_keys(authority.issue("node")).items()}
    keys = {"tls": files, "secret": kept_secret(tmp_path)}
    fleet = make_fleet(**{key: keys[key] for key in given})
    fleet.start()
    copies(fleet)
    state = (tmp_path / "state").rglob("*")
    assert not any(b"correct horse" in path.read_bytes() for path in state if path.is_file())


def test_run_takes_both_for_its_own_workers(
    make_fleet: MakeFleet, authority: Authority, tmp_path: Path
) -> None:
    fleet = make_fleet(tls=tls_keys(authority.issue("node")), secret=kept_secret(tmp_path))
    ended = fleet.run("run", fleet.topology, fleet.query)
    assert ended.exit_code == 0, ended.stderr
    assert fleet.out.read_text("utf-8").count("\n") == 1001


def test_a_secret_from_the_environment(make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_SECRET", "correct horse")
    fleet = make_fleet(secret={"env": "FLEET_SECRET"})
    fleet.start()
    copies(fleet)
    monkeypatch.delenv("FLEET_SECRET")
    ended = fleet.run("register", fleet.topology, fleet.query)
    assert ended.exit_code == 2
    assert ended.error == (
        "the environment variable FLEET_SECRET has no secret: put the secret there, the same for "
        "all workers and commands"
    )


@pytest.mark.parametrize("shown", ["another", None])
def test_a_command_without_the_secret_is_refused_and_told_why(
    shown: str | None, make_fleet: MakeFleet, tmp_path: Path
) -> None:
    fleet = make_fleet(secret=kept_secret(tmp_path))
    fleet.start()
    secret = None if shown is None else kept_secret(tmp_path, shown, "other.txt")
    ended = fleet.run("start", fleet.written("other.yaml", secret=secret), fleet.query)
    assert (ended.exit_code, ended.stdout) == (3, "")
    why = (
        "requires a secret, and the call has none: set one in the topology"
        if shown is None
        else "has another secret: give all workers and commands the same secret"
    )
    assert ended.error == f"worker {fleet.nodes[0]} {why} (at {fleet.grpc[0]})"
    assert "correct" not in ended.error


def test_without_the_secret_only_health_is_told(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """A plain client sees that the worker serves, and can call nothing: methods with one answer, with many, and
    reflection.
    """
    fleet = make_fleet(secret=kept_secret(tmp_path))
    fleet.start()
    with grpc.insecure_channel(fleet.grpc[0]) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        worker = WorkerStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        for call in (
            lambda: worker.Status(wire.StatusRequest(), timeout=60),
            lambda: list(worker.Logs(wire.LogsRequest(), timeout=60)),
            lambda: list(reflection.ServerReflectionInfo(iter([request]), timeout=60)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_renewed_certificate_that_could_not_be_read_at_first_is_read_later(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process has no descriptor left for a moment: the next handshake tries again."""
    tls = authority.issue("node")
    server = grpc.aio.server()
    port = transport_security.bind(server, "127.0.0.1:0", Trust(tls))
    await server.start()
    try:
        before = await asyncio.to_thread(shown, port, tls)
        authority.issue("node")
        files = transport_security._files
        failures = iter([OSError("no descriptor left")])

        def fails_once(tls: Tls) -> tuple[bytes, bytes, bytes]:
            for error in failures:
                raise error
            return files(tls)

        monkeypatch.setattr(transport_security, "_files", fails_once)
        assert await asyncio.to_thread(shown, port, tls) == before
        assert await asyncio.to_thread(shown, port, tls) != before
    finally:
        await server.stop(None)


def shown(port: int, tls: Tls) -> bytes:
    """The certificate that a server shows."""
    context = ssl.create_default_context(cafile=str(tls.authority))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 10) as connection,
        context.wrap_socket(connection) as secured_connection,
    ):
        certificate = secured_connection.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def test_channels_between_workers_ask_for_the_secret(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Workers that do not share it have no channel: the fragment says so, once."""
    fleet = make_fleet()
    first = fleet.written("first.yaml", secret=kept_secret(tmp_path))
    second = fleet.written("second.yaml", secret=kept_secret(tmp_path, "another", "other.txt"))
    fleet.data["nodes"][0]["secret"] = {"file": "secret.txt"}
    fleet.data["nodes"][1]["secret"] = {"file": "other.txt"}
    fleet.start(first, second)
    id_ = fleet.run("start", fleet.written(), fleet.query).stdout.strip()
    status = fleet.wait_for_state(id_, "failed")
    assert "secret" in status["fragments"][0]["error"]
    assert fleet.run("status", id_).exit_code == 1


def test_a_command_of_another_authority_reaches_no_worker(
    make_fleet: MakeFleet, authority: Authority, tmp_path: Path
) -> None:
    fleet = make_fleet(tls=tls_keys(authority.issue("node")))
    fleet.start()
    (tmp_path / "strange").mkdir()
    strange = Authority(tmp_path / "strange").issue("strange", trusts=authority)
    for tls in (tls_keys(strange), None):
        ended = fleet.run("start", fleet.written("other.yaml", tls=tls), fleet.query)
        assert (ended.exit_code, ended.stdout) == (3, "")
        assert f"worker {fleet.nodes[0]} does not answer at {fleet.grpc[0]}" in ended.error


def test_certificates_that_cannot_be_used_are_bad_input(make_fleet: MakeFleet, authority: Authority) -> None:
    """Of the worker and of the command: one sentence, exit code 2."""
    expired = authority.issue("old", begins=-2 * HOUR, ends=-HOUR)
    fleet = make_fleet(tls=tls_keys(expired))
    worker = fleet.run("worker", "--topology", fleet.topology, "--node", fleet.nodes[0])
    command = fleet.run("register", fleet.topology, fleet.query)
    for ended in (worker, command):
        assert ended.exit_code == 2
        assert f"the certificate {expired.certificate} expired on " in ended.error


def test_a_renewed_certificate_is_used_without_a_restart(
    make_fleet: MakeFleet, authority: Authority, tmp_path: Path
) -> None:
    """Over gRPC too: the next connection is shown the new one, which another authority has signed."""
    used = authority.issue("node")
    fleet = make_fleet(tls=tls_keys(used))
    fleet.start()
    (tmp_path / "newer").mkdir()
    newer = Authority(tmp_path / "newer").issue("node")
    other = fleet.written("other.yaml", tls=tls_keys(newer))
    assert fleet.run("register", other, fleet.query).exit_code == 3
    for name in ("certificate", "key", "authority"):
        os.replace(getattr(newer, name), getattr(used, name))  # noqa: PTH105 - either may be a text

    def registered() -> bool:
        return fleet.run("register", fleet.topology, fleet.query).exit_code == 0

    wait_for(registered, "a worker that shows its new certificate")


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        ({"buffer": {"max_messages": 1, "when_full": "fail"}}, "when_full='fail'"),
        ({"fault": {"retry": 0.2}}, "0.2"),
    ],
)
def test_a_policy_of_the_topology_decides_what_a_channel_does(
    channels: dict[str, Any], said: str, make_fleet: MakeFleet
) -> None:
    """The reader's worker is away: without these policies the sender waits for it for ever."""
    fleet = make_fleet(channels=channels)
    fleet.data["nodes"][0]["physical"][0]["count"] = 1_000_000
    fleet.topology = fleet.written()
    fleet.start()
    id_ = fleet.run("register", fleet.topology, fleet.query).stdout.strip()
    fleet.workers[1].process.kill()
    fleet.workers[1].process.wait()
    with grpc.insecure_channel(fleet.grpc[0]) as channel:
        stub = WorkerStub(channel)
        (status,) = stub.Status(wire.StatusRequest(), timeout=60).fragments
        stub.Start(wire.StartRequest(id=status.id), timeout=60)

        def failed() -> wire.FragmentStatus | None:
            (status,) = stub.Status(wire.StatusRequest(), timeout=60).fragments
            return status if status.state == wire.STATE_FAILED else None

        assert said in wait_for(failed, "the fragment's failure").error
    assert id_


def test_a_channel_that_waits_on_outlives_the_absence_of_either_worker(make_fleet: MakeFleet) -> None:
    """Each is away for longer than `retry`: the other's log says so, and the result is exact."""
    fleet = make_fleet(channels={"fault": {"retry": 0.2, "on_failure": "wait"}})
    source = fleet.data["nodes"][0]["physical"][0]
    source |= {"count": 50_000, "rows_per_s": 5_000}
    fleet.topology = fleet.written()
    fleet.start()
    id_ = fleet.run("register", fleet.topology, fleet.query).stdout.strip()

    def statuses(number: int) -> wire.FragmentStatus:
        with grpc.insecure_channel(fleet.grpc[number]) as channel:
            (status,) = WorkerStub(channel).Status(wire.StatusRequest(), timeout=60).fragments
            return status

    def start(number: int) -> None:
        with grpc.insecure_channel(fleet.grpc[number]) as channel:
            WorkerStub(channel).Start(wire.StartRequest(id=statuses(number).id), timeout=60)

    def told(number: int, text: str) -> bool:
        with grpc.insecure_channel(fleet.grpc[number]) as channel:
            request = wire.LogsRequest(id=statuses(number).id)
            lines = list(WorkerStub(channel).Logs(request, timeout=60))
        return any(line.level == "WARNING" and text in line.text for line in lines)

    fleet.kill(1)
    start(0)
    wait_for(lambda: told(0, "had no connection for 0.2 s"), "the sender's warning")
    assert statuses(0).state == wire.STATE_RUNNING
    fleet.begin_again(1)
    start(1)
    wait_for(lambda: statuses(1).rows_in, "rows")
    fleet.kill(0)
    wait_for(lambda: told(1, "had no sender for 0.2 s"), "the receiver's warning")
    assert statuses(1).state == wire.STATE_RUNNING
    fleet.begin_again(0)
    fleet.wait_for_state(id_, "finished")
    assert fleet.out.read_text("utf-8") == '"n"\n' + "".join(f"{n}\n" for n in range(50_000))


def test_a_durable_buffer_of_the_query_is_below_the_senders_directory(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    fleet = make_fleet()
    query = fleet.query.read_text("utf-8")
    policy = json.dumps({"buffer": {"directory": str(tmp_path / "kept")}})
    fleet.query.write_text(query.replace("{", f'{{"channels": {policy}, ', 1), "utf-8")
    os.mkfifo(fleet.out)
    fleet.data["nodes"][1]["sinks"][0]["mode"] = "changes"
    del fleet.data["nodes"][0]["physical"][0]["count"]  # what has ended keeps nothing
    fleet.topology = fleet.written()
    fleet.start()
    id_ = fleet.run("start", fleet.topology, fleet.query).stdout.strip()
    wait_for(lambda: list(tmp_path.glob("kept/*")), "the buffer's folder")
    assert fleet.run("stop", id_).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--topology", "topology.yaml"), "--topology and --node require each other"),
        (("--data", "127.0.0.1:0"), "--grpc is missing"),
        (("--topology", "topology.yaml", "--node", "127.0.0.1:1"), "has no node 127.0.0.1:1"),
    ],
)
def test_what_a_worker_needs_is_named(arguments: tuple[str, ...], said: str, make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    given = [str(fleet.topology) if each == "topology.yaml" else each for each in arguments]
    ended = fleet.run("worker", *given)
    assert ended.exit_code == 2
    assert said in ended.error


@pytest.mark.parametrize(("option", "host"), [("grpc", "0.0.0.0"), ("data", "[::]")])
def test_a_worker_that_everybody_could_use_does_not_start(option: str, host: str, tmp_path: Path) -> None:
    """On loopback, with a secret, or where it is asked for, it does."""
    exposed = {"data": "127.0.0.1:0", "grpc": "localhost:0"} | {option: f"{host}:0"}
    given = [part for name, address in exposed.items() for part in (f"--{name}", address)]
    ended = Command("worker", *given, directory=tmp_path).end()
    assert ended.exit_code == 2
    assert ended.error == (
        f"--{option} {host}:0 can be reached from other machines, and without TLS and a secret any client "
        "can read and write files as this worker does: name tls or a secret in the topology, or give "
        "--secret-file FILE; --insecure starts it anyway"
    )
    secret = kept_secret(tmp_path)["file"]
    for more in (["--insecure"], ["--secret-file", str(tmp_path / secret)]):
        command = Command("worker", *given, *more, directory=tmp_path)
        command.wait_until_said("worker ready")
        command.process.terminate()
        assert command.end().exit_code == 0


def test_a_query_whose_secret_is_gone_does_not_hide_the_others(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet(secret=kept_secret(tmp_path))
    fleet.start()
    first = fleet.run("register", fleet.topology, fleet.query).stdout.strip()
    other = fleet.written("other.yaml", secret=kept_secret(tmp_path, name="other.txt"))
    second = fleet.run("register", other, fleet.query).stdout.strip()
    (tmp_path / "other.txt").unlink()
    ended = fleet.run("list", "--json")
    assert {each["id"]: each["state"] for each in json.loads(ended.stdout)} == {
        first: "registered",
        second: "unreachable",
    }
    assert f"query {second}: the secret's file {tmp_path / 'other.txt'} cannot be read" in ended.stderr
    assert fleet.run("status", second).exit_code == 2
