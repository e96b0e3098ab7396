"""A connector that somebody else has made: installed by pip, run over processes, and missed where it is not."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from nebuli.rpc import worker_pb2 as wire
from tests.docs.markdown import ROOT, blocks
from tests.nebuli.node.service.test_service import Worker, refusal
from tests.support.commands import nebuli
from tests.support.environments import environment, install
from tests.support.ports import free_addresses

EXAMPLE = ROOT / "examples" / "connector"
QUERY = {
    "operators": [
        {"id": "sales", "type": "source", "logical": "sales"},
        {"id": "shops", "type": "source", "logical": "shops"},
        {
            "id": "large",
            "type": "filter",
            "input": "sales",
            "predicate": "amount > 10 AND day >= DATE '2024-02-01'",
        },
        {"id": "both", "type": "join", "inputs": ["large", "shops"], "on": ["shop"]},
        {
            "id": "total",
            "type": "aggregate",
            "input": "both",
            "by": ["city"],
            "aggregates": {"total": "sum(cents)", "sales": "count(*)", "first": "min(day)"},
        },
        {"id": "out", "type": "sink", "input": "total", "sink": "totals"},
    ]
}
ANSWER = """
    SELECT city, sum(cents), count(*), min(day) FROM sales JOIN shops USING (shop)
    WHERE amount > 10 AND day >= '2024-02-01' GROUP BY city ORDER BY city
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with the connector."""
    commands = environment(tmp_path_factory.mktemp("environment"))
    package = tmp_path_factory.mktemp("package") / "connector"
    shutil.copytree(EXAMPLE, package)
    install(commands, package)
    return commands / "python"


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def fill(path: Path) -> None:
    draw = random.Random(7)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE shops (shop TEXT, city TEXT)")
        database.execute("CREATE TABLE sales (day TEXT, shop TEXT, amount REAL, cents INT)")
        shops = [f"shop {number}" for number in range(50)]
        database.executemany(
            "INSERT INTO shops VALUES (?, ?)", [(shop, draw.choice("ABC")) for shop in shops]
        )
        rows = [
            (
                f"2024-{draw.randint(1, 3):02}-{draw.randint(1, 28):02}",
                draw.choice([*shops, None]),
                None,
                None,
            )
            if draw.random() < 0.01
            else (
                f"2024-{draw.randint(1, 3):02}-{draw.randint(1, 28):02}",
                draw.choice([*shops, None]),
                draw.uniform(0, 100),
                draw.randint(0, 10_000),
            )
            for _ in range(100_000)
        ]
        database.executemany("INSERT INTO sales VALUES (?, ?, ?, ?)", rows)


def topology(directory: Path, data: list[str], grpc_: list[str] | None = None) -> Path:
    table = {"type": "SQLite", "path": str(directory / "shop.db")}
    schemas = {
        "sales": {"day": "date", "shop": "string", "amount": "float64", "cents": "int64"},
        "shops": {"shop": "string", "city": "string"},
    }
    nodes: list[dict[str, Any]] = [
        {"address": data[0], "physical": [{"logical": "sales", **table, "table": "sales"}]},
        {"address": data[1], "physical": [{"logical": "shops", **table, "table": "shops"}]},
        {"address": data[2], "sinks": [{"name": "totals", **table, "table": "totals"}]},
    ]
    for node in nodes[:2]:
        node["links"] = {"downstream": [data[2]]}
    for node, address in zip(nodes, grpc_ or [], strict=False):
        node["grpc"] = address
    logical = [
        {"name": name, "schema": [{"name": column, "type": type_} for column, type_ in schema.items()]}
        for name, schema in schemas.items()
    ]
    (directory / "query.json").write_text(json.dumps(QUERY), "utf-8")
    (directory / "topology.yaml").write_text(yaml.safe_dump({"logical": logical, "nodes": nodes}), "utf-8")
    return directory / "topology.yaml"


def test_the_page_shows_the_example() -> None:
    shown = {
        each.file: each.text
        for each in blocks(ROOT / "docs" / "how-to" / "write-a-connector.md")
        if each.file
    }
    for path in (EXAMPLE / "pyproject.toml", *EXAMPLE.rglob("*.py")):
        assert shown[str(path.relative_to(EXAMPLE))] == path.read_text("utf-8"), path


@pytest.mark.processes
def test_a_query_over_processes_gives_what_the_database_itself_gives(python: Path, tmp_path: Path) -> None:
    """From tables and into one of the same database."""
    fill(tmp_path / "shop.db")
    file = topology(tmp_path, free_addresses(3))
    for _ in range(2):  # the second replaces the table of the first
        ended = nebuli("run", file, tmp_path / "query.json", directory=tmp_path, python=python)
        assert ended.exit_code == 0, ended.stderr
        found = asked(tmp_path / "shop.db", "SELECT city, total, sales, first FROM totals ORDER BY city")
        assert len(found) == 3
        assert found == asked(tmp_path / "shop.db", ANSWER)


@pytest.mark.processes
def test_a_query_that_fails_leaves_the_table_as_it_was(python: Path, tmp_path: Path) -> None:
    fill(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE totals AS SELECT 'before' AS city")
        database.execute("INSERT INTO sales VALUES ('2024-02-30', 'shop 1', 20, 1)")
    ended = nebuli(
        "run",
        topology(tmp_path, free_addresses(3)),
        tmp_path / "query.json",
        directory=tmp_path,
        python=python,
    )
    assert ended.exit_code == 2
    assert (
        f"table sales of {tmp_path}/shop.db, row 100001, column day: '2024-02-30' is not a valid date32[day]"
        in ended.error
    )
    assert asked(tmp_path / "shop.db", "SELECT * FROM totals") == [("before",)]


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker, whose Python has the connector or has not."""
    found: list[Worker] = []

    def started(**options: Path) -> Worker:
        directory = tmp_path / f"worker {len(found)}"
        directory.mkdir()
        found.append(Worker(directory, "--state", str(directory / "fragments"), **options))
        return found[-1]

    yield started
    for worker in found:
        worker.end()


