"""The query of stories on workers, and what comes out of it by brute force.

Numbers count, as those of generators and in files that match a pattern. A number goes to four outputs: as it is, in
sums over a join, in windows that are all open until the inputs end, and in windows that are not. Event time ends with
the inputs, so that some of the rows that are appended then are late, and others open windows.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from placement import Query, parse_query
from tests.soak_steps.audit import Violation
from tests.support.documents import op
from topology import Topology, parse_topology

NODES = 3
_KEYS = 7
_MINUTE = 60
_START = 1_704_067_200
"""Where a generator's times begin, in seconds; each row is one later."""
_GENERATED, _RATE = 900, 150
_FILES, _IN_FILE, _APART, _MORE = 4, 200, 150, 50
_AGAIN = 30
"""So many of the rows that are appended are of windows that have begun."""


class FleetQuery:
    """Over nodes, each by its address and that of its gRPC service, with all files in a folder."""

    def __init__(self, folder: Path, nodes: Sequence[str], grpc: Sequence[str], mode: str) -> None:
        self.file = folder / "topology.yaml"
        self._folder = folder
        self._mode = mode
        self._numbers = [*range(_GENERATED)] * 2
        self._in_open_windows: Counter[str] = Counter()
        """How many rows each window had when the inputs came to their end first."""
        (folder / "names.csv").write_text(
            "k,name\n" + "".join(f"{key},name-{key}\n" for key in range(_KEYS)), "utf-8"
        )
        (folder / "parts").mkdir()
        for part in range(_FILES):
            self._path(part).write_text("n,t\n", "utf-8")
            self._grow(part, range(part * _APART, part * _APART + _IN_FILE))
        self.file.write_text(yaml.safe_dump(self._topology(nodes, grpc), sort_keys=False), "utf-8")

    @property
    def topology(self) -> Topology:
        """As it is in the file."""
        return parse_topology(self.file.read_text("utf-8"), "topology.yaml")

    def _topology(self, nodes: Sequence[str], grpc: Sequence[str]) -> dict[str, Any]:
        ticks = {"logical": "ticks", "type": "Generator", "count": _GENERATED, "rows_per_s": _RATE}
        files = {"logical": "ticks", "type": "CSV", "path": str(self._folder / "parts" / "*.csv")}
        names = {"logical": "names", "type": "CSV", "path": str(self._folder / "names.csv")}

        def sink(name: str, mode: str) -> dict[str, str]:
            return {"name": name, "type": "CSV", "path": str(self._folder / f"{name}.csv"), "mode": mode}

        attached = [
            {"physical": [names], "sinks": [sink("rows", "append")]},
            {"physical": [ticks], "sinks": [sink("sums", self._mode), sink("windows", "final")]},
            {"physical": [files, ticks], "sinks": [sink("tight", "append")]},
        ]
        schemas = {
            "ticks": [{"name": "n", "type": "int64"}, {"name": "t", "type": "timestamp"}],
            "names": [{"name": "k", "type": "int64"}, {"name": "name", "type": "string"}],
        }
        return {
            "logical": [{"name": name, "schema": schema} for name, schema in schemas.items()],
            "nodes": [
                {"address": address, "grpc": at, **node}
                for address, at, node in zip(nodes, grpc, attached, strict=True)
            ],
        }

    @property
    def query(self) -> Query:
        """What is computed."""
        window = {"time": "t", "size": f"{_MINUTE} seconds"}
        rows = {"rows": "count(*)"}
        late = str(self._folder / "late.csv")
        operators = [
            op("source", "ticks", logical="ticks"),
            op("source", "again", logical="ticks"),
            op("source", "names", logical="names"),
            op("project", "keyed", input="ticks", columns={"n": "n", "k": f"n % {_KEYS}"}),
            op("join", "named", inputs=["keyed", "names"], on=["k"]),
            op("aggregate", "summed", input="named", by=["name"], aggregates={**rows, "sum": "sum(n)"}),
            op("window", "minutes", input="ticks", **window, lateness="30 days"),
            op("aggregate", "counted", input="minutes", by=["window_start"], aggregates=rows),
            op("window", "strict", input="again", **window, lateness="0 seconds", late=late),
            op("aggregate", "tightly", input="strict", by=["window_start"], aggregates=rows),
            op("sink", "rows", input="keyed", sink="rows"),
            op("sink", "sums", input="summed", sink="sums"),
            op("sink", "windows", input="counted", sink="windows"),
            op("sink", "tight", input="tightly", sink="tight"),
        ]
        return parse_query(json.dumps({"operators": operators}), "soak", "query.json")

    # -- what goes in

    def grow(self) -> None:
        """Append to all files that were read to their end."""
        self._in_open_windows = self._in_windows()
        for part in range(_FILES):
            self._grow(part, range(_GENERATED - _AGAIN + part, _GENERATED + part + _MORE))

    def _path(self, part: int) -> Path:
        return self._folder / "parts" / f"{part}.csv"

    def _grow(self, part: int, numbers: Iterable[int]) -> None:
        with self._path(part).open("a", encoding="utf-8") as file:
            for n in numbers:
                file.write(f"{n},{_time(n)}\n")
                self._numbers.append(n)

    def _in_windows(self) -> Counter[str]:
        return Counter(_time(n // _MINUTE * _MINUTE) for n in self._numbers)

    # -- what comes out

    def check(self) -> None:
        """Raises Violation where a row is missing, or is there too often."""
        numbers = Counter(self._numbers)
        rows = Counter((int(n), int(k)) for n, k in self._rows("rows"))
        _same("rows", rows, Counter({(n, n % _KEYS): times for n, times in numbers.items()}))
        _same("sums", self._sums(), Counter(map(self._sum, range(_KEYS))))
        windows = Counter({_second(start): int(rows) for start, rows in self._rows("windows")})
        _same("windows", windows, Counter({**self._in_windows(), **self._in_open_windows}))
        tight = self.late()
        for start, count in self._rows("tight"):
            tight[_second(start)] += int(count)
        _same("windows that close, with what came later", tight, self._in_windows())

    def late(self) -> Counter[str]:
        """How many rows were late, by window."""
        found: Counter[str] = Counter()
        for _, _, start, _, weight in self._rows("late"):
            found[_second(start)] += int(weight)
        return found

    def _rows(self, name: str) -> list[list[str]]:
        with (self._folder / f"{name}.csv").open(newline="") as file:
            return list(csv.reader(file))[1:]

    def _sums(self) -> Counter[tuple[str, ...]]:
        """Those that are not taken back."""
        found: Counter[tuple[str, ...]] = Counter()
        for *row, weight in (
            self._rows("sums") if self._mode == "changes" else _with_weights(self._rows("sums"))
        ):
            found[tuple(row)] += int(weight)
        return Counter({row: times for row, times in found.items() if times})

    def _sum(self, key: int) -> tuple[str, ...]:
        numbers = [n for n in self._numbers if n % _KEYS == key]
        return f"name-{key}", str(len(numbers)), str(sum(numbers))


def _with_weights(rows: Iterable[list[str]]) -> list[list[str]]:
    return [[*row, "1"] for row in rows]


def _time(n: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_START + n))


def _second(text: str) -> str:
    return text.replace(" ", "T")[: len("2024-01-01T00:00:00")]


def _same(what: str, found: Counter[Any], wanted: Counter[Any]) -> None:
    if found != wanted:
        raise Violation(f"{what}: {wanted - found} is missing, {found - wanted} is too much")
