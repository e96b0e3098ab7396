"""A process for each fragment: what one of them does to itself, no other feels."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest

import netchannel
from nebuli.connectors.network import _END_S, HAS_ALL
from nebuli.connectors.positions import END, Span, as_note
from nebuli.dataflow import zset
from nebuli.rpc import worker_pb2 as wire
from netchannel import ChannelClosedByPeer
from tests.nebuli.node.service.test_service import SCHEMA, Worker
from tests.support.commands import nebuli
from tests.support.fleet import MakeFleet
from tests.support.needs import need_module
from tests.support.ports import free_addresses
from tests.support.waiting import until_async, wait_for

pytestmark = pytest.mark.processes

ROWS = 20_000
BATCH = zset.insertions(pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}))
NO_ROWS = zset.empty(BATCH.schema)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path, "--fragment-memory", "256")
    (tmp_path / "numbers.csv").write_text("n\n" + "1\n" * ROWS, "utf-8")
    yield worker
    worker.end()


def joins_with_itself(worker: Worker, name: str) -> dict[str, Any]:
    """A fragment that makes four hundred million rows of ``ROWS``, and passes over them all."""
    physical = {"type": "CSV", "logical": "numbers", "path": str(worker.directory / "numbers.csv")}
    operators: list[dict[str, Any]] = [
        {"id": id_, "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": physical}
        for id_ in ("left", "right")
    ]
    target = {"type": "Null", "name": "out", "mode": "changes"}
    operators += [
        {"id": "join", "type": "join", "inputs": ["left", "right"], "on": ["n"]},
        {"id": "kept", "type": "filter", "input": "join", "predicate": "n = 2"},
        {"id": "out", "type": "sink", "input": "kept", "sink": "out", "target": target},
    ]
    return {"id": name, "node": worker.data, "operators": operators}


def remembers(worker: Worker) -> dict[str, Any]:
    """A fragment that has to know all numbers that there have been, of more than there is memory for."""
    source = {"logical": "numbers", "type": "Generator"}
    target = {"type": "Null", "name": "out", "mode": "changes"}
    operators = [
        {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": source},
        {"id": "each", "type": "distinct", "input": "in"},
        {"id": "out", "type": "sink", "input": "each", "sink": "out", "target": target},
    ]
    return {"id": "eats", "node": worker.data, "operators": operators}


def forwards(worker: Worker) -> dict[str, Any]:
    """A fragment without a state, that waits for a channel and sends to one that nobody reads."""
    operators = [
        {"id": "in", "type": "network_source", "channel": "a", "address": worker.data, "schema": SCHEMA},
        {"id": "in>", "type": "network_sink", "input": "in", "channel": "b", "address": worker.data},
    ]
    return {"id": "forward", "node": worker.data, "operators": operators}


def copies_from_a_channel(worker: Worker) -> dict[str, Any]:
    fragment = worker.copies("copied")
    fragment["operators"][0] = worker.waits("b")["operators"][0]
    return fragment


def assert_another_query_ends_properly(worker: Worker) -> None:
    id_ = worker.register(worker.copies("other"))
    worker.start(id_)
    assert worker.wait_for_state(id_, wire.STATE_FINISHED).rows_out == ROWS


def running(worker: Worker, fragment: dict[str, Any]) -> tuple[str, int]:
    """Start it; its id, and that of its process."""
    id_ = worker.register(fragment)
    worker.start(id_)
    return id_, wait_for(lambda: worker.status(id_).pid, "a process")


def test_a_fragment_that_raises_fails_alone(worker: Worker) -> None:
    (worker.directory / "many.csv").write_text("n\nmany\n", "utf-8")
    wrong = worker.copies("wrong")
    wrong["operators"][0]["physical"]["path"] = str(worker.directory / "many.csv")
    id_ = worker.register(wrong)
    worker.start(id_)
    assert "'many' is not a valid int64" in worker.wait_for_state(id_, wire.STATE_FAILED).error
    assert_another_query_ends_properly(worker)


def test_a_fragment_that_spins_holds_up_nobody_and_is_ended(worker: Worker) -> None:
    """It never looks whether it is to stop: after its time of grace its process is ended."""
    id_, pid = running(worker, joins_with_itself(worker, "spins"))
    assert_another_query_ends_properly(worker)
    assert worker.status(id_).state == wire.STATE_RUNNING
    worker.stop(id_)
    status = worker.wait_for_state(id_, wire.STATE_STOPPED)
    assert status.cause == wire.CAUSE_REQUEST
    assert status.error == "stopped; the fragment did not end within 3 s, and its process was ended"
    assert not psutil.pid_exists(pid)


def test_a_stopped_process_is_ended_at_once(worker: Worker) -> None:
    id_, pid = running(worker, worker.waits())
    os.kill(pid, signal.SIGSTOP)
    worker.stop(id_, at_once=True)
    assert worker.wait_for_state(id_, wire.STATE_STOPPED).error == "stopped at once"


def test_a_fragment_that_takes_too_much_memory_fails_alone(worker: Worker) -> None:
    """The limit is the fragment's own: the worker has no limit."""
    id_, _ = running(worker, remembers(worker))
    status = worker.wait_for_state(id_, wire.STATE_FAILED, 60.0)
    assert status.cause == wire.CAUSE_ITSELF
    assert "MemoryError" in status.error or "bad_alloc" in status.error, status.error
    assert_another_query_ends_properly(worker)


