"""The demo: flights and weather from two nodes, joined at a third."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nebuli.control.local import LocalWorkers
from nebuli.rpc.status import FragmentState
from placement import Fragment, decompose, load_query, place, with_deployment
from tests.examples import flights
from tests.support.chaos import ChaosProxy, Proxy
from tests.support.commands import measured, nebuli
from tests.support.deployment import Deployment
from tests.support.ports import free_addresses
from tests.support.waiting import until_async
from topology import load_topology

pytestmark = pytest.mark.processes

PARQUET = {"type": "Parquet", "path": "delays.parquet"}
MAX_BYTES = 400 << 20


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    return flights.answer(tmp_path_factory.mktemp("answer"))


def fragments_of(topology: Path, deployment: str) -> tuple[Fragment, ...]:
    placement = place(load_query(flights.EXAMPLE / "query.json"), load_topology(topology), 0)
    return with_deployment(decompose(placement).fragments, deployment)


@pytest.mark.timed
def test_the_demo_gives_what_duckdb_gives_in_little_memory(tmp_path: Path, expected: pa.Table) -> None:
    flights.write_topology(tmp_path / "topology.yaml", PARQUET)
    query = flights.EXAMPLE / "query.json"
    ended, peak_bytes = measured("run", tmp_path / "topology.yaml", query, directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    flights.assert_equal(pq.read_table(tmp_path / "delays.parquet"), expected)
    assert peak_bytes < MAX_BYTES, f"{peak_bytes >> 20} MiB"


def test_the_demo_prints_its_table(tmp_path: Path, expected: pa.Table) -> None:
    flights.write_topology(tmp_path / "topology.yaml", {"type": "Print"})
    ended = nebuli("run", tmp_path / "topology.yaml", flights.EXAMPLE / "query.json", directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    header, rule, *rows = ended.stdout.splitlines()
    assert header.split() == expected.column_names
    assert set(rule) == {"-", " "}
    assert [row.split()[0] for row in rows] == expected.column("origin").to_pylist()
    assert [int(row.split()[3]) for row in rows] == expected.column("flights").to_pylist()


async def test_all_orders_of_starting_the_fragments_give_the_result(
    tmp_path: Path, expected: pa.Table
) -> None:
    """DP-3: each fragment works before the next one is started, and none waits for its counterpart."""
    flights.write_topology(tmp_path / "topology.yaml", PARQUET)
    nodes = load_topology(tmp_path / "topology.yaml").nodes
    async with LocalWorkers(nodes, tmp_path) as workers:
        ids = [fragment.id for fragment in fragments_of(tmp_path / "topology.yaml", "")]
        assert len(ids) == 3
        for number, order in enumerate(itertools.permutations(ids)):
            deployment = Deployment(
                fragments_of(tmp_path / "topology.yaml", f"order-{number}"), workers.clients
            )
            await deployment.register()
            for id_ in order:
                await deployment.start([id_])
                assert (await deployment.statuses())[id_].state is not FragmentState.REGISTERED
            await deployment.finish()
            flights.assert_equal(pq.read_table(tmp_path / "delays.parquet"), expected)
            (tmp_path / "delays.parquet").unlink()


@pytest.mark.parametrize("seed", [1])
async def test_connections_that_are_reset_at_random_bytes_do_not_change_the_result(
    tmp_path: Path, expected: pa.Table, seed: int
) -> None:
    """The join's node is known by another host, where proxies listen: at its port, and at that of its fragment."""
    free = free_addresses(6)
    port = free[2].rpartition(":")[2]
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(Proxy(free[2], listen=f"127.0.0.2:{port}"))
        addresses = [{"address": free[index], "grpc": free[index + 3]} for index in range(2)]
        addresses.append({"address": front.address, "listen": free[2], "grpc": free[5]})
        flights.write_topology(tmp_path / "topology.yaml", PARQUET, addresses)
        nodes = load_topology(tmp_path / "topology.yaml").nodes
        workers = await stack.enter_async_context(LocalWorkers(nodes, tmp_path))
        fragments = fragments_of(tmp_path / "topology.yaml", "chaos")
        deployment = Deployment(fragments, workers.clients)
        await deployment.register()
        (join,) = [fragment.id for fragment in fragments if fragment.node == front.address]
        await deployment.start([join])
        listens = await until_async(lambda: port_of(deployment, join), "the join's process listens")
        proxy = ChaosProxy(
            f"127.0.0.1:{listens}",
            listen=f"127.0.0.2:{listens}",
            seed=seed,
            mean_bytes=200_000,
            max_resets=20,
        )
        await stack.enter_async_context(proxy)
        await deployment.start([fragment.id for fragment in fragments if fragment.id != join])
        await deployment.finish()
        flights.assert_equal(pq.read_table(tmp_path / "delays.parquet"), expected)
        assert proxy.resets >= 5


async def port_of(deployment: Deployment, fragment: str) -> int | None:
    """Where the process of a fragment takes data."""
    pid = (await deployment.statuses())[fragment].pid
    if not pid:
        return None
    (listens,) = [each for each in psutil.Process(pid).net_connections("tcp") if each.status == "LISTEN"]
    return int(listens.laddr.port)
