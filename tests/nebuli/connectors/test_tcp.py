"""Lines over TCP into a worker and out of it, with real sockets at the other side."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

import topology
from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError
from nebuli.connectors.sources.tcp_source import TcpSource, connect
from nebuli.rpc import worker_pb2 as wire
from tests.nebuli.node.service.test_service import Worker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

SCHEMA = [
    {"name": "n", "type": "int64"},
    {"name": "at", "type": "timestamp"},
    {"name": "word", "type": "string"},
]
CSV = '1,2024-01-01 00:00:00,a\n2,2024-01-01T02:00:00+02:00,"b,c"\n3,,\n'
JSON = (
    '{"n": 1, "at": "2024-01-01 00:00:00", "word": "a"}\n'
    '{"n": 2, "at": "2024-01-01T02:00:00+02:00", "word": "b,c", "else": [1]}\n'
    '{"n": 3}\n'
)
ROWS = [(1, "2024-01-01 00:00:00", "a"), (2, "2024-01-01 00:00:00", "b,c"), (3, None, None)]


class Peer:
    """Listens, for one connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._listener.settimeout(60)

    def accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(60)
        return connection

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.channel.close()
    worker.command.process.kill()
    worker.command.end()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def fragment(
    worker: Worker, physical: dict[str, Any], target: dict[str, Any], schema: Any = None
) -> dict[str, Any]:
    source = {"logical": "l", **physical}
    operators = [
        {"id": "in", "type": "source", "logical": "l", "schema": schema or SCHEMA, "physical": source},
        {"id": "out", "type": "sink", "input": "in", "sink": "out", "target": {"name": "out", **target}},
    ]
    return {"id": "tcp", "node": worker.data, "operators": operators}


@pytest.mark.parametrize(("form", "lines"), [("CSV", CSV), ("JSON", JSON)])
def test_lines_become_rows(worker: Worker, peer: Peer, form: str, lines: str) -> None:
    out = worker.directory / "out.csv"
    id_ = worker.register(
        fragment(
            worker,
            {"type": "TCP", "address": peer.address, "format": form},
            {"type": "CSV", "path": str(out)},
        )
    )
    worker.start(id_)
    connection = peer.accept()
    data = lines.encode()
    for start in range(0, len(data), 7):  # lines are cut anywhere
        connection.sendall(data[start : start + 7])
        time.sleep(0.001)
    connection.close()
    worker.wait_for_state(id_, wire.STATE_FINISHED)
    rows = out.read_text("utf-8").splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3"]
    assert all("2024-01-01 00:00:00" in row for row in rows[:2])
    assert '"b,c"' in rows[1]


def test_a_line_that_is_none_is_named(worker: Worker, peer: Peer) -> None:
    id_ = worker.register(fragment(worker, {"type": "TCP", "address": peer.address}, {"type": "Null"}))
    worker.start(id_)
    connection = peer.accept()
    connection.sendall(b"1,2024-01-01,a\nx,2024-01-01,b\n")
    connection.close()
    status = worker.wait_for_state(id_, wire.STATE_FAILED)
    assert f"TCP {peer.address}, line 2: " in status.error
    assert "'x'" in status.error
    assert status.cause == wire.CAUSE_INPUT


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("CSV", b"%d,a\n", b"x,a\n"),
        ("CSV", b"%d,a\n", b"1,a,b\n"),
        ("CSV", b'%d,"a\rb"\n\n', b"x,a\n"),
        ("JSON", b'{"n": %d, "s": "a"}\n', b'{"n": "x", "s": "a"}\n'),
        ("JSON", b'{"n": %d, "s": "a"}\n', b'{"n": 1, "s": "a"\n'),
    ],
)
def test_a_line_is_named_by_its_own_number(peer: Peer, form: str, good: bytes, bad: bytes) -> None:
    """However many came in blocks before it, and with it."""
    settings = topology.TcpSource(type="TCP", logical="l", address=peer.address, format=form)
    columns = (topology.Column(name="n", type="int64"), topology.Column(name="s", type="string"))
    source = TcpSource(settings, columns, lambda: None)
    source.open()
    before = b"".join(good % number for number in range(50_000))
    with peer.accept() as connection:
        sending = Thread(target=connection.sendall, args=(before + bad + good % 1,))
        sending.start()
        wrong = before.count(b"\n") + 1
        with pytest.raises(FragmentError, match=f"TCP {peer.address}, line {wrong}: ") as caught:
            wait_for(lambda: source.poll() is Signal.END, "the end")
        assert not re.search(r"[Rr]ow #?\d", str(caught.value))
        sending.join()
    source.close("the test is over")