def goes_on_after(worker: Worker, id_: str, number: signal.Signals) -> None:
    """Kill its process, and wait for another."""
    pid = wait_for(lambda: worker.status(id_).pid, "a process")
    os.kill(pid, number)
    wait_for(lambda: worker.status(id_).pid not in (0, pid), f"another process: {worker.status(id_)}")


def test_an_exact_fragment_goes_on_in_a_new_process(worker: Worker) -> None:
    """DP-7, where the process alone is killed: each row comes, and once."""
    rows = 3_000_000  # more than a reader that stands still takes
    (worker.directory / "numbers.csv").write_text("n\n" + "\n".join(map(str, range(rows))), "utf-8")
    out = worker.directory / "out.csv"
    reads = worker.waits("between")
    reads["operators"][-1]["target"] = {"type": "CSV", "name": "out", "path": str(out)}
    reader, reader_pid = running(worker, reads)
    operators = [
        worker.copies()["operators"][0],
        {"id": "in>", "type": "network_sink", "input": "in", "channel": "between", "address": worker.data},
    ]
    writer, _ = running(worker, {"id": "writes", "node": worker.data, "operators": operators})
    wait_for(lambda: worker.status(reader).rows_in, "rows")
    os.kill(reader_pid, signal.SIGSTOP)
    goes_on_after(worker, writer, signal.SIGSEGV)
    goes_on_after(worker, writer, signal.SIGKILL)
    os.kill(reader_pid, signal.SIGCONT)
    worker.wait_for_state(reader, wire.STATE_FINISHED, 60.0)
    worker.wait_for_state(writer, wire.STATE_FINISHED, 60.0)
    assert sorted(map(int, out.read_text("utf-8").split()[1:])) == list(range(rows))


