"""The demo's query as a statement: it has the plan of the query file, and gives what DuckDB gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from placement import load_query, parse_statement
from placement.statements.plan_text import statement_of
from tests.examples import flights
from tests.placement.statements.plans import plan
from tests.support.commands import nebuli
from topology import load_topology

STATEMENT = flights.EXAMPLE / "query.sql"


def test_its_plan_is_that_of_the_query_file() -> None:
    topology = load_topology(flights.EXAMPLE / "topology.yaml")
    ours = parse_statement(STATEMENT.read_text("utf-8"), topology)
    theirs = parse_statement(statement_of(load_query(flights.EXAMPLE / "query.json"), topology), topology)
    assert plan(ours) == plan(theirs)


@pytest.mark.processes
@pytest.mark.parametrize("stepped", [False, True])
def test_it_gives_what_duckdb_gives(tmp_path: Path, stepped: bool) -> None:
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    flights.write_topology(tmp_path / "topology.yaml", {"type": "Parquet", "path": "delays.parquet"})
    options = ["--stepped", "--members", "2", "--state", tmp_path / "state"] if stepped else []
    ended = nebuli("run", *options, tmp_path / "topology.yaml", STATEMENT, directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    flights.assert_equal(pq.read_table(tmp_path / "delays.parquet"), flights.answer(tmp_path))
