"""Planning at the size that the benchmark goes up to."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planning import measured, query_over, table
from tests.support.commands import nebuli
from tests.support.starter import Forked

_SOURCES = 250
_LAYERS, _WIDTH = 99, 101
_SINK = "sink:1"
_MOST_S = 40.0
"""Of processor time: some five times what it takes."""

Nodes = dict[str, dict[str, Any]]


def nodes() -> Nodes:
    """10 000, by address: layers, each linked to the next one by two links of a node, and at last to the sink.

    Sources are in the first layer, two or three at a node. A node has room for one operator.
    """
    rng = random.Random(0)
    layers = [[f"n{layer}-{place}:1" for place in range(_WIDTH)] for layer in range(_LAYERS)]
    found: Nodes = {_SINK: {"downstream": [], "physical": []}}
    for layer, below in zip(layers, [*layers[1:], [_SINK]], strict=True):
        for key in layer:
            found[key] = {"downstream": rng.sample(below, min(2, len(below))), "physical": []}
    for source in range(_SOURCES):
        found[layers[0][source % _WIDTH]]["physical"].append(f"s{source}")
    return found


def as_yaml(topology: Nodes) -> str:
    """As people write it."""
    lines = ["logical:"]
    for source in range(_SOURCES):
        columns = f"{{name: k, type: int64}}, {{name: v{source}, type: int64}}"
        lines.append(f"  - {{name: s{source}, schema: [{columns}]}}")
    lines.append("nodes:")
    for key, node in topology.items():
        ends = ", ".join(f'"{end}"' for end in node["downstream"])
        lines += [f"  - address: {key}", "    capacity: 1", f"    links: {{downstream: [{ends}]}}"]
        physical = [f"{{logical: {name}, type: CSV, path: {name}.csv}}" for name in node["physical"]]
        lines.append(f"    physical: [{', '.join(physical)}]")
        if key == _SINK:
            lines.append("    sinks: [{name: out, type: Print}]")
    return "\n".join(lines)


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.processes
def test_a_thousand_operators_on_ten_thousand_nodes(tmp_path: Path) -> None:
    """PL-BIG-1: `nebuli place` has placed and cut it in seconds; it is right, by what the files say."""
    topology, query = nodes(), query_over(_SOURCES).model_dump()
    inputs = {
        each["id"]: each.get("inputs") or [each["input"]]
        for each in query["operators"]
        if each["type"] != "source"
    }
    operators = {each["id"]: each["type"] for each in query["operators"]}
    assert (len(topology), len(operators)) == (10_000, 1_000)
    (tmp_path / "topology.yaml").write_text(as_yaml(topology), "utf-8")
    (tmp_path / "query.json").write_text(json.dumps(query), "utf-8")

    before_s = Forked.reaped_cpu_s
    ended = nebuli(
        "place", tmp_path / "topology.yaml", tmp_path / "query.json", "--format", "json", directory=tmp_path
    )
    assert (ended.exit_code, ended.stderr) == (0, "")
    took_s = Forked.reaped_cpu_s - before_s
    assert 0 < took_s < _MOST_S, f"{took_s:.0f} s of CPU time"

    made = json.loads(ended.stdout)
    placed: dict[str, str] = made["placement"]
    assert placed.keys() == operators.keys()
    pinned = {name: key for key, node in topology.items() for name in node["physical"]} | {"out": _SINK}
    assert {key: placed[key] for key in pinned} == pinned
    used = Counter(node for key, node in placed.items() if key not in pinned)
    assert set(used.values()) == {1}

    runs = [
        (operator["id"], fragment["node"])
        for fragment in made["fragments"]
        for operator in fragment["operators"]
        if not operator["type"].startswith("network_")
    ]
    assert Counter(runs) == Counter(placed.items())  # each once, at its node
    ways = {key: [node] for key, node in placed.items()}
    for channel in made["channels"]:
        way = ways[channel["operator"]]
        assert channel["from"] == way[-1]
        assert channel["to"] in topology[way[-1]]["downstream"]
        way.append(channel["to"])
    assert {key: way[-1] for key, way in ways.items() if key != "out"} == {
        child: placed[reader] for reader, children in inputs.items() for child in children
    }


def test_the_table_has_a_line_for_each_size() -> None:
    rows = [measured(10, 10), measured(50, 20)]
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| 10 | ")
