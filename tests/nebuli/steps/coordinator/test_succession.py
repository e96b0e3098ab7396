"""Members that take the place of others, whatever is killed meanwhile: every row counts once, whoever goes on."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from nebuli.steps.coordinator import circuit_run, succession
from nebuli.steps.coordinator.coordinator import Coordinator
from nebuli.steps.coordinator.generation import Generation
from nebuli.steps.coordinator.succession import GivenUp
from nebuli.steps.errors import NotScaled
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from tests.support.seeds import drawn_seed
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

ROWS, SOURCES = 60_000, 2
TOPOLOGY = """
logical:
  - {name: numbers, schema: [{name: n, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    physical:
      - {logical: numbers, type: Generator, count: 60000, rows_per_s: 6000}
      - {logical: numbers, type: Generator, count: 60000, rows_per_s: 6000, seed: 1}
    sinks:
      - {name: sums, type: CSV, path: sums.csv, mode: changes}
"""
QUERY = """
{"operators": [
  {"id": "numbers", "type": "source", "logical": "numbers"},
  {"id": "parts", "type": "project", "input": "numbers", "columns": {"part": "n % 97", "n": "n"}},
  {"id": "sums", "type": "aggregate", "input": "parts", "by": ["part"],
   "aggregates": {"rows": "count(*)", "sum": "sum(n)"}},
  {"id": "out", "type": "sink", "input": "sums", "sink": "sums"}
]}
"""


def begin(folder: Path, members: int) -> subprocess.Popen[str]:
    command = "run --stepped --state state --checkpoint-every 1 topology.yaml query.json --members"
    return subprocess.Popen(
        [sys.executable, "-m", "nebuli", *command.split(), str(members)],
        cwd=folder,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def test_a_run_that_is_killed_as_members_take_over_goes_on_with_these_or_with_those(tmp_path: Path) -> None:
    """DBSP-REQ-3: each run is to have another number of members than the one before, and is killed in the middle."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    (tmp_path / "query.json").write_text(QUERY, "utf-8")
    with drawn_seed() as seed:
        drawn = random.Random(seed)
        members = 1
        for _ in range(6):
            run = begin(tmp_path, members)
            assert run.stderr is not None
            assert any(
                "running" in line for line in run.stderr
            )  # those that there were, if others are to follow
            time.sleep(drawn.uniform(0.0, 3.0))
            run.kill()
            run.communicate()
            members = drawn.choice([each for each in (1, 2, 3, 4) if each != members])
        run = begin(tmp_path, members)
        _, said = run.communicate(timeout=200)
        assert run.returncode == 0, said
        assert re.search(rf"{members} members? running, from step", said), said
    assert_each_row_counts_once(tmp_path, ROWS)


async def test_where_members_do_not_come_to_rest_their_sinks_have_one_writer_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a step that takes longer than a scaling waits: those that there are go on, and deliver as before."""

    async def never(_: Coordinator) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    rows = 24_000
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Coordinator, "rest", never)
    monkeypatch.setattr(succession, "_REST_S", 3.0)
    topology = parse_topology(TOPOLOGY.replace("count: 60000", f"count: {rows}"), "topology.yaml")
    query = stepped_query(parse_query(QUERY, "sums", "query.json"), topology, 2)
    settings = TriggerSettings(checkpoint_s=0.5)
    async with asyncio.timeout(120), LocalRun(query, tmp_path / "state", tmp_path, settings) as run:
        await run.coordinator.caught_up()
        with pytest.raises(NotScaled, match="did not pause at the same step within 3 s"):
            await run.scale(3)
        writers = [each for each in asyncio.all_tasks() if "Delivery._work" in str(each.get_coro())]
        assert len(writers) == 1
        await run.until_ended()
    assert_each_row_counts_once(tmp_path, rows)


async def test_a_run_that_is_to_have_other_members_has_them_though_one_is_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, lost = 24_000, []

    async def given_ahead(*generations: Generation) -> object:
        if lost:
            return await succession.given_ahead(*generations)
        lost.append(GivenUp("a member that should take over has ended"))
        raise lost[0]

    async def no_disk(*_: Generation) -> object:
        raise OSError("no disk")

    monkeypatch.chdir(tmp_path)
    topology = parse_topology(TOPOLOGY.replace("count: 60000", f"count: {rows}"), "topology.yaml")
    settings = TriggerSettings(checkpoint_s=0.5)
    two, three = (stepped_query(parse_query(QUERY, "sums", "query.json"), topology, each) for each in (2, 3))
    async with asyncio.timeout(120):
        async with LocalRun(two, tmp_path / "state", tmp_path, settings) as run:
            await run.coordinator.caught_up()
        monkeypatch.setattr(circuit_run, "given_ahead", no_disk)
        with pytest.raises(NotScaled, match="no disk"):  # any other failure ends it at once, with its reason
            await LocalRun(three, tmp_path / "state", tmp_path, settings).__aenter__()
        monkeypatch.setattr(circuit_run, "given_ahead", given_ahead)
        async with LocalRun(three, tmp_path / "state", tmp_path, settings) as run:
            assert (len(lost), run.plan.members) == (1, 3)
            await run.until_ended()
    assert_each_row_counts_once(tmp_path, rows)


def assert_each_row_counts_once(folder: Path, rows: int) -> None:
    header, *lines = (folder / "sums.csv").read_text("utf-8").replace('"', "").splitlines()
    assert header == "part,rows,sum,_weight"
    found: Counter[tuple[int, ...]] = Counter()
    for line in lines:
        *row, weight = map(int, line.split(","))
        found[tuple(row)] += weight
    parts = [range(part, rows, 97) for part in range(97)]
    wanted = {(part, SOURCES * len(each), SOURCES * sum(each)): 1 for part, each in enumerate(parts)}
    assert {row: weight for row, weight in found.items() if weight} == wanted
