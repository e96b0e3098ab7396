"""The query of the soak, and what comes out of it by brute force.

Sources count; a row goes to three outputs: as it is, in sums over a join, which change with each step, and in windows,
which are all open until the inputs end.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nebuli.steps.stepped_query import SteppedQuery, stepped_query
from placement import parse_query
from tests.support.documents import op
from topology import parse_topology

KEYS = 7
OUTPUTS = ("rows", "sums", "windows")
_MINUTE = 60
_START = 1_704_067_200
"""Where a generator's times begin, in seconds; each row is one later."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """``sources`` with ``rows`` each, ``rate`` of them in a second."""

    sources: int = 3
    rows: int = 1200
    rate: int = 200


def query(sizes: Sizes, members: int) -> SteppedQuery:
    """The query for so many members; `prepare` makes the file that it reads."""
    ticks = {"logical": "ticks", "type": "Generator", "count": sizes.rows, "rows_per_s": sizes.rate}
    node = {
        "address": "127.0.0.1:27900",
        "physical": [*[ticks] * sizes.sources, {"logical": "names", "type": "CSV", "path": "names.csv"}],
        "sinks": [{"name": name, "type": "CSV", "path": f"{name}.csv"} for name in OUTPUTS],
    }
    schemas = {
        "ticks": [{"name": "n", "type": "int64"}, {"name": "t", "type": "timestamp"}],
        "names": [{"name": "k", "type": "int64"}, {"name": "name", "type": "string"}],
    }
    topology = {"logical": [{"name": name, "schema": schema} for name, schema in schemas.items()]}
    operators = [
        op("source", "ticks", logical="ticks"),
        op("source", "names", logical="names"),
        op("project", "keyed", input="ticks", columns={"n": "n", "k": f"n % {KEYS}"}),
        op("join", "named", inputs=["keyed", "names"], on=["k"]),
        op(
            "aggregate",
            "summed",
            input="named",
            by=["name"],
            aggregates={"rows": "count(*)", "sum": "sum(n)"},
        ),
        op("window", "minutes", input="ticks", time="t", size=f"{_MINUTE} seconds", lateness="30 days"),
        op(
            "aggregate",
            "counted",
            input="minutes",
            by=["window_start"],
            aggregates={"rows": "count(*)", "least": "min(n)"},
        ),
        op("sink", "rows", input="keyed", sink="rows"),
        op("sink", "sums", input="summed", sink="sums"),
        op("sink", "windows", input="counted", sink="windows"),
    ]
    return stepped_query(
        parse_query(json.dumps({"operators": operators}), "soak", "query.json"),
        parse_topology(json.dumps({**topology, "nodes": [node]}), "topology.yaml"),
        members,
    )


def prepare(folder: Path) -> None:
    """Make the file that the query reads."""
    lines = [f"{key},name-{key}" for key in range(KEYS)]
    (folder / "names.csv").write_text("\n".join(["k,name", *lines, ""]), "utf-8")


def expected(sizes: Sizes) -> dict[str, Counter[tuple[str, ...]]]:
    """The rows of each output, in text."""
    numbers = range(sizes.rows)
    times = sizes.sources
    minutes = range(0, sizes.rows, _MINUTE)
    return {
        "rows": Counter({(str(n), str(n % KEYS)): times for n in numbers}),
        "sums": Counter(
            (f"name-{key}", str(times * len(numbers[key::KEYS])), str(times * sum(numbers[key::KEYS])))
            for key in range(KEYS)
        ),
        "windows": Counter(
            (str(_START + first), str(times * len(numbers[first : first + _MINUTE])), str(first))
            for first in minutes
        ),
    }


def found(folder: Path, output: str) -> Counter[tuple[str, ...]]:
    """The rows of an output's file, in text; times in seconds."""
    with (folder / f"{output}.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    if output == "windows":
        rows = [[_seconds(start), *rest] for start, *rest in rows]
    return Counter(tuple(row) for row in rows)


def _seconds(text: str) -> str:
    at = dt.datetime.fromisoformat(text)
    return str(int(at.replace(tzinfo=at.tzinfo or dt.UTC).timestamp()))
