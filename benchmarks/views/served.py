"""`nebuli run` of a query with views, whose processes are its own, and where its views are read."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.running import Failed
from benchmarks.steps.addresses import free_addresses

SECRET = "what who reads views of a benchmark has to know"  # noqa: S105 - nobody else's
STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 15.0
LOOK_S = 0.02
MB = 1e6


@dataclass(frozen=True)
class Served:
    """``run`` is where `nebuli run` serves all views, ``node`` the address of the node that the view is at."""

    run: str
    node: str
    pid: int

    @property
    def memory_mb(self) -> float:
        """Of all of its processes, with Python and all packages loaded."""
        first = psutil.Process(self.pid)
        return sum(each.memory_info().rss for each in (first, *first.children(recursive=True))) / MB


def topology(
    sources: Mapping[str, Mapping[str, Any]], schemas: Mapping[str, str], nodes: int
) -> dict[str, Any]:
    """All sources at the first of so many nodes in a row; of three the operators are at the second."""
    addresses = free_addresses(nodes)
    found: list[dict[str, Any]] = [{"address": address} for address in addresses]
    for above, below in zip(found, addresses[1:], strict=False):
        above["links"] = {"downstream": [below]}
    for idle in (found[0], found[-1]) if nodes > 1 else ():
        idle["capacity"] = 0
    found[0]["physical"] = [{"logical": name, **source} for name, source in sources.items()]
    return {
        "secret": {"file": "secret"},
        "logical": [{"name": name, "schema": _columns(schema)} for name, schema in schemas.items()],
        "nodes": found,
    }


def _columns(schema: str) -> list[dict[str, str]]:
    pairs = (column.split(": ") for column in schema.split(", "))
    return [{"name": name, "type": type_} for name, type_ in pairs]


@asynccontextmanager
async def served(
    folder: Path, given: Mapping[str, Any], operators: Sequence[Mapping[str, Any]]
) -> AsyncIterator[Served]:
    """Run the query in a folder, its last operator, a view, at the last node; it is gone with the context."""
    node = given["nodes"][-1]["address"]
    *others, view = operators
    (folder / "topology.yaml").write_text(yaml.safe_dump(given, sort_keys=False), "utf-8")
    (folder / "query.json").write_text(json.dumps({"operators": [*others, {**view, "node": node}]}), "utf-8")
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET, "utf-8")
    log = folder / "log"
    command = [sys.executable, "-P", "-m", "nebuli", "run", "topology.yaml", "query.json"]
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *command, "--serve", "127.0.0.1:0", cwd=folder, stderr=said
        )
    try:
        yield Served(await _address(process, log), node, process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(ENDS_WITHIN_S):
            await process.wait()


async def _address(process: Process, log: Path) -> str:
    async with asyncio.timeout(STARTS_WITHIN_S):
        while True:
            said = await asyncio.to_thread(log.read_text)
            if found := re.search(r"view \S+ at (\S+?),?\s", said):
                return found[1]
            if process.returncode is not None:
                raise Failed(f"nebuli run ended with {process.returncode} before it served views:\n{said}")
            await asyncio.sleep(LOOK_S)
