"""A worker that is started again takes up what its predecessor was given."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from nebuli.rpc import worker_pb2 as wire
from tests.nebuli.node.fragment.test_fragment_processes import copies_from_a_channel, forwards, its_own
from tests.nebuli.node.service.test_service import SCHEMA, Worker, refusal
from tests.support.commands import Command
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.end()


def restart(worker: Worker, how: signal.Signals = signal.SIGKILL) -> None:
    worker.command.process.send_signal(how)
    worker.command.end()
    worker.begin()

    def answers() -> bool:
        try:
            worker.statuses()
        except grpc.RpcError:
            return False
        return True

    wait_for(answers, "the worker answers")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_each_fragment_is_as_it_was_or_says_what_is_lost(worker: Worker, how: signal.Signals) -> None:
    """DP-7: registered stays registered, finished finished; what has no state runs, and the rest has failed."""
    (worker.directory / "numbers.csv").write_text("n\n1\n2\n", "utf-8")
    registered, finished = worker.register(worker.waits("never")), worker.register(worker.copies())
    stateless, stateful = worker.register(forwards(worker)), worker.register(worker.waits("numbers"))
    for id_ in (finished, stateless, stateful):
        worker.start(id_)
    worker.wait_for_state(finished, wire.STATE_FINISHED)
    before = wait_for(lambda: worker.status(stateless).pid, "a process")
    restart(worker, how)
    assert worker.status(registered).state == wire.STATE_REGISTERED
    assert (worker.status(finished).state, worker.status(finished).rows_out) == (wire.STATE_FINISHED, 2)
    after = wait_for(lambda: worker.status(stateless).pid, "a process")
    assert (worker.status(stateless).state, after != before) == (wire.STATE_RUNNING, True)
    lost = worker.wait_for_state(stateful, wire.STATE_FAILED)
    assert lost.cause == wire.CAUSE_LOST
    assert lost.error == "its worker was restarted, which lost the state of sink out"
    assert worker.register(worker.copies("next")) == str(int(stateful) + 1)


def buffers(worker: Worker) -> dict[str, Any]:
    """A fragment that sends a thousand numbers to a channel, from a buffer on disk."""
    generator = {"logical": "numbers", "type": "Generator", "count": 1000}
    kept = {"buffer": {"directory": str(worker.directory / "kept")}}
    operators = [
        {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": generator},
        {"id": "in>", "type": "network_sink", "input": "in", "channel": "b", "address": worker.data, **kept},
    ]
    return {"id": "buffer", "node": worker.data, "operators": operators}


def test_a_fragment_with_a_buffer_on_disk_goes_on_exactly(worker: Worker) -> None:
    """DP-7: it can make again what the buffer has, which is of no use any more."""
    sender, reader = worker.register(buffers(worker)), worker.register(copies_from_a_channel(worker))
    worker.start(sender)
    kept = worker.directory / "kept"
    wait_for(lambda: kept.exists() and list(kept.iterdir()), "the buffer's folder")
    restart(worker)
    worker.start(reader)
    worker.wait_for_state(reader, wire.STATE_FINISHED)
    worker.wait_for_state(sender, wire.STATE_FINISHED)
    assert (worker.directory / "copied.csv").read_text("utf-8") == '"n"\n' + "".join(
        f"{n}\n" for n in range(1000)
    )
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("at_once", [True, False])
def test_of_a_buffer_on_disk_nothing_is_left_without_its_fragment(worker: Worker, *, at_once: bool) -> None:
    """Nobody would go on with it: another deployment has other channels."""
    id_ = worker.register(buffers(worker))
    worker.start(id_)
    kept = worker.directory / "kept"
    wait_for(lambda: kept.exists() and list(kept.iterdir()), "the buffer's folder")
    worker.stop(id_, at_once=at_once)
    worker.wait_for_state(id_, wire.STATE_STOPPED)
    wait_for(lambda: not list(kept.iterdir()), "it is gone")


@pytest.mark.parametrize("option", ["--grpc", "--metrics"])
def test_a_worker_that_cannot_start_leaves_its_fragments_as_they_were(
    worker: Worker, tmp_path: Path, option: str
) -> None:
    """DP-7: an address in use is not a fragment's end, and nobody's input is taken up meanwhile."""
    stateless, stateful = worker.register(forwards(worker)), worker.register(worker.waits("numbers"))
    for id_ in (stateless, stateful):
        worker.start(id_)
    wait_for(lambda: worker.status(stateless).pid and worker.status(stateful).pid, "processes")
    worker.command.process.kill()
    worker.command.end()
    (state,) = (tmp_path / "state" / "nebuli" / "workers").iterdir()
    before = {path.name: path.read_text("utf-8") for path in state.glob("*.json")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = {"--data": worker.data, "--grpc": worker.grpc, "--state": str(state)}
        addresses[option] = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = Command(
            "worker", *(part for pair in addresses.items() for part in pair), directory=tmp_path
        ).end()
    assert (ended.exit_code, f"{option} " in ended.error) == (2, True)
    assert {path.name: path.read_text("utf-8") for path in state.glob("*.json")} == before
    worker.begin()
    assert wait_for(lambda: answered(worker), "the worker answers")[0][0].state == wire.STATE_RUNNING


def test_what_cannot_be_remembered_is_refused(worker: Worker, tmp_path: Path) -> None:
    """DP-7: as where the disk is full; nothing of it stays, and what was taken before goes on."""
    before = worker.register(worker.waits())
    (state,) = (tmp_path / "state" / "nebuli" / "workers").iterdir()
    state.rename(tmp_path / "elsewhere")
    for ask in (lambda: worker.register(worker.copies()), lambda: worker.unregister(before)):
        with pytest.raises(grpc.RpcError) as caught:
            ask()
        code, detail = refusal(caught)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail.reason == wire.Refusal.REASON_STATE_UNUSABLE
        assert detail.message.startswith(f"the worker's state cannot be written: {state}")
        assert detail.message.endswith(": No such file or directory; free space there, or repair it")
    assert [each.id for each in worker.statuses()] == [before]
    (tmp_path / "elsewhere").rename(state)
    worker.unregister(before)


def test_any_id_is_remembered_and_the_order_too(worker: Worker) -> None:
    ids = [f"{'9' * 12}/b", f"../{'long' * 100}", "3", "a"]
    for id_ in ids:
        request = wire.RegisterRequest(fragment=json.dumps(worker.waits()), id=id_)
        worker.stub.Register(request, timeout=60)
    restart(worker)
    assert [status.id for status in worker.statuses()] == ids


def test_what_cannot_be_recorded_as_running_is_not_started(worker: Worker) -> None:
    """Else a successor would take it up as if it had never begun."""
    id_ = worker.register(forwards(worker))
    own = its_own(worker, [])
    own.rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))
    with pytest.raises(grpc.RpcError, match="File too large"):
        worker.start(id_)
    assert worker.status(id_).state == wire.STATE_REGISTERED
    own.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    worker.start(id_)
    restart(worker)
    assert worker.status(id_).state == wire.STATE_RUNNING


def test_what_was_unregistered_does_not_come_back(worker: Worker) -> None:
    id_ = worker.register(worker.waits())
    worker.unregister(id_)
    restart(worker)
    assert worker.statuses() == []


def test_a_state_belongs_to_one_worker_at_a_time(worker: Worker, tmp_path: Path) -> None:
    (directory,) = (tmp_path / "state" / "nebuli" / "workers").iterdir()
    (tmp_path / "other").mkdir()
    addresses = ("--data", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    ended = Command("worker", *addresses, "--state", directory, directory=tmp_path / "other").end()
    assert ended.exit_code == 2
    assert ended.error == (
        f"{directory} is in use by another worker: stop that worker, or give each worker its own --state"
    )


def test_a_folder_or_a_file_of_others_is_no_state(worker: Worker, tmp_path: Path) -> None:
    """What is there is left as it is, and nobody is told to remove it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    file = folder / "query.json"
    file.write_text("{}", "utf-8")
    for state, said in (
        (
            folder,
            f"{file} is not a fragment's record: give the worker its own --state",
        ),
        (
            file,
            f"{file} cannot be used: it is a file; give a folder for --state that this user can create",
        ),
    ):
        addresses = ("--data", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
        ended = Command("worker", *addresses, "--state", state, directory=folder.parent).end()
        assert ended.exit_code == 2
        assert ended.error.startswith(said)
        assert file.read_text("utf-8") == "{}"


def test_a_record_that_cannot_be_read_is_named(worker: Worker, tmp_path: Path) -> None:
    worker.register(worker.waits())
    worker.command.process.kill()
    worker.command.end()
    (record,) = (tmp_path / "state" / "nebuli" / "workers").glob("*/1.json")
    record.write_text("{}", "utf-8")
    addresses = ("--data", worker.data, "--grpc", worker.grpc)
    ended = Command("worker", *addresses, directory=tmp_path).end()
    assert ended.exit_code == 2
    assert f"Error: {record} is not a fragment's record: " in ended.stderr
    assert ended.stderr.rstrip().endswith("remove it")


def test_without_a_state_all_is_forgotten(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "--state", "none")
    try:
        worker.register(worker.waits())
        worker.command.process.kill()
        worker.command.end()
        worker.begin("--state", "none")
        assert wait_for(lambda: answered(worker), "the worker answers") == [[]]
    finally:
        worker.end()


def answered(worker: Worker) -> list[list[wire.FragmentStatus]] | None:
    try:
        return [worker.statuses()]
    except grpc.RpcError:
        return None
