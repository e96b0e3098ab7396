"""Workers as a StatefulSet has them: the same command in each pod, and names instead of addresses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.markdown import ROOT
from tests.support.commands import Command, nebuli
from tests.support.hosts import Host
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

MANIFEST = ROOT / "examples" / "kubernetes" / "workers.yaml"
QUERY = """
{"operators": [
  {"id": "numbers", "type": "source", "logical": "numbers"},
  {"id": "odd", "type": "project", "input": "numbers", "columns": {"odd": "n % 2", "n": "n"}},
  {"id": "sums", "type": "aggregate", "input": "odd", "by": ["odd"], "aggregates": {"sum": "sum(n)"}},
  {"id": "out", "type": "sink", "input": "sums", "sink": "sums"}
]}
"""


def kinds() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text("utf-8"))}


@pytest.fixture
def names(hosts: list[Host]) -> Iterator[list[str]]:
    """The names of the pods, which each host resolves to the hosts' addresses, as the service would."""
    stateful_set, service = kinds()["StatefulSet"], kinds()["Service"]
    assert stateful_set["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    pods = [
        f"{stateful_set['metadata']['name']}-{ordinal}" for ordinal in range(stateful_set["spec"]["replicas"])
    ]
    known = "".join(
        f"{host.address} {pod}.{service['metadata']['name']}\n" for host, pod in zip(hosts, pods, strict=True)
    )
    with ExitStack() as stack:
        for host in hosts:
            files = Path("/etc/netns") / host.name  # what `ip netns exec` has in the place of /etc
            files.mkdir(parents=True)
            stack.callback(shutil.rmtree, files)
            (files / "hosts").write_text(f"127.0.0.1 localhost\n{known}", "utf-8")
        yield pods


def command(pod: str, folder: Path) -> list[str]:
    """What a pod runs, with folders of the test in the place of its own."""
    (container,) = kinds()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    named = next(each for each in container["env"] if each["name"] == "POD_NAME")
    assert named["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert container["command"] == ["nebuli", "worker"]
    return [
        "worker",
        *(
            each.replace("$(POD_NAME)", pod)
            .replace("/etc/nebuli", str(folder.parent))
            .replace("/var/lib/nebuli", str(folder))
            for each in container["args"]
        ),
    ]


def test_each_pod_has_the_node_of_its_name(
    hosts: list[Host], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-MEM-1, FT-MEM-2: all take the list of names from one topology, and their own index from theirs.

    Each reads the numbers in its own folder, and sums are over all.
    """
    monkeypatch.setenv("FLEET_SECRET", "correct horse")
    topology, query = tmp_path / "topology.yaml", tmp_path / "query.json"
    topology.write_text(kinds()["ConfigMap"]["data"]["topology.yaml"], "utf-8")
    query.write_text(QUERY, "utf-8")
    workers = []
    try:
        for number, (host, pod) in enumerate(zip(hosts, names, strict=True)):
            folder = tmp_path / pod
            folder.mkdir()
            lines = "\n".join(map(str, range(100 * number, 100 * number + 100)))
            (folder / "numbers.csv").write_text(f"n\n{lines}\n", "utf-8")
            with monkeypatch.context() as patch:
                patch.chdir(folder)
                workers.append(Command(*command(pod, folder), directory=folder, host=host))
        for each in workers:
            each.wait_until_said("worker ready")

        def run(*arguments: str | Path) -> str:
            ended = nebuli(*arguments, directory=tmp_path, host=hosts[0])
            assert ended.exit_code == 0, ended.stderr
            return ended.stdout

        id_ = run("start", "--stepped", topology, query).strip()

        def status() -> dict[str, Any]:
            return json.loads(run("status", id_, "--json"))  # type: ignore[no-any-return]

        wait_for(lambda: status()["state"] == "finished", "the query is finished", 60)
        nodes = {each["fragment"].rpartition("/")[2]: each["node"] for each in status()["fragments"]}
        assert {nodes[f"member-{number}"] for number in range(3)} == {f"{pod}.nebuli:9001" for pod in names}
    finally:
        for each in workers:
            each.process.kill()
            each.end()
    odd = sum(range(1, 300, 2))
    assert set((tmp_path / names[0] / "sums.csv").read_text("utf-8").split()[1:]) == {
        f"0,{sum(range(300)) - odd}", f"1,{odd}"
    }  # fmt: skip
