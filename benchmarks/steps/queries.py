"""What a query takes free, and in steps: the same query, the same files, whole trees of processes."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from benchmarks import flights
from benchmarks.running import ROOT
from benchmarks.work import Result, Work
from examples.nexmark import files as nexmark

from .addresses import free_addresses

MEMBERS = 2
CHECKPOINT_S = 10
DIGITS = 9
"""Of floats in results: they may differ by the order in which they were added."""
NEXMARK_STREAMS = {"q3": ("person", "auction"), "q5": ("bid",)}


@dataclass(frozen=True)
class Query:
    """A query's files, all of them in one folder or named by their whole paths, and where its result will be."""

    topology: Path
    query: Path
    result: Path


def beside(work: Work, _: str) -> Result:
    """Both ways, one after the other; both have to give the same rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = prepared(folder, work.options)
        free = _measured(query, [])
        given = _rows(query.result)
        state = ["--state", str(folder / "state")]
        steps = ["--stepped", "--members", str(MEMBERS), "--checkpoint-every", str(CHECKPOINT_S)]
        stepped = _measured(query, [*steps, *state])
        assert given, "the query has no result"
        assert _rows(query.result) == given, "the query gives something else in steps"
    measures = {
        "cpu_ratio": stepped["cpu_s"] / free["cpu_s"],
        "free_cpu_s": free["cpu_s"],
        "stepped_cpu_s": stepped["cpu_s"],
        "free_s": free["seconds"],
        "stepped_s": stepped["seconds"],
        "steps": stepped["steps"],
        "checkpoints": stepped["checkpoints"],
    }
    return Result(len(given), measures)


def prepared(folder: Path, options: Mapping[str, Any]) -> Query:
    """A query with so much to read."""
    if options["query"] == "flights":
        return _flights(folder, options["times"])
    return _nexmark(folder, options["query"], options["events"])


def _flights(folder: Path, times: int) -> Query:
    """The demo's three nodes, and its files so many times."""
    flights.prepare(folder, times)
    topology = flights.topology(folder, flights.THREE)
    _with_free_addresses(topology)
    (sink,) = (
        sink
        for node in yaml.safe_load(topology.read_text("utf-8"))["nodes"]
        for sink in node.get("sinks", ())
    )
    return Query(topology, flights.EXAMPLE / "query.json", Path(sink["path"]))


def _nexmark(folder: Path, name: str, events: int) -> Query:
    nexmark.write(folder, events, streams=NEXMARK_STREAMS[name])
    topology = folder / nexmark.ONE_NODE
    _with_free_addresses(topology)
    return Query(topology, nexmark.query(name), folder / f"{name}.parquet")


def _with_free_addresses(topology: Path) -> None:
    """Have nodes listen where nobody else does."""
    text = topology.read_text("utf-8")
    nodes = yaml.safe_load(text)["nodes"]
    named = [address for node in nodes for address in (node["address"], node["grpc"])]
    for address, free in zip(named, free_addresses(len(named)), strict=True):
        text = text.replace(address, free)
    topology.write_text(text, "utf-8")


def _measured(query: Query, options: list[str]) -> dict[str, float]:
    """Run it to its end: seconds, processor seconds of all of its processes, and what it says of itself."""
    command = [
        sys.executable,
        "-m",
        "nebuli",
        "run",
        str(query.topology),
        str(query.query),
        "--json",
        *options,
    ]
    before = _processor_s()
    began = time.perf_counter()
    ended = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    told = json.loads(ended.stdout)
    counted = {name: float(told[name]) for name in ("steps", "checkpoints") if name in told}
    return {"seconds": seconds, "cpu_s": _processor_s() - before, **counted}


def _processor_s() -> float:
    """Of all processes below this one that have ended, and below them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rows(path: Path) -> dict[str, int]:
    """How often each row is in a file, by a digest of its values; the file is gone then."""
    table = READERS[path.suffix](path)
    path.unlink()
    counts: dict[str, int] = {}
    for row in zip(*(_plain(table.column(name)) for name in sorted(table.column_names)), strict=True):
        digest = hashlib.blake2b(repr(row).encode(), digest_size=16).hexdigest()
        counts[digest] = counts.get(digest, 0) + 1
    return counts


READERS: Mapping[str, Callable[[Path], pa.Table]] = {".csv": pyarrow.csv.read_csv, ".parquet": pq.read_table}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [value if value is None else f"{value:.{DIGITS}g}" for value in values]
    return values
