"""`make demo-stepped`: a member is killed in the middle, and the table is that of `make demo`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.examples import flights
from tests.support.commands import nebuli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PROGRAM = flights.EXAMPLE / "stepped.py"


@pytest.mark.story
def test_the_table_is_that_of_the_demo_though_a_member_is_killed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    flights.write_topology(tmp_path / "topology.yaml", {"type": "Print"})
    demo = nebuli("run", tmp_path / "topology.yaml", flights.EXAMPLE / "query.json", directory=tmp_path)
    assert demo.exit_code == 0, demo.stderr
    stepped = subprocess.run([sys.executable, PROGRAM], capture_output=True, encoding="utf-8", check=False)
    assert stepped.returncode == 0, stepped.stderr
    assert stepped.stdout == demo.stdout
    _, _, behind = stepped.stderr.rpartition("kill -9 ")
    assert "(killed by SIGKILL); it is started again" in behind
    (step,) = re.findall("running again, from step ([0-9]+)", behind)
    assert int(step) > 0, "it was in the middle"


def test_make_runs_that_program() -> None:
    _, _, rule = (ROOT / "Makefile").read_text("utf-8").partition("\ndemo-stepped: ")
    assert "$(BIN)/python examples/flights/stepped.py" in rule.partition("\n\n")[0]
