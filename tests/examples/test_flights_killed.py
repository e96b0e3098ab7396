"""The demo's shape under load, with workers that are killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nebuli.control.errors import NodeUnreachable, QueryLost
from nebuli.control.supervision import Policy
from tests.examples import flights
from tests.support.killing import watched

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TIMES = 4
"""So often the flights are in the file: the demo alone is over before anybody could kill anything."""
MUCH = 60
"""So often the weather of an airport without flights is behind it, where it must not have ended before it is killed."""
NODES = ("flights", "weather", "join")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, with more flights."""
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    directory = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(flights.EXAMPLE / "data" / "flights.csv.zip") as archive:
        header, _, rows = archive.read("flights.csv").partition(b"\n")
    with (directory / "flights.csv").open("wb") as file:
        file.write(header + b"\n")
        for _ in range(TIMES):
            file.write(rows)
    weather = flights.EXAMPLE / "data" / "weather.csv"
    shutil.copy(weather, directory)
    header, _, rows = weather.read_bytes().partition(b"\n")
    elsewhere = b"".join(b"XXX" + row[3:] for row in rows.splitlines(keepends=True))
    (directory / "much-weather.csv").write_bytes(header + b"\n" + rows + elsewhere * MUCH)
    return directory


@pytest.fixture(scope="module")
def expected(data: Path) -> pa.Table:
    return flights.answer_of(data / "flights.csv", data / "weather.csv")


def demo(directory: Path, data: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Topology, query, and the nodes by their names."""
    flights.write_topology(directory / "topology.yaml", {"type": "Parquet", "path": "delays.parquet"})
    topology = yaml.safe_load((directory / "topology.yaml").read_text("utf-8"))
    for node, file in zip(topology["nodes"], ("flights.csv", "weather.csv"), strict=False):
        node["physical"][0]["path"] = str(data / file)
    query = json.loads((flights.EXAMPLE / "query.json").read_text("utf-8"))
    addresses = [node["address"] for node in topology["nodes"]]
    return topology, query, dict(zip(NODES, addresses, strict=True))


@pytest.mark.story
@pytest.mark.parametrize("victim", NODES)
async def test_with_the_policy_to_wait_the_table_is_duckdbs(
    tmp_path: Path, data: Path, expected: pa.Table, victim: str
) -> None:
    """DP-7: the sources go on where they were; the join, which has a state, makes the query begin again."""
    topology, query, nodes = demo(tmp_path, data)
    topology["nodes"][1]["physical"][0]["path"] = str(data / "much-weather.csv")
    async with watched(tmp_path, topology, query, Policy.WAIT, nodes) as running:
        await running.finish(running.kill_at(victim, 20_000))
        assert len(running.deployments) == (1 if victim == "join" else 0)
    flights.assert_equal(pq.read_table(tmp_path / "delays.parquet"), expected)


@pytest.mark.parametrize("victim", NODES)
@pytest.mark.parametrize("policy", [Policy.FAIL, Policy.REPLACE])
async def test_with_the_other_policies_the_error_names_what_is_lost(
    tmp_path: Path, data: Path, policy: Policy, victim: str
) -> None:
    """DP-6: each node of the demo has a source or the sink to itself, so that none can be replaced."""
    topology, query, nodes = demo(tmp_path, data)
    topology["nodes"][1]["physical"][0]["path"] = str(data / "much-weather.csv")
    async with watched(tmp_path, topology, query, policy, nodes) as running:
        with pytest.raises((NodeUnreachable, QueryLost)) as caught:
            await running.finish(running.kill_at(victim, 20_000))
    only = {"flights": "source flights", "weather": "source weather", "join": "sink result"}[victim]
    why = "(the policy is to fail)" if policy is Policy.FAIL else f"only node {nodes[victim]} has {only}"
    assert nodes[victim] in str(caught.value)
    assert str(caught.value).endswith(why)
    assert not (tmp_path / "delays.parquet").exists()
