"""A circuit in a process of its own, which is killed and started again at one address: one input, two outputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from nebuli.blocking import Circuit
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    sinks: [{name: rows, type: "Null"}, {name: totals, type: "Null"}]
"""
QUERY = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "rows", "type": "sink", "input": "sales", "sink": "rows"},
  {"id": "by-shop", "type": "aggregate", "input": "sales", "by": ["shop"],
   "aggregates": {"sales": "count(*)", "amount": "sum(amount)"}},
  {"id": "totals", "type": "sink", "input": "by-shop", "sink": "totals"}
]}
"""
Rows = Counter[tuple[object, ...]]


class ServedCircuit:
    """`nebuli run --stepped --serve`, in a folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.address = free_addresses(1)[0]
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        (folder / "topology.yaml").write_text(TOPOLOGY, "utf-8")
        (folder / "query.json").write_text(QUERY, "utf-8")

    def start(self) -> None:
        """Start it, or start it again; it goes on where it was."""
        log = self._folder / "log"
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "nebuli", "run", "topology.yaml", "query.json", "--stepped"]
        command += ["--members", "2", "--state", "state", "--serve", self.address, *self._options]
        with log.open("wb") as said:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=said, stderr=said)

        def serves() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, log.read_text("utf-8")
            return "serving" in log.read_text("utf-8")

        wait_for(serves, f"a circuit serves at {self.address}")

    def kill(self) -> None:
        """Kill it, and its members with it."""
        assert self._process is not None
        group = [
            *psutil.Process(self._process.pid).children(recursive=True),
            psutil.Process(self._process.pid),
        ]
        for each in group:
            each.kill()
        psutil.wait_procs(group, timeout=30)
        self._process.wait(30)

    def kill_member(self, number: int) -> None:
        """Kill a member, once it has a process."""

        def process() -> int | None:
            with self.called() as circuit:
                return circuit.status().members[number]

        os.kill(wait_for(process, f"member {number} has a process"), signal.SIGKILL)

    def stop(self) -> None:
        """Kill what is left."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @contextmanager
    def called(self) -> Iterator[Circuit]:
        """Call it from this process."""
        with Circuit(self.address) as circuit:
            yield circuit

    def steps(self, output: str, until: Rows) -> list[tuple[int, Rows]]:
        """Each step of an output that changes something, until what they add up to is there."""
        found: Rows = Counter()
        steps = []
        with self.called() as circuit:
            for step, zset in circuit.output(output):
                change: Rows = Counter()
                for *row, weight in zip(*(column.to_pylist() for column in zset.columns), strict=True):
                    change[tuple(row)] += weight
                change = Counter({row: weight for row, weight in change.items() if weight})
                if change:
                    steps.append((step, change))
                    found.update(change)
                    found = Counter({row: weight for row, weight in found.items() if weight})
                if found == until:
                    return steps
        raise AssertionError("it was shut down")


def holders(steps: list[tuple[int, Rows]], batch: Rows) -> int:
    """In how many steps rows of a batch are; a step may have several batches."""
    return sum(bool(change.keys() & batch.keys()) for _, change in steps)


def totals(rows: Rows) -> Rows:
    """What the query's aggregate is of these rows, by hand."""
    found: Rows = Counter()
    for shop in {shop for shop, _ in rows}:
        here = [(amount, weight) for (each, amount), weight in rows.items() if each == shop]
        found[shop, sum(weight for _, weight in here), sum(amount * weight for amount, weight in here)] = 1  # type: ignore[operator,misc]
    return found
