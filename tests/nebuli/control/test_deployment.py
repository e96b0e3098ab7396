"""Fragments of one query on workers of this machine: who hears of whose end."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nebuli.control.errors import QueryFailed
from nebuli.control.local import LocalWorkers, WorkerDied
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from placement import Fragment, decompose, parse_query, place
from tests.support.deployment import Deployment
from tests.support.ports import free_addresses
from tests.support.waiting import until_async
from topology import parse_topology

pytestmark = pytest.mark.processes

QUERY = """{"operators": [
    {"id": "numbers", "type": "source", "logical": "numbers"},
    {"id": "result", "type": "sink", "input": "numbers", "sink": "result"}
]}"""
TOPOLOGY = """
logical: [{{name: numbers, schema: [{{name: n, type: int64}}]}}]
nodes:
  - address: {0}
    links: {{downstream: [{1}]}}
    physical: [{{logical: numbers, type: CSV, path: numbers.csv}}]
  - address: {1}
    sinks: [{{name: result, type: CSV, path: result.csv}}]
"""


class Running:
    def __init__(self, workers: LocalWorkers, fragments: tuple[Fragment, ...]) -> None:
        self.workers = workers
        self.deployment = Deployment(fragments, workers.clients)
        self.source, self.sink = (fragment.id for fragment in fragments)
        self.nodes = {fragment.id: fragment.node for fragment in fragments}

    async def status(self, fragment: str) -> FragmentStatus:
        return (await self.deployment.statuses())[fragment]

    async def wait_for_state(self, fragment: str, state: FragmentState) -> FragmentStatus:
        async def found() -> FragmentStatus | None:
            status = await self.status(fragment)
            return status if status.state is state else None

        return await until_async(found, f"{fragment} is {state}")


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Running]:
    topology = parse_topology(TOPOLOGY.format(*free_addresses(2)))
    fragments = decompose(place(parse_query(QUERY), topology, 0)).fragments
    async with LocalWorkers(topology.nodes, directory) as workers:
        running = Running(workers, fragments)
        await running.deployment.register()
        yield running


def write_numbers(directory: Path, rows: int, last: str = "") -> None:
    with (directory / "numbers.csv").open("w", encoding="utf-8") as file:
        file.write("n\n")
        file.writelines(f"{number}\n" for number in range(rows))
        file.write(last)


async def test_a_failure_reaches_the_reader_with_its_reason_and_is_to_blame(tmp_path: Path) -> None:
    write_numbers(tmp_path, 500_000, "many\n")
    async with running(tmp_path) as query:
        await query.deployment.start()
        with pytest.raises(QueryFailed) as caught:
            await query.deployment.finish()
        reason = "numbers.csv, line 500002, column n: 'many' is not a valid int64"
        assert str(caught.value) == f"fragment {query.source} at {query.nodes[query.source]} failed: {reason}"
        assert caught.value.cause is Cause.INPUT
        sink = await query.status(query.sink)
        assert (sink.state, sink.cause) == (FragmentState.FAILED, Cause.UPSTREAM)
        assert reason in sink.error
        assert not (tmp_path / "result.csv").exists()


async def test_a_reader_that_leaves_stops_its_producer(tmp_path: Path) -> None:
    write_numbers(tmp_path, 3_000_000)
    async with running(tmp_path) as query:
        await query.deployment.start()

        async def has_read() -> bool:
            return (await query.status(query.sink)).rows_in > 0

        await until_async(has_read, "the sink has read")
        await query.workers.clients[query.nodes[query.sink]].stop(query.deployment.local_ids[query.sink])
        source = await query.wait_for_state(query.source, FragmentState.STOPPED)
        assert source.cause is Cause.DOWNSTREAM
        assert source.error.startswith(f"its reader at {query.nodes[query.sink]} left: ")
        assert (await query.wait_for_state(query.sink, FragmentState.STOPPED)).cause is Cause.REQUEST
        assert sorted(path.name for path in tmp_path.iterdir()) == ["numbers.csv"]


async def test_a_producer_without_a_reader_waits_with_bounded_input_and_is_stopped(tmp_path: Path) -> None:
    write_numbers(tmp_path, 3_000_000)
    async with running(tmp_path) as query:
        await query.deployment.start([query.source])
        await query.wait_for_state(query.source, FragmentState.RUNNING)
        client = query.workers.clients[query.nodes[query.source]]
        await client.stop(query.deployment.local_ids[query.source])
        source = await query.wait_for_state(query.source, FragmentState.STOPPED)
        assert source.cause is Cause.REQUEST
        assert source.rows_in < 3_000_000


async def test_local_ids_belong_to_their_worker(tmp_path: Path) -> None:
    """DP-2, the local part: the planner's ids over ids that each worker chose for itself."""
    async with running(tmp_path) as query:
        assert query.deployment.local_ids == {query.source: "1", query.sink: "1"}


async def test_a_dead_worker_ends_what_is_guarded(tmp_path: Path) -> None:
    async with running(tmp_path) as query:
        victim = query.workers.workers[query.nodes[query.source]]

        async def wait_for_the_sink() -> None:
            await query.deployment.start([query.sink])
            victim.kill()
            await query.deployment.finish()

        with pytest.raises(WorkerDied, match=rf"^worker {victim.node} died \(killed by SIGKILL\); run "):
            await query.workers.guard(wait_for_the_sink())


def test_a_worker_that_died_of_a_signal_without_a_name_is_said() -> None:
    number = signal.SIGRTMIN + 3
    assert str(WorkerDied("n", -number)).startswith(f"worker n died (killed by signal {number}); ")


async def test_a_failure_before_the_first_row_reaches_the_reader(tmp_path: Path) -> None:
    """Its channel was not registered yet; the reader would wait for it forever."""
    async with running(tmp_path) as query:
        await query.deployment.start()
        sink = await query.wait_for_state(query.sink, FragmentState.FAILED)
        assert sink.cause is Cause.UPSTREAM
        assert f"numbers.csv: no such file in {tmp_path}" in sink.error


async def test_workers_are_reached_past_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment is for the world outside, and is not there."""
    monkeypatch.setenv("http_proxy", f"http://{free_addresses(1)[0]}")
    async with running(tmp_path) as query:
        assert (await query.status(query.sink)).state is FragmentState.REGISTERED
