"""DP-7: workers are killed with SIGKILL under load, and the table at the end is what it would have been."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from nebuli.control.errors import NodeUnreachable, QueryLost
from nebuli.control.supervision import Policy
from nebuli.rpc.status import FragmentState
from nebuli.rpc.worker_client import WorkerUnreachable
from tests.support.killing import Watched, watched
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ROWS = 12_000_000
CHAIN = ("source", "bridge", "filter", "sink")
COLUMNS = [{"name": "n", "type": "int64"}, {"name": "x", "type": "int64"}]
QUERY = {
    "operators": [
        {"id": "numbers", "type": "source", "logical": "numbers"},
        {"id": "small", "type": "filter", "input": "numbers", "predicate": "x < 500"},
        {"id": "out", "type": "sink", "input": "small", "sink": "out"},
    ]
}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many as are still on their way when a worker has been killed twice."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.csv"
    draws = np.random.default_rng(0).integers(0, 1000, ROWS)
    pyarrow.csv.write_csv(pa.table({"n": np.arange(ROWS), "x": draws}), path)
    return path


def chain(source: dict[str, Any], **sink: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Four nodes in a row, of which the second runs nothing of its own, and the third the filter; and their names."""
    addresses = free_addresses(8)
    nodes: list[dict[str, Any]] = [
        {"address": address, "grpc": grpc, "capacity": 0, "links": {"downstream": [following]}}
        for address, grpc, following in zip(addresses[:4], addresses[4:], addresses[1:5], strict=True)
    ]
    nodes[0]["physical"] = [{"logical": "numbers", **source}]
    nodes[2]["capacity"] = 1
    nodes[3] |= {"links": {}, "sinks": [{"name": "out", "type": "Parquet", "path": "out.parquet", **sink}]}
    topology = {"logical": [{"name": "numbers", "schema": COLUMNS}], "nodes": nodes}
    return topology, dict(zip(CHAIN, addresses[:4], strict=True))


def assert_is_duckdbs(found: Path, numbers: Path) -> None:
    """The same rows, each as often."""
    query = "SELECT n, x FROM read_csv($numbers) WHERE x < 500 ORDER BY n"
    expected = duckdb.sql(query, params={"numbers": str(numbers)}).to_arrow_table()
    assert pq.read_table(found).sort_by("n").equals(expected)


@pytest.mark.parametrize("node", CHAIN[:3])
async def test_what_has_no_state_goes_on_exactly(tmp_path: Path, numbers: Path, node: str) -> None:
    """DP-7: source, bridge and filter, each killed twice: nothing else begins again, and no row is lost or doubled."""
    topology, nodes = chain({"type": "CSV", "path": str(numbers)})
    async with watched(tmp_path, topology, QUERY, Policy.WAIT, nodes) as query:

        async def kill_twice() -> None:
            await query.kill_at(node, 1)
            await query.kill_at(node, 1)

        await query.finish(kill_twice())
        assert query.deployments == []
        assert query.said[0] == f"worker {nodes[node]} does not answer"
    assert_is_duckdbs(tmp_path / "out.parquet", numbers)


async def test_a_sink_that_is_lost_makes_the_query_begin_again(tmp_path: Path, numbers: Path) -> None:
    """DP-7: what a final sink had collected is gone with its process; the files are read again."""
    topology, nodes = chain({"type": "CSV", "path": str(numbers)})
    async with watched(tmp_path, topology, QUERY, Policy.WAIT, nodes) as query:
        await query.finish(query.kill_at("sink", 1))
        assert len(query.deployments) == 1
        assert "lost the state of sink out: the query starts over" in query.said[-1]
    assert not list(tmp_path.glob(".*")), "what the killed sink wrote aside"
    assert_is_duckdbs(tmp_path / "out.parquet", numbers)


async def test_a_fragment_that_is_lost_again_and_again_ends_the_query(tmp_path: Path) -> None:
    """Its process is killed, as by a system that is out of memory: the query begins again twice, and no more."""
    topology, nodes = chain({"type": "Generator"}, mode="final")
    async with watched(tmp_path, topology, QUERY, Policy.WAIT, nodes) as query:

        async def kill_each() -> None:
            killed: set[int] = set()
            while len(killed) < 3:

                async def has_begun() -> int:
                    status = query.seen.get(nodes["sink"])
                    return status.pid if status and status.rows_in and status.pid not in killed else 0

                pid = await until_async(has_begun, "a process of the sink has rows")
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

        with pytest.raises(QueryLost) as caught:
            await query.finish(kill_each())
    assert len(query.deployments) == 2
    assert "this lost the state of sink out; it was lost 3 times within 60 s" in str(caught.value)


