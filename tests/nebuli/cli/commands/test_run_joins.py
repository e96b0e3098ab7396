"""``nebuli run`` with outer joins: over processes, free and in steps, and read at a view."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from tests.support.commands import Command, nebuli
from tests.support.ports import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

CUSTOMERS = ["1,Ada", "2,Bo", "3,Cy", ",nobody", "2,Bea"]
ORDERS = ["1,pen", "1,ink", "4,cup", ",lost"]
COLUMNS = {
    "customers": [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}],
    "orders": [{"name": "id", "type": "int64"}, {"name": "thing", "type": "string"}],
}


def written(directory: Path, how: str, end: dict[str, Any], *, base: bool = False) -> list[str]:
    """The files: two sources at nodes that compute nothing, whose rows a third node joins."""
    for name, rows in (("customers", CUSTOMERS), ("orders", ORDERS)):
        names = ",".join(column["name"] for column in COLUMNS[name])
        (directory / f"{name}.csv").write_text("\n".join([names, *rows, ""]), "utf-8")
    addresses, grpc = free_addresses(3), free_addresses(3)
    nodes: list[dict[str, Any]] = [
        {"address": address, "grpc": at} for address, at in zip(addresses, grpc, strict=True)
    ]
    for node, name in zip(nodes, COLUMNS, strict=False):
        physical = {"logical": name, "type": "CSV", "path": f"{name}.csv"} | ({"base": True} if base else {})
        node |= {"capacity": 0, "links": {"downstream": [addresses[2]]}, "physical": [physical]}
    sink = {"name": "result", "type": "CSV", "path": "result.csv", "mode": "final"}
    nodes[2] |= {"sinks": [sink]}
    topology = {
        "logical": [{"name": name, "schema": schema} for name, schema in COLUMNS.items()],
        "nodes": nodes,
    }
    operators = [
        *({"id": name, "type": "source", "logical": name} for name in COLUMNS),
        {"id": "both", "type": "join", "how": how, "inputs": [*COLUMNS], "on": ["id"]},
        {**end, "input": "both"} | ({"node": addresses[2]} if end["type"] == "view" else {}),
    ]
    (directory / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (directory / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    return [str(directory / name) for name in ("topology.yaml", "query.json")]


@pytest.mark.parametrize(("how", "stepped"), [("left", False), ("full", False), ("full", True)])
def test_rows_that_nothing_matches_come_to_the_sink(tmp_path: Path, how: str, stepped: bool) -> None:
    """As DuckDB has them."""
    files = written(tmp_path, how, {"id": "out", "type": "sink", "sink": "result"})
    options = ["--stepped", "--state", str(tmp_path / "state")] if stepped else []
    ended = nebuli("run", *files, *options, directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    tables = [f"read_csv('{tmp_path / name}.csv', header = true) AS {name}" for name in COLUMNS]
    query = f"SELECT id, name, thing FROM {tables[0]} {how} JOIN {tables[1]} USING (id)"
    expected = Counter(duckdb.sql(query).fetchall())
    found = duckdb.sql(f"SELECT id, name, thing FROM read_csv('{tmp_path / 'result.csv'}', header = true)")
    assert Counter(found.fetchall()) == expected
    assert any(None in row for row in expected)


def test_a_view_of_a_left_join_is_filled_from_its_left_side(tmp_path: Path) -> None:
    """PS-MA-5: also with who has no orders; by what was ordered it would be full, and that is said."""
    files = written(tmp_path, "left", {"id": "rows", "type": "view", "key": ["name"]}, base=True)
    placed = json.loads(nebuli("place", *files, "--format", "json", directory=tmp_path).stdout)
    assert {each["state"] for each in placed["state"]} == {"base", "partial"}
    (at,) = free_addresses(1)
    run = Command("run", *files, "--serve", at, directory=tmp_path)
    run.wait_until_said(f"view rows at {at}")
    for name, rows in {"Ada": [(1, "pen"), (1, "ink")], "Bo": [(2, None)], "nobody": [(None, None)]}.items():
        got = nebuli("view", "get", "rows", name, "--json", "--at", at, directory=tmp_path)
        assert got.exit_code == 0, got.stderr
        found = Counter((row["id"], row["thing"]) for row in json.loads(got.stdout))
        assert found == Counter(rows)
    run.process.send_signal(signal.SIGINT)
    assert run.end().exit_code == 130
    full = written(tmp_path, "left", {"id": "rows", "type": "view", "key": ["thing"]}, base=True)
    placed = json.loads(nebuli("place", *full, "--format", "json", directory=tmp_path).stdout)
    why = {each["operator"]: each["why"] for each in placed["state"]}
    assert (
        "thing comes from orders, and left join both also returns rows without a match in orders"
        in why["rows"]
    )
