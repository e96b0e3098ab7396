"""Small topologies and queries, written short."""

from __future__ import annotations

import json
from collections.abc import Mapping

import yaml

from placement import Query, parse_query
from topology import Topology, parse_topology

COLUMNS = [{"name": "k", "type": "int64"}, {"name": "v", "type": "float64"}]


def topology(
    links: Mapping[str, str],
    sources: Mapping[str, str],
    sink: str,
    capacity: Mapping[str, int] | None = None,
    **sink_settings: str,
) -> Topology:
    """Nodes by name, each with those it links to ("B C"); sources and the sink at their nodes."""
    nodes = [
        {
            "address": f"{name}:1",
            "links": {"downstream": [f"{end}:1" for end in ends.split()]},
            "physical": [
                {"logical": source.partition("#")[0], "type": "CSV", "path": f"{source}.csv"}
                for source, node in sources.items()
                if node == name
            ],
            "sinks": [{"name": "out", "type": "Print", **sink_settings}] if name == sink else [],
        }
        | ({"capacity": capacity[name]} if capacity and name in capacity else {})
        for name, ends in links.items()
    ]
    logical = [
        {"name": name, "schema": COLUMNS} for name in dict.fromkeys(s.partition("#")[0] for s in sources)
    ]
    return parse_topology(yaml.safe_dump({"logical": logical, "nodes": nodes}))


def query(*operators: dict[str, object]) -> Query:
    """A query of these operators, which have a type and an id first: ``op("filter", "f", input=...)``."""
    return parse_query(json.dumps({"operators": operators}), name="q")


def op(kind: str, key: str, /, **fields: object) -> dict[str, object]:
    return {"id": key, "type": kind, **fields}


CHAIN = query(
    op("source", "s", logical="s"),
    op("filter", "f", input="s", predicate="k > 0"),
    op("sink", "out", input="f", sink="out"),
)
"""A filter between a source and the sink."""
JOIN = query(
    op("source", "source1", logical="one"),
    op("source", "source2", logical="two"),
    op("filter", "filter1", input="source1", predicate="k > 0"),
    op("filter", "filter2", input="source2", predicate="k > 0"),
    op("join", "join", inputs=["filter1", "filter2"], on=["k"]),
    op("sink", "sink", input="join", sink="out"),
)
"""The source document's join query with two sources and a sink."""


def rivals(pairs: int) -> tuple[Topology, Query]:
    """Pairs of sources, whose filters each need a slot: the first of a pair has two ways, the other one of them only.

    The rule places the first one first, and at random.
    """
    numbers = range(pairs)
    links = {"sink": ""}
    capacity = {"sink": 1}
    sources = {}
    operators = []
    for number in numbers:
        links |= {f"own{number}": "sink", f"shared{number}": "sink"}
        links |= {f"a{number}": f"own{number} shared{number}", f"b{number}": f"shared{number}"}
        capacity |= {f"own{number}": 1, f"shared{number}": 1, f"a{number}": 0, f"b{number}": 0}
    for key in [f"{side}{number}" for side in "ab" for number in numbers]:
        sources[key] = key
        operators.append(op("source", key, logical=key))
        operators.append(op("filter", f"f{key}", input=key, predicate="k > 0"))
    inputs = [f"f{key}" for key in sources]
    operators += [op("union", "all", inputs=inputs), op("sink", "out", input="all", sink="out")]
    nodes = dict(sorted(links.items(), key=lambda item: item[0] == "sink"))
    return topology(nodes, sources, sink="sink", capacity=capacity), query(*operators)