async def test_a_node_is_replaced_by_another_way(tmp_path: Path, numbers: Path) -> None:
    """DP-6: with the policy `replace` the query is placed again without the node, and begins from its files."""
    topology, nodes = chain({"type": "CSV", "path": str(numbers)})
    spare, grpc = free_addresses(10)[8:]
    topology["nodes"].insert(
        2, {"address": spare, "grpc": grpc, "capacity": 1, "links": {"downstream": [nodes["sink"]]}}
    )
    topology["nodes"][0]["links"]["downstream"].append(spare)
    async with watched(tmp_path, topology, QUERY, Policy.REPLACE, nodes) as query:
        used = {address: name for name, address in nodes.items()} | {spare: "spare"}
        (victim,) = {used[address] for address in query.supervisor.nodes} - {"source", "sink", "bridge"}
        nodes["spare"] = spare
        await query.finish(query.kill_at(victim, 1))
        assert len(query.deployments) == 1
        assert used[spare if victim == "filter" else nodes["filter"]] in {
            used[address] for address in query.supervisor.nodes
        }
        assert not any("is back" in text for text in query.said)
    assert_is_duckdbs(tmp_path / "out.parquet", numbers)


async def test_what_a_replaced_node_still_has_is_taken_away_when_it_is_back(tmp_path: Path) -> None:
    """As at the nodes that were not lost: of the old deployment nothing stays registered."""
    out = tmp_path / "out.csv"
    os.mkfifo(out)  # nothing is written before somebody reads it
    topology, nodes = chain({"type": "Generator"}, type="CSV", path=str(out), mode="changes")
    spare, grpc = free_addresses(10)[8:]
    topology["nodes"].insert(
        2, {"address": spare, "grpc": grpc, "capacity": 1, "links": {"downstream": [nodes["sink"]]}}
    )
    topology["nodes"][0]["links"]["downstream"].append(spare)
    async with watched(tmp_path, topology, QUERY, Policy.REPLACE, nodes) as query:
        nodes["spare"] = spare
        victim = next(name for name in ("spare", "filter") if nodes[name] in query.supervisor.nodes)

        async def bring_back() -> None:
            await query.kill_at(victim, 1)

            async def are_elsewhere() -> bool:
                return nodes[victim] not in query.supervisor.nodes

            await until_async(are_elsewhere, "the query has begun again")
            await query.workers.prepare([nodes[victim]])

            async def is_clean() -> bool:
                try:
                    return not await query.workers.client(nodes[victim]).statuses()
                except WorkerUnreachable:  # as it was last found
                    return False

            await until_async(is_clean, "the node that is back has no fragment")
            (deployment,) = query.deployments
            for address in nodes.values():
                for status in await query.workers.client(address).statuses():
                    assert status.id.startswith(f"{deployment}/")
            raise InterruptedError  # nobody ever reads the result

        with pytest.raises(InterruptedError):
            await query.finish(bring_back())


async def test_where_a_node_has_the_only_source_it_cannot_be_replaced(tmp_path: Path, numbers: Path) -> None:
    topology, nodes = chain({"type": "CSV", "path": str(numbers)})
    async with watched(tmp_path, topology, QUERY, Policy.REPLACE, nodes) as query:
        with pytest.raises(QueryLost) as caught:
            await query.finish(query.kill_at("source", 1))
    assert str(caught.value) == (
        f"worker {nodes['source']} does not answer; the query cannot be placed on the other "
        f"nodes: only node {nodes['source']} has source numbers"
    )
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("node", CHAIN)
async def test_the_policy_to_fail_names_the_node(tmp_path: Path, numbers: Path, node: str) -> None:
    """DP-6: the others are stopped, and nothing is published."""
    topology, nodes = chain({"type": "CSV", "path": str(numbers)})
    async with watched(tmp_path, topology, QUERY, Policy.FAIL, nodes) as query:
        with pytest.raises(NodeUnreachable) as caught:
            await query.finish(query.kill_at(node, 1))
        assert str(caught.value) == f"worker {nodes[node]} does not answer (the policy is to fail)"
        for other in set(CHAIN) - {node}:
            await until_over(query, nodes[other], may_have_finished=other != "sink")
    assert not (tmp_path / "out.parquet").exists()


async def until_over(query: Watched, address: str, *, may_have_finished: bool) -> None:
    async def is_over() -> bool:
        (status,) = await query.workers.client(address).statuses()
        assert may_have_finished or status.state is not FragmentState.FINISHED
        return status.state.is_final

    await until_async(is_over, f"the fragment at {address} is over")


async def test_a_source_that_cannot_be_read_again_is_named(tmp_path: Path) -> None:
    """DP-7: the error says what is lost, and nothing is published."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        topology, nodes = chain({"type": "TCP", "address": address})
        async with watched(tmp_path, topology, QUERY, Policy.WAIT, nodes) as query:
            connection, _ = await asyncio.to_thread(server.accept)
            with connection:
                connection.sendall(b"".join(b"%d,1\n" % number for number in range(1000)))
                with pytest.raises(QueryLost) as caught:
                    await query.finish(query.kill_at("source", 1000))
    error = str(caught.value)
    assert error.startswith(f"fragment query/numbers at {nodes['source']}: its worker was restarted")
    assert error.endswith(f"numbers at {nodes['source']} (TCP {address}) cannot be read again")
    assert not (tmp_path / "out.parquet").exists()
