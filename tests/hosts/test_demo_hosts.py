"""`make demo-hosts`: the demo's result comes from three hosts, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.examples import flights
from tests.support.hosts import Host
from tests.support.needs import need_program
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

PROGRAM = flights.EXAMPLE / "hosts.sh"

# A variable that the processes of this module's demos have, and no others: other tests have hosts with its addresses.
_MARK = {"DEMO_OF_TEST": uuid.uuid4().hex}


@pytest.fixture
def demo(hosts: list[Host], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, on a machine where namespaces can be used."""
    need_program("unshare")
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (tmp_path / "shown.txt").open("w", encoding="utf-8") as shown:
        started = subprocess.Popen(
            [PROGRAM],
            stdout=subprocess.PIPE,
            stderr=shown,
            encoding="utf-8",
            env={**os.environ, **_MARK, "PATH": path},
            start_new_session=True,
        )
    with started as demo:
        yield demo
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)


def workers() -> list[int]:
    """Those of its hosts."""
    return [each.pid for each in psutil.process_iter() if _is_worker(each)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "worker" in process.cmdline() and process.environ().items() >= _MARK.items()
    except psutil.Error:
        # It ended meanwhile.
        return False


def test_three_hosts_give_the_result_of_one(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    said, _ = demo.communicate(timeout=120)
    shown = (tmp_path / "shown.txt").read_text("utf-8")
    assert demo.returncode == 0, shown
    rows = {tuple(line.split()[:4]) for line in said.splitlines()}
    (tmp_path / "answer").mkdir()
    expected = flights.answer(tmp_path / "answer").to_pylist()
    assert {(row["origin"], *row["wind"].split(), str(row["flights"])) for row in expected} <= rows
    assert "10.77.0.3$ nebuli start topology.yaml query.json" in shown
    assert workers() == []


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_leaves_nothing(demo: subprocess.Popen[str], by: signal.Signals) -> None:
    wait_for(workers, "a worker runs")
    demo.send_signal(by)
    assert demo.wait(30) != 0
    wait_for(lambda: not workers(), "the workers are gone")