def test_whatever_ends_its_thread_ends_the_fragment(monkeypatch: pytest.MonkeyPatch, peer: Peer) -> None:
    """As where its memory is at its limit: nobody else would say that nothing comes any more."""

    def out_of_memory(source: TcpSource, item: object) -> None:
        monkeypatch.undo()
        raise MemoryError("no more")

    monkeypatch.setattr(TcpSource, "_put", out_of_memory)
    settings = topology.TcpSource(type="TCP", logical="l", address=peer.address)
    source = TcpSource(settings, (topology.Column(name="n", type="int64"),), lambda: None)
    source.open()
    with peer.accept() as connection:
        connection.sendall(b"1\n")
        with pytest.raises(FragmentError, match=f"TCP {peer.address}: MemoryError: no more"):
            wait_for(lambda: source.poll() is not Signal.LATER, "something")
    source.close("the test is over")
    assert not [thread for thread in enumerate_threads() if peer.address in thread.name]


def test_a_line_that_is_none_is_quoted_from_its_beginning(worker: Worker, peer: Peer) -> None:
    """It goes over gRPC, through logs and onto terminals."""
    id_ = worker.register(fragment(worker, {"type": "TCP", "address": peer.address}, {"type": "Null"}))
    worker.start(id_)
    connection = peer.accept()
    connection.sendall(b"x" * 1_000_000 + b",2024-01-01,a\n")
    connection.close()
    status = worker.wait_for_state(id_, wire.STATE_FAILED)
    assert f"TCP {peer.address}, line 1: " in status.error
    assert "'xxx" in status.error
    assert len(status.error) < 400


@pytest.mark.parametrize("form", ["CSV", "JSON"])
def test_rows_become_lines(worker: Worker, peer: Peer, form: str) -> None:
    (worker.directory / "in.csv").write_text("n,at,word\n" + CSV, "utf-8")
    source = {"type": "CSV", "path": str(worker.directory / "in.csv")}
    target = {"type": "TCP", "address": peer.address, "format": form, "mode": "append"}
    id_ = worker.register(fragment(worker, source, target))
    worker.start(id_)
    with peer.accept() as connection, connection.makefile() as lines:
        got = lines.read().splitlines()
    worker.wait_for_state(id_, wire.STATE_FINISHED)
    assert len(got) == 3
    if form == "JSON":
        assert [json.loads(line)["n"] for line in got] == [1, 2, 3]
        assert json.loads(got[2]) == {"n": 3, "at": None, "word": None}
    else:
        assert got[1].startswith("2,")
        assert '"b,c"' in got[1]


def counts(worker: Worker, peer: Peer, count: int | None = None) -> str:
    """Start a fragment that sends numbers to the peer; its id."""
    source = {"type": "Generator"} | ({} if count is None else {"count": count})
    schema = [{"name": "n", "type": "int64"}]
    id_ = worker.register(
        fragment(worker, source, {"type": "TCP", "address": peer.address, "mode": "append"}, schema)
    )
    worker.start(id_)
    return id_


def read(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as lines:
        return lines.read()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("how", ["stopped", "stopped at once", "killed", "with its worker"])
def test_rows_that_are_not_all_do_not_end_cleanly(
    worker: Worker, peer: Peer, how: str, *, reads: bool
) -> None:
    """Whoever reads them would take them for the result."""
    id_ = counts(worker, peer)
    with peer.accept() as connection:
        pid = wait_for(lambda: worker.status(id_).pid, "a process")
        if reads:
            connection.recv(100)
        else:
            wait_for(lambda: worker.status(id_).rows_out, "rows")
        match how:
            case "stopped" | "stopped at once":
                worker.stop(id_, at_once=how == "stopped at once")
            case "killed":
                os.kill(pid, signal.SIGKILL)
            case _:
                worker.command.process.kill()
        with pytest.raises(ConnectionResetError):
            read(connection)
    if how == "stopped":
        late = "stopped; the fragment did not end within 3 s, and its process was ended"
        assert worker.wait_for_state(id_, wire.STATE_STOPPED).error in ("stopped", late)


@pytest.mark.parametrize("ends", [True, False])
def test_a_peer_that_has_sent_something_gets_all_rows_too(worker: Worker, peer: Peer, *, ends: bool) -> None:
    """What is closed with something unread would be reset, and take rows along that were not read yet."""
    id_ = counts(worker, peer, 1000)
    with peer.accept() as connection:
        connection.sendall(b"welcome\n")
        if not ends:
            worker.wait_for_state(id_, wire.STATE_FINISHED)
        assert read(connection) == b"".join(b"%d\n" % n for n in range(1000))
    worker.wait_for_state(id_, wire.STATE_FINISHED)


def test_a_peer_that_leaves_before_the_last_row_is_named(worker: Worker, peer: Peer) -> None:
    id_ = counts(worker, peer, 1000)
    connection = peer.accept()
    assert connection.recv(1)
    connection.close()  # the rest is unread
    status = worker.wait_for_state(id_, wire.STATE_FAILED)
    assert f"TCP {peer.address}: the connection failed" in status.error


def test_the_kernel_asks_an_idle_peer_whether_it_is_there(peer: Peer) -> None:
    """A host that is just gone says nothing: without that, a fragment would wait for it for ever."""
    with connect(peer.address) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, interval, count = (connection.getsockopt(socket.IPPROTO_TCP, each) for each in options)
        assert idle + interval * count < 5 * 60