def test_what_crashes_again_and_again_has_failed_and_its_neighbours_hear_of_it(worker: Worker) -> None:
    reader, reader_pid = running(worker, worker.waits("between"))
    source = {"logical": "numbers", "type": "Generator"}
    operators = [
        {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": source},
        {"id": "in>", "type": "network_sink", "input": "in", "channel": "between", "address": worker.data},
    ]
    writer, _ = running(worker, {"id": "writes", "node": worker.data, "operators": operators})
    wait_for(lambda: worker.status(reader).rows_in, "rows")
    for _ in range(2):
        goes_on_after(worker, writer, signal.SIGSEGV)
    os.kill(worker.status(writer).pid, signal.SIGSEGV)
    status = worker.wait_for_state(writer, wire.STATE_FAILED)
    assert (status.cause, status.pid) == (wire.CAUSE_ITSELF, 0)
    assert status.error.startswith("its process was killed by SIGSEGV (3 times within 60 s)")
    told = worker.wait_for_state(reader, wire.STATE_FAILED)
    assert told.cause == wire.CAUSE_UPSTREAM
    assert f"fragment writes at {worker.data}: its process was killed by SIGSEGV" in told.error
    channels = worker.stub.Channels(wire.ChannelsRequest(prefix="between"), timeout=60).channels
    assert [each for each in channels if each.side == wire.Channel.SIDE_SENDER] == []
    assert_another_query_ends_properly(worker)
    wait_for(lambda: not psutil.pid_exists(reader_pid), "the reader's process is gone")


def test_a_reader_that_is_killed_stops_its_producer(worker: Worker) -> None:
    reader, reader_pid = running(worker, worker.waits("between"))
    source = {"logical": "numbers", "type": "Generator"}
    operators = [
        {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": source},
        {"id": "in>", "type": "network_sink", "input": "in", "channel": "between", "address": worker.data},
    ]
    writer, _ = running(worker, {"id": "writes", "node": worker.data, "operators": operators})
    wait_for(lambda: worker.status(reader).rows_in, "rows")
    os.kill(reader_pid, signal.SIGKILL)
    lost = worker.wait_for_state(reader, wire.STATE_FAILED)
    assert lost.cause == wire.CAUSE_LOST
    assert lost.error == (
        "its process was killed by SIGKILL, possibly by a system that is out of memory; this "
        "lost the state of sink out"
    )
    status = worker.wait_for_state(writer, wire.STATE_STOPPED)
    assert status.cause == wire.CAUSE_DOWNSTREAM
    assert "its process was killed by SIGKILL" in status.error


@pytest.mark.parametrize("too_late", [False, True])
async def test_a_producer_whose_end_comes_late_hears_of_it(worker: Worker, *, too_late: bool) -> None:
    """The fragment has finished when it has all there is; its process waits for the end, and then is gone."""
    forward, reader = forwards(worker), copies_from_a_channel(worker)
    ids = [worker.register(reader), worker.register(forward)]
    for id_ in ids:
        worker.start(id_)
    async with netchannel.SenderServer() as sender, asyncio.timeout(60):
        channel = sender.register_channel("a", to=worker.data)
        await channel.send(BATCH, as_note(Span(0, 3)))
        await channel.send(NO_ROWS, as_note(Span(3, END)))
        await channel.flush()
        if too_late:

            async def is_told() -> bool:
                return channel.statistics().state == "closed by peer"

            await until_async(is_told, "the fragment's process is gone")
            with pytest.raises(ChannelClosedByPeer, match=HAS_ALL):
                await channel.close()
        else:
            sent = time.monotonic()
            await asyncio.sleep(0.5)
            (outcome,) = await asyncio.gather(channel.close(), return_exceptions=True)
            if isinstance(
                outcome, BaseException
            ):  # this process was away for as long as an end is waited for
                assert isinstance(outcome, ChannelClosedByPeer)
                assert time.monotonic() - sent > _END_S
    for id_ in ids:
        await asyncio.to_thread(worker.wait_for_state, id_, wire.STATE_FINISHED)


async def test_a_process_that_is_killed_behind_its_fragments_end_keeps_no_producer(worker: Worker) -> None:
    """It waits for the end of an input of which it has all."""
    reader, _ = running(worker, copies_from_a_channel(worker))
    forward, pid = running(worker, forwards(worker))
    async with netchannel.SenderServer() as sender, asyncio.timeout(60):
        channel = sender.register_channel("a", to=worker.data)
        await channel.send(BATCH, as_note(Span(0, 3)))
        await channel.send(NO_ROWS, as_note(Span(3, END)))
        await channel.flush()
        await asyncio.to_thread(worker.wait_for_state, forward, wire.STATE_FINISHED)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChannelClosedByPeer, match=HAS_ALL):
            await channel.close()
    await asyncio.to_thread(worker.wait_for_state, reader, wire.STATE_FINISHED)


async def test_a_process_that_is_killed_while_it_tells_its_reader_keeps_nobody(worker: Worker) -> None:
    """It has failed, and waits for a reader that is not there; behind that it would have closed its input."""
    why = "continues at row 5 of the origin, but this fragment has 0 rows"
    async with (
        netchannel.ReceiverServer() as receiver,
        netchannel.SenderServer() as sender,
        asyncio.timeout(60),
    ):
        fragment = forwards(worker)
        fragment["operators"][1]["address"] = receiver.address
        id_, pid = running(worker, fragment)
        channel = sender.register_channel("a", to=worker.data)
        await channel.send(BATCH, as_note(Span(5, 8)))
        await asyncio.to_thread(worker.wait_for_state, id_, wire.STATE_FAILED)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChannelClosedByPeer, match=why):
            await channel.close()
        with pytest.raises(netchannel.ChannelFailed, match=why):
            await receiver.register_channel("b").recv()


async def test_a_fragment_that_fails_at_once_keeps_no_producer(worker: Worker) -> None:
    """Its process is gone before the worker has heard of its channel."""
    fragment = worker.waits()
    path = worker.directory / "numbers.csv" / "out.csv"  # which is not a directory
    fragment["operators"][-1]["target"] = {"type": "CSV", "name": "out", "path": str(path)}
    id_ = worker.register(fragment)
    worker.start(id_)
    async with netchannel.SenderServer() as sender, asyncio.timeout(60):
        await asyncio.to_thread(worker.wait_for_state, id_, wire.STATE_FAILED)
        with pytest.raises(ChannelClosedByPeer, match="cannot be written"):
            await sender.register_channel("numbers", to=worker.data).close()