@pytest.mark.processes
def test_a_worker_without_the_package_says_so_and_nothing_is_left_anywhere(
    start: Start, python: Path, tmp_path: Path
) -> None:
    workers = [start(python=python), start(python=python), start()]
    fill(tmp_path / "shop.db")
    file = topology(tmp_path, [each.data for each in workers], [each.grpc for each in workers])
    ended = nebuli("register", file, tmp_path / "query.json", directory=tmp_path, python=python)
    assert ended.exit_code == 1
    assert ended.error == (
        f"worker {workers[2].data} lacks a connector of the query: unknown type 'SQLite'; expected one of "
        f"CSV, Parquet, Print, TCP, Collection, Null; install its package on this "
        f"worker's machine, too"
    )
    assert [worker.statuses() for worker in workers] == [[], [], []]
    assert nebuli("list", directory=tmp_path, python=python).stdout.count("\n") <= 1
    here = nebuli("register", file, tmp_path / "query.json", directory=tmp_path)
    assert here.exit_code == 2
    assert f"{file}:" in here.stderr
    assert "unknown type 'SQLite'; expected one of" in here.stderr


@pytest.mark.processes
def test_what_a_worker_was_given_waits_for_the_package_to_be_back(
    start: Start, python: Path, tmp_path: Path
) -> None:
    first = start(python=python)
    fill(tmp_path / "shop.db")
    table = {"type": "SQLite", "path": str(tmp_path / "shop.db"), "table": "shops", "logical": "shops"}
    columns = [{"name": "city", "type": "string"}]
    operators = [
        {"id": "in", "type": "source", "logical": "shops", "schema": columns, "physical": table},
        {
            "id": "out",
            "type": "sink",
            "input": "in",
            "sink": "out",
            "target": {"type": "Null", "name": "out"},
        },
    ]
    fragment = {"id": "copy", "node": first.data, "operators": operators}
    wrong = {**operators[0], "physical": {**table, "tabel": "x"}}
    with pytest.raises(grpc.RpcError) as caught:
        first.register({**fragment, "operators": [wrong, operators[1]]})
    assert refusal(caught)[1].reason == wire.Refusal.REASON_BAD_FRAGMENT
    id_ = first.register(fragment)
    first.end()
    state = ("--state", str(first.directory / "fragments"))
    without = nebuli("worker", "--data", first.data, "--grpc", first.grpc, *state, directory=tmp_path)
    assert without.exit_code == 2
    assert "connector is not available: unknown type 'SQLite'" in without.error
    first.begin(*state)
    first.start(id_)
    assert first.wait_for_state(id_, wire.STATE_FINISHED).rows_in == 50


@pytest.mark.processes
def test_what_does_the_work_and_cannot_be_imported_fails_the_fragment_and_tells_its_neighbours(
    start: Start, python: Path, tmp_path: Path
) -> None:
    first = start(python=python)
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    tables = packages / "nebuli_sqlite" / "tables.py"
    good = tables.read_text("utf-8")
    tables.write_text("import a_driver_that_is_not_there\n", "utf-8")
    try:
        fill(tmp_path / "shop.db")
        table = {"type": "SQLite", "path": str(tmp_path / "shop.db"), "table": "shops", "logical": "shops"}
        columns = [{"name": "city", "type": "string"}]
        channel = {"channel": "cities", "address": first.data}
        above = [
            {"id": "in", "type": "source", "logical": "shops", "schema": columns, "physical": table},
            {"id": "in>", "type": "network_sink", "input": "in", **channel},
        ]
        below = [
            {"id": "in", "type": "network_source", "schema": columns, **channel},
            {
                "id": "out",
                "type": "sink",
                "input": "in",
                "sink": "out",
                "target": {"type": "Null", "name": "out"},
            },
        ]
        ids = [
            first.register({"id": f"q/{name}", "node": first.data, "operators": operators})
            for name, operators in (("in", above), ("out", below))
        ]
        for id_ in ids:
            first.start(id_)
        failed, told = (first.wait_for_state(id_, wire.STATE_FAILED) for id_ in ids)
    finally:
        tables.write_text(good, "utf-8")
    assert (failed.cause, told.cause) == (wire.CAUSE_INPUT, wire.CAUSE_UPSTREAM)
    assert failed.error == (
        "type 'SQLite' (nebuli-sqlite 1.0): nebuli_sqlite.tables:TableSource cannot be used here: "
        "ModuleNotFoundError: No module named 'a_driver_that_is_not_there'; install its missing "
        "dependencies, or another version of it"
    )
    assert failed.error in told.error
