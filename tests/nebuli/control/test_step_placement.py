"""Where the members of a query in steps are, and what each of them reads."""

from __future__ import annotations

import json

import pytest

from nebuli.control.step_placement import step_fragments
from placement import InvalidQuery, parse_query
from placement.stepped_plan import MemberFragment
from topology import parse_topology

TOPOLOGY = """
logical:
  - {name: numbers, schema: [{name: n, type: int64}]}
nodes:
  - address: 127.0.0.1:27901
    physical:
      - {logical: numbers, type: CSV, path: a.csv}
      - {logical: numbers, type: CSV, path: b.csv}
      - {logical: numbers, type: CSV, path: c.csv}
  - address: 127.0.0.1:27902
    physical:
      - {logical: numbers, type: CSV, path: d.csv}
    sinks:
      - {name: out, type: CSV, path: out.csv}
"""
QUERY = {
    "operators": [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "out", "type": "sink", "input": "in", "sink": "out"},
    ]
}


def members(number: int | None, topology: str = TOPOLOGY) -> list[tuple[str, list[str]]]:
    """The node of each member, and what it reads."""
    query = parse_query(json.dumps(QUERY), "copy", "query.json")
    fragments = step_fragments(
        query, parse_topology(topology, "t.yaml"), number, "id", 10.0, keep_output_bytes=None
    )
    return [
        (each.node, [feed.source.physical.reads for feed in each.feeds])
        for each in fragments
        if isinstance(each, MemberFragment)
    ]


def test_a_node_with_several_sources_has_one_member_which_reads_them_all() -> None:
    """As long as no more are asked for, which have the sources in turn."""
    assert members(None) == [
        ("127.0.0.1:27902", ["d.csv"]),
        ("127.0.0.1:27901", ["a.csv", "b.csv", "c.csv"]),
    ]
    assert members(2) == members(None)
    assert members(4) == [
        ("127.0.0.1:27902", ["d.csv"]),
        ("127.0.0.1:27901", ["a.csv", "c.csv"]),
        ("127.0.0.1:27902", []),
        ("127.0.0.1:27901", ["b.csv"]),
    ]


COLLECTIONS = """
logical:
  - {name: numbers, schema: [{name: n, type: int64}]}
nodes:
  - address: 127.0.0.1:27901
    physical:
      - {logical: numbers, type: CSV, path: a.csv}
      - {logical: numbers, type: Collection, store: s, collection: c, reader: r}
      - {logical: numbers, type: Collection, store: s, collection: d, reader: r}
    sinks:
      - {name: out, type: Collection, store: s, collection: e}
  - address: 127.0.0.1:27902
"""


def test_one_member_reads_all_collections_and_writes_them() -> None:
    """However many there are: it gives steps their times."""
    assert members(3, COLLECTIONS) == [
        ("127.0.0.1:27901", ["a.csv", "collection c", "collection d"]),
        ("127.0.0.1:27901", []),
        ("127.0.0.1:27901", []),
    ]


def test_collections_of_several_nodes_are_refused() -> None:
    elsewhere = COLLECTIONS.replace("    sinks:", "  - address: 127.0.0.1:27903\n    sinks:")
    with pytest.raises(InvalidQuery, match=r"sink out at .*27903, collection c at .*27901"):
        members(None, elsewhere)
