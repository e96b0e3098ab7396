"""Windows over workers: sources at two nodes, the window at a third, beyond a bridge its aggregate, the sink behind."""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from nebuli.control.local import LocalWorkers
from nebuli.rpc.status import FragmentStatus
from placement import decompose, parse_query, place
from tests.nebuli.connectors.test_tcp import Peer
from tests.support.deployment import Deployment
from tests.support.ports import free_addresses
from tests.support.waiting import until_async
from topology import Topology, parse_topology

pytestmark = pytest.mark.processes

EPOCH = dt.datetime(2024, 1, 1)
SCHEMA = [
    {"name": "t", "type": "timestamp"},
    {"name": "k", "type": "int64"},
    {"name": "x", "type": "float64"},
]


def topology(addresses: list[str], sources: list[dict[str, Any]]) -> Topology:
    """Two sources, room for a union and a window, none, room for an aggregate, and the sink."""
    a, b, middle, bridge, behind, end = addresses
    rows = [{"logical": "rows", **source} for source in sources]
    sink = {"name": "out", "type": "CSV", "path": "out.csv", "mode": "append"}
    nodes = [
        {"address": a, "capacity": 0, "links": {"downstream": [middle]}, "physical": rows[:1]},
        {"address": b, "capacity": 0, "links": {"downstream": [middle]}, "physical": rows[1:]},
        {"address": middle, "capacity": 2, "links": {"downstream": [bridge]}},
        {"address": bridge, "capacity": 0, "links": {"downstream": [behind]}},
        {"address": behind, "capacity": 1, "links": {"downstream": [end]}},
        {"address": end, "capacity": 0, "sinks": [sink]},
    ]
    return parse_topology(
        yaml.safe_dump({"logical": [{"name": "rows", "schema": SCHEMA}], "nodes": nodes}, sort_keys=False)
    )


def query(**window: Any) -> str:
    by = ["window_start", "window_end", "k"]
    operators = [
        {"id": "rows", "type": "source", "logical": "rows"},
        {"id": "w", "type": "window", "input": "rows", "time": "t", **window},
        {
            "id": "g",
            "type": "aggregate",
            "input": "w",
            "by": by,
            "aggregates": {"n": "count(*)", "m": "max(x)"},
        },
        {"id": "s", "type": "sink", "input": "g", "sink": "out"},
    ]
    return json.dumps({"operators": operators})


class Running:
    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self.deployment = deployment
        self.out = directory / "out.csv"

    async def status(self, root: str) -> FragmentStatus:
        """Of the fragment whose root is that operator."""
        return next(
            status for id_, status in (await self.deployment.statuses()).items() if id_.endswith(f"/{root}")
        )

    def results(self) -> list[tuple[str, ...]]:
        """The rows in the sink's file so far: the start of the window, key and count."""
        if not self.out.exists():
            return []
        with self.out.open(encoding="utf-8") as file:
            return [(row[0][11:16], row[2], row[3]) for row in list(csv.reader(file))[1:]]

    async def wait_for_results(self, *rows: tuple[str, ...]) -> None:
        async def are_there() -> bool:
            return self.results() == list(rows)

        await until_async(are_there, f"{rows} in {self.out}")


@asynccontextmanager
async def running(directory: Path, sources: list[dict[str, Any]], **window: Any) -> AsyncIterator[Running]:
    nodes = topology(free_addresses(6), sources)
    fragments = decompose(place(parse_query(query(**window)), nodes, 0)).fragments
    by_node = {fragment.node: [each.type for each in fragment.operators] for fragment in fragments}
    assert [by_node[node.address] for node in nodes.nodes[2:]] == [
        ["network_source", "network_source", "union", "window", "network_sink"],
        ["network_source", "network_sink"],
        ["network_source", "aggregate", "network_sink"],
        ["network_source", "sink"],
    ]
    async with LocalWorkers(nodes.nodes, directory) as workers:
        deployment = Deployment(fragments, workers.clients)
        await deployment.register()
        await deployment.start()
        yield Running(deployment, directory)


