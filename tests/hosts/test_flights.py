"""The demo over three hosts: flights at the first, weather at the second, the join at the third."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.examples import flights
from tests.support.commands import Command, nebuli
from tests.support.hosts import Host, Link, Network
from tests.support.relay import Faults
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

LOST = re.compile(r"control connection with .* is down: (no sign of life for 5.0 s|messages sent)")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    return flights.answer(tmp_path_factory.mktemp("answer"))


class Site:
    """A worker on each host, and the command line on the third."""

    def __init__(self, hosts: list[Host], directory: Path) -> None:
        self.hosts = hosts
        self.directory = directory
        self.result = directory / "delays.parquet"
        self._topology = directory / "topology.yaml"
        addresses = [{"address": f"{host.address}:9001", "grpc": f"{host.address}:8001"} for host in hosts]
        flights.write_topology(self._topology, {"type": "Parquet", "path": str(self.result)}, addresses)
        self._folders = [directory / f"worker{number}" for number in range(len(hosts))]
        self._workers: list[Command] = []

    def __enter__(self) -> Site:
        for host, folder in zip(self.hosts, self._folders, strict=True):
            folder.mkdir()
            where = ("--data", f"{host.address}:9001", "--grpc", f"{host.address}:8001")
            self._workers.append(Command("worker", *where, "--insecure", directory=folder, host=host))
        for worker in self._workers:
            worker.wait_until_said("worker ready")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.end()

    def start(self) -> str:
        """Deploy the query; its id."""
        started = self._run("start", self._topology, flights.EXAMPLE / "query.json")
        assert started.exit_code == 0, started.stderr
        return started.stdout.strip()

    def status(self, id_: str) -> dict[str, Any]:
        return json.loads(self._run("status", id_, "--json").stdout)  # type: ignore[no-any-return]

    def finish(self, id_: str) -> pa.Table:
        """Wait for the end; the table."""
        wait_for(lambda: self.status(id_)["state"] == "finished", f"{id_} finished", 60)
        return pq.read_table(self.result)

    def said(self, number: int) -> str:
        """What a worker has said."""
        return (self._folders[number] / "stderr.txt").read_text("utf-8")

    def _run(self, *arguments: str | Path) -> Any:
        return nebuli(*arguments, directory=self.directory, host=self.hosts[2])


@pytest.fixture
def site(hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ExitStack() as stack:
        yield stack.enter_context(Site(hosts, tmp_path))


@pytest.mark.story
def test_the_demo_over_three_hosts_gives_what_duckdb_gives(site: Site, expected: pa.Table) -> None:
    """DP-2: each host has its own address; one id for what runs on them."""
    id_ = site.start()
    flights.assert_equal(site.finish(id_), expected)
    assert [each["node"] for each in site.status(id_)["fragments"]] == [
        f"{host.address}:9001" for host in site.hosts
    ]


def test_the_demo_goes_on_after_the_flights_host_was_cut_off_in_mid_stream(
    slow_hosts: list[Host], site: Site, expected: pa.Table
) -> None:
    """CH-CTL-3, DP-6: meanwhile its worker is named as unreachable; then the table equals DuckDB's."""
    slow_hosts[2].slow_down("2mbit")  # half a minute for what the join reads

    def join_has_read() -> int:
        (joining,) = [
            each for each in site.status(id_)["fragments"] if each["node"].startswith(slow_hosts[2].address)
        ]
        return int(joining["rows_in"])

    id_ = site.start()
    wait_for(lambda: join_has_read() > 10_000, "the join has read something")
    slow_hosts[0].cut()
    wait_for(lambda: LOST.search(site.said(0)) or LOST.search(site.said(2)), "a heartbeat that found the cut")
    cut_off = site.status(id_)
    assert cut_off["state"] == "unreachable"
    assert [each["state"] for each in cut_off["fragments"]].count("unreachable") == 1
    assert not site.result.exists()
    slow_hosts[0].mend()
    slow_hosts[2].speed_up()
    flights.assert_equal(site.finish(id_), expected)


def test_the_demo_over_links_that_lose_and_hold_packets(
    network: Network, link: Link, site: Site, expected: pa.Table
) -> None:
    """DP-2: 2 % of all packets between any two hosts are lost, and each takes 15 ms."""
    first, second, third = network.hosts
    faults = Faults(loss=0.02, delay_s=(0.015, 0.015))
    with (
        network.link(first, third, seed=1) as flights_link,
        network.link(second, third, seed=2) as weather_link,
    ):
        for each in (link, flights_link, weather_link):
            each.spoil(faults)
        flights.assert_equal(site.finish(site.start()), expected)
