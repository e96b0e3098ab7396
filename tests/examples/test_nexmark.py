"""Nexmark's queries give what DuckDB gives, on three nodes and in steps, also where members are killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.nexmark import answers, files, ways
from nebuli.control.local import LocalWorkers
from placement import check_stepped, decompose, load_query, parse_statement, place, with_deployment
from tests.docs.markdown import ROOT
from tests.examples import nexmark
from tests.support.deployment import Deployment
from topology import load_topology


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nexmark.data(tmp_path_factory)


@pytest.mark.processes
async def test_on_three_nodes_each_query_gives_what_duckdb_gives(data: Path) -> None:
    topology = load_topology(ways.at_free_ports(data / files.NODES))
    async with LocalWorkers(topology.nodes, data) as workers:
        for name in files.QUERIES:
            placed = place(load_query(files.query(name)), topology, 0)
            running = Deployment(with_deployment(decompose(placed).fragments, name), workers.clients)
            await running.register()
            await running.start()
            await running.finish()
            nexmark.check(data, name)


@pytest.mark.story
@pytest.mark.processes
async def test_as_statements_they_give_the_same(data: Path) -> None:
    """In the words of DuckDB's, but for windows, which stand in FROM."""
    topology = load_topology(ways.at_free_ports(data / files.ONE_NODE))
    async with LocalWorkers(topology.nodes, data) as workers:
        for name in files.QUERIES:
            query = parse_statement(files.runnable(name).read_text("utf-8"), topology, name)
            running = Deployment(
                with_deployment(decompose(place(query, topology, 0)).fragments, name), workers.clients
            )
            await running.register()
            await running.start()
            await running.finish()
            nexmark.check(data, name)


@pytest.mark.story
@pytest.mark.processes
def test_as_statements_in_steps_they_give_the_same(data: Path, tmp_path: Path) -> None:
    """All of them as one circuit, of two members."""
    topology = load_topology(data / files.ONE_NODE)
    operators: list[dict[str, Any]] = []
    for name in files.QUERIES:
        query = parse_statement(files.runnable(name).read_text("utf-8"), topology, name)
        named = {each.id: f"{name}_{each.id}" for each in query.operators}
        for each in query.operators:
            given = each.model_dump(mode="json", exclude_defaults=True) | {
                "id": named[each.id],
                "type": each.type,
            }
            given |= {"input": named[given["input"]]} if "input" in given else {}
            given |= {"inputs": [named[child] for child in given["inputs"]]} if "inputs" in given else {}
            operators.append(given)
    together = data / "statements.json"
    together.write_text(json.dumps({"operators": operators}), "utf-8")
    options = ["--stepped", "--members", "2", "--state", str(tmp_path / "state")]
    command = [str(ways.NEBULI), "run", *options, str(data / files.ONE_NODE), str(together)]
    subprocess.run(command, check=True, capture_output=True)
    for name in files.QUERIES:
        nexmark.check(data, name)


@pytest.mark.processes
def test_in_steps_all_of_them_give_what_duckdb_gives_though_members_are_killed(data: Path) -> None:
    assert ways.run_in_steps(data, files.QUERIES, kill_every_s=0, checkpoint_s=0.5) > 0
    for name in files.QUERIES:
        nexmark.check(data, name)


@pytest.mark.processes
def test_the_program_says_what_it_found() -> None:
    command = [sys.executable, "-m", "examples.nexmark", "q7", "--way", "free", "--events", "5000"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert ended.returncode == 0, ended.stderr
    made, found, row = ended.stdout.splitlines()
    assert made == "100 rows of person, 300 rows of auction, 4,600 rows of bid"
    assert re.fullmatch(r"q7 \(free, [0-9.]+ s\): 1 rows, as DuckDB has them", found)
    assert re.match(r"   auction=1\d+  price=\d+  bidder=1\d+  date_time=2015-07-15 00:00:00\.\d+", row)


def test_a_result_that_is_another_one_is_seen(data: Path, tmp_path: Path) -> None:
    theirs = answers.answer(data, "q4")
    shutil.copy(data / "auction.parquet", tmp_path)
    shutil.copy(data / "bid.parquet", tmp_path)
    for found, expected in (
        (theirs, (5, 0)),
        (theirs.slice(1), (4, 1)),
        (pa.concat_tables([theirs, theirs.slice(0, 1)]), (6, 1)),
        (theirs.set_column(1, "price", pa.array([1.0] * 5)), (5, 10)),
    ):
        pq.write_table(found, tmp_path / "q4.parquet")
        assert answers.differences(tmp_path, "q4", tmp_path / "q4.parquet") == expected


@pytest.mark.parametrize("name", files.QUERIES)
def test_in_steps_no_query_reads_a_stream_twice(data: Path, name: str) -> None:
    plan = check_stepped(load_query(files.query_in_steps(name)), load_topology(data / files.ONE_NODE))
    read = [each.logical for each in plan.inputs]
    assert len(read) == len(set(read))


def test_make_runs_the_program() -> None:
    _, _, rule = (ROOT / "Makefile").read_text("utf-8").partition("\ndemo-nexmark: ")
    assert "$(BIN)/python -m examples.nexmark" in rule.partition("\n\n")[0]
