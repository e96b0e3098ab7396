"""``nebuli run --stepped`` with a state folder one of whose files is damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest
import yaml

from tests.support.commands import Ended, nebuli
from tests.support.damaging import damaged
from tests.support.sizes import some

pytestmark = [pytest.mark.processes, pytest.mark.long]

_ROWS, _MORE = 5_000, 100
_EACH = 6


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a query has come to the end of a file."""
    folder = tmp_path_factory.mktemp("ended")
    schema = [{"name": "n", "type": "int64"}, {"name": "k", "type": "int64"}]
    sinks = [
        {"name": "rows", "type": "CSV", "path": "rows.csv", "mode": "append"},
        {"name": "sums", "type": "CSV", "path": "sums.csv"},
    ]
    node = {
        "address": "127.0.0.1:27900",
        "physical": [{"logical": "a", "type": "CSV", "path": "a.csv"}],
        "sinks": sinks,
    }
    topology = {"logical": [{"name": "a", "schema": schema}], "nodes": [node]}
    operators = [
        {"id": "a", "type": "source", "logical": "a"},
        {"id": "g", "type": "aggregate", "input": "a", "by": ["k"], "aggregates": {"sum": "sum(n)"}},
        {"id": "rows", "type": "sink", "input": "a", "sink": "rows"},
        {"id": "sums", "type": "sink", "input": "g", "sink": "sums"},
    ]
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (folder / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    (folder / "a.csv").write_text("n,k\n" + _lines(0, _ROWS), "utf-8")
    assert _run(folder).exit_code == 0
    return folder


def _lines(first: int, until: int) -> str:
    return "".join(f"{n},{n % 10}\n" for n in range(first, until))


def _run(folder: Path) -> Ended:
    files = folder / "topology.yaml", folder / "query.json"
    return nebuli("run", "--stepped", "--state", folder / "state", *files, directory=folder)


@pytest.mark.parametrize("block", range(5))
def test_damage_ends_with_an_error_that_names_the_file_or_the_result_is_right(
    ended: Path, block: int, tmp_path: Path
) -> None:
    for seed in some(range(block * _EACH, (block + 1) * _EACH)):
        shutil.rmtree(tmp_path / "place", ignore_errors=True)
        folder = shutil.copytree(ended, tmp_path / "place")
        with (folder / "a.csv").open("a", encoding="utf-8") as file:
            file.write(_lines(_ROWS, _ROWS + _MORE))
        rows = (folder / "rows.csv").read_bytes()
        damage = damaged(folder / "state", Random(seed))
        ran = _run(folder)
        if ran.exit_code:
            owner = "state" if len(damage.file.parts) == 1 else f"state/{damage.file.parts[0]}"
            named = [str(folder / owner), damage.file.name]
            assert ran.exit_code == 1
            assert any(name in ran.error for name in named), f"{seed}: {damage}: {ran.error}"
            assert (folder / "rows.csv").read_bytes() == rows, f"{seed}: {damage}: the sink stays"
            continue
        found = (folder / "rows.csv").read_text("utf-8").splitlines()[1:]
        assert sorted(found) == sorted(_lines(0, _ROWS + _MORE).splitlines()), f"{seed}: {damage}"
        sums = {f"{k},{sum(range(k, _ROWS + _MORE, 10))}" for k in range(10)}
        assert set((folder / "sums.csv").read_text("utf-8").splitlines()[1:]) == sums, f"{seed}: {damage}"
