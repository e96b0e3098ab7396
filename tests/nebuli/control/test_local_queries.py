"""Queries that programs run on local workers, and whose rows they get as a table."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import nebuli
from nebuli import blocking
from nebuli.connectors.errors import OutputError
from nebuli.control.errors import QueryFailed
from nebuli.steps.errors import StateOfAnother
from nebuli.store.errors import StoreUrlInvalid
from placement import InvalidQuery, UnknownSink
from tests.support.ports import free_addresses
from tests.support.waiting import until_async
from topology import TopologyError

SALES = "shop,hour,amount\nAltstadt,9,3\nAltstadt,9,4\nNord,10,5\nDom,9,6\nDom,11,1\n"
SHOPS = "shop,city\nAltstadt,Aachen\nNord,Aachen\nDom,Cologne\n"
CITIES = "SELECT city, sum(amount) AS amount FROM sales JOIN shops USING (shop) WHERE hour < 11 GROUP BY city"
BUILT = (
    nebuli.source("sales")
    .filter("hour < 11")
    .join(nebuli.source("shops"), on="shop")
    .group_by("city")
    .aggregate(amount="sum(amount)")
)


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """Two nodes, of which one sends to the other."""
    here, there = free_addresses(2)
    (tmp_path / "sales.csv").write_text(SALES, "utf-8")
    (tmp_path / "shops.csv").write_text(SHOPS, "utf-8")
    file = tmp_path / "topology.yaml"
    file.write_text(
        f"""
logical:
  - {{name: sales, schema: [{{name: shop, type: string}}, {{name: hour, type: int64}}, {{name: amount, type: int64}}]}}
  - {{name: shops, schema: [{{name: shop, type: string}}, {{name: city, type: string}}]}}
  - {{name: ticks, schema: [{{name: number, type: int64}}]}}
nodes:
  - address: {here}
    links: {{downstream: ["{there}"]}}
    physical: [{{logical: sales, type: CSV, path: sales.csv}}, {{logical: ticks, type: Generator, rate: 10}}]
  - address: {there}
    physical: [{{logical: shops, type: CSV, path: shops.csv}}]
    sinks:
      - {{name: cities, type: CSV, path: cities.csv, mode: final}}
      - {{name: over, type: CSV, path: sales.csv, mode: final}}
      - {{name: none, type: "Null"}}
