"""``nebuli bench``: what it runs is the query, and nothing is left of it."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.support.authority import Authority
from tests.support.fleet import MakeFleet, kept_secret, tls_keys

pytestmark = pytest.mark.processes


def test_it_counts_the_rows_of_the_sources_and_writes_no_result(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.out.write_text("as it was", "utf-8")
    ended = fleet.run("bench", "--runs", "2", "--json", fleet.topology, fleet.query)
    assert ended.exit_code == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert [run["rows"] for run in found["runs"]] == [1000, 1000]
    for run in found["runs"]:
        assert run["rows_per_s"] == pytest.approx(1000 / run["seconds"])
        assert {
            id_: (each["node"], each["rows_in"], each["rows_out"]) for id_, each in run["fragments"].items()
        } == {"copy/in": (fleet.nodes[0], 1000, 1000), "copy/out": (fleet.nodes[1], 1000, 1000)}
    seconds = sorted(run["seconds"] for run in found["runs"])
    assert found["seconds"] == pytest.approx(sum(seconds) / 2)
    assert fleet.out.read_text("utf-8") == "as it was"
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if fleet.nodes[0] in (each.info["cmdline"] or ())
    ]


def test_it_touches_no_file_of_late_rows(make_fleet: MakeFleet, tmp_path: Path) -> None:
    late = tmp_path / "late.csv"
    late.write_text("as it was", "utf-8")
    (tmp_path / "numbers.csv").write_text("n,at\n1,2024-01-01 10:00:00\n2,2024-01-01 09:00:00\n", "utf-8")
    fleet = make_fleet()
    fleet.data["logical"][0]["schema"].append({"name": "at", "type": "timestamp"})
    source = {"logical": "numbers", "type": "CSV", "path": str(tmp_path / "numbers.csv")}
    fleet.data["nodes"][0]["physical"] = [source]
    window = {"id": "w", "type": "window", "input": "in", "time": "at", "size": "1 minute", "late": str(late)}
    query = json.loads(fleet.query.read_text("utf-8"))
    query["operators"] = [query["operators"][0], window, {**query["operators"][1], "input": "w"}]
    fleet.query.write_text(json.dumps(query), "utf-8")
    ended = fleet.run("bench", "--runs", "1", fleet.written(), fleet.query)
    assert ended.exit_code == 0, ended.stderr
    assert late.read_text("utf-8") == "as it was"


def test_the_text_has_the_median_and_the_fragments(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Over a fleet with TLS and a secret, too."""
    fleet = make_fleet(tls=tls_keys(Authority(tmp_path).issue("node")), secret=kept_secret(tmp_path))
    ended = fleet.run("bench", "--runs", "1", fleet.topology, fleet.query)
    assert ended.exit_code == 0, ended.stderr
    first, _, header, _, *rows = ended.stdout.splitlines()
    assert first.endswith(" in 1 runs of 1,000 rows)")
    assert header.split()[:2] == ["fragment", "node"]
    assert [row.split()[:4] for row in rows] == [
        ["copy/in", fleet.nodes[0], "1,000", "1,000"],
        ["copy/out", fleet.nodes[1], "1,000", "1,000"],
    ]


def test_a_source_without_an_end_is_refused(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    del fleet.data["nodes"][0]["physical"][0]["count"]
    ended = fleet.run("bench", fleet.written(), fleet.query)
    assert (ended.exit_code, "source in " in ended.error) == (2, True)
    assert "count" in ended.error


def test_a_query_that_fails_is_told_as_by_run(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = make_fleet()
    fleet.data["nodes"][0]["physical"] = [{"logical": "numbers", "type": "CSV", "path": "missing.csv"}]
    ended = fleet.run("bench", fleet.written(), fleet.query)
    assert ended.exit_code == 2
    assert f"missing.csv: no such file in {tmp_path}" in ended.error
