"""``nebuli completion``: what a shell shows when the tabulator key is pressed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from nebuli.cli import nebuli as commands
from tests.support.fleet import MakeFleet

pytestmark = pytest.mark.processes


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With ``nebuli`` as an installation has it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "nebuli"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nebuli "$@"\n', "utf-8")
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@cache
def completion() -> str:
    """Return what bash is to load."""
    command = (sys.executable, "-m", "nebuli", "completion", "bash")
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=60).stdout


def completed(environment: dict[str, str], cwd: Path, *words: str) -> list[str]:
    """What bash offers behind ``words``, of which the last is not complete."""
    script = f"""
        {completion()}
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        $(complete -p nebuli | sed 's/.*-F \\([^ ]*\\) .*/\\1/') nebuli 2> errors
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ended = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        env=environment,
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("sta",), ["start", "status"]),
        (("certs", "d"), ["dev"]),
        (("top", "--i"), ["--interval"]),
        (("place", "--strategy", "o"), ["optimal"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_commands_options_and_choices_are_completed(
    words: tuple[str, ...], offered: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    assert completed(environment, tmp_path, "nebuli", *words) == offered


def test_all_commands_are_offered(environment: dict[str, str], tmp_path: Path) -> None:
    assert set(completed(environment, tmp_path, "nebuli", "")) == set(commands.list_commands(None))  # type: ignore[arg-type]  # is not read


def test_ids_of_registered_queries_are_completed(
    make_fleet: MakeFleet, environment: dict[str, str], tmp_path: Path
) -> None:
    fleet = make_fleet()
    fleet.start()
    id_ = fleet.run("register", fleet.topology, fleet.query).stdout.strip()
    environment["XDG_STATE_HOME"] = os.environ["XDG_STATE_HOME"]
    for command in ("status", "stop", "start", "logs", "top", "unregister", "watch"):
        assert completed(environment, tmp_path, "nebuli", command, id_[:3]) == [id_]
    assert completed(environment, tmp_path, "nebuli", "start", "topology") == []  # the shell's own: files
    broken = Path(os.environ["XDG_STATE_HOME"]) / "nebuli" / "queries" / "broken.json"
    broken.write_text(json.dumps({}), "utf-8")
    assert completed(environment, tmp_path, "nebuli", "status", "") == []
    assert (tmp_path / "errors").read_text("utf-8") == ""


@pytest.mark.parametrize(
    ("shell", "said"), [("zsh", "#compdef nebuli"), ("fish", "complete --no-files --command nebuli")]
)
def test_other_shells_get_what_they_load(shell: str, said: str, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        ["nebuli", "completion", shell], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    assert said in ended.stdout
    asked = {
        **environment,
        "_NEBULI_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "nebuli unre",
        "COMP_CWORD": "1",
    }
    asked |= {"COMP_CWORD": "unre"} if shell == "fish" else {}
    ended = subprocess.run(["nebuli"], env=asked, capture_output=True, encoding="utf-8", check=True)
    assert "unregister" in ended.stdout
