"""A worker process, driven by a plain gRPC client made from the committed .proto."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_pb2_grpc import WorkerStub
from tests.support.commands import Command
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

SCHEMA = [{"name": "n", "type": "int64"}]


class Worker:
    def __init__(self, directory: Path, *options: str, python: str | Path = sys.executable) -> None:
        self.directory = directory
        self.python = python
        self.data, self.grpc = free_addresses(2)
        self.begin(*options)

    def begin(self, *options: str) -> None:
        """Start the process, for the first time or again."""
        addresses = ("--data", self.data, "--grpc", self.grpc)
        self.command = Command("worker", *addresses, *options, directory=self.directory, python=self.python)
        self.command.wait_until_said(f"worker ready: data={self.data} grpc={self.grpc}\n")
        self.channel = grpc.insecure_channel(self.grpc)
        self.stub = WorkerStub(self.channel)

    def register(self, fragment: dict[str, Any]) -> str:
        return self.stub.Register(wire.RegisterRequest(fragment=json.dumps(fragment)), timeout=60).id

    def start(self, id_: str) -> None:
        self.stub.Start(wire.StartRequest(id=id_), timeout=60)

    def stop(self, id_: str, *, at_once: bool = False) -> None:
        self.stub.Stop(wire.StopRequest(id=id_, at_once=at_once), timeout=60)

    def status(self, id_: str) -> wire.FragmentStatus:
        return next(each for each in self.statuses() if each.id == id_)

    def end(self) -> None:
        """Whatever state it is in."""
        self.channel.close()
        self.command.process.kill()
        if self.command.process.stdout is not None and not self.command.process.stdout.closed:
            self.command.end()

    def unregister(self, id_: str) -> None:
        self.stub.Unregister(wire.UnregisterRequest(id=id_), timeout=60)

    def statuses(self) -> list[wire.FragmentStatus]:
        return list(self.stub.Status(wire.StatusRequest(), timeout=60).fragments)

    def wait_for_state(self, id_: str, state: wire.State, timeout_s: float = 60.0) -> wire.FragmentStatus:
        def found() -> wire.FragmentStatus | None:
            return next((each for each in self.statuses() if each.id == id_ and each.state == state), None)

        what = f"fragment {id_} in state {wire.State.Name(state)}: {self.statuses()}"
        return wait_for(found, what, timeout_s)

    def copies(self, name: str = "copy") -> dict[str, Any]:
        """A fragment that copies numbers.csv."""
        source = {"type": "CSV", "logical": "numbers", "path": str(self.directory / "numbers.csv")}
        target = {"type": "CSV", "name": "out", "path": str(self.directory / f"{name}.csv")}
        operators = [
            {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": source},
            {"id": "out", "type": "sink", "input": "in", "sink": "out", "target": target},
        ]
        return {"id": name, "node": self.data, "operators": operators}

    def waits(self, channel: str = "numbers") -> dict[str, Any]:
        """A fragment that waits for a channel which nobody sends to."""
        target = {"type": "Print", "name": "out"}
        source = {"id": "in", "type": "network_source", "channel": channel, "address": self.data}
        operators = [
            {**source, "schema": SCHEMA},
            {"id": "out", "type": "sink", "input": "in", "sink": "out", "target": target},
        ]
        return {"id": "wait", "node": self.data, "operators": operators}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.channel.close()
    worker.command.process.terminate()
    ended = worker.command.end()
    assert ended.exit_code == 0
    assert "Traceback" not in ended.stderr


def refusal(caught: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, wire.Refusal]:
    metadata = dict(caught.value.trailing_metadata())
    return caught.value.code(), wire.Refusal.FromString(metadata["nebuli-refusal-bin"])


def test_a_fragment_from_register_to_unregister(worker: Worker) -> None:
    """DP-1: register, start, status and unregister by a plain client."""
    (worker.directory / "numbers.csv").write_text("n\n1\n2\n3\n", "utf-8")
    id_ = worker.register(worker.copies())
    (status,) = worker.statuses()
    assert (status.id, status.fragment, status.state) == (id_, "copy", wire.STATE_REGISTERED)
    worker.start(id_)
    status = worker.wait_for_state(id_, wire.STATE_FINISHED)
    assert (status.rows_in, status.rows_out, status.error, status.cause) == (3, 3, "", wire.CAUSE_NONE)
    assert status.bytes_in == status.bytes_out == 3 * 16
    assert (worker.directory / "copy.csv").read_text("utf-8") == '"n"\n1\n2\n3\n'
    worker.unregister(id_)
    assert worker.statuses() == []


def test_each_fragment_has_a_local_id_of_its_own(worker: Worker) -> None:
    """DP-2, the worker's part: equal fragments get different ids, and an id is not used again."""
    first, second = worker.register(worker.copies()), worker.register(worker.copies())
    worker.unregister(second)
    third = worker.register(worker.copies())
    assert len({first, second, third}) == 3
    assert [status.id for status in worker.statuses()] == [first, third]


