"""Queries over a channel that another process keeps: whoever of them is killed in the middle, each row counts once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

import netchannel
from nebuli.control.errors import QueryLost
from nebuli.control.supervision import Policy
from tests.support.commands import Command
from tests.support.killing import watched
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ROWS = 200_000
"""Half of them come before somebody is killed, and half behind it."""
COLUMNS = [{"name": "n", "type": "int64"}, {"name": "x", "type": "int64"}]
SMALL = [n for n in range(ROWS) if n * 7919 % 1000 < 500]
"""The rows that the query lets through."""
QUERY = {
    "operators": [
        {"id": "numbers", "type": "source", "logical": "numbers"},
        {"id": "small", "type": "filter", "input": "numbers", "predicate": "x < 500"},
        {"id": "out", "type": "sink", "input": "small", "sink": "out"},
    ]
}

KEEP = """
import asyncio, sys, netchannel

async def main():
    async with netchannel.ReceiverServer(sys.argv[1]) as receiver:
        policy = netchannel.RetainPolicy(directory=sys.argv[2], lease_s=0.5)
        receiver.retain_channel("numbers", policy)
        print("kept", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

PRODUCE = """
import sys, netchannel, pyarrow as pa

def message(first):
    numbers = range(first, first + 1000)
    return pa.record_batch({"n": numbers, "x": [n * 7919 % 1000 for n in numbers]})

rows = int(sys.argv[2])
outbox = netchannel.sender_server().register_channel("numbers", to=sys.argv[1])
for first in range(0, rows, 1000):
    if first == rows // 2:
        outbox.flush()
        print("half", flush=True)
        assert sys.stdin.readline() == "go\\n"
    outbox.send(message(first))
outbox.close()
"""


class Processes:
    """Who keeps the channel, and who sends to it."""

    def __init__(self, directory: Path) -> None:
        (self.address,) = free_addresses(1)
        self._directory = directory / "kept"
        self.keep()
        self._producer = self._started(PRODUCE, self.address, str(ROWS), says="half")

    def _started(self, *arguments: str, says: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"{says}\n"
        return process

    def keep(self) -> None:
        self._keeper = self._started(KEEP, self.address, str(self._directory), says="kept")

    def kill_keeper(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()

    def go_on(self) -> None:
        """Have the producer send the other half, and end the stream."""
        assert self._producer.stdin is not None
        self._producer.stdin.write("go\n")
        self._producer.stdin.flush()

    def source(self, **keys: Any) -> dict[str, Any]:
        return {"type": "Channel", "address": self.address, "channel": "numbers", **keys}

    def end(self) -> None:
        for process in (self._producer, self._keeper):
            process.kill()
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.end()


@contextmanager
def running(directory: Path, source: dict[str, Any], number: int, *options: object) -> Iterator[Command]:
    """``nebuli run`` over the source into ``out.csv``, once there are rows."""
    (directory / str(number)).mkdir()
    (address,) = free_addresses(1)
    out = directory / "out.csv"
    node = {
        "address": address,
        "physical": [{"logical": "numbers", **source}],
        "sinks": [{"name": "out", "type": "CSV", "path": str(out), "mode": "append"}],
    }
    topology = {"logical": [{"name": "numbers", "schema": COLUMNS}], "nodes": [node]}
    (directory / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")
    (directory / "query.json").write_text(json.dumps(QUERY), "utf-8")
    files = directory / "topology.yaml", directory / "query.json"
    command = Command("run", *options, *files, directory=directory / str(number))

    def has_rows() -> bool:
        assert command.process.poll() is None, command.end().stderr
        return out.exists() and out.read_text("utf-8").count("\n") > 1

    try:
        wait_for(has_rows, "rows of the first half")
        yield command
    finally:
        if command.process.poll() is None:
            command.process.kill()
            command.end()


def written(directory: Path) -> list[int]:
    column = pyarrow.csv.read_csv(directory / "out.csv").column("n")
    return list(column.to_pylist())


@pytest.mark.parametrize("keys", [{}, {"consumer": "query"}])
def test_a_query_reads_a_kept_channel_to_its_end(
    tmp_path: Path, processes: Processes, keys: dict[str, str]
) -> None:
    with running(tmp_path, processes.source(**keys), 1) as command:
        processes.go_on()
        assert command.end().exit_code == 0
    assert written(tmp_path) == SMALL


def test_the_keeper_is_killed_in_the_middle(tmp_path: Path, processes: Processes) -> None:
    with running(tmp_path, processes.source(consumer="query"), 1) as command:
        processes.kill_keeper()
        processes.keep()
        processes.go_on()
        assert command.end().exit_code == 0
    assert written(tmp_path) == SMALL


def test_the_query_is_killed_in_the_middle_and_run_again(tmp_path: Path, processes: Processes) -> None:
    source = processes.source(consumer="query")
    with running(tmp_path, source, 1) as command:
        others = psutil.Process(command.process.pid).children(recursive=True)
        command.process.send_signal(signal.SIGKILL)
        command.end()
        psutil.wait_procs(others, 30)
    (tmp_path / "out.csv").unlink()
    with running(tmp_path, source, 2) as command:
        processes.go_on()
        assert command.end().exit_code == 0
    assert written(tmp_path) == SMALL


@pytest.mark.story
@pytest.mark.parametrize("victim", ["members", "all"])
def test_in_steps_whoever_is_killed_each_row_counts_once(
    victim: str, tmp_path: Path, processes: Processes
) -> None:
    source = processes.source(consumer="query", holder="circuit")
    options = ("--stepped", "--members", 2, "--checkpoint-every", 0.1, "--state", tmp_path / "state")
    with running(tmp_path, source, 1, *options) as command:
        members = psutil.Process(command.process.pid).children()
        if victim == "members":
            for each in members:
                each.kill()
            processes.go_on()
            assert command.end().exit_code == 0
        else:
            command.wait_until_said("checkpoint at step")
    if victim == "all":
        psutil.wait_procs(members, 30)
        with running(tmp_path, source, 2, *options) as command:
            processes.go_on()
            assert command.end().exit_code == 0
    assert sorted(written(tmp_path)) == SMALL
    assert asyncio.run(acknowledged(processes)) == ROWS // 1000, "also what came last"


async def acknowledged(processes: Processes) -> int:
    """How many messages the query's consumer has acknowledged."""
    async with netchannel.ChannelReader(processes.address, "numbers") as reader:
        return await reader.hold("query", holder="circuit")


@pytest.mark.parametrize("node", ["source", "filter"])
async def test_a_fragment_without_a_state_goes_on_exactly(
    tmp_path: Path, processes: Processes, node: str
) -> None:
    """DP-7: the source's process, or the next one's, is killed; its successor passes over what is done, and goes on."""
    addresses = free_addresses(6)
    nodes = dict(zip(("source", "filter", "sink"), addresses[:3], strict=True))
    found: list[dict[str, Any]] = [
        {"address": address, "grpc": grpc, "capacity": 0, "links": {"downstream": [following]}}
        for address, grpc, following in zip(addresses[:3], addresses[3:], addresses[1:4], strict=True)
    ]
    found[0]["physical"] = [{"logical": "numbers", **processes.source(consumer="query")}]
    found[1]["capacity"] = 1
    found[2] |= {"links": {}, "sinks": [{"name": "out", "type": "Parquet", "path": "out.parquet"}]}
    topology = {"logical": [{"name": "numbers", "schema": COLUMNS}], "nodes": found}
    async with watched(tmp_path, topology, QUERY, Policy.WAIT, nodes) as query:

        async def kill_in_the_middle() -> None:
            await query.kill_at(node, 1)
            processes.go_on()

        await query.finish(kill_in_the_middle())
        assert query.deployments == []
    assert np.sort(pq.read_table(tmp_path / "out.parquet").column("n").to_numpy()).tolist() == SMALL


async def test_without_a_consumer_it_cannot_be_read_again(tmp_path: Path, processes: Processes) -> None:
    """Others may free, and replace, what the query has read: it fails, and says which source that is."""
    address, grpc = free_addresses(2)
    node = {
        "address": address,
        "grpc": grpc,
        "physical": [{"logical": "numbers", **processes.source()}],
        "sinks": [{"name": "out", "type": "Parquet", "path": "out.parquet"}],
    }
    topology = {"logical": [{"name": "numbers", "schema": COLUMNS}], "nodes": [node]}
    async with watched(tmp_path, topology, QUERY, Policy.WAIT, {"all": address}) as query:
        with pytest.raises(QueryLost) as caught:
            await query.finish(query.kill_at("all", 1))
    assert f"(channel numbers at {processes.address}) cannot be read again" in str(caught.value)
