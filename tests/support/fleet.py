"""Two workers of a topology, as processes of their own, and commands that ask them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from nebuli.rpc.trust import NO_TRUST
from nebuli.rpc.worker_client import WorkerClient
from nebuli.store.store_url import StoreUrl
from netchannel import Tls
from tests.support.commands import Command, Ended, nebuli
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for


def tls_keys(tls: Tls) -> dict[str, str]:
    """The key ``tls`` of a topology."""
    Path(tls.key).chmod(0o600)
    return {name: str(getattr(tls, name)) for name in ("certificate", "key", "authority")}


def kept_secret(directory: Path, text: str = "correct horse", name: str = "secret.txt") -> dict[str, str]:
    """The key ``secret`` of a topology in ``directory``, and the file that it names."""
    (directory / name).write_text(f"{text}\n", "utf-8")
    (directory / name).chmod(0o600)
    return {"file": name}


class Fleet:
    """A source of numbers at the first node, and a sink at the second, with a query that copies.

    ``keys`` go into the topology at its top. Workers take everything from the topology's file.
    """

    def __init__(self, directory: Path, **keys: Any) -> None:
        self.directory = directory
        self.out = directory / "out.csv"
        first, second, *self.grpc = free_addresses(4)
        self.nodes = [first, second]
        self.data: dict[str, Any] = {
            **keys,
            "logical": [{"name": "numbers", "schema": [{"name": "n", "type": "int64"}]}],
            "nodes": [
                {
                    "address": first,
                    "grpc": self.grpc[0],
                    "links": {"downstream": [second]},
                    "physical": [{"logical": "numbers", "type": "Generator", "count": 1000}],
                },
                {
                    "address": second,
                    "grpc": self.grpc[1],
                    "sinks": [{"name": "out", "type": "CSV", "path": str(self.out)}],
                },
            ],
        }
        self.topology = self.written()
        self.query = directory / "copy.json"
        operators = [
            {"id": "in", "type": "source", "logical": "numbers"},
            {"id": "out", "type": "sink", "input": "in", "sink": "out"},
        ]
        self.query.write_text(json.dumps({"operators": operators}), "utf-8")
        self.workers: list[Command] = []
        self.states: list[StoreUrl] = []
        """Where the workers keep what they have, if that is on no disk."""
        self.trust = NO_TRUST
        """What this process shows to workers."""

    def written(self, name: str = "topology.yaml", **keys: Any) -> Path:
        """A file of the topology, with ``keys`` changed at its top; None takes one away."""
        data = {key: value for key, value in (self.data | keys).items() if value is not None}
        path = self.directory / name
        path.write_text(yaml.safe_dump(data, sort_keys=False), "utf-8")
        return path

    def start(self, *topologies: Path) -> None:
        """Start the workers, each of ``topologies``' own; without any, both of the fleet's."""
        files = topologies or (self.topology, self.topology)
        self.workers = [self._worker(number, file) for number, file in enumerate(files)]
        for worker in self.workers:
            worker.wait_until_said("worker ready")

    def _worker(self, number: int, file: Path) -> Command:
        folder = self.directory / f"worker{number}"
        folder.mkdir(exist_ok=True)
        state = ("--state", str(self.states[number])) if self.states else ()
        return Command("worker", "--topology", file, "--node", self.nodes[number], *state, directory=folder)

    def kill(self, number: int) -> None:
        """End a worker at once, and wait until it is gone."""
        self.workers[number].process.kill()
        self.workers[number].end()

    def begin_again(self, number: int) -> None:
        """Start a worker that is gone, with what it remembers."""
        self.workers[number] = self._worker(number, self.topology)
        self.workers[number].wait_until_said("worker ready")

    def run(self, *arguments: str | Path) -> Ended:
        return nebuli(*arguments, directory=self.directory)

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def pid_of(self, id_: str, fragment: str) -> int:
        """Of the process that a fragment of a query has now."""

        async def asked() -> int:
            found = self.json("status", id_)["fragments"]
            each = next(each for each in found if each["fragment"].endswith(f"/{fragment}"))
            number = self.nodes.index(each["node"])
            trust = self.trust
            async with WorkerClient(each["node"], self.grpc[number], trust) as client:
                return next(status.pid for status in await client.statuses() if status.id == each["id"])

        return wait_for(lambda: asyncio.run(asked()), f"{fragment} has a process")

    def wait_for_state(self, id_: str, state: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            status = self.json("status", id_)
            return status if status["state"] == state else None

        return wait_for(found, f"{id_} {state}")

    def stop(self) -> None:
        for worker in self.workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.kill()
            worker.end()


MakeFleet = Callable[..., Fleet]
