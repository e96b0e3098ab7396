"""Scalings of one query that are begun at once, where neither knows of the other."""

from __future__ import annotations

import json

from nebuli.control.deployed_queries import DeployedFragment, DeployedQuery, GivenFile
from nebuli.control.scaling import begun, succession_of
from nebuli.control.step_placement import step_fragments
from nebuli.rpc.ids import local_id, query_of
from placement import parse_query
from topology import parse_topology

TOPOLOGY = """
logical:
  - {name: numbers, schema: [{name: n, type: int64}]}
nodes:
  - address: 127.0.0.1:27901
    physical: [{logical: numbers, type: CSV, path: a.csv}]
    sinks: [{name: out, type: CSV, path: out.csv}]
"""
QUERY = {
    "operators": [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "out", "type": "sink", "input": "in", "sink": "out"},
    ]
}


def test_two_that_are_begun_from_the_same_members_have_nothing_in_common() -> None:
    plan, topology = parse_query(json.dumps(QUERY), "copy", "query.json"), parse_topology(TOPOLOGY, "t.yaml")
    fragments = step_fragments(plan, topology, 1, "abc", 10.0, keep_output_bytes=None)
    query = DeployedQuery(
        id="abc",
        name="copy",
        topology=GivenFile(path="/t.yaml", text=TOPOLOGY),
        query=GivenFile(path="/q.json", text=json.dumps(QUERY)),
        registered="2026-01-01T00:00:00Z",
        fragments=tuple(
            DeployedFragment(fragment=each.id, node=each.node, grpc="g:1", id=local_id("abc", each.id))
            for each in fragments
        ),
        plan=fragments,
    )
    one, other = (succession_of(begun(query, plan, topology, count)) for count in (2, 3))
    assert one.circuit != other.circuit
    ids = [each.id for each in (*one.places, *other.places)]
    assert len({*ids}) == 5
    assert {query_of(each) for each in ids} == {query_of(one.circuit)} == {"abc"}
