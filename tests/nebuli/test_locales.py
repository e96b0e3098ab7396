"""Commands in locales that are not UTF-8: files, paths and data are UTF-8, and a terminal shows what it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOPOLOGY = """
logical:
  - name: zähler
    schema: [{name: größe, type: int64}, {name: 名, type: string}]
nodes:
  - address: 127.0.0.1:31051
    physical: [{logical: zähler, type: CSV, path: ein/名.csv}]
    sinks: [{name: file, type: CSV, path: aus/größe.csv}, {name: screen, type: Print}]
"""
TERMINALS = {"latin-1": ["größe", "\\u540d"], "utf-8": ["größe", "名"]}
"""The names of the columns as a terminal of each encoding shows them."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "Häuser"
    (folder / "ein").mkdir(parents=True)
    (folder / "aus").mkdir()
    (folder / "ein" / "名.csv").write_text("größe,名\n1,日本\n", "utf-8")
    (folder / "fälle.yaml").write_text(TOPOLOGY, "utf-8")
    for sink in ("file", "screen"):
        operators = [
            {"id": "s", "type": "source", "logical": "zähler"},
            {"id": "o", "type": "sink", "input": "s", "sink": sink},
        ]
        (folder / f"{sink}.json").write_text(json.dumps({"operators": operators}), "utf-8")
    return folder


def ran(folder: Path, terminal: str, *arguments: str) -> tuple[int, str, str]:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": terminal}
    ended = subprocess.run(
        [sys.executable, "-m", "nebuli", *arguments],
        cwd=folder,
        env={**os.environ, **locale, "XDG_STATE_HOME": str(folder)},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.decode(terminal), ended.stderr.decode(terminal)


@pytest.mark.processes
@pytest.mark.parametrize("terminal", ["latin-1", "utf-8"])
def test_a_file_of_any_name_is_read_and_named_as_the_terminal_can(folder: Path, terminal: str) -> None:
    (folder / "mißt.json").write_text('{"operators": [{"id": "名", "type": "mißt"}]}', "utf-8")
    code, said, wrong = ran(folder, terminal, "validate", "fälle.yaml", "mißt.json")
    assert (code, said) == (2, "")
    assert "mißt.json:1:" in wrong
    assert ("mißt 名" if terminal == "utf-8" else "mißt \\u540d") in wrong
    code, said, _ = ran(folder, terminal, "place", "fälle.yaml", "file.json")
    assert code == 0
    assert ("ein/名.csv is attached" if terminal == "utf-8" else "ein/\\u540d.csv is attached") in said


@pytest.mark.processes
def test_files_are_utf_8_whatever_the_locale(folder: Path) -> None:
    assert ran(folder, "ascii", "run", "fälle.yaml", "file.json")[0] == 0
    assert (folder / "aus" / "größe.csv").read_text("utf-8") == '"größe","名"\n1,"日本"\n'


@pytest.mark.story
@pytest.mark.processes
@pytest.mark.parametrize(
    ("terminal", "stepped"),
    [("latin-1", ()), ("utf-8", ()), ("latin-1", ("--stepped", "--state", "stände"))],
    ids=["latin-1", "utf-8", "stepped"],
)
def test_a_terminal_shows_rows_as_it_can(folder: Path, terminal: str, stepped: tuple[str, ...]) -> None:
    code, said, _ = ran(folder, terminal, "run", *stepped, "fälle.yaml", "screen.json")
    assert code == 0
    assert said.split()[:2] == TERMINALS[terminal]
