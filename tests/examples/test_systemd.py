"""The unit of a worker is one that systemd takes, and what it starts and ends does what it says."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.support.needs import need_program
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

UNIT = ROOT / "examples" / "systemd" / "nebuli-worker.service"
NEBULI = Path(sys.executable).with_name("nebuli")


def settings() -> dict[str, str]:
    """Of the service."""
    return dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE))


def test_systemd_takes_it(tmp_path: Path) -> None:
    need_program("systemd-analyze")
    installed = tmp_path / UNIT.name
    # What the reader has by then: the program, and a user of that name.
    text = (
        UNIT.read_text("utf-8")
        .replace("/opt/nebuli/bin/nebuli", str(NEBULI))
        .replace("User=nebuli", "User=daemon")
    )
    installed.write_text(text, "utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", installed],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    installed.write_text(text.replace("KillMode=mixed", "KillMod=mixed"), "utf-8")
    wrong = subprocess.run(
        ["systemd-analyze", "verify", installed],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert "KillMod" in wrong.stderr


def test_what_it_starts_serves_and_ends_on_its_signal(tmp_path: Path) -> None:
    data, grpc = free_addresses(2)
    (tmp_path / "topology.yaml").write_text(
        f"logical: []\nnodes:\n  - {{address: '{data}', grpc: '{grpc}', sinks: [{{name: out, type: Print}}]}}\n",
        "utf-8",
    )
    places = {"/etc/nebuli": str(tmp_path), "/var/lib/nebuli": str(tmp_path / "lib"), "${NODE}": data}
    command = settings()["ExecStart"].split()
    command[0] = str(NEBULI)
    for shown, here in places.items():
        command = [word.replace(shown, here) for word in command]
    said = tmp_path / "said.txt"
    for _ in range(2):  # the second takes up what the first one kept
        with (
            said.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(command, stderr=stderr, cwd=tmp_path) as worker,
        ):
            wait_for(lambda: "worker ready" in said.read_text("utf-8"), "the worker is ready")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(float(settings()["TimeoutStopSec"])) == 0, said.read_text("utf-8")
    assert (tmp_path / "lib" / "state").is_dir()
    shutil.rmtree(tmp_path / "lib")
    (tmp_path / "topology.yaml").write_text("nodes: 3\n", "utf-8")
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert str(ended.returncode) == settings()["RestartPreventExitStatus"]
