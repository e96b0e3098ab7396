"""Files of queries at workers of a topology: no query writes over one that it, or another query, reads or writes."""

from __future__ import annotations

import json

import pytest

from tests.support.fleet import Fleet, MakeFleet
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(120)]


def over_its_source(fleet: Fleet) -> bytes:
    source = fleet.directory / "numbers.csv"
    source.write_text("n\n" + "".join(f"{n}\n" for n in range(1000)), "utf-8")
    fleet.data["nodes"][0]["physical"] = [{"logical": "numbers", "type": "CSV", "path": str(source)}]
    fleet.data["nodes"][1]["sinks"] = [{"name": "out", "type": "CSV", "path": str(source), "mode": "append"}]
    fleet.topology = fleet.written()
    fleet.start()
    return source.read_bytes()


@pytest.mark.parametrize("options", [(), ("--stepped",), ("--stepped", "--members", "3")])
def test_a_query_of_two_workers_does_not_write_over_its_source(
    make_fleet: MakeFleet, options: tuple[str, ...]
) -> None:
    fleet = make_fleet()
    before = over_its_source(fleet)
    ended = fleet.run("start", *options, fleet.topology, fleet.query)
    assert (fleet.directory / "numbers.csv").read_bytes() == before
    assert ended.exit_code == 1
    assert "numbers.csv is read by" in ended.error


@pytest.mark.parametrize("options", [(), ("--stepped",)])
def test_a_query_does_not_write_over_a_file_that_another_one_reads_or_writes(
    make_fleet: MakeFleet, options: tuple[str, ...]
) -> None:
    """By ``start`` as by ``register`` and ``start``; the first one has all of its rows."""
    fleet = make_fleet()
    source = fleet.directory / "numbers.csv"
    source.write_text("n\n1\n2\n", "utf-8")
    before = source.read_bytes()
    first, second = fleet.data["nodes"]
    logical = {"logical": "numbers", "type": "CSV", "path": str(source)}
    endless = {"logical": "more", "type": "Generator", "rows_per_s": 1000}
    fleet.data["logical"].append({"name": "more", "schema": [{"name": "n", "type": "int64"}]})
    first["physical"] = [logical, endless]
    second["sinks"] = [
        {"name": "out", "type": "CSV", "path": str(fleet.out), "mode": "append"},
        {"name": "over", "type": "CSV", "path": str(source), "mode": "append"},
    ]
    fleet.topology = fleet.written()
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "more", "type": "source", "logical": "more"},
        {"id": "both", "type": "union", "inputs": ["in", "more"]},
        {"id": "out", "type": "sink", "input": "both", "sink": "out"},
    ]
    fleet.query.write_text(json.dumps({"operators": operators}), "utf-8")
    fleet.start()
    id_ = fleet.run("start", *options, fleet.topology, fleet.query).stdout.strip()
    wait_for(lambda: fleet.out.exists() and fleet.out.read_bytes().count(b"\n") > 500, "rows of the first")
    for sink, why in (
        ("over", "numbers.csv is read by query"),
        ("out", "out.csv is in use as a sink by query"),
    ):
        other = [operators[1], {"id": "out", "type": "sink", "input": "more", "sink": sink}]
        fleet.query.write_text(json.dumps({"operators": other}), "utf-8")
        found = fleet.run("register", *options, fleet.topology, fleet.query)
        for ended in (
            fleet.run("start", found.stdout.strip()),
            fleet.run("start", *options, fleet.topology, fleet.query),
        ):
            assert ended.exit_code == 1, ended
            assert f"{why} {id_}" in ended.error
    fleet.run("stop", id_)
    assert source.read_bytes() == before
    rows = sorted(map(int, fleet.out.read_text("utf-8").split()[1:]))
    assert rows == sorted([1, 2, *range(len(rows) - 2)])
