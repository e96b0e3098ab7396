"""A circuit whose members are tasks of Spark, as a command, with programs that push and read meanwhile."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY, Rows, totals
from tests.support.commands import Command, Ended
from tests.support.ports import free_addresses

SPARK_S = 240.0
"""How long Spark may take to begin all members again on a busy machine."""


class Run:
    """``nebuli run --on spark`` in a folder, at an address that stays the same."""

    def __init__(self, folder: Path, state: str | Path, members: int, master: str | None) -> None:
        self.folder = folder
        (self.address,) = free_addresses(1)
        named = f"\n    master: {master}" if master else ""
        (folder / "topology.yaml").write_text(
            TOPOLOGY.replace("sinks:", f"engine: spark{named}\n    sinks:", 1), "utf-8"
        )
        (folder / "query.json").write_text(QUERY, "utf-8")
        self._arguments = (
            *("run", "--stepped", "--on", "spark", "--members", str(members), "--state", state),
            *("--checkpoint-every", "0.5", "--serve", self.address),
            *(folder / "topology.yaml", folder / "query.json"),
        )
        self.command: Command

    def start(self) -> None:
        self.command = Command(*self._arguments, directory=self.folder)

    def end(self) -> Ended:
        return self.command.end()

    def everything(self) -> list[psutil.Process]:
        """All that it has started, and is there."""
        with suppress(psutil.Error):
            return psutil.Process(self.command.process.pid).children(recursive=True)
        return []


def descendants(processes: Iterable[psutil.Process], *parts: str) -> list[psutil.Process]:
    """Those of them that have one of these in their command."""
    found = []
    for each in processes:
        with suppress(psutil.Error):
            if any(part in word for part in parts for word in each.cmdline()):
                found.append(each)
    return found


def check_totals(folder: Path, pushed: Rows) -> None:
    """What the sink has is what a Counter counts."""
    _, *lines = (folder / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    rows = [line.split(",") for line in lines]
    assert Counter({(shop, int(sales), int(amount)): 1 for shop, sales, amount in rows}) == totals(pushed)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Those whose processes are to be gone at the end, whatever the test does."""
    made: list[Run] = []
    yield made
    for run in made:
        left = run.everything()
        if not run.command.has_been_ended:  # the test has failed: what it says tells why
            run.command.process.send_signal(signal.SIGKILL)
            sys.stdout.write(run.command.end().stderr)
        _, alive = psutil.wait_procs(left, 20)
        for each in alive:
            each.kill()
