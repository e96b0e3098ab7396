"""How long planning takes as topologies grow: ``python -m benchmarks.planning``.

Beside it, on the same graph, what networkx takes for one shortest path for each edge of the query.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import networkx as nx

from placement import BoundPlan, Query, check, decompose, place_bottom_up
from topology import Topology
from topology.graph import link_graph

SIZES = ((10, 10), (100, 30), (1_000, 100), (1_000, 1_000), (10_000, 100), (10_000, 1_000))
ROUNDS = 3
WIDTH, LINKS = 100, 3
"""Nodes stand in layers, so many in each at most; each has so many links to the next layer."""


def case(nodes: int, operators: int, seed: int = 0, capacity: int | None = 2) -> tuple[Topology, BoundPlan]:
    """A topology in layers, sources in the first and the sink in the last, and a tree of about so many operators.

    Each source is filtered twice, and what is left is joined by twos until one is left.
    """
    rng = random.Random(seed)  # noqa: S311 - the same case each time is the purpose
    width = max(2, min(WIDTH, int((nodes - 1) ** 0.5)))
    inner = list(range(nodes - 1))
    layers = [inner[start : start + width] for start in range(0, len(inner), width)] + [[nodes - 1]]
    links: dict[int, list[int]] = {nodes - 1: []}
    for layer, below in pairwise(layers):
        for node in layer:
            links[node] = rng.sample(below, min(LINKS, len(below)))
    sources = max(2, operators // 4)
    at: dict[int, list[int]] = {}
    for source in range(sources):
        at.setdefault(rng.choice(layers[0]), []).append(source)
    topology = Topology.model_validate(
        {
            "logical": [
                {
                    "name": f"s{source}",
                    "schema": [{"name": name, "type": "int64"} for name in ("k", f"v{source}")],
                }
                for source in range(sources)
            ],
            "nodes": [
                {
                    "address": _address(node),
                    "capacity": capacity,
                    "links": {"downstream": list(map(_address, links[node]))},
                    "physical": [
                        {"logical": f"s{source}", "type": "CSV", "path": f"s{source}.csv"}
                        for source in at.get(node, ())
                    ],
                    "sinks": [{"name": "out", "type": "Print"}] if node == nodes - 1 else [],
                }
                for node in range(nodes)
            ],
        }
    )
    return topology, check(query_over(sources), topology)


def _address(node: int) -> str:
    return f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}:9000"


def query_over(sources: int) -> Query:
    """Each source filtered twice, and what is left joined by twos."""
    operators: list[dict[str, Any]] = []
    loose: list[str] = []
    for source in range(sources):
        operators.append({"id": f"s{source}", "type": "source", "logical": f"s{source}"})
        below = f"s{source}"
        for step in ("a", "b"):
            key = f"{step}{source}"
            operators.append({"id": key, "type": "filter", "input": below, "predicate": "k > 0"})
            below = key
        loose.append(below)
    while len(loose) > 1:
        pair, loose = loose[:2], loose[2:]
        key = f"j{len(operators)}"
        operators.append({"id": key, "type": "join", "inputs": pair, "on": ["k"]})
        loose.append(key)
    operators.append({"id": "out", "type": "sink", "input": loose[0], "sink": "out"})
    return Query.model_validate({"operators": operators})


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, the median of some rounds."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return median(found)


def measured(nodes: int, operators: int) -> dict[str, float]:
    """Of one size: placing and decomposing, and networkx's shortest paths between the same pairs of nodes."""
    topology, plan = case(nodes, operators)
    placement = place_bottom_up(plan, topology)
    graph = link_graph(topology)
    pairs = [(placement.nodes[child], placement.nodes[reader]) for child, reader in plan.readers.items()]

    def shortest() -> None:
        for start, end in pairs:
            nx.shortest_path(graph, start, end)

    return {
        "nodes": nodes,
        "links": graph.number_of_edges(),
        "operators": len(plan.operators),
        "place_s": seconds(lambda: place_bottom_up(plan, topology)),
        "decompose_s": seconds(lambda: decompose(placement)),
        "networkx_s": seconds(shortest),
    }


def table(rows: list[dict[str, float]]) -> str:
    """In Markdown."""
    lines = [
        "| nodes | links | operators | placed in, s | cut in, s | networkx, a shortest path per edge, s |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = " | ".join(f"{row[name]:,.0f}" for name in ("nodes", "links", "operators"))
        times = " | ".join(f"{row[name]:.3f}" for name in ("place_s", "decompose_s", "networkx_s"))
        lines.append(f"| {numbers} | {times} |")
    return "\n".join(lines)


def run(sizes: Sequence[tuple[int, int]]) -> list[dict[str, float]]:
    """Of each size."""
    rows = []
    for nodes, operators in sizes:
        rows.append(measured(nodes, operators))
        print(rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    """Measure, and print."""
    print(table(run(SIZES)))


if __name__ == "__main__":
    main()
