"""Workers on hosts that a newer version of nebuli starts again, one after the other, in the middle of a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nebuli.dataflow.steps.saved_runs import CIRCUIT, MANIFEST
from nebuli.steps.member.member_store import LOG
from nebuli.store import Store
from tests.hosts.actors import Actor
from tests.nebuli.circuits.conftest import QUERY
from tests.nebuli.circuits.test_rolling_upgrade import NEWER
from tests.support.commands import Command, Ended, nebuli
from tests.support.hosts import Host
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.story, pytest.mark.long, pytest.mark.timeout(300)]

SINKS = [{"name": "rows", "type": "Null"}], [{"name": "totals", "type": "CSV", "path": "totals.csv"}]
"""At each node: there is a member at both."""


class Site:
    """A worker at each of two nodes, which are hosts, and commands at a third."""

    def __init__(self, hosts: list[Host], directory: Path) -> None:
        *self.nodes, self.commands = hosts
        self.directory = directory
        self.folders = [directory / f"node{number}" for number in range(len(self.nodes))]
        self.topology, self.query = directory / "topology.yaml", directory / "query.json"
        self._site = directory / "newer"
        self.workers: list[Command] = []
        addresses = [f"{host.address}:9001" for host in self.nodes]
        columns = [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}]
        nodes: list[dict[str, object]] = [
            {"address": address, "grpc": address.replace("9001", "8001"), "sinks": sinks}
            for address, sinks in zip(addresses, SINKS, strict=True)
        ]
        nodes[0]["links"] = {"downstream": [addresses[1]]}
        self.topology.write_text(
            yaml.safe_dump(
                {
                    "logical": [{"name": "sales", "schema": columns}],
                    "nodes": nodes,
                }
            ),
            "utf-8",
        )
        self.query.write_text(QUERY, "utf-8")
        for folder in (*self.folders, self._site):
            folder.mkdir()
        (self._site / "sitecustomize.py").write_text(NEWER, "utf-8")
        self.workers = [self._worker(number) for number in range(len(self.nodes))]

    def _worker(self, number: int) -> Command:
        host, folder = self.nodes[number], self.folders[number]
        where = ("--data", f"{host.address}:9001", "--grpc", f"{host.address}:8001", "--insecure")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            worker = Command("worker", *where, "--state", folder / "state", directory=folder, host=host)
        worker.wait_until_said("worker ready")
        return worker

    def begin_again(self, number: int, *, is_newer: bool) -> None:
        """Stop a worker, as a service is stopped, and start it with the newer version, or with this one."""
        self.workers[number].process.send_signal(signal.SIGTERM)
        self.workers[number].end()
        with pytest.MonkeyPatch.context() as patch:
            if is_newer:
                patch.setenv("PYTHONPATH", f"{self._site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
            self.workers[number] = self._worker(number)

    def end(self) -> None:
        """Kill the workers, with all that they run."""
        while self.workers:
            worker = self.workers.pop()
            worker.process.kill()
            worker.end()

    def run(self, *arguments: str | Path) -> Ended:
        return nebuli(*arguments, directory=self.directory, host=self.commands)

    def checkpoint(self, id_: str, after: int) -> int:
        """Have all members save what they know, once there are steps from ``after`` on; the step."""

        def made() -> int | None:
            ended = self.run("checkpoint", id_)
            step = int(ended.stdout) if ended.exit_code == 0 else 0
            return step if step > after else None

        return wait_for(made, f"a checkpoint after step {after}", 60)

    def wait_for_state(self, id_: str, state: str) -> str:
        """What its status is then."""

        def there() -> str | None:
            found = self.run("status", id_, "--json").stdout
            return found if json.loads(found)["state"] == state else None

        return wait_for(there, f"{id_} {state}", 60)

    def formats(self) -> list[list[int]]:
        """The formats of the newest versions of members' states, by node; no worker runs."""
        return [
            [asyncio.run(_format(each)) for each in (folder / "state" / "steps").glob("*member-*")]
            for folder in self.folders
        ]


async def _format(folder: Path) -> int:
    async with Store.at(folder) as store:
        states = store.state_store(LOG)
        async with await states.open((await states.versions())[-1]) as database:
            manifest = await database.get(CIRCUIT, MANIFEST)
            assert manifest is not None
            return int(json.loads(bytes(manifest))["format"])


@pytest.fixture
def site(hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Site(hosts, tmp_path)
    yield made
    made.end()


def test_workers_of_two_hosts_are_upgraded_one_by_one_while_producers_push(
    site: Site, tmp_path: Path
) -> None:
    """DBSP-REQ-4: the newer version reads what the older has saved; the older refuses what the newer has."""
    started = site.run("start", "--stepped", "--checkpoint-every", "0.5", site.topology, site.query)
    assert started.exit_code == 0, started.stderr
    id_ = started.stdout.strip()
    address = f"{site.nodes[0].address}:8001/{id_}"
    files = tmp_path / "traffic"
    with Actor(site.commands, "circuit_traffic", address, files=files) as traffic:
        step = site.checkpoint(id_, 0)
        for number in range(len(site.nodes)):
            site.begin_again(number, is_newer=True)
            step = site.checkpoint(id_, step)
        assert traffic.process.stdin is not None
        traffic.process.stdin.write(b"enough\n")
        traffic.process.stdin.flush()
        traffic.end()
    site.wait_for_state(id_, "finished")
    expected = json.loads(files.with_suffix(".stdout").read_text("utf-8"))
    written = (site.folders[1] / "totals.csv").read_text("utf-8").replace('"', "").split()[1:]
    assert sorted(written) == sorted(f"{shop},{sales},{amount}" for shop, sales, amount in expected)
    site.begin_again(0, is_newer=False)
    site.run("start", id_)
    failed = site.wait_for_state(id_, "failed")
    assert "the saved state has format 2, and this version of nebuli reads 1: another version" in failed
    site.end()
    assert site.formats() == [[2], [2]]