def test_a_fragment_has_the_id_that_was_wished_for(worker: Worker) -> None:
    """The same one again is no other: whoever did not hear the answer asks once more."""
    fragment = worker.copies()
    for _ in range(2):
        request = wire.RegisterRequest(fragment=json.dumps(fragment), id="query/17/../copy")
        assert worker.stub.Register(request, timeout=60).id == "query/17/../copy"
    assert [status.id for status in worker.statuses()] == ["query/17/../copy"]
    request = wire.RegisterRequest(fragment=json.dumps(worker.waits()), id="query/17/../copy")
    with pytest.raises(grpc.RpcError) as caught:
        worker.stub.Register(request, timeout=60)
    code, detail = refusal(caught)
    assert (code, detail.reason) == (grpc.StatusCode.ALREADY_EXISTS, wire.Refusal.REASON_ID_IN_USE)
    assert detail.message == "fragment copy already exists here as query/17/../copy, with other contents"


def test_a_number_that_was_wished_for_is_not_given_to_another(worker: Worker) -> None:
    request = wire.RegisterRequest(fragment=json.dumps(worker.copies()), id="1")
    assert worker.stub.Register(request, timeout=60).id == "1"
    assert worker.register(worker.copies()) == "2"


def test_a_running_fragment_is_stopped_once_or_twice(worker: Worker) -> None:
    """DP-1: stop, and what cannot be done to a fragment that runs."""
    id_ = worker.register(worker.waits())
    worker.start(id_)
    worker.wait_for_state(id_, wire.STATE_RUNNING)
    with pytest.raises(grpc.RpcError) as caught:
        worker.unregister(id_)
    code, detail = refusal(caught)
    assert (code, detail.reason) == (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_STILL_RUNNING)
    with pytest.raises(grpc.RpcError) as caught:
        worker.start(id_)
    code, detail = refusal(caught)
    assert (code, detail.reason) == (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_ALREADY_STARTED)
    assert detail.message == "fragment wait is running already"
    worker.stop(id_)
    assert worker.wait_for_state(id_, wire.STATE_STOPPED).cause == wire.CAUSE_REQUEST
    worker.stop(id_)


def test_a_registered_fragment_can_be_stopped(worker: Worker) -> None:
    id_ = worker.register(worker.waits())
    worker.stop(id_)
    assert worker.wait_for_state(id_, wire.STATE_STOPPED).error == "stopped before it was started"


def test_a_failed_fragment_says_why(worker: Worker) -> None:
    (worker.directory / "numbers.csv").write_text("n\n1\ntwo\n", "utf-8")
    id_ = worker.register(worker.copies())
    worker.start(id_)
    status = worker.wait_for_state(id_, wire.STATE_FAILED)
    assert status.cause == wire.CAUSE_INPUT
    assert status.error == f"{worker.directory}/numbers.csv, line 3, column n: 'two' is not a valid int64"


def test_an_unknown_id_is_refused(worker: Worker) -> None:
    for call in (worker.start, worker.stop, worker.unregister):
        with pytest.raises(grpc.RpcError) as caught:
            call("77")
        code, detail = refusal(caught)
        assert (code, detail.reason, detail.id) == (
            grpc.StatusCode.NOT_FOUND,
            wire.Refusal.REASON_UNKNOWN_ID,
            "77",
        )


@pytest.mark.parametrize(
    "operators",
    [
        [],
        [{"id": "out", "type": "guess"}],
        [
            {
                "id": "in",
                "type": "network_source",
                "channel": "c",
                "address": "127.0.0.1:1",
                "schema": SCHEMA,
            },
            {"id": "few", "type": "filter", "input": "in", "predicate": "missing > 1"},
            {"id": "out", "type": "network_sink", "input": "few", "channel": "d", "address": "127.0.0.1:1"},
        ],
    ],
)
def test_a_bad_fragment_is_refused(worker: Worker, operators: list[dict[str, Any]]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        worker.register({"id": "bad", "node": worker.data, "operators": operators})
    code, detail = refusal(caught)
    assert (code, detail.reason) == (grpc.StatusCode.INVALID_ARGUMENT, wire.Refusal.REASON_BAD_FRAGMENT)
    assert worker.statuses() == []


def test_a_channel_that_is_in_use_is_refused(worker: Worker) -> None:
    first, second = worker.register(worker.waits()), worker.register(worker.waits())
    worker.start(first)
    with pytest.raises(grpc.RpcError) as caught:
        worker.start(second)
    code, detail = refusal(caught)
    assert (code, detail.reason) == (grpc.StatusCode.ALREADY_EXISTS, wire.Refusal.REASON_CHANNEL_IN_USE)


@pytest.mark.parametrize("option", ["--data", "--grpc"])
def test_a_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path, option: str) -> None:
    addresses = dict(zip(("--data", "--grpc"), free_addresses(2), strict=True))
    with socket.create_server(("127.0.0.1", int(addresses[option].rpartition(":")[2]))):
        command = Command(
            "worker", *(part for pair in addresses.items() for part in pair), directory=tmp_path
        )
        ended = command.end()
    assert ended.exit_code == 2
    assert ended.stderr == (
        f"Error: {option} {addresses[option]}: the port is in use; stop the process that listens there, or "
        f"choose another\n"
    )


@pytest.mark.parametrize("address", [":0", "127.0.0.1:7:0", "[::1:0"])
def test_a_bad_address_with_a_free_port_is_bad_input(tmp_path: Path, address: str) -> None:
    command = Command("worker", "--data", address, "--grpc", "127.0.0.1:0", directory=tmp_path)
    ended = command.end()
    assert ended.exit_code == 2
    assert "Traceback" not in ended.stderr
    assert "--data" in ended.stderr
