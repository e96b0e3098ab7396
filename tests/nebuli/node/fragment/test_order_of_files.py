"""Of files that a fragment reads, the smallest comes first: a join then keeps no other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nebuli.connectors.provider import source_of
from nebuli.free.runner import FragmentRunner
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from placement import check, parse_query
from placement.plan import BoundSource, Fragment
from topology import parse_topology

if TYPE_CHECKING:
    from pathlib import Path

TOPOLOGY = """
logical:
  - {{name: large, schema: [{{name: k, type: timestamp}}, {{name: a, type: int64}}]}}
  - {{name: small, schema: [{{name: k, type: timestamp}}, {{name: b, type: int64}}]}}
  - {{name: endless, schema: [{{name: k, type: timestamp}}, {{name: c, type: int64}}]}}
nodes:
  - address: a:1
    physical:
      - {{logical: large, type: CSV, path: {folder}/large.csv}}
      - {{logical: small, type: CSV, path: {folder}/small.csv}}
      - {{logical: endless, type: Generator}}
    sinks: [{{name: out, type: Print}}]
"""
LARGE = {"id": "large", "type": "source", "logical": "large"}
SMALL = {"id": "small", "type": "source", "logical": "small"}
ENDLESS = {"id": "endless", "type": "source", "logical": "endless"}
WINDOW = {"id": "w", "type": "window", "input": "large", "time": "k", "size": "1 hour"}
SINK = {"id": "out", "type": "sink", "input": "j", "sink": "out"}


def join(*inputs: str) -> dict[str, object]:
    return {"id": "j", "type": "join", "inputs": inputs, "on": ["k"]}


async def asked(folder: Path, *operators: dict[str, object]) -> list[list[str]]:
    """Whose turn it is at first, and once the smaller file has ended."""
    (folder / "large.csv").write_text("k,a\n" + "2024-01-01,1\n" * 100, "utf-8")
    (folder / "small.csv").write_text("k,b\n2024-01-01,2\n", "utf-8")
    plan = check(
        parse_query(json.dumps({"operators": [*operators, SINK]})),
        parse_topology(TOPOLOGY.format(folder=folder)),
    )
    fragment = Fragment(
        id="f",
        node="a:1",
        operators=tuple(plan.operators.values()),
        watermarks=tuple(plan.watermarks.values()),
        closings=tuple(plan.closings.values()),
    )
    runner = FragmentRunner("f", fragment, lambda: None, max_state_bytes=DEFAULT_MAX_STATE_BYTES)
    for each in fragment.operators:
        if isinstance(each, BoundSource):
            runner._sources[each.id] = source_of(each, lambda: None)
            runner._sources[each.id].open()
    sources = list(runner._sources.values())
    turns = [[id_ for id_, _ in runner._asked()]]
    del runner._sources["small"]
    turns.append([id_ for id_, _ in runner._asked()])
    for source in sources:
        source.close("the test is over")
    return turns


async def test_the_smaller_of_two_files_is_read_first(tmp_path: Path) -> None:
    assert await asked(tmp_path, LARGE, SMALL, join("large", "small")) == [["small"], ["large"]]


async def test_what_has_no_size_does_not_wait(tmp_path: Path) -> None:
    operators = [LARGE, SMALL, ENDLESS, join("large", "small", "endless")]
    assert await asked(tmp_path, *operators) == [["small", "endless"], ["large", "endless"]]


async def test_where_event_time_goes_on_files_go_on_together(tmp_path: Path) -> None:
    operators = [LARGE, WINDOW, SMALL, join("w", "small")]
    assert await asked(tmp_path, *operators) == [["large", "small"], ["large"]]