async def test_the_neighbours_of_a_fragment_that_is_stopped_before_it_was_started_hear_of_it(
    worker: Worker,
) -> None:
    why = "stopped before it was started"
    async with (
        netchannel.ReceiverServer() as receiver,
        netchannel.SenderServer() as sender,
        asyncio.timeout(60),
    ):
        fragment = forwards(worker)
        fragment["operators"][1]["address"] = receiver.address
        worker.stop(worker.register(fragment))
        with pytest.raises(ChannelClosedByPeer, match=why):
            await sender.register_channel("a", to=worker.data).close()
        with pytest.raises(netchannel.ChannelFailed, match=why):
            await receiver.register_channel("b").recv()


def counts(worker: Worker, to: str) -> dict[str, Any]:
    """A fragment with a state, that sends to a channel."""
    source = {"logical": "numbers", "type": "Generator"}
    sink = {"id": "in>", "type": "network_sink", "input": "each", "channel": "between", "address": to}
    operators = [
        {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": source},
        {"id": "each", "type": "distinct", "input": "in"},
        sink,
    ]
    return {"id": "counts", "node": worker.data, "operators": operators}


def logged(worker: Worker, id_: str) -> list[wire.LogLine]:
    return list(worker.stub.Logs(wire.LogsRequest(id=id_), timeout=60))


def test_of_the_log_only_what_may_be_the_reason_is_in_the_error(worker: Worker) -> None:
    """No warning, and nothing that was said long before."""
    id_, pid = running(worker, counts(worker, "127.0.0.1:1"))
    wait_for(
        lambda: any(line.level == "WARNING" for line in logged(worker, id_)), "it cannot reach its reader"
    )
    stderr = Path(f"/proc/{pid}/fd/2")
    stderr.write_text("an old complaint\n", "utf-8")
    wait_for(lambda: any("old complaint" in line.text for line in logged(worker, id_)), "it was heard")
    heard = time.monotonic()
    wait_for(lambda: time.monotonic() > heard + 2.1, "that is long ago")
    stderr.write_text("its last words\n", "utf-8")
    os.kill(pid, signal.SIGKILL)
    error = worker.wait_for_state(id_, wire.STATE_FAILED).error
    assert error.endswith("; the end of its log: its last words")


def chain(worker: Worker, physical: dict[str, Any]) -> list[str]:
    """Three fragments in a row, started: the last prints."""
    source = {**worker.copies()["operators"][0], "physical": {"logical": "numbers", **physical}}
    first, second = (
        {"type": "network_sink", "input": "in", "channel": f"chain/{n}", "address": worker.data} for n in "ab"
    )
    fragments = {
        "last": worker.waits("chain/b")["operators"],
        "between": [
            worker.waits("chain/a")["operators"][0],
            {"id": "each", "type": "distinct", "input": "in"},
            {**second, "id": "each>", "input": "each"},
        ],
        "first": [source, {**first, "id": "in>"}],
    }
    ids = []
    for id_, operators in fragments.items():
        ids.append(worker.register({"id": id_, "node": worker.data, "operators": operators}))
        worker.start(ids[-1])
    return ids[::-1]


def test_over_any_number_of_hops_the_first_cause_is_told_once(worker: Worker) -> None:
    (worker.directory / "numbers.csv").write_text("n\nmany\n", "utf-8")
    first, between, last = chain(worker, {"type": "CSV", "path": str(worker.directory / "numbers.csv")})
    reason = worker.wait_for_state(first, wire.STATE_FAILED).error
    for id_ in (between, last):
        status = worker.wait_for_state(id_, wire.STATE_FAILED)
        assert status.error == f"its input in failed: fragment first at {worker.data}: {reason}"
        assert status.cause == wire.CAUSE_UPSTREAM


def test_against_the_stream_too(worker: Worker) -> None:
    first, between, last = chain(worker, {"type": "Generator"})
    wait_for(lambda: worker.status(last).rows_in, "rows")
    worker.stop(last)
    for id_ in (between, first):
        status = worker.wait_for_state(id_, wire.STATE_STOPPED)
        assert status.error == f"its reader at {worker.data} left: fragment last at {worker.data}: stopped"
        assert status.cause == wire.CAUSE_DOWNSTREAM


def test_a_worker_that_cannot_write_its_log_goes_on(tmp_path: Path) -> None:
    """As with a full disk, or a standard error that nobody reads any more: fragments end, and can be asked for."""
    worker = Worker(tmp_path, "--state", "none")
    try:
        its_own(worker, []).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
        id_ = worker.register(worker.copies())
        worker.start(id_)
        assert (
            "copy.csv cannot be written: File too large"
            in worker.wait_for_state(id_, wire.STATE_FAILED).error
        )
        worker.unregister(id_)
    finally:
        worker.end()


def test_a_signal_without_a_name_ends_a_fragment_as_any_other(worker: Worker) -> None:
    id_, pid = running(worker, worker.waits())
    os.kill(pid, signal.SIGRTMIN + 3)
    error = worker.wait_for_state(id_, wire.STATE_FAILED).error
    assert error.startswith(f"its process was killed by signal {signal.SIGRTMIN + 3}"), error


def test_processes_are_forked_from_one_without_threads(worker: Worker) -> None:
    """A fork copies one thread of all, and the locks that the others hold."""
    _, pid = running(worker, worker.waits())
    template = worker.command.process.pid
    assert psutil.Process(template).num_threads() == 1
    assert psutil.Process(pid).ppid() == template


def test_a_fragment_does_without_pandas(worker: Worker) -> None:
    """Which Arrow would import, in each process anew, to make an array of an expression's constant."""
    need_module("pandas")
    _, pid = running(worker, joins_with_itself(worker, "computes"))
    wait_for(lambda: worker.statuses()[0].rows_in, "rows")
    libraries = [each.path for each in psutil.Process(pid).memory_maps()]
    assert any("/pyarrow/" in path for path in libraries)
    assert [path for path in libraries if "/pandas/" in path] == []


def its_own(worker: Worker, fragments: list[int]) -> psutil.Process:
    """The process that is the worker itself: a sister of its fragments' processes."""
    children = psutil.Process(worker.command.process.pid).children()
    (own,) = [each for each in children if each.pid not in fragments]
    return own


@pytest.mark.story
def test_a_worker_that_is_killed_within_its_template_takes_it_along(worker: Worker) -> None:
    """As by a system that is out of memory: whoever started it sees how it ended."""
    _, pid = running(worker, worker.waits())
    its_own(worker, [pid]).kill()
    assert worker.command.process.wait(60) == -signal.SIGKILL
    wait_for(lambda: not psutil.pid_exists(pid), f"{pid} gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_its_processes_is_the_workers_to_handle(
    worker: Worker, number: signal.Signals
) -> None:
    """As a service manager sends it: a fragment is ended by the worker, and not by the signal."""
    id_, pid = running(worker, worker.waits("between"))
    source = {"logical": "numbers", "type": "Generator"}
    operators = [
        {"id": "in", "type": "source", "logical": "numbers", "schema": SCHEMA, "physical": source},
        {"id": "in>", "type": "network_sink", "input": "in", "channel": "between", "address": worker.data},
    ]
    _, writer = running(worker, {"id": "writes", "node": worker.data, "operators": operators})
    wait_for(lambda: worker.status(id_).rows_in, "rows")
    for each in (pid, writer):
        os.kill(each, number)
    rows = worker.status(id_).rows_in
    wait_for(lambda: worker.status(id_).rows_in > rows, "more rows")
    worker.command.process.send_signal(number)
    assert worker.command.process.wait(60) == 0
    wait_for(lambda: not psutil.pid_exists(pid), f"{pid} gone")


def two_free_ports() -> tuple[int, int]:
    """One after the other, neither of which another test is given."""
    ports = {int(address.rpartition(":")[2]) for address in free_addresses(300)}
    port = next(port for port in ports if port + 1 in ports)
    return port, port + 1


def ports_of(pid: int) -> set[int]:
    listening = psutil.CONN_LISTEN
    return {
        each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.status == listening
    }


def test_fragments_take_data_at_ports_of_a_range(tmp_path: Path) -> None:
    """The first that is free; one too many fails by itself, and says what to do."""
    first, last = two_free_ports()
    worker = Worker(tmp_path, "--fragment-ports", f"{first}-{last}")
    try:
        _, pid = running(worker, worker.waits("one"))
        id_, other = running(worker, worker.waits("two"))
        wait_for(lambda: ports_of(pid) | ports_of(other) == {first, last}, "listening at both")
        excess = worker.register(worker.waits("three"))
        worker.start(excess)
        told = worker.wait_for_state(excess, wire.STATE_FAILED).error
        assert f"none of the ports {first} to {last} at 127.0.0.1 is free" in told
        assert "Traceback" not in told
        freed = ports_of(other)
        worker.stop(id_)
        worker.wait_for_state(id_, wire.STATE_STOPPED)
        _, successor = running(worker, worker.waits("four"))
        wait_for(lambda: ports_of(successor) == freed, "listening where the other did")
    finally:
        worker.end()


@pytest.mark.parametrize("text", ["9100", "9100-", "9200-9100", "0-10", "9100-70000", "a-b"])
def test_a_range_that_is_none_is_bad_input(tmp_path: Path, text: str) -> None:
    ended = nebuli(
        "worker",
        "--data",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--fragment-ports",
        text,
        directory=tmp_path,
    )
    assert ended.exit_code == 2
    assert f"the lower one first, as in 9100-9199; got '{text}'" in ended.stderr


def test_a_worker_that_ends_answers_nobody(worker: Worker) -> None:
    """DP-7: who watches would take what it stops for stopped by a user; and what it took now, it would not remember."""
    stopped, _ = running(worker, worker.waits())
    running(worker, joins_with_itself(worker, "spins"))  # which takes its time of grace
    worker.command.process.send_signal(signal.SIGTERM)

    def state() -> int | None:
        try:
            return worker.status(stopped).state
        except grpc.RpcError:
            return None

    assert set(iter(state, None)) <= {wire.STATE_RUNNING}
    with pytest.raises(grpc.RpcError):
        worker.register(worker.copies())
    assert worker.command.process.poll() is None, "it still stops what spins"


def test_processes_end_with_their_worker(worker: Worker) -> None:
    """Also one that is stopped, and sees nothing."""
    pids = [running(worker, worker.waits(name))[1] for name in ("one", "two")]
    own = its_own(worker, pids)
    os.kill(pids[0], signal.SIGSTOP)
    worker.command.process.kill()
    wait_for(lambda: not any(map(psutil.pid_exists, [*pids, own.pid])), f"{pids} and {own} gone")


def test_a_killed_worker_leaves_nothing_but_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, state = tmp_path / "temporary", tmp_path / "kept"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    worker = Worker(tmp_path, "--state", str(state))
    try:
        running(worker, worker.waits())
        worker.command.process.kill()
        worker.command.end()
        assert list(temporary.iterdir()) == []
        worker.begin("--state", str(state))  # where the socket of the killed one still is
        running(worker, worker.waits("another"))
    finally:
        worker.end()


def test_a_state_below_a_path_too_long_for_a_socket_is_none_the_worse(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "--state", str(tmp_path / ("long" * 30)))
    try:
        running(worker, worker.waits())
    finally:
        worker.end()


def test_data_connections_have_ports_of_their_own_where_the_topology_says_so(make_fleet: MakeFleet) -> None:
    first, last = two_free_ports()
    fleet = make_fleet()
    endless = {"logical": "numbers", "type": "Generator", "rows_per_s": 100}
    fleet.data["nodes"][0]["physical"] = [endless]
    fleet.data["nodes"][1] |= {
        "sinks": [{"name": "out", "type": "Null"}],
        "data_ports": f"{first}-{last}",
    }
    fleet.topology = fleet.written()
    fleet.start()
    id_ = fleet.run("start", fleet.topology, fleet.query).stdout.strip()
    reader = psutil.Process(fleet.workers[1].process.pid)

    def ports() -> set[int]:
        found = set()
        for process in reader.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found |= {
                    each.laddr.port
                    for each in process.net_connections("tcp")
                    if each.status == psutil.CONN_ESTABLISHED
                }
        return found

    wait_for(lambda: ports() & {first, last}, f"a data connection at {first} or {last}")
    assert fleet.run("stop", id_).exit_code == 0


@pytest.mark.parametrize("text", ["9100", "9200-9100", "any"])
def test_data_ports_that_are_none_are_bad_input(make_fleet: MakeFleet, text: str) -> None:
    fleet = make_fleet()
    fleet.data["nodes"][1]["data_ports"] = text
    ended = fleet.run("validate", fleet.written())
    assert ended.exit_code == 2
    assert f"data_ports is '{text}': expected 'ephemeral' or a range such as '40000-40999'" in ended.stderr
    given = ("--data", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data-ports", text)
    assert f"got '{text}'" in fleet.run("worker", *given).stderr