def write_rows(path: Path, seed: int, rows: int, lateness_s: int) -> None:
    """Rows of a day, out of order by up to the lateness."""
    drawn = random.Random(seed)
    times = [drawn.randrange(86400) for _ in range(rows)]
    arrivals = sorted((time + drawn.randrange(lateness_s), time) for time in times)
    with path.open("w", encoding="utf-8") as file:
        file.write("t,k,x\n")
        file.writelines(
            f"{EPOCH + dt.timedelta(seconds=time)},{drawn.randrange(5)},{drawn.randrange(1000) / 8}\n"
            for _, time in arrivals
        )


async def test_all_windows_are_duckdbs_whatever_node_is_faster(tmp_path: Path) -> None:
    """PL-DEC-1, PL-DEC-2: with fragments, channels and a bridge between a window and its aggregate."""
    write_rows(tmp_path / "a.csv", 1, 120_000, 600)
    write_rows(tmp_path / "b.csv", 2, 40_000, 600)
    sources = [{"type": "CSV", "path": f"{name}.csv"} for name in "ab"]
    lengths = {"size": "1 hour", "slide": "15 minutes", "lateness": "10 minutes"}
    async with running(tmp_path, sources, **lengths) as query:
        await query.deployment.finish()
        statuses = await query.deployment.statuses()
    assert [status.late_rows for status in statuses.values()] == [0] * len(statuses)
    assert [status.state_bytes for status in statuses.values()] == [0] * len(statuses)
    expected = duckdb.sql(f"""
        SELECT ws, ws + INTERVAL 1 HOUR, k, count(*), max(x)
        FROM read_csv(['{tmp_path}/a.csv', '{tmp_path}/b.csv'])
        JOIN (SELECT unnest(generate_series(TIMESTAMP '2023-12-31', TIMESTAMP '2024-01-02', INTERVAL 15 MINUTE)) ws)
        ON t >= ws AND t < ws + INTERVAL 1 HOUR
        GROUP BY ALL
    """).fetchall()
    found = duckdb.sql(
        f"SELECT CAST(window_start AS TIMESTAMP), CAST(window_end AS TIMESTAMP), k, n, m FROM read_csv('{query.out}')"
    ).fetchall()
    assert len(found) == len(expected) > 400
    assert sorted(found) == sorted(expected)


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer]]:
    a, b = Peer(), Peer()
    yield a, b
    a.close()
    b.close()


def send(connection: socket.socket, *minutes: float) -> None:
    """Rows of these minutes."""
    lines = (f"{EPOCH + dt.timedelta(minutes=each)},1,0.5\n" for each in minutes)
    connection.sendall("".join(lines).encode())


async def test_windows_close_while_sources_go_on_and_an_idle_one_is_not_waited_for(
    tmp_path: Path, peers: tuple[Peer, Peer]
) -> None:
    sources = [{"type": "TCP", "address": peer.address} for peer in peers]
    lengths = {"size": "10 minutes", "lateness": "1 minute", "idle_after": "500 milliseconds"}
    async with running(tmp_path, sources, **lengths, late="late.csv") as query, AsyncExitStack() as stack:
        a, b = (stack.enter_context(peer.accept()) for peer in peers)
        send(b, 3)

        async def has_begun() -> bool:
            return (await query.status("w")).rows_in == 1

        await until_async(has_begun, "the row of b")  # it would be idle before, half a second after its start
        send(a, 1, 5, 12)
        # b has had nothing for half a second; until then its three minutes hold the watermark.
        await query.wait_for_results(("00:00", "1", "3"))
        eleven = int((EPOCH + dt.timedelta(minutes=11)).replace(tzinfo=dt.UTC).timestamp() * 1e6)

        async def is_told() -> bool:
            return (await query.status("g")).watermark == eleven

        await until_async(is_told, "the watermark is a minute behind a")
        assert (await query.status("g")).state_bytes > 0
        send(b, 4, 13)

        async def is_late() -> bool:
            return (await query.status("w")).late_rows == 1

        await until_async(is_late, "the row of the fourth minute is late")
        assert (tmp_path / "late.csv").read_text("utf-8").splitlines() == [
            '"t","k","x","window_start","window_end","_weight"',
            "2024-01-01 00:04:00.000000Z,1,0.5,2024-01-01 00:00:00.000000Z,2024-01-01 00:10:00.000000Z,1",
        ]
        a.close()
        b.close()
        await query.deployment.finish()
        assert query.results() == [("00:00", "1", "3"), ("00:10", "1", "2")]
        assert (await query.status("s")).late_rows == 0
