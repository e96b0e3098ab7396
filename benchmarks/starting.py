"""From ``nebuli start`` to the first row at the sink: ``python -m benchmarks.starting [--rounds 9]``.

Three workers run already; a generator at the first, a filter at the second, and a sink at the third that dials this
process. The clock runs from before the command is started to the first byte of a row here.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROUNDS = 9
AT_ONCE, REGISTERED, ALONE = "registered and started at once", "registered before", "`nebuli --help`, alone"
KINDS = (AT_ONCE, REGISTERED, ALONE)
_NODES = ("127.0.0.1:27901", "127.0.0.1:27902", "127.0.0.1:27903")
_DEADLINE_S = 30.0
_NEBULI = (sys.executable, "-P", "-m", "nebuli")


def _files(folder: Path, sink: str) -> tuple[str, str]:
    first, middle, last = (
        {"address": address, "grpc": address.replace(":279", ":278")} for address in _NODES
    )
    topology = {
        "logical": [{"name": "numbers", "schema": [{"name": "n", "type": "int64"}]}],
        "nodes": [
            first
            | {
                "capacity": 0,
                "physical": [{"logical": "numbers", "type": "Generator", "rows_per_s": 1000}],
                "links": {"downstream": [_NODES[1]]},
            },
            middle | {"links": {"downstream": [_NODES[2]]}},
            last | {"sinks": [{"name": "out", "type": "TCP", "mode": "append", "address": sink}]},
        ],
    }
    query = {
        "operators": [
            {"id": "numbers", "type": "source", "logical": "numbers"},
            {"id": "some", "type": "filter", "input": "numbers", "predicate": "n <> 0"},
            {"id": "out", "type": "sink", "input": "some", "sink": "out"},
        ]
    }
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")
    (folder / "query.json").write_text(json.dumps(query), "utf-8")
    return "topology.yaml", "query.json"


class Fleet:
    """Three workers, and the socket that their sink dials; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ending = ExitStack()

    def __enter__(self) -> Fleet:
        with ExitStack() as stack:
            self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._listener.settimeout(_DEADLINE_S)
            self._given = _files(self._folder, f"127.0.0.1:{self._listener.getsockname()[1]}")
            for node in _NODES:
                self._start(stack, node)
            self._ending = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _start(self, stack: ExitStack, node: str) -> None:
        command = [*_NEBULI, "worker", "--topology", "topology.yaml", "--node", node, "--state", "none"]
        worker = subprocess.Popen(command, cwd=self._folder, stderr=subprocess.PIPE, encoding="utf-8")
        stack.enter_context(worker)
        stack.callback(worker.terminate)
        assert worker.stderr is not None
        line = worker.stderr.readline()
        assert line.startswith("worker ready"), line

    def first_row_s(self, kind: str) -> float:
        """Run a query until its first row is here, and end it."""
        if kind == ALONE:
            start = time.perf_counter()
            self._nebuli("--help")
            return time.perf_counter() - start
        arguments = self._given if kind == AT_ONCE else (self._nebuli("register", *self._given),)
        start = time.perf_counter()
        command = subprocess.Popen(
            [*_NEBULI, "start", *arguments], cwd=self._folder, stdout=subprocess.PIPE, encoding="utf-8"
        )
        connection, _ = self._listener.accept()
        with connection, command:
            connection.settimeout(_DEADLINE_S)
            row = connection.recv(4096)
            assert row, "the sink has ended without a row"
            seconds = time.perf_counter() - start
            assert command.stdout is not None
            id_ = command.stdout.read().strip()
        self._nebuli("stop", id_)
        return seconds

    def _nebuli(self, *arguments: str) -> str:
        command = [*_NEBULI, *arguments]
        return subprocess.run(
            command, cwd=self._folder, check=True, capture_output=True, encoding="utf-8", timeout=_DEADLINE_S
        ).stdout.strip()


def run(rounds: int) -> dict[str, Any]:
    """All kinds in turn."""
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder)) as fleet:
        found = [{kind: fleet.first_row_s(kind) for kind in KINDS} for _ in range(rounds)]
    return {"rounds": found}


def table(figures: dict[str, Any]) -> str:
    """In Markdown: medians, with the lowest and the highest."""
    lines = ["| | seconds to the first row |", "|---|---|"]
    for kind in KINDS:
        seconds = sorted(each[kind] for each in figures["rounds"])
        lines.append(f"| {kind} | {median(seconds):.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f}) |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    print(table(run(given.rounds)))


if __name__ == "__main__":
    main()