""",
        "utf-8",
    )
    return file


def expected(statement: str, topology: Path) -> list[dict[str, Any]]:
    """The answer of DuckDB."""
    with duckdb.connect() as connection:
        for name in ("sales", "shops"):
            connection.register(name, connection.read_csv(str(topology.parent / f"{name}.csv")))
        answer = connection.sql(statement)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]


@pytest.mark.processes
@pytest.mark.story
async def test_the_rows_of_a_statement_and_of_calls_are_those_of_duckdb(topology: Path) -> None:
    built = await nebuli.collect(topology, BUILT)
    assert built.sort_by("city").to_pylist() == expected(f"{CITIES} ORDER BY 1", topology)
    file = topology.with_name("cities.sql")
    file.write_text(f"{CITIES} ORDER BY 2 DESC", "utf-8")
    assert (await nebuli.collect(topology, file)).to_pylist() == expected(
        f"{CITIES} ORDER BY 2 DESC", topology
    )
    # The blocking call also works where a loop runs, as in a notebook. Sorted by a column that is not selected.
    sorted_ = "SELECT shop FROM sales ORDER BY amount LIMIT 2"
    assert blocking.collect(str(topology), sorted_).to_pylist() == expected(sorted_, topology)
    empty = await nebuli.collect(topology, "SELECT amount FROM sales WHERE amount > 100")
    assert (empty.num_rows, empty.schema) == (0, pa.schema({"amount": pa.int64()}))


@pytest.mark.processes
@pytest.mark.story
def test_a_query_in_steps_gives_the_same_rows_and_continues_with_those_that_were_added(
    topology: Path,
) -> None:
    state = topology.parent / "state"
    rows = blocking.collect(topology, f"{CITIES} ORDER BY city", state=state, members=2)
    assert rows.to_pylist() == [{"city": "Aachen", "amount": 12}, {"city": "Cologne", "amount": 6}]
    with (topology.parent / "sales.csv").open("a", encoding="utf-8") as file:
        file.write("Nord,10,30\nDom,12,100\n")
    rows = blocking.collect(topology, f"{CITIES} ORDER BY city", state=state)
    assert rows.to_pylist() == [{"city": "Aachen", "amount": 42}, {"city": "Cologne", "amount": 6}]
    with pytest.raises(StateOfAnother, match=str(state)):
        blocking.collect(topology, "SELECT shop FROM sales", state=state)


@pytest.mark.parametrize(
    ("state", "members"), [(None, 2), ("state", 0), ("state", 65), ("state", 1.5), ("state", "2")]
)
async def test_members_are_those_of_a_state(topology: Path, state: str | None, members: Any) -> None:
    with pytest.raises(
        ValueError,
        match=f"expected members from 1 to 64, together with state, got members={members!r}",
    ):
        await nebuli.collect(topology, CITIES, state=state, members=members)


@pytest.mark.processes
def test_a_query_with_a_sink_writes_to_it(topology: Path) -> None:
    assert blocking.run(topology, BUILT.sink("cities")) is None  # type: ignore[func-returns-value] - as documented
    lines = topology.with_name("cities.csv").read_text("utf-8").splitlines()
    assert sorted(lines) == ['"Aachen",12', '"Cologne",6', '"city","amount"']


@pytest.mark.processes
def test_a_query_that_fails_says_which_row_does(topology: Path) -> None:
    topology.with_name("sales.csv").write_text("shop,hour,amount\nDom,9,many\n", "utf-8")
    with pytest.raises(QueryFailed, match=r"sales\.csv.*line 2.*many"):
        blocking.collect(topology, "SELECT amount FROM sales")


@pytest.mark.processes
async def test_a_cancelled_run_leaves_no_worker(topology: Path) -> None:
    host, _, port = topology.read_text("utf-8").partition("address: ")[2].split()[0].rpartition(":")

    async def is_served() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex((host, int(port))) == 0

    run = asyncio.create_task(nebuli.run(topology, "INSERT INTO none SELECT number FROM ticks"))
    await until_async(is_served, "the worker to listen")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    async def is_over() -> bool:
        return not await is_served()

    await until_async(is_over, "its processes to be gone")


@pytest.mark.parametrize(
    ("call", "query", "error", "message"),
    [
        (nebuli.collect, "SELECT shp FROM sales", InvalidQuery, r"^1:8: unknown column 'shp' \(did you mean 'shop'"),
        (nebuli.collect, Path("none.sql"), InvalidQuery, "^none.sql: cannot read the file: No such file"),
        (nebuli.collect, "a/cities.sql", InvalidQuery, r"^a/cities.sql is .*Path\('a/cities.sql'\)"),
        (nebuli.run, "cities.JSON", InvalidQuery, r"^cities.JSON is .*Path\('cities.JSON'\)"),
        (nebuli.collect, BUILT.sink("cities"), InvalidQuery, "sink cities receives the rows .*call nebuli.run"),
        (nebuli.collect, f"INSERT INTO cities {CITIES}", InvalidQuery, "sink cities receives the rows"),
        (nebuli.collect, f"INSERT INTO citis {CITIES}", UnknownSink, r"unknown sink 'citis' \(did you mean 'cities'"),
        (nebuli.collect, f"EXPLAIN {CITIES}", InvalidQuery, "EXPLAIN is for nebuli run"),
        (nebuli.collect, "SELECT number FROM ticks", InvalidQuery, r"ticks \(a generator\) may not end, so .* sink"),
        (nebuli.collect, nebuli.source("tick"), InvalidQuery, "unknown logical source 'tick'.*'ticks'"),
        (nebuli.run, CITIES, InvalidQuery, "the statement has no sink for its rows: write INSERT INTO"),
        (nebuli.run, BUILT, InvalidQuery, "aggregate aggregate.* sink"),
        (nebuli.run, BUILT.view("city").sink("cities"), InvalidQuery, "view view: views are served by nebuli run"),
        (nebuli.run, '{"operators": []}', InvalidQuery, "operators"),
        (nebuli.run, BUILT.sink("over"), OutputError, "sales.csv is read by the same query: give the sink another"),
    ],
)  # fmt: skip
async def test_what_cannot_run_is_refused_before_a_worker_starts(
    topology: Path,
    call: Callable[..., Any],
    query: Any,
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nebuli.control.local_queries.LocalWorkers", None)
    with pytest.raises(error, match=message):
        await call(topology, query)


async def test_an_empty_state_does_not_stand_for_the_current_folder(
    topology: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(topology.parent)
    before = {*topology.parent.iterdir()}
    with pytest.raises(StoreUrlInvalid, match="empty string: give a folder by its path"):
        await nebuli.collect(topology, CITIES, state="")
    assert {*topology.parent.iterdir()} == before


async def test_a_topology_that_is_wrong_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("nodes: [{adress: a}]\n", "utf-8")
    with pytest.raises(
        TopologyError, match=r"topology\.yaml:1:\d+: unknown key 'adress' \(did you mean 'address'"
    ):
        await nebuli.collect(file, "SELECT 1")
