"""Two queries over the same two workers, one of which writes to somebody who does not read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from threading import Event, Thread

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_pb2_grpc import WorkerStub
from tests.support.fleet import Fleet, MakeFleet
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]

_ROWS = 2_000_000
"""In a measured time: several times what fits into all buffers on the way."""
_SLOWER = 3.0
"""So many times as long as before a measured time may take. One of the two gone, it takes about half as long."""


class Listener:
    """Takes lines that count from 0, as fast as they come while ``reads`` is set; ``taken`` are those that came."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(120)
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self.reads = Event()
        self.reads.set()
        self.taken = 0
        self.wrong = ""
        self._over = False
        self._thread = Thread(target=self._take, name=f"listener {self.address}")
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self.reads.set()
        self._thread.join()
        self._listener.close()

    def _take(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(0.1)
        rest = b""
        with connection:
            while not self._over:
                self.reads.wait()
                try:
                    text = connection.recv(1 << 20)
                except TimeoutError:
                    continue
                except ConnectionResetError:  # the query was stopped
                    return
                if not text:
                    return
                whole, end, rest = (rest + text).rpartition(b"\n")
                if end:
                    self._count(whole + end)

    def _count(self, lines: bytes) -> None:
        columns = pa.csv.ReadOptions(column_names=["n"])
        numbers = pa.csv.read_csv(BytesIO(lines), columns)["n"].to_numpy()
        if not np.array_equal(numbers, np.arange(self.taken, self.taken + len(numbers))):
            self.wrong = self.wrong or f"{numbers} came where {self.taken} was due"
        self.taken += len(numbers)


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()


class Copying:
    """A query without an end from the first worker to the second, and from there to a listener."""

    def __init__(self, fleet: Fleet, name: str, listener: Listener) -> None:
        self.fleet, self.name, self.listener = fleet, name, listener
        self.id = ""
        first, second = fleet.data["nodes"]
        fleet.data["logical"].append({"name": name, "schema": [{"name": "n", "type": "int64"}]})
        first["physical"].append({"logical": name, "type": "Generator"})
        second["sinks"].append({"name": name, "type": "TCP", "address": listener.address, "mode": "append"})

    def start(self) -> None:
        operators = [
            {"id": "in", "type": "source", "logical": self.name},
            {"id": "out", "type": "sink", "input": "in", "sink": self.name},
        ]
        query = self.fleet.directory / f"{self.name}.json"
        query.write_text(json.dumps({"operators": operators}), "utf-8")
        started = self.fleet.run("start", self.fleet.topology, query)
        assert started.exit_code == 0, started.stderr
        self.id = started.stdout.strip()

    def status(self, node: int) -> wire.FragmentStatus:
        """Of its fragment there, by the worker itself."""
        with grpc.insecure_channel(self.fleet.grpc[node]) as channel:
            found = WorkerStub(channel).Status(wire.StatusRequest(), timeout=60).fragments
        return next(each for each in found if self.id in each.id)

    def read(self) -> int:
        """The rows that its source has given."""
        return self.status(0).rows_in

    def seconds(self) -> float:
        """How long the listener takes for as many rows as are measured, at best."""
        return min(self._seconds() for _ in range(3))

    def _seconds(self) -> float:
        began, goal = time.monotonic(), self.listener.taken + _ROWS
        wait_for(lambda: self.listener.taken >= goal or self.listener.wrong, f"{_ROWS} rows of {self.name}")
        assert not self.listener.wrong
        return time.monotonic() - began


@pytest.mark.timed
@pytest.mark.timeout(600)
def test_a_stalled_sink_holds_back_its_own_query_and_no_other(make_fleet: MakeFleet) -> None:
    """CH-BP-2: two queries on the same two workers; where the sink of one is stalled, the other keeps its rate.

    That is compared with its rate while the first one's sink takes all it gets, and both share the machine.
    """
    fleet = make_fleet(channels={"buffer": {"max_bytes": 1 << 18}})
    with listening() as one, listening() as other:
        held, free = Copying(fleet, "held", one), Copying(fleet, "free", other)
        fleet.topology = fleet.written()
        fleet.start()
        for query in (held, free):
            query.start()
        wait_for(lambda: one.taken > _ROWS and other.taken > _ROWS, "rows of both")
        before = free.seconds()

        one.reads.clear()
        wait_for(lambda: _stands_still(held, free), "the source of the stalled query is held back", 200.0)
        stalled_at, free_at = held.read(), free.read()
        stalled = free.seconds()
        assert held.read() == stalled_at
        assert free.read() - free_at > 2 * _ROWS  # no rows that were on their way before
        assert stalled < _SLOWER * before, f"{stalled:.2f} s beside a stalled query, {before:.2f} s before"

        states = {query.status(node).state for query in (held, free) for node in (0, 1)}
        assert states == {wire.STATE_RUNNING}
        one.reads.set()
        wait_for(lambda: one.taken > stalled_at + _ROWS or one.wrong, "the stalled query goes on")
        assert not one.wrong
        for query in (held, free):
            assert fleet.run("stop", query.id).exit_code == 0


def _stands_still(held: Copying, free: Copying) -> bool:
    """Whether the source of one has given nothing while the other's rows came."""
    before = held.read()
    free.seconds()
    return held.read() == before > 0
